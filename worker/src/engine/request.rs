//! What a caller asks of the engine: token ids in, sampling rules, limits.
//!
//! It knows no text: templates, tokenising, stop *strings* and chat formats are settled before and after the
//! engine. It refuses nothing itself; `EngineHandle::submit` does.

use std::sync::Arc;

/// One sequence to generate. `n` choices are `n` requests with seeds `seed`, `seed + 1`, ….
#[derive(Clone, Debug)]
pub struct GenerateRequest {
    /// The request's id, for logs only.
    pub id: String,
    /// The prompt's token ids; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; at least one. Prompt and these must fit the context together.
    pub max_tokens: usize,
    /// How a token is chosen from the logits.
    pub sampling: SamplingParams,
    /// Names the random stream: the same seed, prompt and rules give the same tokens.
    pub seed: u64,
    /// Tokens that end the sequence (not emitted as `Event::Token`).
    pub stop_tokens: Arc<[u32]>,
    /// Generate through `stop_tokens`, up to `max_tokens` (benchmarks).
    pub ignore_eos: bool,
    /// Report the chosen token's log probability and those of this many most probable ones.
    pub top_logprobs: Option<usize>,
}

/// How a token is chosen. The default is plain sampling at temperature 1.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// 0 chooses the most probable token, the lowest id among equals; otherwise logits are divided by it.
    pub temperature: f32,
    /// Keep the most probable tokens that reach this mass together; 1 keeps all.
    pub top_p: f32,
    /// Keep this many most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep tokens at least this fraction as probable as the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of every token seen in prompt or output (CTRL); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once per occurrence in the output (OpenAI); 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted if the token occurs in the output at all (OpenAI); 0 is off.
    pub presence_penalty: f32,
    /// Added to the logits of these tokens before anything else.
    pub logit_bias: Vec<(u32, f32)>,
}

impl SamplingParams {
    /// The most probable token always, with no penalties.
    #[must_use]
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
        }
    }
}
