//! The loop with real checkpoints: what a request gets does not depend on its company, on chunks of its prompt, or on
//! the slot it sits in; and it is what mlx-lm computed. In host form to the bit.

use std::path::PathBuf;

use sanctum_kernels::{BackendOptions, Form};

use super::{EventStream, collect};
use crate::engine::{
    EngineHandle, EngineOptions, GenerateRequest, SamplingParams, TokenEvent, start_model,
};
use crate::model::OpenOptions;
use crate::parity::Reference;

fn fixture(name: &str) -> PathBuf {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/checkpoints");
    PathBuf::from(tests).join(name)
}

/// An engine that is gone when its test ends, passed or not.
struct Engine(EngineHandle);

impl Drop for Engine {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn engine(name: &str, form: Form, options: &EngineOptions) -> Engine {
    let open = OpenOptions { dir: fixture(name), id: None, context: None };
    let backend = BackendOptions { form, threads: 2 };
    Engine(start_model(options, backend, open, |_| {}).expect("starts"))
}

/// Eight requests of different lengths: greedy, sampled, penalised.
fn requests(reference: &Reference) -> Vec<GenerateRequest> {
    let prompts = reference.prompts.iter().chain(&reference.prompts).enumerate();
    let request = |(i, prompt): (usize, &crate::parity::ReferencePrompt)| GenerateRequest {
        id: prompt.name.clone(),
        prompt: prompt.ids.clone(),
        max_tokens: 48,
        sampling: match i {
            0..4 => SamplingParams::greedy(),
            4..6 => SamplingParams { temperature: 1.5, top_p: 0.9, ..SamplingParams::default() },
            _ => SamplingParams { repetition_penalty: 1.3, ..SamplingParams::greedy() },
        },
        seed: i as u64,
        stop_tokens: [].into(),
        ignore_eos: false,
        top_logprobs: Some(2),
    };
    prompts.map(request).collect()
}

fn submit(engine: &Engine, request: &GenerateRequest) -> EventStream {
    engine.0.submit(request.clone()).expect("accepted")
}

/// Greedy requests come first, one for each prompt of the reference.
fn assert_greedy_as_mlx_lm(replies: &[Vec<TokenEvent>], reference: &Reference) {
    for (ours, theirs) in replies.iter().zip(&reference.prompts) {
        let ids: Vec<u32> = ours.iter().map(|token| token.id).collect();
        assert_eq!(Some(&ids), theirs.greedy.as_ref(), "{}", theirs.name);
    }
}

fn tokens(stream: EventStream) -> Vec<TokenEvent> {
    let (tokens, end) = collect(stream);
    end.expect("finished");
    tokens
}

fn company_changes_nothing(name: &str) {
    let reference = Reference::read(&fixture(name).join("reference.json")).expect("a reference");
    let requests = requests(&reference);
    let roomy = engine(name, Form::Host, &EngineOptions { slots: 1, ..EngineOptions::default() });
    let alone: Vec<Vec<TokenEvent>> =
        requests.iter().map(|request| tokens(submit(&roomy, request))).collect();
    assert_greedy_as_mlx_lm(&alone, &reference);
    for (slots, prefill_rows, shared_rows) in [(8, 256, 64), (8, 9, 9), (3, 40, 7)] {
        let options =
            EngineOptions { slots, prefill_rows, shared_rows, ..EngineOptions::default() };
        let crowded = engine(name, Form::Host, &options);
        let streams: Vec<EventStream> =
            requests.iter().map(|request| submit(&crowded, request)).collect();
        let together: Vec<Vec<TokenEvent>> = streams.into_iter().map(tokens).collect();
        // Log probabilities too: equal bits, not only equal tokens.
        assert_eq!(alone, together, "with {options:?}");
    }
}

#[test]
fn company_changes_nothing_for_llama() {
    company_changes_nothing("llama-4bit-g64-f32");
}

#[test]
fn company_changes_nothing_for_qwen2_tied() {
    company_changes_nothing("qwen2-4bit-g64-tied-f32");
}

/// MLX's own ops may round differently by the number of rows, so only tokens are compared here.
#[test]
fn company_does_not_change_greedy_tokens_in_graph_form() {
    let name = "mistral-4bit-g64-f32";
    let reference = Reference::read(&fixture(name).join("reference.json")).expect("a reference");
    let options = EngineOptions { prefill_rows: 40, shared_rows: 20, ..EngineOptions::default() };
    let crowded = engine(name, Form::Graph, &options);
    let streams: Vec<EventStream> =
        requests(&reference).iter().map(|request| submit(&crowded, request)).collect();
    let replies: Vec<Vec<TokenEvent>> = streams.into_iter().map(tokens).collect();
    assert_greedy_as_mlx_lm(&replies, &reference);
}
