//! From a prepared request to choices under way.
//!
//! Owns seeds, the merging of sampling parameters (the request's before the checkpoint's before OpenAI's), what ends a
//! reply, the token limit, and what the engine's refusals mean over HTTP. All choices or none.
//!
//! Memory is promised to a request for all it may generate. One that names no limit therefore gets no more than its
//! slot's even share of the memory, though at least [`DEFAULT_TOKENS`]: otherwise a few such requests would make all
//! others wait for promises that hardly any of them uses. `max_tokens` asks for more.

use std::sync::Arc;

use sanctum_shared::openai::decoding::Decoding;
use sanctum_shared::openai::error::ApiError;

use super::prompt::Prepared;
use super::state::{Served, shutting_down};
use crate::engine::{EngineError, GenerateRequest, SamplingParams, SubmitError};
use crate::metrics::Inference;
use crate::stream::{Choice, Opening, ReplyText};
use crate::tokenize::SamplingDefaults;

/// Tokens that a request without a limit may generate where its share of the memory is less and the context allows.
const DEFAULT_TOKENS: usize = 256;

/// Submits every choice of every prompt, in order. `seed` names the random stream where the client named none.
pub fn submit(
    served: &Served,
    prepared: &Prepared,
    id: &str,
    opening: Opening,
    seed: u64,
) -> Result<Vec<Choice>, ApiError> {
    let decoding = &prepared.decoding;
    let sampling = sampling(decoding, &served.sampling);
    let seed = decoding.seed.unwrap_or(seed);
    let stop_tokens = stop_tokens(served, decoding);
    let choices = prepared.prompts.iter().flat_map(|prompt| (0..decoding.n).map(move |_| prompt));
    // Equal prompts are told apart by the number of the choice over all prompts.
    let requests = choices.enumerate().map(|(index, prompt)| GenerateRequest {
        id: id.to_owned(),
        prompt: prompt.clone(),
        max_tokens: max_tokens(served, decoding, prompt.len()),
        sampling: sampling.clone(),
        seed: seed.wrapping_add(index as u64),
        stop_tokens: Arc::clone(&stop_tokens),
        // Which tokens end the reply is decided above.
        ignore_eos: false,
        top_logprobs: prepared.top_logprobs,
    });
    let streams = served.engine.submit_all(requests.collect()).map_err(|error| refused(&error))?;
    let choices = streams.into_iter().enumerate().map(|(index, events)| {
        let tokens = Arc::clone(served.tokenizer.bytes());
        let text = ReplyText::new(Arc::clone(&tokens), opening, decoding.stop.clone());
        // The prompt is counted once however many choices it has.
        let first = index.is_multiple_of(decoding.n);
        let prompt_tokens = if first { prepared.prompts[index / decoding.n].len() } else { 0 };
        Choice::new(events, tokens, text, Inference::begin(prompt_tokens))
    });
    Ok(choices.collect())
}

/// Most tokens to generate after a prompt of `prompt` tokens.
fn max_tokens(served: &Served, decoding: &Decoding, prompt: usize) -> usize {
    let room = served.engine.info().context_length.saturating_sub(prompt).max(1);
    let share = || served.engine.fair_share().saturating_sub(prompt).max(DEFAULT_TOKENS);
    decoding.max_tokens.unwrap_or_else(share).min(room)
}

/// The tokens that end a reply: the checkpoint's own unless they are to be ignored, those the client names, and marks
/// that it names by their text: no text of a reply ever shows a mark, so that is where such a stop can be seen.
fn stop_tokens(served: &Served, decoding: &Decoding) -> Arc<[u32]> {
    let tokenizer = &served.tokenizer;
    let own: &[u32] = if decoding.ignore_eos { &[] } else { tokenizer.eos_ids() };
    let marks = decoding.stop.iter().filter_map(|stop| tokenizer.mark_id(stop));
    own.iter().chain(&decoding.stop_token_ids).copied().chain(marks).collect()
}

fn sampling(asked: &Decoding, checkpoint: &SamplingDefaults) -> SamplingParams {
    // `do_sample: false` says that the authors decode greedily; what stands beside it was not meant to be used.
    let unused = SamplingDefaults::default();
    let (checkpoint, temperature) = match checkpoint.do_sample {
        Some(false) => (&unused, Some(0.0)),
        _ => (checkpoint, checkpoint.temperature),
    };
    let plain = SamplingParams::default();
    SamplingParams {
        temperature: asked.temperature.or(temperature).unwrap_or(plain.temperature),
        top_p: asked.top_p.or(checkpoint.top_p).unwrap_or(plain.top_p),
        top_k: asked.top_k.or(checkpoint.top_k).unwrap_or(plain.top_k),
        min_p: asked.min_p.or(checkpoint.min_p).unwrap_or(plain.min_p),
        repetition_penalty: asked
            .repetition_penalty
            .or(checkpoint.repetition_penalty)
            .unwrap_or(plain.repetition_penalty),
        frequency_penalty: asked.frequency_penalty.unwrap_or(plain.frequency_penalty),
        presence_penalty: asked.presence_penalty.unwrap_or(plain.presence_penalty),
        logit_bias: asked.logit_bias.clone(),
    }
}

/// What a refusal of the engine means to a client.
fn refused(error: &SubmitError) -> ApiError {
    match *error {
        SubmitError::QueueFull { retry_after_s, .. } => ApiError::queue_full(retry_after_s),
        SubmitError::PromptTooLong { prompt, context, .. } => {
            ApiError::context_length("prompt", context, prompt)
        }
        SubmitError::TooMany { requests, limit } => ApiError::invalid(
            "n",
            format!("The request asks for {requests} choices over all prompts, this server takes at most {limit}."),
        )
        .with_code("invalid_value"),
        SubmitError::Empty => ApiError::bad_request("The prompt holds no token."),
        SubmitError::UnknownToken { id, .. } => {
            ApiError::bad_request(format!("The model has no token with the id {id}."))
        }
        SubmitError::ShuttingDown => shutting_down(),
        SubmitError::Unhealthy => {
            ApiError::unavailable("unhealthy", "The model is not able to answer.", None)
        }
    }
}

/// What a failure in mid-reply means to a client. The cause stays in the log.
pub fn failed(error: &EngineError) -> ApiError {
    tracing::error!(%error, "a sequence failed");
    match error {
        EngineError::ShuttingDown => shutting_down(),
        EngineError::NotANumber { .. } => {
            ApiError::internal("The model computed something that is not a number.")
                .with_code("model_error")
        }
        EngineError::Step(_) => ApiError::internal("The model failed while it was answering."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_outranks_the_checkpoint() {
        let checkpoint = SamplingDefaults {
            do_sample: Some(true),
            temperature: Some(0.7),
            top_k: Some(20),
            ..SamplingDefaults::default()
        };
        let asked = Decoding { temperature: Some(0.1), ..Decoding::default() };
        let merged = sampling(&asked, &checkpoint);
        assert_eq!((merged.temperature, merged.top_k, merged.top_p), (0.1, 20, 1.0));
    }

    #[test]
    fn a_checkpoint_meant_for_greedy_decoding_is_decoded_greedily() {
        let checkpoint = SamplingDefaults {
            do_sample: Some(false),
            temperature: Some(0.7),
            top_k: Some(50),
            ..SamplingDefaults::default()
        };
        let merged = sampling(&Decoding::default(), &checkpoint);
        assert_eq!((merged.temperature, merged.top_k), (0.0, 0));
    }

    #[test]
    fn refusals_have_the_statuses_clients_act_on() {
        let full = refused(&SubmitError::QueueFull { waiting: 3, retry_after_s: 9 });
        assert_eq!((full.status.as_u16(), full.retry_after_s), (429, Some(9)));
        assert_eq!(refused(&SubmitError::ShuttingDown).status, 503);
        assert_eq!(refused(&SubmitError::Unhealthy).status, 503);
        let long = SubmitError::PromptTooLong { prompt: 9, max_tokens: 1, context: 8 };
        assert_eq!(refused(&long).code, Some("context_length_exceeded"));
    }

    #[test]
    fn failures_do_not_leak_their_cause() {
        let error = failed(&EngineError::Step("/secret/path: panicked".into()));
        assert_eq!(error.status, 500);
        assert!(!error.message.contains("secret"), "{error}");
    }
}
