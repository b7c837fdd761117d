//! Workers live as long as their router wants them to: replaced without a gap, ended without a trace.
//!
//! FAULTS 17 and 18. The workers are fakes, the router and its command are real.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use futures_util::future::join_all;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::fleet::{Fleet, gone};
use sanctum_tests::live::poll::{PATIENCE, eventually};
use sanctum_tests::live::process::{Process, binary, is_alive};
use serde_json::{Value, json};

/// Callers that ask all through a restart, each as fast as it is answered.
const ASKERS: usize = 16;

const CHAT: &str = "/v1/chat/completions";

fn instance(worker: &str) -> String {
    let fake = env!("CARGO_BIN_EXE_fake-worker");
    format!(
        "worker_binary: {fake}\nmodels: {{ small: {{ path: none }} }}\ntimeouts: {{ drain_s: 20 }}\n\
         health: {{ interval_ms: 50 }}\nbackends: {{ a: {{ worker: {{ model: small, {worker} }} }} }}\n\
         seats: {{ seat: {{ backends: [a] }} }}\n"
    )
}

fn hello() -> Value {
    json!({"model": "seat", "messages": [{"role": "user", "content": "hello"}]})
}

fn state_files(fleet: &Fleet) -> Vec<String> {
    let dir = fleet.file().with_file_name("state").join("workers");
    let entries = fs::read_dir(dir).expect("the directory");
    entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect()
}

/// The id that a fake wrote to a file.
async fn pid_in(file: &Path) -> Pid {
    eventually("an id in the file", PATIENCE, async || {
        let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
        text.parse().map(Pid::from_raw).map_err(|_| text)
    })
    .await
}

#[tokio::test]
async fn a_rolling_restart_fails_no_request_and_lets_streams_end() {
    let env = "env: { FAKE_TOKENS: '400', FAKE_TOKEN_MS: '5', FAKE_READY_AFTER_MS: '300' }";
    let fleet = Fleet::start(&instance(env), &["a"]).await;
    let old = fleet.worker_pid("a").await;
    let mut stream = EventStream::open(fleet.address, CHAT, &hello()).await;
    stream.first_text().await;

    let mut short = hello();
    short["max_tokens"] = 1.into();
    let first = fleet.post(CHAT, &short).await.ok()["system_fingerprint"].clone();
    let ask = async || {
        let mut asked = 0;
        loop {
            asked += 1;
            let reply = fleet.post(CHAT, &short).await;
            if reply.ok()["system_fingerprint"] != first {
                return asked;
            }
        }
    };
    let asking = join_all((0..ASKERS).map(|_| ask()));
    let (asked, said) = tokio::join!(asking, fleet.sanctum(&["restart", "a"]));
    assert_eq!(said.code, 0, "{}", said.err);
    assert!(said.out.contains("ready before the old worker was told to stop"), "{}", said.out);
    assert!(
        asked.iter().all(|asked| *asked > 1),
        "{asked:?}: requests were answered all through the restart"
    );

    let new = fleet.worker_pid("a").await;
    assert_ne!(new, old);
    assert!(is_alive(old), "it still has a stream to finish");
    let mut done = false;
    while let Some(event) = stream.next().await {
        done |= event == sanctum_tests::live::events::Event::Done;
    }
    assert!(done, "the stream ended early: {:?}", stream.broken);
    gone(old, PATIENCE).await;
    assert_eq!(state_files(&fleet).len(), 1, "only the new worker's file is left");
    let backend = fleet.backend("a").await;
    assert_eq!((&backend["state"], &backend["worker"]["restarts"]), (&json!("ready"), &json!(1)));
}

#[tokio::test]
async fn a_successor_that_fails_leaves_the_old_worker_in_place() {
    let dir = tempfile::tempdir().expect("a directory");
    let once = dir.path().join("once");
    let env = format!("env: {{ FAKE_EXIT_CODE: '5', FAKE_EXIT_ONCE: '{}' }}", once.display());
    let fleet = Fleet::start(&instance(&env), &["a"]).await;
    let old = fleet.worker_pid("a").await;
    fs::write(&once, "").expect("written");
    let said = fleet.sanctum(&["restart", "a"]).await;
    assert_eq!(said.code, 1, "{}", said.out);
    assert!(said.err.contains("it failed (exit code 5)"), "{}", said.err);
    assert_eq!(fleet.worker_pid("a").await, old);
    fleet.post(CHAT, &hello()).await.ok();
}

#[tokio::test]
async fn a_successor_that_loads_for_ever_is_given_up() {
    let dir = tempfile::tempdir().expect("a directory");
    let once = dir.path().join("once");
    let env =
        format!("env: {{ FAKE_READY_AFTER_MS: '600000', FAKE_EXIT_ONCE: '{}' }}", once.display());
    let text = format!("restart: {{ takeover_s: 1 }}\n{}", instance(&env));
    let fleet = Fleet::start(&text, &["a"]).await;
    let old = fleet.worker_pid("a").await;
    for _ in 0..2 {
        // Twice: the first does not stand in the way of the second.
        fs::write(&once, "").expect("written");
        let said = fleet.sanctum(&["restart", "a"]).await;
        assert_eq!(said.code, 1, "{}", said.out);
        assert!(said.err.contains("was not ready within 1 s"), "{}", said.err);
        assert!(said.err.contains("the old one serves on"), "{}", said.err);
    }
    assert_eq!(fleet.worker_pid("a").await, old);
    fleet.post(CHAT, &hello()).await.ok();
}

#[tokio::test]
async fn restarts_of_what_is_not_ours_are_refused_plainly() {
    let text =
        "backends: { far: { url: 'http://127.0.0.1:9/v1' } }\nseats: { s: { backends: [far] } }\n";
    let fleet = Fleet::spawn(text).await;
    let unknown = fleet.sanctum(&["restart", "fra"]).await;
    assert_eq!(unknown.code, 1);
    assert!(unknown.err.contains("there is no backend `fra`"), "{}", unknown.err);
    let url = fleet.sanctum(&["restart", "far"]).await;
    assert!(url.err.contains("is a URL"), "{}", url.err);
}

#[tokio::test]
async fn sigterm_ends_worker_and_grandchild_and_leaves_no_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let child = dir.path().join("child");
    let env = format!("env: {{ FAKE_CHILD: '{}' }}", child.display());
    let mut fleet = Fleet::start(&instance(&env), &["a"]).await;
    let worker = fleet.worker_pid("a").await;
    let grandchild = pid_in(&child).await;
    assert!(is_alive(grandchild));
    fleet.router.signal(Signal::SIGTERM);
    assert_eq!(fleet.router.exit_code(PATIENCE).await, 0);
    assert!(!is_alive(worker), "the router ended before its worker did");
    gone(grandchild, PATIENCE).await;
    assert_eq!(state_files(&fleet), Vec::<String>::new());
    assert!(!fleet.file().with_file_name("state").join("router.json").exists());
}

#[tokio::test]
async fn a_second_sigterm_kills_what_does_not_end() {
    let mut fleet = Fleet::start(&instance("env: { FAKE_IGNORE_TERM: '1' }"), &["a"]).await;
    let worker = fleet.worker_pid("a").await;
    fleet.router.signal(Signal::SIGTERM);
    eventually("draining", PATIENCE, async || {
        let log = fleet.router.err();
        if log.contains("draining") { Ok(()) } else { Err(log) }
    })
    .await;
    fleet.router.signal(Signal::SIGTERM);
    assert_eq!(fleet.router.exit_code(Duration::from_secs(10)).await, 0);
    gone(worker, PATIENCE).await;
}

#[tokio::test]
async fn a_killed_router_takes_its_workers_with_it() {
    let mut fleet = Fleet::start(&instance(""), &["a"]).await;
    let worker = fleet.worker_pid("a").await;
    fleet.router.signal(Signal::SIGKILL);
    gone(worker, PATIENCE).await;
    let _ = fleet.router.ended();
}

#[tokio::test]
async fn workers_that_outlive_their_router_are_ended_by_the_next_one() {
    let env = "env: { FAKE_ORPHAN: '1', FAKE_IGNORE_TERM: '1' }";
    let fleet = Fleet::start(&instance(env), &["a"]).await;
    let orphan = fleet.worker_pid("a").await;
    fleet.router.signal(Signal::SIGKILL);

    // A file that names a process which is no worker of ours: ids are used again by others.
    let mut bystander = Process::start(Command::new("sleep").arg("600"));
    let forged = fleet.file().with_file_name("state").join("workers").join("a.77.json");
    let state = json!({"pid": bystander.pid().as_raw(), "address": "127.0.0.1:9", "model": "small", "started_unix": 1});
    fs::write(&forged, state.to_string()).expect("written");
    assert!(is_alive(orphan), "it was told to stay");

    let mut command = Command::new(binary("sanctum-router"));
    let mut second = Process::start(command.arg("--instance").arg(fleet.file()));
    gone(orphan, PATIENCE).await;
    fleet_is_ready(&fleet).await;
    assert!(bystander.ended().is_none(), "the bystander was not ours to end");
    assert!(!forged.exists(), "a stale file is removed");
    let worker = fleet.worker_pid("a").await;
    // This worker ignores SIGTERM and its parent's end, so that it is ours to end here.
    second.signal(Signal::SIGTERM);
    kill(worker, Signal::SIGKILL).expect("it runs");
    second.exit_code(PATIENCE).await;
}

async fn fleet_is_ready(fleet: &Fleet) {
    eventually("the second router's worker", PATIENCE, async || {
        let said = fleet.sanctum(&["status", "--json"]).await;
        let status: Value = serde_json::from_str(&said.out).map_err(|_| said.err)?;
        let state = &status["backends"][0]["state"];
        if state == "ready" { Ok(()) } else { Err(state.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn two_routers_do_not_share_a_state_directory() {
    let fleet = Fleet::start(&instance(""), &["a"]).await;
    let worker = fleet.worker_pid("a").await;
    let mut command = Command::new(binary("sanctum-router"));
    let mut second = Process::start(command.arg("--instance").arg(fleet.file()));
    assert_ne!(second.exit_code(PATIENCE).await, 0);
    let said = second.err();
    assert!(said.contains("another router runs on the state directory"), "{said}");
    assert_eq!(fleet.worker_pid("a").await, worker, "the first one's worker is untouched");
}

#[tokio::test]
async fn a_worker_writes_its_own_log() {
    let fleet = Fleet::spawn(&instance("env: { FAKE_EXIT_CODE: '78' }")).await;
    let log = fleet.file().with_file_name("state").join("logs/a.log");
    eventually("the worker's words", PATIENCE, async || {
        let text = fs::read_to_string(&log).map_err(|error| error.to_string())?;
        if text.contains("exit code 78, as asked") { Ok(()) } else { Err(text) }
    })
    .await;
}
