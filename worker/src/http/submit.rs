//! From a prepared request to choices under way.
//!
//! Owns seeds, the merging of sampling parameters (the request's before the checkpoint's before OpenAI's), the clamp of
//! the token limit to the context, and what the engine's refusals mean over HTTP. All choices or none: a choice that
//! is refused takes the others with it.

use std::sync::Arc;

use sanctum_shared::openai::decoding::Decoding;
use sanctum_shared::openai::error::ApiError;

use super::prompt::Prepared;
use super::state::{Served, shutting_down};
use crate::engine::{EngineError, GenerateRequest, SamplingParams, SubmitError};
use crate::metrics::Inference;
use crate::stream::{Choice, Opening, ReplyText};
use crate::tokenize::SamplingDefaults;

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
    let positions = positions(served);
    let mut choices = Vec::with_capacity(prepared.prompts.len() * decoding.n);
    for prompt in &prepared.prompts {
        let room = positions.saturating_sub(prompt.len()).max(1);
        for nth in 0..decoding.n {
            let request = GenerateRequest {
                id: id.to_owned(),
                prompt: prompt.clone(),
                max_tokens: decoding.max_tokens.map_or(room, |most| most.min(room)),
                sampling: sampling.clone(),
                seed: seed.wrapping_add(nth as u64),
                stop_tokens: Arc::clone(&stop_tokens),
                ignore_eos: decoding.ignore_eos,
                top_logprobs: prepared.top_logprobs,
            };
            let events = served.engine.submit(request).map_err(|error| refused(&error))?;
            let tokens = Arc::clone(served.tokenizer.bytes());
            let text = ReplyText::new(Arc::clone(&tokens), opening, decoding.stop.clone());
            // The prompt is counted once however many choices it has.
            let prompt_tokens = if nth == 0 { prompt.len() } else { 0 };
            choices.push(Choice::new(events, tokens, text, Inference::begin(prompt_tokens)));
        }
    }
    Ok(choices)
}

/// Most tokens of prompt and completion together: the context, or what fits the cache memory where that is less.
fn positions(served: &Served) -> usize {
    let info = served.engine.info();
    let bytes = served.engine.snapshot().kv_limit_bytes;
    let fitting = bytes.checked_div(info.kv_bytes_per_token).unwrap_or(u64::MAX);
    info.context_length.min(usize::try_from(fitting).unwrap_or(usize::MAX))
}

fn stop_tokens(served: &Served, decoding: &Decoding) -> Arc<[u32]> {
    let own = served.tokenizer.eos_ids();
    if decoding.stop_token_ids.is_empty() {
        return Arc::clone(own);
    }
    own.iter().chain(&decoding.stop_token_ids).copied().collect()
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
        SubmitError::KvMemory { .. } => ApiError::bad_request(
            "The request needs more cache memory than this server has. Please lower 'max_tokens' or shorten the prompt.",
        )
        .with_param("max_tokens")
        .with_code("context_length_exceeded"),
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
