//! A fleet of real workers on the embedded model answers through the router, as callers and operators see it.

use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::fleet::{Fleet, two_real_workers};
use sanctum_tests::live::http::{json_request, send};
use sanctum_tests::live::worker::{CHAT, TEXT};
use serde_json::{Value, json};

const WORKERS: [&str; 2] = ["smollm2-a", "smollm2-b"];

fn two_and_two(seat: &str) -> Value {
    json!({"model": seat, "messages": [{"role": "user", "content": "What is 2+2?"}],
           "temperature": 0, "max_tokens": 40})
}

fn content(reply: &Value) -> &str {
    reply["choices"][0]["message"]["content"].as_str().expect("content")
}

/// Every seat by every name answers, streamed as whole, and says who answered.
async fn callers_get_answers(fleet: &Fleet) {
    for (name, seat, backend) in [
        ("council-secure", "council-secure", "smollm2-a"),
        ("yoda", "council-secure", "smollm2-a"),
        ("coder", "coder", "smollm2-b"),
    ] {
        let reply = fleet.post(CHAT, &two_and_two(name)).await;
        let whole = reply.ok();
        assert!(content(&whole).contains('4'), "{name}: {whole}");
        assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{name}");
        assert_eq!(reply.header("x-sanctum-seat"), seat);
        assert_eq!(
            (reply.header("x-sanctum-backend"), reply.header("x-sanctum-attempts")),
            (backend, "1")
        );
        assert!(!reply.header("x-request-id").is_empty());

        let stream = EventStream::open(fleet.address, CHAT, &two_and_two(name)).await;
        assert_eq!(stream.headers["x-sanctum-backend"], backend);
        let streamed = stream.finish().await.well_ended();
        assert_eq!(streamed.text(0), content(&whole), "{name}");
        assert!(streamed.pieces(0).len() > 3, "it comes in pieces: {:?}", streamed.pieces(0));
        assert_eq!(streamed.finish_reasons(0), ["stop"]);
    }
    let text = json!({"model": "coder", "prompt": "2+2=", "max_tokens": 3, "temperature": 0});
    assert!(fleet.post(TEXT, &text).await.ok()["choices"][0]["text"].is_string());
}

async fn seats_add_what_the_instance_says(fleet: &Fleet) {
    // Without a temperature of its own a reply is the same again only if the seat's default is applied.
    let ask = json!({"model": "windu", "messages": [{"role": "user", "content": "Tell me a story."}],
                     "max_tokens": 24});
    let first = fleet.post(CHAT, &ask).await.ok();
    let again = fleet.post(CHAT, &ask).await.ok();
    assert_eq!(content(&first), content(&again), "the seat's temperature is 0");

    let prompt = |reply: &Value| reply["usage"]["prompt_tokens"].as_u64().expect("a number");
    let user = json!([{"role": "user", "content": "hi"}]);
    let mut ask = json!({"model": "coder", "messages": user, "max_tokens": 1});
    let with_preamble = fleet.post(CHAT, &ask).await.ok();
    ask["messages"] =
        json!([{"role": "system", "content": "You write code, and little else."}, user[0]]);
    ask["model"] = json!("council-secure");
    let said_by_the_caller = fleet.post(CHAT, &ask).await.ok();
    assert_eq!(prompt(&with_preamble), prompt(&said_by_the_caller), "the seat's instructions");

    // A seat without a backend that could answer falls back, and its own defaults go along.
    let reply = fleet.post(CHAT, &json!({"model": "spatial", "messages": user})).await;
    let whole = reply.ok();
    assert_eq!(reply.header("x-sanctum-seat"), "spatial");
    assert_eq!(reply.header("x-sanctum-backend"), "smollm2-b");
    assert_eq!(whole["usage"]["completion_tokens"], 8);
}

async fn refusals_have_one_shape(fleet: &Fleet) {
    let unknown = fleet.post(CHAT, &two_and_two("nobody")).await;
    assert_eq!(unknown.status, 404);
    let error = &unknown.json()["error"];
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));

    let mut bad = two_and_two("yoda");
    bad["temperature"] = json!("hot");
    let refused = fleet.post(CHAT, &bad).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert_eq!(refused.json()["error"]["param"], "temperature");

    let mut long = two_and_two("yoda");
    long["messages"][0]["content"] = json!("two and ".repeat(3000));
    let refused = fleet.post(CHAT, &long).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.json()["error"]["code"]),
        (400, &json!("context_length_exceeded"))
    );
    assert_eq!(
        refused.header("x-sanctum-attempts"),
        "1",
        "a client's mistake is not tried elsewhere"
    );

    let cloud = fleet.post(CHAT, &two_and_two("cloud")).await;
    assert_eq!(cloud.status, 503, "{}", cloud.text());

    let mut request = json_request(CHAT, &two_and_two("yoda"));
    request.headers_mut().insert("x-request-id", "my-own-name".parse().expect("a value"));
    assert_eq!(send(fleet.address, request).await.header("x-request-id"), "my-own-name");
}

async fn everybody_is_listed(fleet: &Fleet) {
    let list = fleet.get("/v1/models").await.ok();
    let ids: Vec<&str> = list["data"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|model| model["id"].as_str())
        .collect();
    for name in ["council-secure", "yoda", "windu", "coder", "spatial", "cloud"] {
        assert!(ids.contains(&name), "{name} is not in {ids:?}");
    }
    let seat = &list["data"][0];
    assert_eq!(seat["object"], "model");
    for field in [
        "created",
        "owned_by",
        "max_model_len",
        "context_length",
        "max_input_tokens",
        "meta",
        "type",
        "display_name",
        "created_at",
    ] {
        assert!(!seat[field].is_null(), "{field}: {seat}");
    }
    assert_eq!(seat["max_model_len"], 2048);
    assert_eq!((&list["first_id"], &list["has_more"]), (&seat["id"], &json!(false)));
    assert_eq!(fleet.get("/v1/models/coder").await.ok()["id"], "coder");
    assert_eq!(fleet.get("/readyz").await.ok()["seats"]["coder"], "ready");
    assert_eq!(fleet.get("/livez").await.status, 200);
}

async fn operators_see_it(fleet: &Fleet) {
    let status = fleet.sanctum(&["status"]).await;
    assert_eq!(status.code, 0, "{}", status.err);
    for word in [
        "council-secure",
        "yoda, windu",
        "smollm2-a",
        "smollm2-b",
        "cloud-main",
        "not configured",
        "SANCTUM_TEST_NO_SUCH_KEY",
    ] {
        assert!(status.out.contains(word), "no {word:?} in\n{}", status.out);
    }
    let pid = fleet.worker_pid("smollm2-a").await.to_string();
    assert!(status.out.contains(&pid), "no process {pid} in\n{}", status.out);
    assert_eq!(fleet.backend("cloud-main").await["state"], "not_configured");

    let chat = fleet.sanctum(&["chat", "yoda", "--max-tokens", "40", "What is 2+2?"]).await;
    assert_eq!((chat.code, chat.err.as_str()), (0, ""));
    assert!(chat.out.contains('4') && chat.out.ends_with('\n'), "{}", chat.out);
    let nobody = fleet.sanctum(&["chat", "nobody", "hello"]).await;
    assert_eq!((nobody.code, nobody.out.as_str()), (1, ""));
    assert!(nobody.err.contains("nobody") && nobody.err.lines().count() == 1, "{}", nobody.err);

    let file = fleet.file();
    let check = fleet.sanctum(&["check", file.to_str().expect("UTF-8")]).await;
    assert_eq!(check.code, 0, "{}", check.err);
    for word in
        ["right", "4 seats", "3 backends", "2 workers", "SANCTUM_TEST_NO_SUCH_KEY is not set"]
    {
        assert!(check.out.contains(word), "no {word:?} in\n{}", check.out);
    }

    let doctor = fleet.sanctum(&["doctor"]).await;
    assert_eq!(doctor.code, 0, "{}\n{}", doctor.out, doctor.err);
    for word in ["answers", "right (4 seats, 3 backends)", "mlx", "0.32.2", "cpu", "libmlx"] {
        assert!(doctor.out.contains(word), "no {word:?} in\n{}", doctor.out);
    }
}

/// One fleet, because loading the model twice takes longer than all of this.
#[tokio::test]
async fn a_fleet_serves_callers_and_operators() {
    let fleet = Fleet::start(&two_real_workers(), &WORKERS).await;
    callers_get_answers(&fleet).await;
    seats_add_what_the_instance_says(&fleet).await;
    refusals_have_one_shape(&fleet).await;
    everybody_is_listed(&fleet).await;
    operators_see_it(&fleet).await;
}

#[tokio::test]
async fn the_instance_that_ships_is_right() {
    let file = sanctum_tests::live::process::workspace().join("instance.yaml");
    let file = file.to_str().expect("UTF-8");
    let check = sanctum_tests::live::fleet::sanctum(file.as_ref(), &["check", file]).await;
    assert_eq!(check.code, 0, "{}", check.err);
    assert!(check.out.contains("4 seats"), "{}", check.out);
}
