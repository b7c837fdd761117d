//! Streams pass as they are, and every one that breaks ends in one error event and no `[DONE]`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sanctum_tests::live::backend::FakeBackend;
use sanctum_tests::live::events::{EventStream, Transcript, span};
use sanctum_tests::live::fleet::Fleet;
use sanctum_tests::live::http::{json_request, send};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const QUICK: &str = "timeouts: { connect_ms: 1000, first_token_s: 2, stall_s: 1, total_s: 30 }\n";

fn chat(seat: &str) -> Value {
    json!({"model": seat, "messages": [{"role": "user", "content": "hi"}]})
}

async fn fleet(fake: &FakeBackend, behaviours: &[&str]) -> Fleet {
    let lists: Vec<[&str; 2]> = behaviours.iter().map(|name| [*name, "echo"]).collect();
    let names: Vec<String> = behaviours.iter().map(|name| name.replace(':', "-")).collect();
    let seats: Vec<(&str, &[&str])> =
        names.iter().zip(&lists).map(|(name, list)| (name.as_str(), list.as_slice())).collect();
    Fleet::spawn(&(QUICK.to_owned() + &fake.instance(&seats))).await
}

async fn transcript(address: SocketAddr, seat: &str) -> Transcript {
    EventStream::open(address, CHAT, &chat(seat)).await.finish().await
}

#[tokio::test]
async fn a_stream_that_breaks_ends_in_one_error_event() {
    let fake = FakeBackend::start().await;
    let behaviours =
        ["fin-mid", "rst-mid", "clean-end-mid", "cut-event", "garbage-mid", "stall", "error-mid"];
    let fleet = fleet(&fake, &behaviours).await;
    for seat in behaviours {
        let transcript = transcript(fleet.address, seat).await;
        assert_eq!(transcript.text(0), "w0 w1 w2 w3 w4 w5 w6 w7 ", "{seat}: what came before");
        let errors: Vec<&Value> =
            transcript.chunks.iter().filter(|chunk| chunk["error"].is_object()).collect();
        assert_eq!(errors.len(), 1, "{seat}: {errors:?}");
        assert_eq!(transcript.chunks.last(), Some(errors[0]), "{seat}: the error is last");
        let code = &errors[0]["error"]["code"];
        assert_eq!(code, "upstream_stream_interrupted", "{seat}");
        assert!(!errors[0].to_string().contains("secret"), "{seat}: {errors:?}");
        assert_eq!((transcript.done, &transcript.broken), (false, &None), "{seat}");
    }
    assert_eq!(fake.saw("echo").await, Value::Null, "nothing is asked twice after content");
}

#[tokio::test]
async fn a_finish_without_done_is_a_success() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake, &["no-done", "no-done-open"]).await;
    for seat in ["no-done", "no-done-open"] {
        let began = Instant::now();
        let transcript = transcript(fleet.address, seat).await;
        assert_eq!((transcript.error(), &transcript.broken), (None, &None), "{seat}");
        assert_eq!(transcript.finish_reasons(0), ["stop"]);
        assert!(began.elapsed() < Duration::from_secs(15), "{seat} hangs");
    }
    fake.left("no-done-open", 1).await;
}

#[tokio::test]
async fn bytes_pass_unchanged_and_characters_stay_whole() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake, &["split", "normal:64"]).await;
    for (behaviour, seat) in [("split", "split"), ("normal:64", "normal-64")] {
        let mut direct = chat(behaviour);
        direct["stream"] = true.into();
        let mut routed = chat(seat);
        routed["stream"] = true.into();
        let direct = send(fake.address, json_request(CHAT, &direct)).await;
        let routed = send(fleet.address, json_request(CHAT, &routed)).await;
        assert_eq!(routed.status, 200);
        assert_eq!(routed.body, direct.body, "{seat}");
        assert_eq!((routed.header("server"), routed.header("x-sanctum-seat")), ("", seat));
    }
}

#[tokio::test]
async fn chunks_are_not_held_back() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake, &["slow:20"]).await;
    let transcript = transcript(fleet.address, "slow-20").await.well_ended();
    assert_eq!(transcript.pieces(0).len(), 20);
    // 20 ms lie between two chunks at their source.
    assert!(span(&transcript) > Duration::from_millis(300), "{:?}", span(&transcript));
}

#[tokio::test]
async fn many_streams_run_side_by_side() {
    let fake = FakeBackend::start().await;
    let fleet = fleet(&fake, &["slow:20"]).await;
    let began = Instant::now();
    let streams: Vec<_> = (0..40)
        .map(|_| {
            let address = fleet.address;
            tokio::spawn(async move { transcript(address, "slow-20").await.well_ended() })
        })
        .collect();
    for stream in streams {
        assert_eq!(stream.await.expect("no panic").pieces(0).len(), 20);
    }
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_request_reaches_the_backend_as_it_was_written() {
    let fake = FakeBackend::start().await;
    let fleet = Fleet::spawn(&format!(
        "{QUICK}backends:\n  e: {{ url: \"{}\", model: echo }}\nseats:\n  plain: {{ backends: [e], personas: [yoda] }}\n  \
         dressed: {{ backends: [e], system: \"Be \\\"brief\\\".\", defaults: {{ temperature: 0.5, top_p: 0.9 }} }}\n",
        fake.url()
    ))
    .await;
    let text = "{ \"messages\":[{\"role\":\"user\",\"content\":\"h\\u00e4\"}],\"model\" : \"yoda\", \"x_new\": 1.50,\"top_p\":1}";
    let post = |text: String| {
        let headers = [
            ("content-type", "text/plain"),
            ("authorization", "Bearer mine"),
            ("x-session-id", "7"),
        ];
        sanctum_tests::live::http::request(&http::Method::POST, CHAT, &headers, text.into())
    };
    let reply = send(fleet.address, post(text.to_owned())).await;
    let echoed = reply.ok()["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
    assert_eq!(echoed, text.replace("\"yoda\"", "\"echo\""));
    assert_eq!((reply.header("x-fake"), reply.header("server")), ("yes", ""));
    let head = fake.saw("echo").await["head"].as_str().expect("text").to_lowercase();
    assert!(!head.contains("mine") && head.contains("x-session-id: 7"), "{head}");
    assert!(
        head.contains("content-type: application/json") && head.contains("x-request-id: "),
        "{head}"
    );

    let reply = send(fleet.address, post(text.replace("yoda", "dressed"))).await;
    let echoed = reply.ok()["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
    let echoed: Value = serde_json::from_str(&echoed).expect("JSON");
    assert_eq!((&echoed["temperature"], &echoed["top_p"]), (&json!(0.5), &json!(1)));
    assert_eq!(echoed["messages"][0], json!({"role": "system", "content": "Be \"brief\"."}));
    assert_eq!(echoed["x_new"], 1.5);
}
