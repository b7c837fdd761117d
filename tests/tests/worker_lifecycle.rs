//! A worker's life as its supervisor sees it: start, state file, signals, the end of its parent, exit codes.

use std::fs;
use std::time::Duration;

use nix::sys::signal::Signal;
use sanctum_tests::live::checkpoint::smollm2;
use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::http::{json_request, try_send};
use sanctum_tests::live::poll::{PATIENCE, eventually};
use sanctum_tests::live::process::Process;
use sanctum_tests::live::script::Script;
use sanctum_tests::live::worker::{CHAT, Worker, command};
use serde_json::{Value, json};

/// From "at once" to a process that has ended, on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(3);

fn go(max_tokens: usize) -> Value {
    json!({"messages": [{"role": "user", "content": "go"}], "max_tokens": max_tokens})
}

async fn streams(worker: &Worker, count: usize, max_tokens: usize) -> Vec<EventStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let mut stream = EventStream::open(worker.address, CHAT, &go(max_tokens)).await;
        stream.first_text().await;
        streams.push(stream);
    }
    streams
}

#[tokio::test]
async fn it_answers_probes_while_it_loads_and_says_where_it_listens() {
    let worker = Worker::spawn(&smollm2(), &["--name", "smol", "--context", "512"]).await;
    assert_eq!(worker.get("/livez").await.status, 200);
    let ready = worker.get("/readyz").await;
    if ready.status == 503 {
        let state = ready.json();
        assert_eq!(state["status"], "loading");
        assert!(state["phase"].is_string() && state["progress"].is_number(), "{state}");
        let early = worker.post(CHAT, &go(1)).await;
        // It may have become ready in between.
        if early.status != 200 {
            assert_eq!(
                (early.status.as_u16(), early.json()["error"]["code"].as_str()),
                (503, Some("model_loading"))
            );
            assert!(!early.header("retry-after").is_empty());
        }
    }
    worker.idle(PATIENCE).await;
    let state: Value =
        serde_json::from_slice(&fs::read(worker.state_file()).expect("written")).expect("JSON");
    assert_eq!(state["pid"], worker.process.pid().as_raw());
    assert_eq!(
        (&state["address"], &state["model"]),
        (&json!(worker.address.to_string()), &json!("smol"))
    );
    let models = worker.get("/v1/models").await.ok();
    assert_eq!(models["data"][0]["id"], "smol");
    assert_eq!(models["data"][0]["max_model_len"], 512);
}

#[tokio::test]
async fn a_first_signal_lets_streams_finish() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let script = Script::repeats("0123456789");
        let mut worker = Worker::start(&script.path(), &["--slots", "4"]).await;
        let tokens = 1500;
        let streams = streams(&worker, 4, tokens).await;
        worker.process.signal(signal);
        eventually("the end of admission", AT_ONCE, async || {
            match try_send(worker.address, json_request(CHAT, &go(1))).await {
                Ok(reply) if reply.status == 200 => Err("a new request was served".to_owned()),
                Ok(reply) => {
                    assert_eq!(reply.status, 503, "{}", reply.text());
                    assert!(!reply.header("retry-after").is_empty());
                    Ok(())
                }
                Err(_) => Ok(()),
            }
        })
        .await;
        for stream in streams {
            let rest = stream.finish().await.well_ended();
            assert_eq!(rest.finish_reasons(0), ["length"], "{signal} cut a stream");
            assert_eq!(rest.text(0).len(), tokens - 1, "all but the first token, read before");
        }
        assert_eq!(worker.process.exit_code(AT_ONCE).await, 0);
        assert!(!worker.state_file().exists(), "the state file goes with the process");
    }
}

#[tokio::test]
async fn a_second_signal_does_not_wait() {
    let script = Script::repeats("0123456789");
    let mut worker = Worker::start(&script.path(), &[]).await;
    let streams = streams(&worker, 2, 60_000).await;
    worker.process.signal(Signal::SIGTERM);
    eventually("draining", AT_ONCE, async || {
        // Refused connections and 503 both show that the first signal has arrived.
        match try_send(worker.address, json_request(CHAT, &go(1))).await {
            Ok(reply) if reply.status == 200 => Err("still serving".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    assert_eq!(worker.process.ended(), None, "two streams are under way");
    worker.process.signal(Signal::SIGTERM);
    assert_eq!(worker.process.exit_code(AT_ONCE).await, 0);
    assert!(!worker.state_file().exists());
    for stream in streams {
        let rest = stream.finish().await;
        assert!(!rest.done, "a cut stream must not look finished");
    }
}

#[tokio::test]
async fn streams_beyond_the_drain_limit_are_cut() {
    let script = Script::repeats("0123456789");
    let mut worker = Worker::start(&script.path(), &["--drain-seconds", "1"]).await;
    let streams = streams(&worker, 1, 60_000).await;
    worker.process.signal(Signal::SIGTERM);
    assert_eq!(worker.process.exit_code(Duration::from_secs(1) + AT_ONCE).await, 0);
    for stream in streams {
        assert!(!stream.finish().await.done, "a cut stream must not look finished");
    }
}

#[tokio::test]
async fn it_ends_with_its_parent_if_told_so() {
    let script = Script::says("ok");
    let mut child = Worker::start(&script.path(), &["--exit-with-parent"]).await;
    let mut orphan = Worker::start(&script.path(), &[]).await;
    orphan.process.close_input();
    child.process.close_input();
    assert_eq!(child.process.exit_code(AT_ONCE).await, 0);
    assert_eq!(orphan.post(CHAT, &go(2)).await.status, 200, "nobody told it to");
    assert_eq!(orphan.process.ended(), None);
}

#[tokio::test]
async fn a_taken_port_is_said_in_one_line() {
    let script = Script::says("ok");
    let first = Worker::start(&script.path(), &[]).await;
    let address = first.address.to_string();
    let state_file = script.path().join("second.json");
    let mut second =
        Process::start(&mut command(&script.path(), &state_file, &["--listen", &address]));
    assert_eq!(second.exit_code(PATIENCE).await, 69);
    let said = second.err();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(&address) && said.contains("taken"), "{said}");
    assert!(!state_file.exists());
    assert_eq!(first.post(CHAT, &go(2)).await.status, 200);
}

#[tokio::test]
async fn wrong_arguments_are_wrong_usage() {
    let script = Script::says("ok");
    let nowhere = script.path().join("worker.json");
    for args in
        [&["--slots", "0"][..], &["--slot", "1"], &["--listen", "nowhere"], &["--form", "fast"]]
    {
        let mut process = Process::start(&mut command(&script.path(), &nowhere, args));
        assert_eq!(process.exit_code(PATIENCE).await, 2, "{args:?}");
        let flag = args[0].trim_start_matches('-');
        assert!(process.err().contains(flag), "{}", process.err());
    }
}
