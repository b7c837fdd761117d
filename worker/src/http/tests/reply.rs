//! What replies look like, whole and streamed.

use super::*;
use serde_json::json;

#[tokio::test]
async fn a_whole_chat_reply() {
    let app = saying("Hello there", FinishReason::StopToken);
    let reply = chat(&app, "").await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let body = reply.json();
    assert_eq!(body["object"], "chat.completion");
    assert_eq!((&body["model"], &body["system_fingerprint"]), (&json!("tiny"), &json!("fp")));
    assert!(body["id"].as_str().expect("an id").starts_with("chatcmpl-"));
    let choice = &body["choices"][0];
    assert_eq!(
        choice["message"],
        json!({"role": "assistant", "content": "Hello there", "refusal": null})
    );
    assert_eq!((&choice["finish_reason"], &choice["logprobs"]), (&json!("stop"), &json!(null)));
    let prompt = ids_of("<s>[INST]hi[/INST]").len();
    let completion = ids_of("Hello there").len() + 1;
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": prompt, "completion_tokens": completion,
               "total_tokens": prompt + completion, "prompt_tokens_details": {"cached_tokens": 3}})
    );
    assert!(reply.headers.contains_key("x-request-id"));
}

#[tokio::test]
async fn the_prompt_is_the_template_without_marks_twice() {
    let app = scripted(|_, submission| {
        assert_eq!(submission.request.prompt, ids_of("<s>[INST]hi[/INST]"));
        say(submission, &[], FinishReason::StopToken);
    });
    assert_eq!(chat(&app, "").await.status, 200);
}

#[tokio::test]
async fn a_streamed_chat_reply() {
    let app = saying("Hello 👩‍👩‍👧 there", FinishReason::Length);
    let reply = chat(&app, r#","stream":true,"stream_options":{"include_usage":true}"#).await;
    assert_eq!(reply.headers["content-type"], "text/event-stream; charset=utf-8");
    let deltas = reply.found("/choices/0/delta");
    assert_eq!(deltas[0], json!({"role": "assistant", "content": ""}));
    let text: String =
        reply.found("/choices/0/delta/content").iter().filter_map(Value::as_str).collect();
    assert_eq!(text, "Hello 👩‍👩‍👧 there");
    assert!(deltas.len() > 4, "one chunk per piece of text: {}", reply.body);
    let reasons = reply.found("/choices/0/finish_reason");
    assert_eq!(reasons.last(), Some(&json!("length")));
    assert_eq!(reasons.iter().filter(|reason| !reason.is_null()).count(), 1);
    let events = reply.events();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let usage: Value = serde_json::from_str(events[events.len() - 2]).expect("JSON");
    assert_eq!(usage["choices"], json!([]));
    assert!(usage["usage"]["completion_tokens"].as_u64() > Some(0));
}

#[tokio::test]
async fn usage_comes_in_streams_only_when_asked_for() {
    let app = saying("hi", FinishReason::StopToken);
    let reply = chat(&app, r#","stream":true"#).await;
    assert!(reply.found("/usage").is_empty(), "{}", reply.body);
    assert_eq!(reply.events().last(), Some(&"[DONE]"));
}

#[tokio::test]
async fn a_stop_string_ends_both_kinds_of_reply() {
    let app = saying("1, 2, 3, 4, 5, 6, 7", FinishReason::StopToken);
    let whole = chat(&app, r#","stop":" 6""#).await.json();
    assert_eq!(whole["choices"][0]["message"]["content"], "1, 2, 3, 4, 5,");
    assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    let streamed = chat(&app, r#","stop":[" 6","zzz"],"stream":true"#).await;
    let text: String =
        streamed.found("/choices/0/delta/content").iter().filter_map(Value::as_str).collect();
    assert_eq!(text, "1, 2, 3, 4, 5,");
    assert_eq!(streamed.found("/choices/0/finish_reason").last(), Some(&json!("stop")));
}

#[tokio::test]
async fn several_choices_have_seeds_of_their_own_and_one_prompt() {
    let app = scripted(|nth, submission| {
        assert_eq!(submission.request.seed, 40 + nth as u64);
        say(submission, &ids_of(["one", "two", "three"][nth]), FinishReason::StopToken);
    });
    let body = chat(&app, r#","n":3,"seed":40"#).await.json();
    let texts: Vec<_> =
        (0..3).map(|index| body["choices"][index]["message"]["content"].clone()).collect();
    assert_eq!(texts, ["one", "two", "three"]);
    assert_eq!(body["usage"]["prompt_tokens"], ids_of("<s>[INST]hi[/INST]").len());
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
}

#[tokio::test]
async fn streamed_choices_open_and_end_each_for_itself() {
    let app = saying("hi", FinishReason::StopToken);
    let reply = chat(&app, r#","n":2,"stream":true"#).await;
    for index in 0..2 {
        let chunks: Vec<Value> = reply
            .found("/choices/0")
            .into_iter()
            .filter(|choice| choice["index"] == index)
            .collect();
        assert_eq!(chunks[0]["delta"]["role"], "assistant");
        assert_eq!(chunks.last().expect("chunks")["finish_reason"], "stop");
    }
    assert_eq!(reply.events().iter().filter(|event| **event == "[DONE]").count(), 1);
}

#[tokio::test]
async fn logprobs_when_asked_for() {
    let app = saying("hi", FinishReason::StopToken);
    let body = chat(&app, r#","logprobs":true,"top_logprobs":1"#).await.json();
    let first = &body["choices"][0]["logprobs"]["content"][0];
    assert_eq!(first["logprob"], -0.25);
    assert_eq!(first["top_logprobs"][0]["token"], first["token"]);
}

#[tokio::test]
async fn text_completions_in_all_forms_of_prompts() {
    let app = scripted(|_, submission| {
        // Says the prompt back.
        say(submission, &submission.request.prompt, FinishReason::StopToken);
    });
    let texts = async |prompt: &str| {
        let reply =
            post(&app, "/v1/completions", format!("{{\"prompt\":{prompt},\"model\":\"default\"}}"));
        let body = reply.await.json();
        let choices = body["choices"].as_array().cloned().unwrap_or_else(|| panic!("{body}"));
        choices.iter().map(|choice| choice["text"].as_str().expect("text").to_owned()).collect()
    };
    let all: Vec<String> = texts(r#""Once""#).await;
    assert_eq!(all, ["Once"]);
    let all: Vec<String> = texts(r#"["a","b"]"#).await;
    assert_eq!(all, ["a", "b"]);
    let ids = ids_of("Once upon");
    let all: Vec<String> = texts(&format!("{ids:?}")).await;
    assert_eq!(all, ["Once upon"]);
    let all: Vec<String> = texts(&format!("[{ids:?},{ids:?}]")).await;
    assert_eq!(all, ["Once upon", "Once upon"]);
}

#[tokio::test]
async fn an_echo_goes_before_the_text() {
    let app = saying(" upon", FinishReason::StopToken);
    let whole = post(&app, "/v1/completions", r#"{"prompt":"Once","echo":true}"#).await;
    assert_eq!(whole.json()["choices"][0]["text"], "Once upon");
    let streamed =
        post(&app, "/v1/completions", r#"{"prompt":"Once","echo":true,"stream":true}"#).await;
    let text: String = streamed.found("/choices/0/text").iter().filter_map(Value::as_str).collect();
    assert_eq!(text, "Once upon");
}

#[tokio::test]
async fn parameters_reach_the_engine() {
    let app = scripted(|_, submission| {
        let request = &submission.request;
        assert_eq!(request.max_tokens, 7);
        assert_eq!(request.sampling.temperature, 0.5);
        assert_eq!(request.sampling.top_k, 4);
        assert_eq!(request.sampling.logit_bias, [(5, -100.0)]);
        assert!(request.stop_tokens.contains(&1999) && request.stop_tokens.contains(&17));
        say(submission, &[], FinishReason::StopToken);
    });
    let rest = r#","max_completion_tokens":7,"temperature":0.5,"top_k":4,"logit_bias":{"5":-100},"stop_token_ids":[17]"#;
    assert_eq!(chat(&app, rest).await.status, 200);
}

#[tokio::test]
async fn what_ends_a_reply() {
    let mark = ids_of("</s>")[0];
    let asked = async |rest: &str, expected: Vec<u32>| {
        let app = scripted(move |_, submission| {
            assert_eq!(submission.request.stop_tokens[..], expected[..]);
            assert!(!submission.request.ignore_eos);
            say(submission, &[], FinishReason::StopToken);
        });
        assert_eq!(chat(&app, rest).await.status, 200, "{rest}");
    };
    asked(r#","ignore_eos":true,"stop_token_ids":[17]"#, vec![17]).await;
    asked(r#","ignore_eos":true,"stop":["</s>","text"]"#, vec![mark]).await;
}

#[tokio::test]
async fn equal_prompts_are_answered_apart() {
    let app = scripted(|nth, submission| {
        assert_eq!(submission.request.seed, 7 + nth as u64);
        say(submission, &[], FinishReason::StopToken);
    });
    let body = r#"{"prompt":["a","a"],"n":2,"seed":7}"#;
    assert_eq!(post(&app, "/v1/completions", body).await.status, 200);
}

#[tokio::test]
async fn the_token_limit_never_exceeds_the_room() {
    let prompt = ids_of("<s>[INST]hi[/INST]").len();
    let app = scripted(move |_, submission| {
        assert_eq!(submission.request.max_tokens, CONTEXT - prompt);
        say(submission, &[], FinishReason::Length);
    });
    assert_eq!(chat(&app, "").await.status, 200);
    assert_eq!(chat(&app, r#","max_tokens":4096"#).await.status, 200);
}

#[tokio::test]
async fn tools_that_cannot_run_are_named_in_a_header() {
    let app = saying("hi", FinishReason::StopToken);
    let rest = r#","tools":[{"type":"web_search"},{"type":"function","function":{"name":"f"}}]"#;
    let reply = chat(&app, rest).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let notice = reply.headers["x-sanctum-notice"].to_str().expect("text");
    assert!(notice.contains("web_search") && notice.contains("tool calls"), "{notice}");
}
