//! Several replies at once: they advance together, and each says what it says alone.

use std::time::Instant;

use futures_util::future::join_all;
use sanctum_tests::live::checkpoint::smollm2;
use sanctum_tests::live::events::{EventStream, Transcript};
use sanctum_tests::live::worker::{CHAT, Worker};
use serde_json::{Value, json};

/// Streams at once.
const STREAMS: usize = 8;
/// Tokens of each.
const TOKENS: usize = 20;

/// Different questions of different lengths; every other one is sampled.
fn questions() -> Vec<Value> {
    let words = "river stone cloud lamp garden train bridge forest";
    (0..STREAMS)
        .map(|nth| {
            let about: Vec<&str> = words.split(' ').take(nth + 1).collect();
            let text = format!("Tell me about: {}.", about.join(", "));
            let mut body = json!({"messages": [{"role": "user", "content": text}],
                                  "max_tokens": TOKENS, "ignore_eos": true});
            if nth % 2 == 0 {
                body["temperature"] = json!(0);
            } else {
                body["temperature"] = json!(0.9);
                body["seed"] = json!(nth);
            }
            body
        })
        .collect()
}

async fn ask(worker: &Worker, body: &Value) -> Transcript {
    EventStream::open(worker.address, CHAT, body).await.finish().await.well_ended()
}

#[tokio::test]
async fn eight_streams_advance_together_and_each_as_if_alone() {
    let worker = Worker::start(&smollm2(), &["--slots", "8", "--context", "1024"]).await;
    let questions = questions();
    let begun = Instant::now();
    let mut alone = Vec::new();
    for question in &questions {
        alone.push(ask(&worker, question).await);
    }
    let one_by_one = begun.elapsed();
    let begun = Instant::now();
    let together = join_all(questions.iter().map(|question| ask(&worker, question))).await;
    let at_once = begun.elapsed();

    for (nth, (together, alone)) in together.iter().zip(&alone).enumerate() {
        assert_eq!(together.text(0), alone.text(0), "stream {nth} says something else in company");
        assert!(!alone.text(0).is_empty());
    }
    let first_end = together.iter().filter_map(|stream| stream.at.last()).min();
    let last_half = together.iter().filter_map(|stream| stream.at.get(stream.at.len() / 2)).max();
    assert!(last_half < first_end, "one stream ended before another had said half");
    assert!(
        at_once < one_by_one,
        "{STREAMS} streams took {at_once:?} at once and {one_by_one:?} one by one"
    );
}

#[tokio::test]
async fn the_same_request_many_times_at_once_gets_one_answer() {
    let worker = Worker::start(&smollm2(), &["--slots", "4", "--context", "1024"]).await;
    let body = json!({"messages": [{"role": "user", "content": "Name three colours."}],
                      "max_tokens": 24, "temperature": 0});
    let replies = join_all((0..6).map(|_| worker.post(CHAT, &body))).await;
    let texts: Vec<String> = replies
        .iter()
        .map(|reply| reply.ok()["choices"][0]["message"]["content"].to_string())
        .collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
}
