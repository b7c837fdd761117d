//! Real workers die, and the fleet goes on; the router dies, and nothing is left.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::fleet::{Fleet, gone, two_real_workers};
use sanctum_tests::live::poll::{PATIENCE, eventually};
use sanctum_tests::live::worker::CHAT;
use serde_json::{Value, json};

const WORKERS: [&str; 2] = ["smollm2-a", "smollm2-b"];
/// From a worker's death to its successor's first answer.
const BACK: Duration = Duration::from_secs(10);
/// From the end of a router to the end of its workers.
const SOON: Duration = Duration::from_secs(5);

fn ask(seat: &str, max_tokens: usize) -> Value {
    json!({"model": seat, "messages": [{"role": "user", "content": "Count from one to a hundred."}],
           "max_tokens": max_tokens, "ignore_eos": true})
}

/// Processes whose command line names a file of `dir`. Linux only: elsewhere it sees none.
fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.to_string_lossy();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter(|entry| {
            entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit())
        })
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .map(|words| String::from_utf8_lossy(&words).replace('\0', " "))
        .filter(|line| line.contains(&*dir))
        .collect()
}

/// Asks `seat` until `backend` answers it; every answer until then must be good as well.
async fn answered_by(fleet: &Fleet, seat: &str, backend: &str, limit: Duration) {
    eventually(&format!("an answer of {backend}"), limit, async || {
        let reply = fleet.post(CHAT, &ask(seat, 2)).await;
        assert_eq!(reply.status, 200, "while {backend} is away: {}", reply.text());
        let by = reply.header("x-sanctum-backend").to_owned();
        if by == backend { Ok(()) } else { Err(by) }
    })
    .await;
}

async fn end_of_all(fleet: &Fleet, workers: &[Pid]) {
    for pid in workers {
        gone(*pid, SOON).await;
    }
    let dir = fleet.file().parent().expect("a directory").to_owned();
    eventually("the end of every process", SOON, async || {
        let left = processes_of(&dir);
        if left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
    })
    .await;
}

#[tokio::test]
async fn a_killed_worker_is_stood_in_for_and_comes_back() {
    let mut fleet = Fleet::start(&two_real_workers(), &WORKERS).await;
    answered_by(&fleet, "council-secure", "smollm2-a", PATIENCE).await;
    let first = fleet.worker_pid("smollm2-a").await;

    // Killed while it streams: what was said stays, and the client is told that it is not all.
    let mut stream = EventStream::open(fleet.address, CHAT, &ask("council-secure", 1500)).await;
    assert_eq!(stream.headers["x-sanctum-backend"], "smollm2-a");
    stream.first_text().await;
    let killed = Instant::now();
    kill(first, Signal::SIGKILL).expect("killed");
    let rest = stream.finish().await;
    let error = rest.error().unwrap_or_else(|| panic!("no error event: {:?}", rest.chunks.last()));
    assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
    assert!(!rest.done, "a cut stream must not end with [DONE]");
    assert_eq!(rest.broken, None, "the client's connection ends well");
    assert_eq!(rest.finish_reasons(0), Vec::<&str>::new(), "a cut reply has no finish reason");

    // The sibling answers at once.
    let reply = fleet.post(CHAT, &ask("council-secure", 4)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("x-sanctum-backend"), "smollm2-b");
    // And within ten seconds of the kill the worker is back; no request has failed meanwhile.
    answered_by(&fleet, "council-secure", "smollm2-a", BACK.saturating_sub(killed.elapsed())).await;
    let second = fleet.worker_pid("smollm2-a").await;
    assert_ne!(first, second);
    let state = fleet.backend("smollm2-a").await;
    assert_eq!(state["worker"]["restarts"], 1, "{state}");
    assert!(
        state["worker"]["last_exit"]["reason"]
            .as_str()
            .is_some_and(|why| why.contains("kill") || why.contains('9')),
        "{state}"
    );

    // Ctrl-C, with a stream under way that ends soon.
    let mut stream = EventStream::open(fleet.address, CHAT, &ask("coder", 60)).await;
    stream.first_text().await;
    let workers = [second, fleet.worker_pid("smollm2-b").await];
    fleet.router.signal(Signal::SIGINT);
    let rest = stream.finish().await.well_ended();
    assert_eq!(rest.finish_reasons(0), ["length"], "the stream was let finish");
    assert_eq!(fleet.router.exit_code(PATIENCE).await, 0);
    end_of_all(&fleet, &workers).await;
}

#[tokio::test]
async fn a_killed_router_leaves_no_worker() {
    let mut fleet = Fleet::start(&two_real_workers(), &WORKERS).await;
    let mut workers = Vec::new();
    for name in WORKERS {
        workers.push(fleet.worker_pid(name).await);
    }
    let mut stream = EventStream::open(fleet.address, CHAT, &ask("coder", 1500)).await;
    stream.first_text().await;
    fleet.router.signal(Signal::SIGKILL);
    let rest = stream.finish().await;
    assert!(!rest.done, "a cut stream must not end with [DONE]");
    eventually("the router's end", PATIENCE, async || {
        fleet.router.ended().map(drop).ok_or_else(|| "alive".to_owned())
    })
    .await;
    end_of_all(&fleet, &workers).await;
}
