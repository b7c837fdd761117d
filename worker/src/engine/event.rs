//! What the engine tells a caller: started, each token, the end and why.
//!
//! The last event of every stream is `Finished` or `Failed`, exactly once, unless the caller left first.

use std::time::Duration;

/// One step of a request's life.
#[derive(Clone, Debug)]
pub enum Event {
    /// The request has a slot and its prompt is being processed.
    Started {
        /// Prompt tokens whose state was already held.
        cached_tokens: usize,
    },
    /// One generated token.
    Token(TokenEvent),
    /// The end, as asked for.
    Finished(Finish),
    /// The end, by a fault of ours or of the model.
    Failed(EngineError),
}

/// One generated token.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEvent {
    /// The token's id.
    pub id: u32,
    /// Its log probability, if `top_logprobs` asked for it.
    pub logprob: Option<TokenLogprob>,
}

/// Log probabilities (natural) under the model's own distribution: before temperature, penalties and filters.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// Of the chosen token.
    pub logprob: f32,
    /// The most probable tokens, best first; lower id first among equals.
    pub top: Vec<(u32, f32)>,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// What it cost.
    pub timings: Timings,
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model chose a stop token.
    StopToken,
    /// `max_tokens` were generated.
    Length,
}

/// What a request cost, in tokens and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timings {
    /// Tokens in the prompt.
    pub prompt_tokens: usize,
    /// Prompt tokens whose state was already held.
    pub cached_tokens: usize,
    /// Tokens generated, the stop token included.
    pub completion_tokens: usize,
    /// From submission to having a slot.
    pub queued: Duration,
    /// From having a slot to the first token.
    pub prefill: Duration,
    /// From the first token to the last.
    pub decode: Duration,
}

/// Why a request could not be finished.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// The model produced logits that are not numbers.
    #[error("the model produced {what} instead of numbers")]
    NotANumber {
        /// `NaN` or `infinity`.
        what: &'static str,
    },
    /// The step this request took part in failed: an error of MLX or a panic, as text.
    #[error("the step failed: {0}")]
    Step(String),
    /// Everything was stopped before the request ended.
    #[error("the worker is stopping")]
    ShuttingDown,
}
