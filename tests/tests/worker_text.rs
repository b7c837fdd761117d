//! What a worker's replies say: the same text streamed and whole, cut at stop strings, never cut in a character.

use sanctum_tests::live::checkpoint::{LLAMA, fixture};
use sanctum_tests::live::events::{EventStream, Transcript};
use sanctum_tests::live::script::Script;
use sanctum_tests::live::worker::{CHAT, TEXT, Worker};
use serde_json::{Value, json};

fn question(extra: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "def read(self):"}]});
    merge(&mut body, extra);
    body
}

fn merge(body: &mut Value, extra: &Value) {
    for (name, value) in extra.as_object().expect("an object") {
        body[name] = value.clone();
    }
}

async fn stream(worker: &Worker, path: &str, body: &Value) -> Transcript {
    EventStream::open(worker.address, path, body).await.finish().await.well_ended()
}

fn content(reply: &Value, index: usize) -> &str {
    reply["choices"][index]["message"]["content"].as_str().expect("content")
}

#[tokio::test]
async fn a_stream_says_what_a_whole_reply_says() {
    let script = Script::mumbles();
    let worker = Worker::start(&script.path(), &[]).await;
    let samplings = [
        json!({"temperature": 0}),
        json!({"temperature": 1.0, "seed": 7}),
        json!({"temperature": 2.0, "seed": -1, "top_p": 0.9, "top_k": 40, "min_p": 0.01}),
        json!({"temperature": 0.7, "seed": 3, "repetition_penalty": 1.3, "frequency_penalty": 0.5,
               "presence_penalty": 0.5, "logit_bias": {"42": 5, "43": -100}}),
    ];
    let mut texts = Vec::new();
    for sampling in samplings {
        let mut body = question(&sampling);
        merge(&mut body, &json!({"max_tokens": 48, "stream_options": {"include_usage": true}}));
        let whole = worker.post(CHAT, &body).await.ok();
        let streamed = stream(&worker, CHAT, &body).await;
        assert_eq!(streamed.text(0), content(&whole, 0), "{sampling}");
        assert_eq!(
            streamed.finish_reasons(0),
            [&whole["choices"][0]["finish_reason"]],
            "{sampling}"
        );
        assert_eq!(streamed.usages(), [&whole["usage"]], "{sampling}");
        texts.push(streamed.text(0));
    }
    texts.sort();
    texts.dedup();
    assert_eq!(texts.len(), 4, "each way of sampling says something else");
}

#[tokio::test]
async fn text_completions_stream_what_they_say_whole() {
    let worker = Worker::start(&fixture(LLAMA), &[]).await;
    let body = json!({"prompt": ["def read", "x"], "max_tokens": 16, "temperature": 0.8, "seed": 5,
                      "n": 2, "echo": true});
    let whole = worker.post(TEXT, &body).await.ok();
    let streamed = stream(&worker, TEXT, &body).await;
    let choices = whole["choices"].as_array().expect("choices");
    assert_eq!(choices.len(), 4);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        assert_eq!(streamed.text(index), choice["text"].as_str().expect("text"));
    }
    assert!(choices[0]["text"].as_str().is_some_and(|text| text.starts_with("def read")));
    assert!(choices[2]["text"].as_str().is_some_and(|text| text.starts_with('x')));
}

#[tokio::test]
async fn a_stop_string_cuts_wherever_tokens_end() {
    let script = Script::mumbles();
    let worker = Worker::start(&script.path(), &[]).await;
    let base =
        question(&json!({"temperature": 1, "seed": 11, "max_tokens": 40, "ignore_eos": true}));
    let full = worker.post(CHAT, &base).await.ok();
    let full = content(&full, 0).to_owned();
    let unstopped = stream(&worker, CHAT, &base).await;
    assert_eq!(unstopped.text(0), full);
    let pieces = unstopped.pieces(0);

    // Strings of several lengths from all over the text; the longer ones begin in one token and end in another.
    let letters: Vec<char> = full.chars().collect();
    let (mut tried, mut across) = (0, 0);
    for length in [1, 3, 6, 12] {
        for window in letters.windows(length).step_by(9) {
            let stop: String = window.iter().collect();
            // Bytes that are no character are shown as one, but are none that could be asked for.
            if stop.contains('\u{fffd}') {
                continue;
            }
            let expected = &full[..full.find(&stop).expect("it is part of the text")];
            let mut body = base.clone();
            body["stop"] = json!(["never said by it", stop]);
            let whole = worker.post(CHAT, &body).await.ok();
            assert_eq!(content(&whole, 0), expected, "stop {stop:?}");
            assert_eq!(whole["choices"][0]["finish_reason"], "stop");
            let streamed = stream(&worker, CHAT, &body).await;
            assert_eq!(streamed.text(0), expected, "stop {stop:?}, streamed");
            assert_eq!(streamed.finish_reasons(0), ["stop"]);
            tried += 1;
            across += usize::from(!pieces.iter().any(|piece| piece.contains(&stop)));
        }
    }
    assert!(
        tried >= 20 && across >= 10,
        "{tried} stops, {across} of them across tokens, of {full:?}"
    );
}

#[tokio::test]
async fn counting_stops_before_the_six() {
    let script = Script::says("1234567890");
    let worker = Worker::start(&script.path(), &[]).await;
    for (stop, said, reason) in [
        (json!("6"), "12345", "stop"),
        (json!(["789", "456"]), "123", "stop"),
        (json!(["345x", "90"]), "12345678", "stop"),
        (json!("0x"), "1234567890", "stop"),
        (Value::Null, "1234567890", "stop"),
    ] {
        let body = question(&json!({"stop": stop}));
        let whole = worker.post(CHAT, &body).await.ok();
        assert_eq!(content(&whole, 0), said, "stop {stop}");
        assert_eq!(whole["choices"][0]["finish_reason"], reason);
        let streamed = stream(&worker, CHAT, &body).await;
        assert_eq!((streamed.text(0).as_str(), streamed.finish_reasons(0)), (said, vec![reason]));
    }
}

#[tokio::test]
async fn a_reply_ends_for_one_reason_and_counts_its_tokens() {
    let script = Script::says("1234567890");
    let worker = Worker::start(&script.path(), &[]).await;
    for (limit, said, reason) in
        [(4, "1234", "length"), (10, "1234567890", "length"), (11, "1234567890", "stop")]
    {
        let body =
            question(&json!({"max_tokens": limit, "stream_options": {"include_usage": true}}));
        let whole = worker.post(CHAT, &body).await.ok();
        let usage = &whole["usage"];
        assert_eq!(content(&whole, 0), said);
        assert_eq!(whole["choices"][0]["finish_reason"], reason);
        assert_eq!(usage["completion_tokens"], limit, "the end token counts, as it was generated");
        let total = usage["prompt_tokens"].as_u64().expect("a number") + limit;
        assert_eq!(usage["total_tokens"], total);

        let streamed = stream(&worker, CHAT, &body).await;
        assert_eq!(streamed.finish_reasons(0), [reason], "exactly one reason");
        let last = streamed.chunks.last().expect("chunks");
        assert_eq!((&last["usage"], &last["choices"]), (usage, &json!([])), "usage comes last");
    }
    let plain = stream(&worker, CHAT, &question(&json!({}))).await;
    assert_eq!(plain.usages(), Vec::<&Value>::new(), "no usage unless asked for");
    assert_eq!(plain.finish_reasons(0), ["stop"]);
}

#[tokio::test]
async fn characters_are_never_cut() {
    // Each token is one byte: every character here is cut by tokens, and some by the token limit too.
    let script = Script::repeats("👩\u{200d}漢字e\u{301}ñ");
    let worker = Worker::start(&script.path(), &[]).await;
    let endless = "👩\u{200d}漢字e\u{301}ñ".repeat(4);
    for limit in 1..=40 {
        let body = question(&json!({"max_tokens": limit}));
        let streamed = stream(&worker, CHAT, &body).await;
        let text = streamed.text(0);
        assert!(!text.contains('\u{fffd}'), "{limit} tokens: {text:?}");
        assert!(endless.starts_with(&text), "{limit} tokens: {text:?}");
        assert!(text.len() <= limit && limit - text.len() < 4, "{limit} tokens: {text:?}");
        let whole = worker.post(CHAT, &body).await.ok();
        assert_eq!(content(&whole, 0), text, "{limit} tokens");
        assert_eq!(whole["usage"]["completion_tokens"], limit);
    }
    for (stop, said) in
        [("字", "👩\u{200d}漢"), ("\u{200d}漢", "👩"), ("\u{301}", "👩\u{200d}漢字e")]
    {
        let streamed = stream(&worker, CHAT, &question(&json!({"stop": stop}))).await;
        assert_eq!(streamed.text(0), said, "stop {stop:?}");
    }
}

#[tokio::test]
async fn each_choice_is_what_its_seed_says_alone() {
    let script = Script::mumbles();
    let worker = Worker::start(&script.path(), &[]).await;
    let two = question(&json!({"n": 2, "seed": 40, "temperature": 1.0, "max_tokens": 24}));
    let reply = worker.post(CHAT, &two).await.ok();
    assert_eq!(reply["choices"].as_array().map(Vec::len), Some(2));
    let streamed = stream(&worker, CHAT, &two).await;
    let mut completion = 0;
    for index in 0..2 {
        let alone = json!({"seed": 40 + index, "temperature": 1.0, "max_tokens": 24});
        let alone = worker.post(CHAT, &question(&alone)).await.ok();
        assert_eq!(content(&reply, index), content(&alone, 0), "choice {index}");
        assert_eq!(streamed.text(index), content(&alone, 0), "choice {index}, streamed");
        assert_eq!(streamed.finish_reasons(index).len(), 1);
        assert_eq!(reply["usage"]["prompt_tokens"], alone["usage"]["prompt_tokens"]);
        completion += alone["usage"]["completion_tokens"].as_u64().expect("a number");
    }
    assert_ne!(content(&reply, 0), content(&reply, 1), "two seeds, two replies");
    assert_eq!(reply["usage"]["completion_tokens"], completion);
}

#[tokio::test]
async fn the_same_words_in_any_form_get_the_same_reply() {
    let worker = Worker::start(&fixture(LLAMA), &[]).await;
    let ask = async |messages: Value| {
        let body =
            json!({"messages": messages, "temperature": 0, "max_tokens": 12, "store": false});
        let reply = worker.post(CHAT, &body).await.ok();
        (content(&reply, 0).to_owned(), reply["usage"]["prompt_tokens"].clone())
    };
    let plain = ask(json!([{"role": "user", "content": "read it"}])).await;
    let parts = json!([{"type": "text", "text": "read it"}]);
    assert_eq!(ask(json!([{"role": "user", "content": parts}])).await, plain);
    let system =
        ask(json!([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}])).await;
    let developer =
        ask(json!([{"role": "developer", "content": "s"}, {"role": "user", "content": "u"}])).await;
    assert_eq!(developer, system);
    assert_ne!(system, plain);
    let turns = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                       {"role": "user", "content": "c"}]);
    assert!(ask(turns).await.1.as_u64() > plain.1.as_u64(), "every turn is in the prompt");
}

#[tokio::test]
async fn one_letter_is_a_prompt() {
    let worker = Worker::start(&fixture(LLAMA), &[]).await;
    for content in ["a", "", "\u{1f469}"] {
        let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 3});
        let reply = worker.post(CHAT, &body).await.ok();
        assert_eq!(reply["usage"]["completion_tokens"], 3, "{content:?}");
    }
    let reply = worker.post(TEXT, &json!({"prompt": "a", "max_tokens": 3})).await.ok();
    assert_eq!(reply["usage"]["completion_tokens"], 3);
}
