//! How the router's process begins and ends: ports, configuration, signals.

use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use sanctum_tests::live::backend::FakeBackend;
use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::fleet::Fleet;
use sanctum_tests::live::http::try_send;
use sanctum_tests::live::poll::{PATIENCE, eventually};
use sanctum_tests::live::process::{Process, binary};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn chat(seat: &str) -> Value {
    json!({"model": seat, "messages": []})
}

async fn fleet(fake: &FakeBackend, settings: &str) -> Fleet {
    let seats: [(&str, &[&str]); 2] = [("slow", &["slow:30"]), ("endless", &["endless"])];
    Fleet::spawn(&(settings.to_owned() + &fake.instance(&seats))).await
}

#[tokio::test]
async fn a_drain_lets_fifty_streams_finish() {
    let fake = FakeBackend::start().await;
    let mut fleet = fleet(&fake, "").await;
    let streams: Vec<_> = (0..50)
        .map(|_| {
            let address = fleet.address;
            tokio::spawn(async move {
                EventStream::open(address, CHAT, &chat("slow")).await.finish().await.well_ended()
            })
        })
        .collect();
    fake.counted("slow:30", "begun", 50).await;
    fleet.router.signal(Signal::SIGTERM);
    let address = fleet.address;
    eventually("the listener's end", PATIENCE, async || {
        let get = sanctum_tests::live::http::request(
            &http::Method::GET,
            "/livez",
            &[],
            bytes::Bytes::new(),
        );
        match try_send(address, get).await {
            Ok(reply) => Err(reply.text()),
            Err(_) => Ok(()),
        }
    })
    .await;
    for stream in streams {
        assert_eq!(stream.await.expect("no panic").pieces(0).len(), 30);
    }
    assert_eq!(fleet.router.exit_code(PATIENCE).await, 0);
    let state = fleet.file().parent().expect("a directory").join("state/router.json");
    assert!(!state.exists(), "router.json outlives the router");
}

#[tokio::test]
async fn a_drain_has_a_limit_and_a_second_signal_ends_it() {
    let fake = FakeBackend::start().await;
    for (settings, signals) in
        [("timeouts: { drain_s: 1 }\n", 1), ("timeouts: { drain_s: 300 }\n", 2)]
    {
        let mut fleet = fleet(&fake, settings).await;
        let mut stream = EventStream::open(fleet.address, CHAT, &chat("endless")).await;
        stream.first_text().await;
        let began = Instant::now();
        fleet.router.signal(Signal::SIGTERM);
        if signals == 2 {
            eventually("the begin of the drain", PATIENCE, async || {
                let log = fleet.router.err();
                if log.contains("draining") { Ok(()) } else { Err(log) }
            })
            .await;
            fleet.router.signal(Signal::SIGINT);
        }
        assert_eq!(fleet.router.exit_code(PATIENCE).await, 0);
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    }
}

#[tokio::test]
async fn a_taken_port_is_one_line_and_exit_69() {
    let fake = FakeBackend::start().await;
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("instance.yaml");
    let taken = fake.address;
    let text = format!(
        "listen: [\"{taken}\"]\nadmin: \"127.0.0.1:0\"\nstate_dir: state\n{}",
        fake.instance(&[("s", &["normal"])])
    );
    std::fs::write(&file, text).expect("written");
    let mut router =
        Process::start(Command::new(binary("sanctum-router")).arg("--config").arg(&file));
    assert_eq!(router.exit_code(PATIENCE).await, 69);
    let said = router.err();
    assert_eq!(
        said.trim(),
        format!("cannot listen on {taken}: the port is taken by another process")
    );
}

#[tokio::test]
async fn a_wrong_instance_is_exit_78_before_any_port_is_bound() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("instance.yaml");
    std::fs::write(&file, "seatz: {}\n").expect("written");
    let mut router =
        Process::start(Command::new(binary("sanctum-router")).arg("--instance").arg(&file));
    assert_eq!(router.exit_code(PATIENCE).await, 78);
    assert!(router.err().contains("instance.yaml:1:1"), "{}", router.err());
}
