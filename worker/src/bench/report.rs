//! The result of a benchmark: a table for people, JSON for programs.

use std::fmt;

use serde::Serialize;

use super::BenchOptions;
use super::measure::SHORT_PROMPT_TOKENS;
use crate::engine::ModelInfo;

/// What was measured, on what.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Of this program.
    pub version: &'static str,
    /// Name of the model directory.
    pub model: String,
    /// `model_type` of its configuration.
    pub model_type: String,
    /// Such as `4-bit group 64`.
    pub quantization: String,
    /// Form of the blocks: host, graph or reference.
    pub form: &'static str,
    /// Threads that compute.
    pub threads: usize,
    /// Tokens of the short prompt.
    pub short_prompt_tokens: usize,
    /// Tokens of the long prompt.
    pub prompt_tokens: usize,
    /// Tokens generated per decoding request.
    pub tokens: usize,
    /// Measurements behind each median.
    pub rounds: usize,
    /// From submission of the short prompt to its first token, in milliseconds.
    pub first_token_ms: f64,
    /// Of the long prompt.
    pub prefill_tokens_per_second: f64,
    /// For each number of requests at once.
    pub decode: Vec<Batch>,
}

/// Decoding of several requests at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Batch {
    /// How many.
    pub requests: usize,
    /// Of all together.
    pub tokens_per_second: f64,
}

impl Report {
    pub(super) fn of(info: &ModelInfo, options: &BenchOptions) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            model: info.id.clone(),
            model_type: info.model_type.clone(),
            quantization: info.quantization.clone(),
            form: "",
            threads: 0,
            short_prompt_tokens: SHORT_PROMPT_TOKENS,
            prompt_tokens: options.prompt_tokens,
            tokens: options.tokens,
            rounds: options.rounds,
            first_token_ms: 0.0,
            prefill_tokens_per_second: 0.0,
            decode: Vec::new(),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, model_type, quantization, form, threads, rounds, .. } = self;
        writeln!(
            f,
            "{model}: {model_type}, {quantization}, {form} form, {threads} threads; medians of {rounds}"
        )?;
        let Self { short_prompt_tokens, prompt_tokens, tokens, .. } = self;
        let first = format!("first token after {short_prompt_tokens}");
        writeln!(f, "  {first:<24} {:>9.1} ms", self.first_token_ms)?;
        let prefill = format!("prefill of {prompt_tokens}");
        writeln!(f, "  {prefill:<24} {:>9.1} tokens/s", self.prefill_tokens_per_second)?;
        for Batch { requests, tokens_per_second } in &self.decode {
            let decode = format!("decode {tokens}, {requests} at once");
            writeln!(f, "  {decode:<24} {tokens_per_second:>9.1} tokens/s")?;
        }
        Ok(())
    }
}

/// The middle value, of an even number the mean of the two; 0 of nothing.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    match values.len() {
        0 => 0.0,
        n if n % 2 == 1 => values[half],
        _ => f64::midpoint(values[half - 1], values[half]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 9.0]), 3.0);
        assert_eq!(median(vec![]), 0.0);
    }
}
