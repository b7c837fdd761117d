//! Bad input: a 4xx in OpenAI's shape that names the field, at once, and the next request is served.

use std::time::Duration;

use bytes::Bytes;
use http::Method;
use sanctum_tests::live::http::{Reply, request, send};
use sanctum_tests::live::script::Script;
use sanctum_tests::live::worker::{CHAT, TEXT, Worker};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// "In milliseconds", on a machine with other things to do.
const AT_ONCE: Duration = Duration::from_millis(250);
/// The worker's context in these tests, in tokens.
const CONTEXT: usize = 64;
/// The worker's cap on bodies, in bytes.
const BODY_BYTES: usize = 1 << 20;

/// A refused upload is cut within this time.
const CUT: Duration = Duration::from_secs(15);

/// Memory of the worker's process, where the system says so.
fn resident_bytes(worker: &Worker) -> Option<usize> {
    let path = format!("/proc/{}/statm", worker.process.pid());
    let pages: usize = std::fs::read_to_string(path).ok()?.split(' ').nth(1)?.parse().ok()?;
    // Pages of 4 KiB or larger: this is a lower bound.
    Some(pages * 4096)
}

async fn worker(script: &Script) -> Worker {
    let context = CONTEXT.to_string();
    Worker::start(&script.path(), &["--context", &context, "--body-limit-mb", "1"]).await
}

async fn send_bytes(
    worker: &Worker,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Reply {
    send(worker.address, request(&Method::POST, path, headers, body.into())).await
}

/// Checks a refusal's status and shape, its speed, and that the next request is served.
async fn refused(worker: &Worker, what: &str, reply: &Reply, status: u16, param: Option<&str>) {
    assert_eq!(reply.status, status, "{what}: {}", reply.text());
    let body = reply.json();
    let error = body["error"].as_object().unwrap_or_else(|| panic!("{what}: {body}"));
    let keys: Vec<&str> = error.keys().map(String::as_str).collect();
    assert_eq!(keys, ["message", "type", "param", "code"], "{what}");
    assert_eq!(error["type"], "invalid_request_error", "{what}");
    assert!(error["message"].as_str().is_some_and(|text| text.len() > 10), "{what}: {body}");
    assert!(reply.body.len() < 1000, "{what} is answered at length: {} bytes", reply.body.len());
    assert_eq!(error["param"].as_str(), param, "{what}: {body}");
    assert!(reply.took < AT_ONCE, "{what} took {:?}", reply.took);
    let good = json!({"messages": [{"role": "user", "content": "go"}]});
    let good = worker.post(CHAT, &good).await.ok();
    assert_eq!(good["choices"][0]["message"]["content"], "ok", "after {what}");
}

/// Fields of a chat request, and what `error.param` names.
const FIELDS: &[(&str, &str)] = &[
    // Types.
    (r#""temperature":"warm""#, "temperature"),
    (r#""temperature":[1]"#, "temperature"),
    (r#""max_tokens":"7""#, "max_tokens"),
    (r#""max_tokens":1.5"#, "max_tokens"),
    (r#""max_completion_tokens":true"#, "max_completion_tokens"),
    (r#""stream":1"#, "stream"),
    (r#""stream":"yes""#, "stream"),
    (r#""stream_options":[]"#, "stream_options"),
    (r#""stream_options":{"include_usage":1}"#, "stream_options.include_usage"),
    (r#""stop":7"#, "stop"),
    (r#""stop":["a",7]"#, "stop"),
    (r#""seed":"s""#, "seed"),
    (r#""logit_bias":[1]"#, "logit_bias"),
    (r#""logit_bias":{"a":1}"#, "logit_bias"),
    (r#""logit_bias":{"7":"x"}"#, "logit_bias.7"),
    (r#""model":7"#, "model"),
    (r#""tools":{}"#, "tools"),
    (r#""chat_template_kwargs":1"#, "chat_template_kwargs"),
    // Ranges.
    (r#""temperature":-0.1"#, "temperature"),
    (r#""temperature":2.1"#, "temperature"),
    (r#""top_p":1.1"#, "top_p"),
    (r#""top_p":-1"#, "top_p"),
    (r#""top_k":-2"#, "top_k"),
    (r#""min_p":2"#, "min_p"),
    (r#""repetition_penalty":0"#, "repetition_penalty"),
    (r#""frequency_penalty":2.5"#, "frequency_penalty"),
    (r#""presence_penalty":-2.5"#, "presence_penalty"),
    (r#""max_tokens":0"#, "max_tokens"),
    (r#""max_tokens":-1"#, "max_tokens"),
    (r#""n":0"#, "n"),
    (r#""n":1000000000"#, "n"),
    (r#""n":99999999999999999999999"#, "n"),
    (r#""seed":1e400"#, "seed"),
    (r#""logit_bias":{"7":101}"#, "logit_bias.7"),
    (r#""logit_bias":{"99999":1}"#, "logit_bias"),
    (r#""stop":"""#, "stop"),
    (
        r#""stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"]"#,
        "stop",
    ),
    (r#""logprobs":true,"top_logprobs":21"#, "top_logprobs"),
    // Numbers that are none.
    (r#""temperature":NaN"#, "temperature"),
    (r#""temperature":1e999"#, "temperature"),
    (r#""temperature":-Infinity"#, "temperature"),
    (r#""metadata":{"x":[1,1e999]}"#, "metadata.x[1]"),
    // What cannot be honoured.
    (r#""response_format":{"type":"json_object"}"#, "response_format"),
    (r#""chat_template":"{{ 1 }}""#, "chat_template"),
    (r#""functions":[]"#, "functions"),
    // Twice.
    (r#""temperature":0,"temperature":1"#, "temperature"),
];

#[tokio::test]
async fn a_bad_field_is_named() {
    let script = Script::says("ok");
    let worker = worker(&script).await;
    for (field, param) in FIELDS {
        let body = format!(r#"{{"messages":[{{"role":"user","content":"go"}}],{field}}}"#);
        let reply = send_bytes(&worker, CHAT, &[("content-type", "application/json")], body).await;
        refused(&worker, field, &reply, 400, Some(param)).await;
    }
}

#[tokio::test]
async fn bad_messages_are_named() {
    let script = Script::says("ok");
    let worker = worker(&script).await;
    let cases = [
        ("{}", "messages"),
        (r#"{"messages":[]}"#, "messages"),
        (r#"{"messages":"go"}"#, "messages"),
        (r#"{"messages":null}"#, "messages"),
        (r#"{"messages":["go"]}"#, "messages[0]"),
        (r#"{"messages":[{"content":"go"}]}"#, "messages[0].role"),
        (r#"{"messages":[{"role":7,"content":"go"}]}"#, "messages[0].role"),
        (r#"{"messages":[{"role":"user"}]}"#, "messages[0].content"),
        (r#"{"messages":[{"role":"user","content":7}]}"#, "messages[0].content"),
        (
            r#"{"messages":[{"role":"user","content":"go"},{"role":"user","content":[{"type":"text"}]}]}"#,
            "messages[1].content[0].text",
        ),
    ];
    for (body, param) in cases {
        let reply = send_bytes(&worker, CHAT, &[], body).await;
        refused(&worker, body, &reply, 400, Some(param)).await;
    }
    for (body, param) in [
        ("{}", "prompt"),
        (r#"{"prompt":7}"#, "prompt"),
        (r#"{"prompt":[]}"#, "prompt"),
        (r#"{"prompt":[-1]}"#, "prompt"),
    ] {
        let reply = send_bytes(&worker, TEXT, &[], body).await;
        refused(&worker, body, &reply, 400, Some(param)).await;
    }
}

#[tokio::test]
async fn an_unknown_model_is_not_found() {
    let script = Script::says("ok");
    let worker = worker(&script).await;
    let body = json!({"model": "gpt-7", "messages": [{"role": "user", "content": "go"}]});
    let reply = worker.post(CHAT, &body).await;
    refused(&worker, "another model", &reply, 404, Some("model")).await;
    assert_eq!(reply.json()["error"]["code"], "model_not_found");
    let reply = worker.get("/v1/models/gpt-7").await;
    refused(&worker, "another model's card", &reply, 404, Some("model")).await;
    let reply = worker.get("/v1/nothing").await;
    refused(&worker, "another route", &reply, 404, None).await;
    let reply = worker.get(CHAT).await;
    refused(&worker, "another method", &reply, 405, None).await;
}

#[tokio::test]
async fn a_prompt_beyond_the_context_is_refused_in_the_words_clients_know() {
    let script = Script::says("ok");
    let worker = worker(&script).await;
    let long = "a b c d ".repeat(CONTEXT);
    let chat = json!({"messages": [{"role": "user", "content": long}], "stream": true});
    for (path, body, param) in [(CHAT, chat, "messages"), (TEXT, json!({"prompt": long}), "prompt")]
    {
        let reply = worker.post(path, &body).await;
        refused(&worker, path, &reply, 400, Some(param)).await;
        let error = &reply.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        let message = error["message"].as_str().expect("a message");
        assert!(
            message.starts_with("This model's maximum context length is 64 tokens. "),
            "{message}"
        );
    }
    let metrics = worker.metrics().await;
    let prefilled = metrics.sum("sanctum_mlx_batch_prefill_tokens_total", &[]);
    assert!(prefilled < CONTEXT as f64 * 2.0, "refused prompts were computed: {prefilled}");
}

#[tokio::test]
async fn bodies_that_are_no_json_are_refused() {
    let script = Script::says("ok");
    let worker = worker(&script).await;
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"messages":[{{"role":"user","content":"go"}}],"metadata":{open}{close}}}"#)
    };
    let mut bad_utf8 = br#"{"messages":[{"role":"user","content":""#.to_vec();
    bad_utf8.extend_from_slice(b"\xff\xc3\x28\"}]}");
    let cases: [(&str, Vec<u8>, Option<&str>); 8] = [
        ("nothing", Vec::new(), None),
        ("half of it", br#"{"messages":[{"ro"#.to_vec(), Some("messages[0]")),
        ("a list", b"[1]".to_vec(), None),
        ("two objects", b"{}{}".to_vec(), None),
        ("invalid UTF-8", bad_utf8, None),
        ("a lone surrogate", br#"{"messages":"\ud800"}"#.to_vec(), Some("messages")),
        ("a hundred levels", nested(100).into(), None),
        ("a hundred thousand levels", nested(100_000).into(), None),
    ];
    for (what, body, param) in cases {
        let reply = send_bytes(&worker, CHAT, &[], body).await;
        // Where in the depth it ends is no field to name.
        let deep = what.ends_with("levels");
        let named = reply.json()["error"]["param"].as_str().map(str::to_owned);
        if deep {
            assert!(
                named.as_deref().is_some_and(|param| param.starts_with("metadata")),
                "{what}: {named:?}"
            );
        }
        refused(&worker, what, &reply, 400, if deep { named.as_deref() } else { param }).await;
    }
}

#[tokio::test]
async fn bodies_of_other_kinds_are_refused_unread() {
    let script = Script::says("ok");
    let worker = worker(&script).await;
    let body = r#"{"messages":[{"role":"user","content":"go"}]}"#;
    for encoding in ["gzip", "br", "deflate", "zstd"] {
        let reply = send_bytes(&worker, CHAT, &[("content-encoding", encoding)], body).await;
        refused(&worker, encoding, &reply, 415, None).await;
    }
    let reply = send_bytes(&worker, CHAT, &[("content-type", "text/plain")], body).await;
    refused(&worker, "text/plain", &reply, 415, None).await;
    let large = vec![b' '; BODY_BYTES + 1];
    let reply = send_bytes(&worker, CHAT, &[], large).await;
    refused(&worker, "a body over the cap", &reply, 413, None).await;
}

#[tokio::test]
async fn a_body_without_end_is_cut_at_the_cap() {
    let script = Script::says("ok");
    let worker = worker(&script).await;
    let mut socket = TcpStream::connect(worker.address).await.expect("a connection");
    let head = format!("POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n");
    socket.write_all(head.as_bytes()).await.expect("the head is taken");
    let before = resident_bytes(&worker);
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    let (mut read, mut write) = socket.split();
    // What comes after the refusal is read for a moment and thrown away, so that a client that is still sending sees
    // the refusal and not a reset.
    let sending = async { while write.write_all(chunk.as_bytes()).await.is_ok() {} };
    let answer = async {
        let mut answer = Vec::new();
        // A reset after the answer is an end, too.
        let _ = read.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    let ((), answer) = timeout(CUT, async { tokio::join!(sending, answer) }).await.expect("cut");
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.contains("request_too_large"), "{answer}");
    if let Some(grown) =
        resident_bytes(&worker).zip(before).map(|(after, before)| after.saturating_sub(before))
    {
        assert!(grown < 16 * BODY_BYTES, "the body is kept: {grown} bytes");
    }
    let good = json!({"messages": [{"role": "user", "content": "go"}]});
    assert_eq!(worker.post(CHAT, &good).await.status, 200);
}

#[tokio::test]
async fn a_model_that_fails_fails_the_request_and_not_the_process() {
    let script = Script::breaks_after("ok");
    let mut worker = Worker::start(&script.path(), &[]).await;
    let body = json!({"messages": [{"role": "user", "content": "go"}]});
    let reply = worker.post(CHAT, &body).await;
    assert_eq!(reply.status, 500, "{}", reply.text());
    assert_eq!(reply.json()["error"]["type"], "server_error");
    let mut stream =
        sanctum_tests::live::events::EventStream::open(worker.address, CHAT, &body).await;
    assert_eq!(stream.first_text().await, "o");
    let rest = stream.finish().await;
    assert!(rest.error().is_some(), "an error event: {:?}", rest.chunks);
    assert!(!rest.done, "[DONE] after an error");
    // Short of the fault it serves.
    let short = json!({"messages": [{"role": "user", "content": "go"}], "max_tokens": 2});
    assert_eq!(worker.post(CHAT, &short).await.ok()["choices"][0]["message"]["content"], "ok");
    assert_eq!(worker.process.ended(), None);
}
