//! What is refused, how, and that the next request is served.

use super::*;

async fn refusal(app: &Arc<App>, body: impl Into<Body>) -> (u16, Option<String>, String) {
    let reply = post(app, "/v1/chat/completions", body).await;
    let error = &reply.json()["error"];
    let text = |name: &str| error[name].as_str().map(str::to_owned);
    assert!(text("message").is_some(), "{}", reply.body);
    (reply.status.as_u16(), text("param"), text("code").unwrap_or_default())
}

#[tokio::test]
async fn bad_bodies_are_refused_and_the_next_request_is_served() {
    let app = saying("hi", FinishReason::StopToken);
    let deep = format!("{{\"a\":{}", "[".repeat(2000));
    let cases: [(Vec<u8>, u16, Option<&str>); 12] = [
        (b"{".into(), 400, None),
        (b"\xff\xfe".into(), 400, None),
        (b"[]".into(), 400, None),
        (b"{}".into(), 400, Some("messages")),
        (chat_body(",\"temperature\":1e999").into(), 400, Some("temperature")),
        (chat_body(",\"temperature\":NaN").into(), 400, Some("temperature")),
        (chat_body(",\"n\":1000000000").into(), 400, Some("n")),
        (chat_body(",\"n\":1,\"n\":2").into(), 400, Some("n")),
        (chat_body(",\"logit_bias\":{\"999999\":1}").into(), 400, Some("logit_bias")),
        (chat_body(",\"chat_template\":\"{{x}}\"").into(), 400, Some("chat_template")),
        (
            chat_body(",\"chat_template_kwargs\":{\"messages\":[]}").into(),
            400,
            Some("chat_template_kwargs"),
        ),
        (vec![b' '; BODY_BYTES + 1], 413, None),
    ];
    for (body, status, param) in cases {
        let shown = String::from_utf8_lossy(&body).chars().take(120).collect::<String>();
        let (got, named, _) = refusal(&app, body).await;
        assert_eq!((got, named.as_deref()), (status, param), "{shown}");
        assert_eq!(chat(&app, "").await.status, 200, "after {shown}");
    }
    assert_eq!(refusal(&app, deep).await.0, 400);
}

#[tokio::test]
async fn a_model_is_known_by_its_name_its_directory_and_default() {
    let app = saying("hi", FinishReason::StopToken);
    for model in ["tiny", "default", "llama-4bit-g64-f32", ""] {
        assert_eq!(chat(&app, &format!(",\"model\":\"{model}\"")).await.status, 200, "{model}");
    }
    let (status, param, code) = refusal(&app, chat_body(",\"model\":\"gpt-9\"")).await;
    assert_eq!((status, param.as_deref(), &*code), (404, Some("model"), "model_not_found"));
}

#[tokio::test]
async fn a_prompt_over_the_context_is_refused_in_the_words_clients_match() {
    let app = saying("hi", FinishReason::StopToken);
    let near = ids_of(&format!("<s>[INST]{}[/INST]", "a b ".repeat(40))).len();
    for (repeats, counted) in [(40, near.to_string()), (400, format!("more than {CONTEXT}"))] {
        let content = "a b ".repeat(repeats);
        let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{content}\"}}]}}");
        let reply = post(&app, "/v1/chat/completions", body).await;
        let error = reply.json()["error"].clone();
        assert_eq!(
            (reply.status.as_u16(), &error["code"]),
            (400, &"context_length_exceeded".into())
        );
        assert_eq!(error["type"], "invalid_request_error");
        let expected = format!(
            "This model's maximum context length is {CONTEXT} tokens. However, your messages resulted in {counted} \
             tokens. Please reduce the length of the messages."
        );
        assert_eq!(error["message"], expected);
    }
}

#[tokio::test]
async fn a_full_queue_is_429_with_a_time_to_wait() {
    let (app, _inbox) = served(2);
    // Two wait for an engine that never comes.
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let app = Arc::clone(&app);
            tokio::spawn(async move { chat(&app, "").await.status })
        })
        .collect();
    while app.loaded().expect("loaded").engine.snapshot().waiting < 2 {
        tokio::task::yield_now().await;
    }
    let reply = chat(&app, "").await;
    assert_eq!(reply.status, 429, "{}", reply.body);
    let seconds: u32 =
        reply.headers["retry-after"].to_str().expect("text").parse().expect("a number");
    assert!((2..=120).contains(&seconds));
    for task in waiting {
        task.abort();
    }
}

#[tokio::test]
async fn choices_that_no_queue_can_hold_are_refused_for_good() {
    let (app, mut inbox) = served(2);
    let (status, param, _) = refusal(&app, chat_body(r#","n":3"#)).await;
    assert_eq!((status, param.as_deref()), (400, Some("n")));
    assert!(matches!(inbox.try_next(), Ok(None)), "nothing was submitted");
}

#[tokio::test]
async fn neither_loading_nor_draining_takes_requests() {
    let reply = chat(&loading(), "").await;
    assert_eq!((reply.status.as_u16(), reply.headers.contains_key("retry-after")), (503, true));
    let app = saying("hi", FinishReason::StopToken);
    app.drain();
    let reply = chat(&app, "").await;
    assert_eq!(
        (reply.status.as_u16(), &*reply.json()["error"]["code"].to_string()),
        (503, "\"shutting_down\"")
    );
}

#[tokio::test]
async fn wrong_kinds_of_bodies_are_415() {
    let app = saying("hi", FinishReason::StopToken);
    for (name, value) in [("content-type", "text/plain"), ("content-encoding", "gzip")] {
        let mut request = request(Method::POST, "/v1/chat/completions", chat_body(""));
        request.headers_mut().insert(name, value.parse().expect("a value"));
        assert_eq!(send(&app, request).await.status, 415, "{name}: {value}");
    }
}
