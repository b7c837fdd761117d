//! A client that leaves takes its work with it, streamed or not.

use std::time::Duration;

use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::http::{json_request, try_send};
use sanctum_tests::live::poll::{PATIENCE, eventually};
use sanctum_tests::live::script::Script;
use sanctum_tests::live::worker::{CHAT, Worker};
use serde_json::{Value, json};
use tokio::time::timeout;

/// From a client's leaving to an engine that holds nothing of it. A step of this model takes about a millisecond; the
/// rest is for a machine with other things to do.
const SOON: Duration = Duration::from_millis(500);

/// A reply that would take minutes.
fn endless() -> Value {
    json!({"messages": [{"role": "user", "content": "go"}], "max_tokens": 60_000})
}

async fn running(worker: &Worker, count: usize) {
    eventually("running requests", PATIENCE, async || {
        let state = worker.get("/readyz").await.json();
        if state["running"] == count { Ok(()) } else { Err(state.to_string()) }
    })
    .await;
}

/// Fails unless the worker counts `cancelled` sequences as cancelled, none as failed, and has nothing in flight.
async fn only_cancelled(worker: &Worker, cancelled: f64) {
    eventually("the end of HTTP requests", SOON, async || {
        let metrics = worker.metrics().await;
        // The scrape itself is in flight.
        let inflight = metrics.sum("sanctum_mlx_http_inflight_requests", &[]);
        if inflight <= 1.0 { Ok(()) } else { Err(format!("{inflight} in flight")) }
    })
    .await;
    let metrics = worker.metrics().await;
    let ended = |reason: &str| {
        metrics.sum("sanctum_mlx_inference_requests_total", &[&format!("stop_reason=\"{reason}\"")])
    };
    assert_eq!((ended("cancelled"), ended("error")), (cancelled, 0.0));
    assert_eq!(metrics.sum("sanctum_mlx_kv_cache_bytes", &[]), 0.0, "caches of clients who left");
}

#[tokio::test]
async fn a_stream_ends_with_its_client() {
    let script = Script::repeats("0123456789");
    let worker = Worker::start(&script.path(), &["--slots", "4"]).await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = EventStream::open(worker.address, CHAT, &endless()).await;
        stream.first_text().await;
        streams.push(stream);
    }
    running(&worker, 3).await;
    drop(streams.pop());
    eventually("two left", SOON, async || {
        let state = worker.get("/readyz").await.json();
        if state["running"] == 2 { Ok(()) } else { Err(state.to_string()) }
    })
    .await;
    // The others go on.
    for stream in &mut streams {
        assert!(!stream.first_text().await.is_empty());
    }
    drop(streams);
    worker.idle(SOON).await;
    only_cancelled(&worker, 3.0).await;
}

#[tokio::test]
async fn a_whole_reply_ends_with_its_client() {
    let script = Script::repeats("0123456789");
    let worker = Worker::start(&script.path(), &["--slots", "1"]).await;
    let ask = |n: usize| {
        let mut body = endless();
        body["n"] = json!(n);
        tokio::spawn(try_send(worker.address, json_request(CHAT, &body)))
    };
    // One runs, one waits in the queue: neither has sent a byte.
    let asked = [ask(1), ask(1)];
    eventually("one runs and one waits", PATIENCE, async || {
        let state = worker.get("/readyz").await.json();
        let both = state["running"] == 1 && state["waiting"] == 1;
        if both { Ok(()) } else { Err(state.to_string()) }
    })
    .await;
    asked.iter().for_each(tokio::task::JoinHandle::abort);
    worker.idle(SOON).await;
    only_cancelled(&worker, 2.0).await;
    // The slot is free for the next client.
    let next = json!({"messages": [{"role": "user", "content": "go"}], "max_tokens": 2});
    let reply = timeout(SOON, worker.post(CHAT, &next)).await.expect("a free slot");
    assert_eq!(reply.ok()["choices"][0]["message"]["content"], "01");
}

#[tokio::test]
async fn all_choices_end_with_their_client() {
    let script = Script::repeats("0123456789");
    let worker = Worker::start(&script.path(), &["--slots", "2"]).await;
    let mut body = endless();
    body["n"] = json!(3);
    let mut stream = EventStream::open(worker.address, CHAT, &body).await;
    stream.first_text().await;
    running(&worker, 2).await;
    drop(stream);
    worker.idle(SOON).await;
    only_cancelled(&worker, 3.0).await;
}
