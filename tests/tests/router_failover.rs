//! Before the first content a failure costs the client nothing: somebody else answers, and says so.

use std::time::{Duration, Instant};

use sanctum_tests::live::backend::FakeBackend;
use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::fleet::Fleet;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const QUICK: &str = "timeouts: { connect_ms: 1000, first_token_s: 1, stall_s: 1, total_s: 20 }\n";

fn chat(seat: &str) -> Value {
    json!({"model": seat, "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]})
}

async fn fleet(fake: &FakeBackend, seats: &[(&str, &[&str])]) -> Fleet {
    Fleet::spawn(&(QUICK.to_owned() + &fake.instance(seats))).await
}

#[tokio::test]
async fn every_failure_before_content_moves_on() {
    let fake = FakeBackend::start().await;
    let broken = [
        "refused",
        "error-401",
        "error-403",
        "error-404",
        "error-408",
        "error-500",
        "error-503",
        "busy-429",
        "busy-503",
        "redirect",
        "close",
        "reset",
        "html",
        "empty",
        "error-in-200",
        "shapeless",
        "no-choices",
    ];
    let streams = [
        "hang",
        "hang-after-head",
        "hang-after-role",
        "comments",
        "empty-stream",
        "garbage",
        "endless-line",
        "role-then-error",
        "role-then-end",
    ];
    let names: Vec<String> =
        broken.iter().chain(&streams).map(|name| format!("s-{name}")).collect();
    let pairs: Vec<[&str; 2]> =
        broken.iter().chain(&streams).map(|name| [*name, "normal"]).collect();
    let seats: Vec<(&str, &[&str])> =
        names.iter().zip(&pairs).map(|(name, pair)| (name.as_str(), pair.as_slice())).collect();
    let fleet = fleet(&fake, &seats).await;

    for (name, behaviour) in names.iter().zip(broken.iter().chain(&streams)) {
        let transcript = EventStream::open(fleet.address, CHAT, &chat(name)).await;
        assert_eq!(transcript.headers["x-sanctum-backend"], format!("{name}-1"), "{behaviour}");
        assert_eq!(transcript.headers["x-sanctum-attempts"], "2", "{behaviour}");
        let transcript = transcript.finish().await.well_ended();
        assert_eq!(transcript.text(0), "w0 w1 w2 w3 w4 w5 w6 w7 ", "{behaviour}");
    }
    // Not streamed: the failed ones are cooling, so the second comes first; a fresh router shows the failover.
    let fleet = self::fleet(&fake, &seats[..broken.len()]).await;
    for (name, behaviour) in names.iter().zip(&broken) {
        let reply = fleet.post(CHAT, &chat(name)).await;
        assert_eq!(reply.ok()["choices"][0]["message"]["content"], "hello", "{behaviour}");
        assert_eq!(reply.header("x-sanctum-attempts"), "2", "{behaviour}");
        let again = fleet.post(CHAT, &chat(name)).await;
        assert_eq!(again.header("x-sanctum-attempts"), "1", "{behaviour} is still asked first");
    }
}

#[tokio::test]
async fn fallback_urls_come_before_other_backends() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake, &[("s", &["refused+normal", "echo"])]).await;
    let reply = fleet.post(CHAT, &chat("s")).await;
    assert_eq!(reply.ok()["choices"][0]["message"]["content"], "hello");
    assert_eq!(reply.header("x-sanctum-backend"), "s-0");
    assert_eq!(fake.saw("echo").await, Value::Null);
}

#[tokio::test]
async fn a_hanging_backend_is_left_when_a_short_reply_is_overdue() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake, &[("s", &["hang", "normal"])]).await;
    let began = Instant::now();
    assert_eq!(fleet.post(CHAT, &chat("s")).await.status, 200);
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    fake.left("hang", 1).await;
}

#[tokio::test]
async fn a_body_that_follows_its_head_late_has_the_time_of_a_first_token() {
    let fake = FakeBackend::start().await;
    let limits = "timeouts: { connect_ms: 1000, first_token_s: 10, stall_s: 1, total_s: 20 }\n";
    let fleet = Fleet::spawn(&(limits.to_owned() + &fake.instance(&[("s", &["late-body"])]))).await;
    let reply = fleet.post(CHAT, &chat("s")).await;
    assert_eq!(reply.ok()["choices"][0]["message"]["content"], "late");
}

#[tokio::test]
async fn the_callers_deadline_costs_a_backend_nothing() {
    let fake = FakeBackend::start().await;
    let limits = "timeouts: { connect_ms: 1000, first_token_s: 1, stall_s: 1, total_s: 1 }\n";
    let seats: [(&str, &[&str]); 2] = [("hang", &["hang", "echo"]), ("flood", &["flood", "echo"])];
    let fleet = Fleet::spawn(&(limits.to_owned() + &fake.instance(&seats))).await;
    let mut body = chat("hang");
    body["stream"] = true.into();
    for _ in 0..2 {
        let reply = fleet.post(CHAT, &body).await;
        assert_eq!((reply.status.as_u16(), reply.header("x-sanctum-backend")), (504, "hang-0"));
        assert_eq!(reply.json()["error"]["code"], "deadline_exceeded");
    }
    let transcript = EventStream::open(fleet.address, CHAT, &chat("flood")).await.finish().await;
    let error = transcript.chunks.last().expect("an event");
    assert_eq!(error["error"]["code"], "deadline_exceeded", "a stream without pause ends, too");
    assert_eq!(fake.saw("echo").await, Value::Null);
}

#[tokio::test]
async fn a_key_goes_to_its_own_server_only() {
    let (own, other) = (FakeBackend::start().await, FakeBackend::start().await);
    let fleet = Fleet::spawn(&format!(
        "{QUICK}backends:\n  b: {{ url: \"{}\", model: error-500, api_key_env: PATH, fallback_urls: [\"{}\"] }}\n\
         seats:\n  s: {{ backends: [b] }}\n",
        own.url(),
        other.url()
    ))
    .await;
    assert_eq!(fleet.post(CHAT, &chat("s")).await.status, 502);
    for (fake, has_key) in [(&own, true), (&other, false)] {
        let head = fake.saw("error-500").await["head"].as_str().expect("a head").to_lowercase();
        assert_eq!(head.contains("authorization: bearer"), has_key);
    }
}

#[tokio::test]
async fn a_clients_mistake_is_returned_at_once_and_as_it_is() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake, &[("s", &["error-400", "normal"])]).await;
    for stream in [false, true] {
        let mut body = chat("s");
        body["stream"] = stream.into();
        let reply = fleet.post(CHAT, &body).await;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.text(), r#"{"error":{"message":"your mistake","code":"x"}}"#);
        assert_eq!((reply.header("x-sanctum-attempts"), reply.header("server")), ("1", ""));
    }
    assert_eq!(fake.saw("normal").await, Value::Null);
}

#[tokio::test]
async fn the_last_word_says_when_to_come_again_and_not_where_we_asked() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(
        &fake,
        &[
            ("dead", &["refused", "refused"]),
            ("broken", &["error-500"]),
            ("locked", &["error-401"]),
            ("busy", &["busy-429"]),
            ("late", &["hang"]),
        ],
    )
    .await;
    for (seat, status, code, retry_after) in [
        ("dead", 503, "no_backend", "2"),
        ("broken", 502, "upstream_error", "2"),
        ("locked", 502, "upstream_error", "60"),
        ("busy", 429, "backends_busy", "7"),
        ("late", 504, "upstream_timeout", "2"),
    ] {
        let mut body = chat(seat);
        body["stream"] = true.into();
        let reply = fleet.post(CHAT, &body).await;
        assert_eq!(
            (reply.status.as_u16(), reply.header("retry-after")),
            (status, retry_after),
            "{seat}"
        );
        assert_eq!(reply.json()["error"]["code"], code);
        assert_eq!(reply.header("x-sanctum-seat"), seat);
        let repeat = if status == 502 || status == 504 { "false" } else { "" };
        assert_eq!(reply.header("x-should-retry"), repeat, "{seat}");
        assert!(
            !reply.text().contains("127.0.0.1") && !reply.text().contains("secret"),
            "{}",
            reply.text()
        );
    }
}

#[tokio::test]
async fn a_kept_connection_that_died_is_replaced_without_a_failure() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake, &[("s", &["keep-and-die"])]).await;
    for _ in 0..5 {
        assert_eq!(fleet.post(CHAT, &chat("s")).await.header("x-sanctum-attempts"), "1");
    }
    let fleet = self::fleet(&fake, &[("n", &["normal"])]).await;
    for _ in 0..5 {
        fleet.post(CHAT, &chat("n")).await.ok();
        let stream = EventStream::open(fleet.address, CHAT, &chat("n")).await;
        assert!(stream.finish().await.well_ended().done);
    }
    let seen = fake.saw("normal").await;
    assert_eq!((&seen["begun"], &seen["fresh"]), (&json!(10), &json!(1)), "connections are kept");
}
