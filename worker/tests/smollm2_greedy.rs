//! The embedded model, imported by us, says what mlx_lm says of the same weights.
//!
//! The stored text is mlx_lm's in f32 (`tests/python/smollm2_reference.py`). Our host form computes in f32 from the
//! default import, whose values are the same ones in a narrower type, so greedy tokens must agree to the last.

use std::path::{Path, PathBuf};

use sanctum_kernels::{BackendOptions, Form};
use sanctum_mlx::engine::{
    EngineHandle, EngineOptions, Event, EventStream, GenerateRequest, SamplingParams, start_model,
};
use sanctum_mlx::model::OpenOptions;
use sanctum_mlx::template::{ChatTemplate, Conversation};
use sanctum_mlx::tokenize::{CheckpointText, TextTokenizer};
use sanctum_shared::openai::chat::ChatRequest;
use serde::Deserialize;

#[derive(Deserialize)]
struct Stored {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    messages: Option<serde_json::Value>,
    prompt_ids: Vec<u32>,
    greedy_ids: Vec<u32>,
    text: String,
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("below the workspace").to_owned()
}

fn model_dir() -> PathBuf {
    let dir = workspace().join("var/models/smollm2-135m-instruct");
    assert!(
        dir.join("config.json").exists(),
        "{} is missing: `make test` sets it up",
        dir.display()
    );
    dir
}

fn stored() -> Vec<Case> {
    let path = workspace().join("tests/fixtures/smollm2/mlx_lm_greedy.json");
    let text = std::fs::read_to_string(path).expect("the fixture");
    let stored: Stored = serde_json::from_str(&text).expect("its own format");
    assert!(stored.cases.len() >= 8);
    stored.cases
}

fn greedy(case: &Case) -> GenerateRequest {
    GenerateRequest {
        id: case.name.clone(),
        prompt: case.prompt_ids.clone(),
        max_tokens: case.greedy_ids.len(),
        sampling: SamplingParams::greedy(),
        seed: 0,
        stop_tokens: [].into(),
        ignore_eos: true,
        top_logprobs: None,
    }
}

fn tokens(mut stream: EventStream) -> Vec<u32> {
    let mut ids = Vec::new();
    loop {
        match stream.next_blocking().expect("an end") {
            Event::Started { .. } => {}
            Event::Token(token) => ids.push(token.id),
            Event::Finished(_) => return ids,
            Event::Failed(error) => panic!("{error}"),
        }
    }
}

#[test]
fn greedy_tokens_are_mlx_lms() {
    let open = OpenOptions { dir: model_dir(), id: None, context: Some(1024) };
    let backend = BackendOptions { form: Form::Host, threads: 2 };
    let engine: EngineHandle =
        start_model(&EngineOptions::default(), backend, open, |_| {}).expect("starts");
    let cases = stored();
    // All at once: batching must not change a token either.
    let streams: Vec<EventStream> =
        cases.iter().map(|case| engine.submit(greedy(case)).expect("accepted")).collect();
    for (case, stream) in cases.iter().zip(streams) {
        assert_eq!(tokens(stream), case.greedy_ids, "{}: mlx_lm says {:?}", case.name, case.text);
    }
    engine.end();
}

#[test]
fn template_and_tokenizer_give_transformers_ids() {
    let text = CheckpointText::read(&model_dir()).expect("readable");
    let tokenizer = TextTokenizer::load(&model_dir(), &text).expect("loads");
    let template = ChatTemplate::new(&text, || 0).expect("compiles");
    for case in stored() {
        let prompt = match &case.messages {
            None => case.name.clone(),
            Some(messages) => {
                let body = serde_json::json!({ "messages": messages }).to_string();
                let request = ChatRequest::parse(&body).expect("a request");
                let conversation = Conversation {
                    messages: &request.messages,
                    add_generation_prompt: true,
                    ..Conversation::default()
                };
                template.render(&conversation).expect("renders")
            }
        };
        let ids = tokenizer.encode(&prompt, false).expect("encodes");
        assert_eq!(ids, case.prompt_ids, "{}", case.name);
        let bytes: Vec<u8> =
            case.greedy_ids.iter().flat_map(|&id| tokenizer.bytes().get(id)).copied().collect();
        assert_eq!(String::from_utf8_lossy(&bytes), case.text, "{}", case.name);
    }
}
