//! A client that leaves ends its request at the backend, whatever the phase; one that does not read is cut.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderValue, Method};
use sanctum_tests::live::backend::FakeBackend;
use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::fleet::Fleet;
use sanctum_tests::live::http::{json_request, post, request, send, try_send};
use sanctum_tests::live::poll::{PATIENCE, eventually};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";

fn chat(seat: &str, stream: bool) -> Value {
    json!({"model": seat, "stream": stream, "messages": []})
}

async fn fleet(fake: &FakeBackend, behaviours: &[&str], settings: &str) -> Fleet {
    let lists: Vec<[&str; 1]> = behaviours.iter().map(|name| [*name]).collect();
    let seats: Vec<(&str, &[&str])> =
        behaviours.iter().zip(&lists).map(|(name, list)| (*name, list.as_slice())).collect();
    Fleet::spawn(&(settings.to_owned() + &fake.instance(&seats))).await
}

/// The value of a series of `/metrics` whose line begins so; 0 if there is none.
async fn metric(fleet: &Fleet, beginning: &str, label: &str) -> f64 {
    // The operators' door opens to its own name only.
    let mut get = request(&Method::GET, "/metrics", &[], Bytes::new());
    let host = HeaderValue::from_str(&fleet.admin.to_string()).expect("a header value");
    get.headers_mut().insert("host", host);
    let reply = send(fleet.admin, get).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let text = reply.text();
    text.lines()
        .filter(|line| line.starts_with(beginning) && line.contains(label))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

async fn metric_reaches(fleet: &Fleet, beginning: &str, label: &str, value: f64) {
    eventually(&format!("{beginning}{{{label}}} = {value}"), PATIENCE, async || {
        let seen = metric(fleet, beginning, label).await;
        if seen == value { Ok(()) } else { Err(seen.to_string()) }
    })
    .await;
}

#[tokio::test]
async fn leaving_cancels_while_waiting_streaming_and_buffering() {
    let fake = FakeBackend::start().await;
    let behaviours =
        ["hang", "hang-after-head", "hang-after-role", "comments", "half-body", "endless"];
    let fleet = fleet(&fake, &behaviours, "").await;
    for seat in behaviours {
        for (count, stream) in [(1, false), (2, true)] {
            if seat == "half-body" && stream {
                continue;
            }
            let asked = try_send(fleet.address, json_request(CHAT, &chat(seat, stream)));
            let asking = tokio::spawn(asked);
            fake.counted(seat, "begun", count).await;
            asking.abort();
            let began = Instant::now();
            fake.left(seat, count).await;
            assert!(began.elapsed() < Duration::from_secs(3), "{seat}: {:?}", began.elapsed());
        }
    }
    let mut stream = EventStream::open(fleet.address, CHAT, &chat("endless", true)).await;
    stream.first_text().await;
    drop(stream);
    fake.left("endless", 3).await;
    metric_reaches(&fleet, "sanctum_router_inflight_requests", "", 0.0).await;
    assert!(metric(&fleet, "sanctum_router_cancelled_total", "phase=\"wait\"").await >= 4.0);
    assert_eq!(metric(&fleet, "sanctum_router_cancelled_total", "phase=\"relay\"").await, 2.0);
    assert_eq!(
        metric(&fleet, "sanctum_router_attempts_total", "outcome=\"cut\"").await,
        0.0,
        "no blame"
    );
}

#[tokio::test]
async fn leaving_the_queue_and_the_upload_frees_the_place() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake, &["hang", "normal"], "").await;
    // 64 requests of a remote backend run at once.
    let running: Vec<_> = (0..64)
        .map(|_| tokio::spawn(try_send(fleet.address, json_request(CHAT, &chat("hang", false)))))
        .collect();
    fake.counted("hang", "begun", 64).await;
    let waiting = tokio::spawn(try_send(fleet.address, json_request(CHAT, &chat("hang", false))));
    metric_reaches(&fleet, "sanctum_router_queued_requests", "hang", 1.0).await;
    waiting.abort();
    metric_reaches(&fleet, "sanctum_router_queued_requests", "hang", 0.0).await;
    assert_eq!(metric(&fleet, "sanctum_router_cancelled_total", "phase=\"queue\"").await, 1.0);
    for asking in running {
        asking.abort();
    }
    fake.left("hang", 64).await;

    let mut client = TcpStream::connect(fleet.address).await.expect("connects");
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: 100\r\n\r\n{{");
    client.write_all(head.as_bytes()).await.expect("sends");
    drop(client);
    post(fleet.address, CHAT, &chat("normal", false)).await.ok();
}

#[tokio::test]
async fn a_reader_that_stops_slows_the_backend_and_is_cut() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake, &["flood"], "limits: { slow_reader_s: 2 }\n").await;
    let before = rss_kb(fleet.router.pid());
    let mut stream = EventStream::open(fleet.address, CHAT, &chat("flood", true)).await;
    stream.first_text().await;
    fake.left("flood", 1).await;
    let grown = rss_kb(fleet.router.pid()).saturating_sub(before);
    assert!(grown < 16 * 1024, "the router holds {grown} kB for a reader that does not read");
    drop(stream);
}

fn rss_kb(pid: nix::unistd::Pid) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse().ok()).unwrap_or(0)
}
