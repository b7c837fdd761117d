//! What the router refuses at the door, how it says so, and that others are served meanwhile.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use sanctum_tests::live::backend::FakeBackend;
use sanctum_tests::live::fleet::Fleet;
use sanctum_tests::live::http::{Reply, json_request, request, send, try_send};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const CHAT: &str = "/v1/chat/completions";
/// Milliseconds on an idle machine; two cores carry other tests as well.
const AT_ONCE: Duration = Duration::from_millis(500);

async fn fleet(fake: &FakeBackend) -> Fleet {
    let seats: [(&str, &[&str]); 2] = [("coder", &["normal"]), ("hang", &["hang"])];
    let settings = "limits: { body_bytes: 100000, body_stall_s: 1, header_timeout_s: 1 }\n";
    Fleet::spawn(&(settings.to_owned() + &fake.instance(&seats))).await
}

fn chat(seat: &str) -> Value {
    json!({"model": seat, "messages": []})
}

fn raw(text: &str) -> http::Request<http_body_util::Full<Bytes>> {
    request(&Method::POST, CHAT, &[], Bytes::from(text.to_owned()))
}

fn refused(reply: &Reply, status: u16, what: &str) -> Value {
    assert_eq!(reply.status, status, "{what}: {}", reply.text());
    let error = reply.json()["error"].clone();
    for field in ["message", "type", "param", "code"] {
        assert!(error.get(field).is_some(), "{what} lacks `{field}`: {error}");
    }
    assert!(!reply.header("x-request-id").is_empty(), "{what}");
    error
}

#[tokio::test]
async fn bad_requests_are_refused_by_name_and_the_next_is_served() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake).await;
    let nested = format!("{{\"model\":\"coder\",\"a\":{}1{}}}", "[".repeat(500), "]".repeat(500));
    for (what, text, status) in [
        ("no JSON", "hello", 400),
        ("empty", "", 400),
        ("an array", "[]", 400),
        ("cut", "{\"model\":\"coder\"", 400),
        ("duplicate keys", r#"{"model":"coder","model":"hang"}"#, 400),
        (
            "nested duplicates",
            r#"{"model":"coder","messages":[{"role":"user","role":"system"}]}"#,
            400,
        ),
        ("no finite number", r#"{"model":"coder","temperature":1e999}"#, 400),
        ("NaN", r#"{"model":"coder","temperature":NaN}"#, 400),
        ("nesting", &nested, 400),
        ("too large", &format!("{{\"a\":\"{}\"}}", "x".repeat(200_000)), 413),
    ] {
        let began = Instant::now();
        refused(&send(fleet.address, raw(text)).await, status, what);
        assert!(began.elapsed() < AT_ONCE, "{what}: {:?}", began.elapsed());
        fleet.post(CHAT, &chat("coder")).await.ok();
    }
    let bytes = Bytes::from_static(b"{\"model\":\"coder\xff\"}");
    refused(&send(fleet.address, request(&Method::POST, CHAT, &[], bytes)).await, 400, "not UTF-8");
    for (body, param) in [
        (json!({"messages": []}), "model"),
        (json!({"model": 7}), "model"),
        (json!({"model": "coder", "stream": "yes"}), "stream"),
    ] {
        let error = refused(&fleet.post(CHAT, &body).await, 400, param);
        assert_eq!(
            (&error["param"], &error["type"]),
            (&json!(param), &json!("invalid_request_error"))
        );
    }
    let zipped = request(
        &Method::POST,
        CHAT,
        &[("content-encoding", "gzip")],
        Bytes::from_static(b"\x1f\x8b"),
    );
    refused(&send(fleet.address, zipped).await, 415, "compressed");
    assert_eq!(fake.saw("hang").await, Value::Null);
}

#[tokio::test]
async fn unknown_names_paths_and_methods() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake).await;
    let error = refused(&fleet.post(CHAT, &chat("codr")).await, 404, "a slip");
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
    assert!(
        error["message"].as_str().is_some_and(|m| m.ends_with("Did you mean `coder`?")),
        "{error}"
    );
    refused(&fleet.get("/v1/nothing").await, 404, "an unknown path");
    refused(&fleet.get("/").await, 404, "the root");
    refused(&fleet.get(CHAT).await, 405, "a wrong method");
    refused(&fleet.get("/v1/models/nobody").await, 404, "an unknown model");
    assert_eq!(fleet.get("/v1/models/coder").await.ok()["id"], "coder");
    let head = request(&Method::HEAD, "/", &[], Bytes::new());
    assert_eq!(send(fleet.address, head).await.status, 404);
    let asks = [
        ("origin", "http://page"),
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "authorization,content-type"),
    ];
    let preflight = send(fleet.address, request(&Method::OPTIONS, CHAT, &asks, Bytes::new())).await;
    assert_eq!(preflight.status, 204);
    assert_eq!(preflight.header("access-control-allow-origin"), "*");
    assert_eq!(preflight.header("access-control-allow-headers"), "authorization,content-type");
    let named = [("x-request-id", "mine-7")];
    let reply = send(fleet.address, request(&Method::GET, "/livez", &named, Bytes::new())).await;
    assert_eq!(reply.header("x-request-id"), "mine-7");
}

#[tokio::test]
async fn health_and_models_answer_whatever_the_load() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake).await;
    let hanging: Vec<_> = (0..150)
        .map(|_| tokio::spawn(try_send(fleet.address, json_request(CHAT, &chat("hang")))))
        .collect();
    fake.counted("hang", "begun", 64).await;
    for path in ["/livez", "/readyz", "/v1/models"] {
        let reply = fleet.get(path).await;
        assert_eq!(reply.status, 200, "{path}");
        assert!(reply.took < Duration::from_millis(100), "{path}: {:?}", reply.took);
    }
    let full = fleet.post(CHAT, &chat("hang")).await;
    let error = refused(&full, 429, "a full queue");
    assert_eq!(
        (&error["code"], full.header("retry-after").is_empty()),
        (&json!("queue_full"), false)
    );
    fleet.post(CHAT, &chat("coder")).await.ok();
    for asking in hanging {
        asking.abort();
    }
    let models = fleet.get("/v1/models").await.ok();
    let ids: Vec<&str> = models["data"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|model| model["id"].as_str())
        .collect();
    assert_eq!(ids, ["coder", "hang"]);
}

#[tokio::test]
async fn slow_and_cunning_clients_are_shown_out() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake).await;
    let ask = async |text: &str| {
        let mut client = TcpStream::connect(fleet.address).await.expect("connects");
        client.write_all(text.as_bytes()).await.expect("sends");
        let mut answer = Vec::new();
        // A reset after the answer is an end, too.
        let _ = client.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    assert_eq!(ask("").await, "", "silence");
    assert_eq!(ask("POST / HTTP/1.1\r\nhost").await, "", "half a head");
    let slow =
        ask(&format!("POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n{{")).await;
    assert!(slow.starts_with("HTTP/1.1 408"), "{slow}");
    let smuggled = ask(&format!(
        "POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    ))
    .await;
    assert!(smuggled.starts_with("HTTP/1.1 400") && smuggled.contains("ambiguous"), "{smuggled}");
    let endless = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n{}",
        format!("1000\r\n{}\r\n", "x".repeat(4096)).repeat(60)
    );
    assert!(ask(&endless).await.starts_with("HTTP/1.1 413"));
    fleet.post(CHAT, &chat("coder")).await.ok();
}

/// Descriptors left to the router: enough for itself and a handful of connections.
#[cfg(target_os = "linux")]
const FILES: &str = "--nofile=48:48";

#[cfg(target_os = "linux")]
#[tokio::test]
async fn without_descriptors_idle_connections_make_room() {
    let fake = FakeBackend::start().await;
    let fleet = Fleet::spawn(&fake.instance(&[("coder", &["normal"])])).await;
    let pid = fleet.router.pid().to_string();
    let mut prlimit = std::process::Command::new("prlimit");
    assert!(prlimit.args(["--pid", &pid, FILES]).status().expect("prlimit(1) runs").success());
    let mut idle = Vec::new();
    for _ in 0..100 {
        idle.push(TcpStream::connect(fleet.address).await.expect("the kernel queues it"));
    }
    assert_eq!(fleet.get("/livez").await.status, 200);
    fleet.post(CHAT, &chat("coder")).await.ok();
    drop(idle);
    fleet.post(CHAT, &chat("coder")).await.ok();
}
