//! Clients that leave, engines that fail, and silence.

use std::time::Duration;

use super::*;
use crate::engine::EngineError;
use tokio::time::timeout;

async fn submission(inbox: &mut Inbox) -> Submission {
    loop {
        if let Some(Command::Generate(submission)) = inbox.next().await {
            return submission;
        }
    }
}

async fn left(submission: &Submission) {
    let closed = async {
        while !submission.events.is_closed() {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(5), closed).await.expect("the engine sees that nobody listens");
}

#[tokio::test]
async fn dropping_a_whole_reply_cancels_it() {
    let (app, mut inbox) = served(4);
    let waiting = tokio::spawn({
        let app = Arc::clone(&app);
        async move { chat(&app, r#","n":2"#).await.status }
    });
    let (first, second) = (submission(&mut inbox).await, submission(&mut inbox).await);
    assert!(!first.events.is_closed() && !second.events.is_closed());
    waiting.abort();
    left(&first).await;
    left(&second).await;
}

#[tokio::test]
async fn dropping_a_stream_cancels_it_before_and_after_its_head() {
    for begun in [false, true] {
        let (app, mut inbox) = served(4);
        let service = router(Arc::clone(&app));
        let asked = request(Method::POST, "/v1/chat/completions", chat_body(r#","stream":true"#));
        let waiting = tokio::spawn(service.oneshot(asked));
        let submission = submission(&mut inbox).await;
        if begun {
            let id = ids_of("a")[0];
            submission.events.send(Event::Token(TokenEvent { id, logprob: None }));
            let response = waiting.await.expect("not aborted").expect("infallible");
            assert_eq!(response.status(), 200);
            drop(response);
        } else {
            waiting.abort();
        }
        left(&submission).await;
    }
}

#[tokio::test]
async fn a_failure_before_the_first_token_is_a_status() {
    for rest in ["", r#","stream":true"#] {
        let app = scripted(|_, submission| {
            submission.events.send(Event::Started { cached_tokens: 0 });
            submission.events.send(Event::Failed(EngineError::NotANumber { what: "NaN" }));
        });
        let reply = chat(&app, rest).await;
        assert_eq!(reply.status, 500, "{}", reply.body);
        assert_eq!(reply.json()["error"]["type"], "server_error");
    }
}

#[tokio::test]
async fn a_failure_in_mid_stream_is_an_event_and_no_end() {
    let app = scripted(|_, submission| {
        let id = ids_of("a")[0];
        submission.events.send(Event::Token(TokenEvent { id, logprob: None }));
        submission.events.send(Event::Failed(EngineError::Step("x".into())));
    });
    let reply = chat(&app, r#","stream":true"#).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.found("/error/type"), ["server_error"]);
    assert!(!reply.body.contains("[DONE]"), "{}", reply.body);
    assert!(reply.found("/choices/0/finish_reason").iter().all(Value::is_null));
}

#[tokio::test(start_paused = true)]
async fn silence_is_filled_from_the_tenth_second() {
    let (app, mut inbox) = served(4);
    let service = router(Arc::clone(&app));
    let asked = request(Method::POST, "/v1/chat/completions", chat_body(r#","stream":true"#));
    let begun = tokio::time::Instant::now();
    let waiting = tokio::spawn(service.oneshot(asked));
    let submission = submission(&mut inbox).await;
    let response = waiting.await.expect("not aborted").expect("infallible");
    let mut body = response.into_body();
    let mut at = Vec::new();
    for _ in 0..3 {
        let frame = body.frame().await.expect("more").expect("no error");
        assert_eq!(frame.into_data().expect("data"), ": keep-alive\n\n");
        at.push(begun.elapsed().as_secs());
    }
    assert_eq!(at, [10, 25, 40]);
    say(&submission, &ids_of("a"), FinishReason::StopToken);
    let rest = body.collect().await.expect("a whole body").to_bytes();
    let rest = String::from_utf8(rest.to_vec()).expect("UTF-8");
    assert!(rest.starts_with("data: ") && rest.contains("\"role\":\"assistant\""), "{rest}");
    assert!(rest.ends_with("data: [DONE]\n\n"), "{rest}");
}
