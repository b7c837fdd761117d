//! Runs the measurements: every one several times, in turns, so that a busy moment of the machine meets all alike.

use std::time::Duration;

use super::report::median;
use super::{Batch, BenchError, Report};
use crate::engine::{EngineHandle, Event, GenerateRequest, SamplingParams, Timings};

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Tokens of the prompt whose prefill is measured.
    pub prompt_tokens: usize,
    /// Tokens that every decoding request generates.
    pub tokens: usize,
    /// Requests at once, one measurement for each number.
    pub batches: Vec<usize>,
    /// Times that everything is measured; the report has medians.
    pub rounds: usize,
}

/// Tokens of the prompt before decoding, and of the one whose first token is timed: a short question.
pub(super) const SHORT_PROMPT_TOKENS: usize = 32;

/// Measures a model that has been started.
///
/// # Errors
/// If the engine refuses or fails a request.
pub fn measure(engine: &EngineHandle, options: &BenchOptions) -> Result<Report, BenchError> {
    let mut prompts = Prompts { vocab_size: engine.info().vocab_size, state: 1 };
    let mut run = |batch: usize, prompt: usize, tokens: usize| {
        let streams = (0..batch)
            .map(|_| engine.submit(request(prompts.next(prompt), tokens)))
            .collect::<Result<Vec<_>, _>>()?;
        streams.into_iter().map(finish).collect::<Result<Vec<_>, BenchError>>()
    };
    run(1, SHORT_PROMPT_TOKENS, options.tokens)?; // pages in what prewarming did not touch

    let (mut first, mut prefill) = (Vec::new(), Vec::new());
    let mut decode = vec![Vec::new(); options.batches.len()];
    for _ in 0..options.rounds {
        let short = run(1, SHORT_PROMPT_TOKENS, 1)?;
        first.extend(short.iter().map(|timings| (timings.queued + timings.prefill).as_secs_f64()));
        let long = run(1, options.prompt_tokens, 1)?;
        prefill.extend(long.iter().map(|timings| rate(options.prompt_tokens, timings.prefill)));
        for (&batch, rates) in options.batches.iter().zip(&mut decode) {
            rates.push(decode_rate(&run(batch, SHORT_PROMPT_TOKENS, options.tokens)?));
        }
    }
    let decode = options
        .batches
        .iter()
        .zip(decode)
        .map(|(&requests, rates)| Batch { requests, tokens_per_second: median(rates) });
    Ok(Report {
        first_token_ms: median(first) * 1e3,
        prefill_tokens_per_second: median(prefill),
        decode: decode.collect(),
        ..Report::of(engine.info(), options)
    })
}

/// All requests' rates together. The moments in which others still prefill count against a request, as they do in life.
fn decode_rate(timings: &[Timings]) -> f64 {
    // The first token comes with the prefill.
    timings.iter().map(|t| rate(t.completion_tokens.saturating_sub(1), t.decode)).sum()
}

fn rate(tokens: usize, time: Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn request(prompt: Vec<u32>, tokens: usize) -> GenerateRequest {
    GenerateRequest {
        id: "bench".to_owned(),
        prompt,
        max_tokens: tokens,
        sampling: SamplingParams::greedy(),
        seed: 0,
        stop_tokens: [].into(),
        ignore_eos: true,
        top_logprobs: None,
    }
}

fn finish(mut stream: crate::engine::EventStream) -> Result<Timings, BenchError> {
    while let Some(event) = stream.next_blocking() {
        match event {
            Event::Started { .. } | Event::Token(_) => {}
            Event::Finished(finish) => return Ok(finish.timings),
            Event::Failed(error) => return Err(error.into()),
        }
    }
    Err(BenchError::Ended)
}

/// Prompts of which no two share a beginning, so that no cache shortens one.
struct Prompts {
    vocab_size: usize,
    state: u64,
}

impl Prompts {
    fn next(&mut self, tokens: usize) -> Vec<u32> {
        (0..tokens).map(|_| self.token()).collect()
    }

    fn token(&mut self) -> u32 {
        // xorshift64: any spread will do, the model's work does not depend on the ids.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state % self.vocab_size as u64) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_leave_the_first_token_to_the_prefill() {
        let one = Timings {
            completion_tokens: 11,
            decode: Duration::from_secs(2),
            prefill: Duration::from_secs(9),
            ..Timings::default()
        };
        assert!((decode_rate(&[one]) - 5.0).abs() < 1e-9);
        assert!((decode_rate(&[one, one, one]) - 15.0).abs() < 1e-9);
    }

    #[test]
    fn prompts_differ_from_their_first_tokens_on_and_stay_in_the_vocabulary() {
        let mut prompts = Prompts { vocab_size: 50_000, state: 1 };
        let (a, b) = (prompts.next(8), prompts.next(8));
        assert_ne!(a[..2], b[..2]);
        assert!(a.iter().chain(&b).all(|&id| id < 50_000));
    }
}
