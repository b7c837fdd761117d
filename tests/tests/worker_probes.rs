//! Probes answer within 50 ms while every slot decodes, a queue waits and prompts are computed.

use std::time::{Duration, Instant};

use sanctum_tests::live::checkpoint::smollm2;
use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::poll::{PATIENCE, eventually};
use sanctum_tests::live::worker::{CHAT, Worker};
use serde_json::json;

/// The promise.
const LIMIT: Duration = Duration::from_millis(50);
const ROUNDS: usize = 60;
const ROUTES: [&str; 4] = ["/livez", "/readyz", "/v1/models", "/metrics"];
const SLOTS: usize = 4;
const WAITING: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_answer_under_full_load() {
    let worker = Worker::start(&smollm2(), &["--slots", "4", "--context", "4096"]).await;
    // Streams that would go on for minutes, behind prompts that take a while.
    let long = "The river flows by the old stone bridge. ".repeat(60);
    let body = json!({"messages": [{"role": "user", "content": long}], "max_tokens": 3000,
                      "ignore_eos": true, "stream": true});
    let load: Vec<_> = (0..SLOTS + WAITING)
        .map(|_| {
            let (address, body) = (worker.address, body.clone());
            tokio::spawn(
                async move { EventStream::open(address, CHAT, &body).await.finish().await },
            )
        })
        .collect();
    eventually("full load", PATIENCE, async || {
        let state = worker.get("/readyz").await.json();
        let full = state["running"] == SLOTS && state["waiting"] == WAITING;
        if full { Ok(()) } else { Err(state.to_string()) }
    })
    .await;

    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        for route in ROUTES {
            let begun = Instant::now();
            let reply = worker.get(route).await;
            took.push((begun.elapsed(), route));
            assert_eq!(reply.status, 200, "{route}");
            if route == "/readyz" {
                let state = reply.json();
                assert_eq!(state["running"], SLOTS, "the load went away: {state}");
            }
        }
    }
    load.iter().for_each(tokio::task::JoinHandle::abort);

    took.sort();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
    // The test's own client runs on the cores that compute: one probe in a hundred may pay for that.
    println!("median {:?}, 99 % {:?}, longest {:?}", at(0.5), at(0.99), at(1.0));
    assert!(at(0.5).0 < LIMIT / 5, "half of the probes took more than {:?}", at(0.5));
    assert!(at(0.99).0 < LIMIT, "99 % of the probes took up to {:?}", at(0.99));
}
