//! How replies are judged before a client sees them.

use super::*;

#[test]
fn a_whole_reply_gets_time_for_its_length() {
    let s = Duration::from_secs;
    for (stream, tokens, others, wait) in [
        (true, None, true, s(10)),
        (true, Some(1000), false, s(10)),
        (false, Some(20), true, s(12)),
        (false, Some(100_000), true, s(300)),
        (false, None, true, s(300)),
        (false, None, false, s(600)),
        (false, Some(u64::MAX), false, s(600)),
    ] {
        let got = first_wait(stream, s(10), tokens, s(600), others);
        assert_eq!(got, wait, "stream {stream}, {tokens:?} tokens, others {others}");
    }
    assert_eq!(first_wait(true, s(10), None, s(3), true), s(3));
}

#[test]
fn a_good_status_is_not_enough() {
    let chat = |body: &str| usable(Endpoint::Chat, body.as_bytes());
    assert!(chat(r#"{"choices":[{"index":0,"message":{}}],"error":null}"#).is_ok());
    for empty in [
        " \n",
        "{}",
        "[]",
        "7",
        r#"{"detail":"x"}"#,
        r#"{"choices":[]}"#,
        r#"{"choices":[null]}"#,
        r#"{"choices":5}"#,
        r#"{"data":[{}]}"#,
    ] {
        assert!(matches!(chat(empty), Err(Failure::Empty)), "{empty}");
    }
    assert!(matches!(chat("<html>"), Err(Failure::NotJson)));
    assert!(matches!(chat("{\"choices\":["), Err(Failure::NotJson)));
    assert!(matches!(chat(r#"{"error":{"message":"x"}}"#), Err(Failure::InBand)));
    assert!(usable(Endpoint::Embeddings, br#"{"data":[{"embedding":[1]}]}"#).is_ok());
    let none = usable(Endpoint::Embeddings, br#"{"data":[]}"#);
    assert!(matches!(none, Err(Failure::Empty)));
}

#[test]
fn a_missing_path_is_not_a_missing_model() {
    assert!(lacks_endpoint(Endpoint::Embeddings, StatusCode::NOT_FOUND));
    assert!(!lacks_endpoint(Endpoint::Chat, StatusCode::NOT_FOUND));
    assert!(!lacks_endpoint(Endpoint::Embeddings, StatusCode::UNAUTHORIZED));
}

#[tokio::test(start_paused = true)]
async fn the_callers_limit_is_not_the_backends_fault() {
    let wait = Duration::from_secs(3);
    let now = Instant::now();
    let mut patience = Patience { first_by: now, wait, stall: wait, deadline: now + wait };
    assert!(matches!(patience.no_content(), Failure::FirstToken(_)));
    assert!(matches!(patience.late(Failure::Stall(wait)), Failure::Stall(_)));
    patience.deadline = now;
    assert!(matches!(patience.no_content(), Failure::Deadline));
}

#[test]
fn event_streams_are_known_by_their_type() {
    for (kind, is) in [
        ("text/event-stream; charset=utf-8", true),
        ("Text/Event-Stream", true),
        ("text/html", false),
    ] {
        assert_eq!(is_event_stream(&http::HeaderValue::from_static(kind)), is);
    }
}
