//! Routes beside generation: probes, lists, the tokenizer, CORS, and what is no route.

use super::*;
use serde_json::json;

#[tokio::test]
async fn a_worker_is_alive_before_it_is_ready() {
    let app = loading();
    app.progress("loading", 0.5);
    assert_eq!(get(&app, "/livez").await.status, 200);
    let ready = get(&app, "/readyz").await;
    assert_eq!(ready.status, 503);
    assert_eq!(ready.json(), json!({"status": "loading", "phase": "loading", "progress": 0.5}));
    assert_eq!(get(&app, "/metrics").await.status, 200);
    assert_eq!(get(&app, "/v1/models").await.json()["data"], json!([]));
}

#[tokio::test]
async fn readiness_follows_the_engine_and_the_drain() {
    let (app, inbox) = served(4);
    assert_eq!(get(&app, "/readyz").await.json()["status"], "ready");
    inbox.publish(EngineSnapshot { healthy: false, ..EngineSnapshot::default() });
    let unhealthy = get(&app, "/readyz").await;
    assert_eq!(
        (unhealthy.status.as_u16(), &unhealthy.json()["status"]),
        (503, &json!("unhealthy"))
    );
    app.drain();
    let draining = get(&app, "/readyz").await;
    assert_eq!((draining.status.as_u16(), &draining.json()["status"]), (503, &json!("draining")));
    assert_eq!(get(&app, "/livez").await.status, 200);
}

#[tokio::test]
async fn the_model_is_listed_and_found() {
    let (app, _inbox) = served(4);
    let list = get(&app, "/v1/models").await.json();
    assert_eq!(
        (&list["data"][0]["id"], &list["data"][0]["max_model_len"]),
        (&json!("tiny"), &json!(CONTEXT))
    );
    assert_eq!(get(&app, "/v1/models/tiny").await.json()["meta"]["n_ctx"], CONTEXT);
    for unknown in ["/v1/models/other", "/v1/models/org/other"] {
        let reply = get(&app, unknown).await;
        assert_eq!(
            (reply.status.as_u16(), &reply.json()["error"]["code"]),
            (404, &json!("model_not_found"))
        );
    }
}

#[tokio::test]
async fn text_goes_to_tokens_and_back() {
    let (app, _inbox) = served(4);
    let tokens = post(&app, "/tokenize", r#"{"content":"Hello, wörld"}"#).await.json();
    assert_eq!(tokens["tokens"], json!(ids_of("Hello, wörld")));
    assert_eq!(tokens["count"], ids_of("Hello, wörld").len());
    let body = json!({"tokens": tokens["tokens"]}).to_string();
    let text = post(&app, "/detokenize", body).await.json();
    assert_eq!(
        (&text["content"], &text["prompt"]),
        (&json!("Hello, wörld"), &json!("Hello, wörld"))
    );
    let chat = post(&app, "/tokenize", chat_body("")).await.json();
    assert_eq!(chat["tokens"], json!(ids_of("<s>[INST]hi[/INST]")));
}

#[tokio::test]
async fn a_browser_may_ask_first() {
    let (app, _inbox) = served(4);
    let mut preflight = request(Method::OPTIONS, "/v1/chat/completions", "");
    let wanted = "authorization, x-stainless-os".parse().expect("a value");
    preflight.headers_mut().insert("access-control-request-headers", wanted);
    let reply = send(&app, preflight).await;
    assert_eq!(reply.status, 204);
    assert_eq!(reply.headers["access-control-allow-origin"], "*");
    assert_eq!(reply.headers["access-control-allow-headers"], "authorization, x-stainless-os");
    assert!(reply.headers["access-control-allow-methods"].to_str().expect("text").contains("POST"));
    assert_eq!(get(&app, "/v1/models").await.headers["access-control-allow-origin"], "*");
}

#[tokio::test]
async fn what_is_no_route_says_so_at_once() {
    let (app, _inbox) = served(4);
    assert_eq!(send(&app, request(Method::HEAD, "/", "")).await.status, 404);
    assert_eq!(send(&app, request(Method::HEAD, "/v1/models", "")).await.status, 200);
    let unknown = get(&app, "/v1/nothing").await;
    assert_eq!(
        (unknown.status.as_u16(), &unknown.json()["error"]["code"]),
        (404, &json!("unknown_url"))
    );
    let wrong = get(&app, "/v1/chat/completions").await;
    assert_eq!(
        (wrong.status.as_u16(), &wrong.json()["error"]["code"]),
        (405, &json!("method_not_allowed"))
    );
}

#[tokio::test]
async fn a_request_keeps_its_name() {
    let (app, _inbox) = served(4);
    let mut named = request(Method::GET, "/livez", "");
    named.headers_mut().insert("x-request-id", "mine-1".parse().expect("a value"));
    assert_eq!(send(&app, named).await.headers["x-request-id"], "mine-1");
}
