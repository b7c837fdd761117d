//! A fleet under load for minutes while its workers are killed one after the other: `make soak`.
//!
//! Nobody waits for it in `make test`; it is for releases and for hunting leaks. `SANCTUM_SOAK_SECONDS` says how long.
//! Promised: while one of two workers lives, every whole reply is good and every stream ends either well or with an
//! error event; afterwards nothing runs on, and neither memory nor descriptors of the router have grown with the load.

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::fleet::{Fleet, two_real_workers};
use sanctum_tests::live::http::post;
use sanctum_tests::live::poll::{PATIENCE, eventually};
use sanctum_tests::live::worker::CHAT;
use serde_json::{Value, json};

const WORKERS: [&str; 2] = ["smollm2-a", "smollm2-b"];
const CLIENTS: u64 = 6;
/// Between two kills: each worker dies less often than the five times a minute that would park it.
const BETWEEN_KILLS: Duration = Duration::from_secs(20);
const DEFAULT_SECONDS: u64 = 300;
/// What the router may hold more at the end than after its warm-up, in kB: allocators do not give everything back.
const GROWTH_KB: u64 = 32 << 10;
/// Descriptors it may hold more: idle connections to workers.
const GROWTH_DESCRIPTORS: usize = 16;

#[derive(Default)]
struct Counts {
    whole: AtomicU64,
    streamed: AtomicU64,
    cut: AtomicU64,
    left: AtomicU64,
}

fn ask(client: u64, turn: u64) -> Value {
    let seat = ["council-secure", "coder", "yoda"][(client % 3) as usize];
    json!({"model": seat, "seed": turn, "temperature": 1.0, "max_tokens": 8 + turn % 40,
           "messages": [{"role": "user", "content": format!("Tell story {turn} of client {client}.")}]})
}

/// One client: whole replies, streams read to the end, and streams left early, in turns.
async fn client(address: SocketAddr, number: u64, stop: Arc<AtomicBool>, counts: Arc<Counts>) {
    let mut turn = number;
    while !stop.load(Ordering::Relaxed) {
        let body = ask(number, turn);
        match turn % 3 {
            0 => {
                let reply = post(address, CHAT, &body).await;
                assert_eq!(reply.status, 200, "{}", reply.text());
                assert!(reply.json()["usage"]["completion_tokens"].as_u64().is_some());
                counts.whole.fetch_add(1, Ordering::Relaxed);
            }
            1 => {
                let transcript = EventStream::open(address, CHAT, &body).await.finish().await;
                assert_eq!(transcript.broken, None, "the client's connection ends well");
                let cut = transcript.error().is_some();
                assert_ne!(cut, transcript.done, "either an error event or [DONE]");
                let counter = if cut { &counts.cut } else { &counts.streamed };
                counter.fetch_add(1, Ordering::Relaxed);
            }
            _ => {
                let mut stream = EventStream::open(address, CHAT, &body).await;
                stream.next().await;
                drop(stream);
                counts.left.fetch_add(1, Ordering::Relaxed);
            }
        }
        turn += 1;
    }
}

/// Resident memory in kB and open descriptors; `None` where there is no /proc.
fn held(pid: Pid) -> Option<(u64, usize)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let resident = line.split_whitespace().nth(1)?.parse().ok()?;
    Some((resident, fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count()))
}

async fn kill_and_await(fleet: &Fleet, worker: &str) {
    let pid = fleet.worker_pid(worker).await;
    kill(pid, Signal::SIGKILL).expect("killed");
    eventually("another process", PATIENCE, async || {
        let state = fleet.backend(worker).await;
        let back = state["state"] == "ready" && state["worker"]["pid"] != i64::from(pid.as_raw());
        if back { Ok(()) } else { Err(state.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes minutes by design: make soak"]
async fn a_fleet_lives_through_load_and_killing() {
    let seconds = std::env::var("SANCTUM_SOAK_SECONDS");
    let seconds =
        seconds.map_or(DEFAULT_SECONDS, |text| text.parse().expect("a number of seconds"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let fleet = Fleet::start(&two_real_workers(), &WORKERS).await;
    let (stop, counts) = (Arc::new(AtomicBool::new(false)), Arc::new(Counts::default()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            tokio::spawn(client(fleet.address, number, Arc::clone(&stop), Arc::clone(&counts)))
        })
        .collect();

    let mut after_warm_up = None;
    for round in 0_usize.. {
        tokio::time::sleep(BETWEEN_KILLS.min(end.saturating_duration_since(Instant::now()))).await;
        after_warm_up = after_warm_up.or_else(|| held(fleet.router.pid()));
        if Instant::now() >= end {
            break;
        }
        assert!(!clients.iter().any(tokio::task::JoinHandle::is_finished), "a client has failed");
        kill_and_await(&fleet, WORKERS[round % 2]).await;
    }
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("a client saw only good replies");
    }

    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let done = [&counts.whole, &counts.streamed, &counts.left].map(count);
    println!("whole, streamed, left: {done:?}; cut by a kill: {}", count(&counts.cut));
    assert!(done.iter().all(|&n| n > 0), "every kind of request was made: {done:?}");
    let quiet = held(fleet.router.pid());
    println!("router, kB and descriptors: {after_warm_up:?} after warm-up, {quiet:?} at the end");
    if let (Some(before), Some(after)) = (after_warm_up, quiet) {
        assert!(after.0 < before.0 + GROWTH_KB, "memory grew from {} to {} kB", before.0, after.0);
        assert!(after.1 <= before.1 + GROWTH_DESCRIPTORS, "{before:?} became {after:?}");
    }
}
