//! From logits to a token: a pure function of the row, the request's history and a counter.
//!
//! Order: log probabilities are reported from the raw logits; then `logit_bias`, repetition, frequency and
//! presence penalties change them; then temperature; then `top_k`, `top_p`, `min_p` cut; then one uniform number
//! chooses. Token `i` of a seed uses the `i`-th number of that seed's ChaCha stream and nothing else, so it does
//! not depend on other requests, on batching or on how many numbers were drawn before.
//! Arithmetic is our own `exp` in a fixed order: the same bits on every machine.
//! A row that holds anything but finite numbers is refused.

mod choose;
mod exp;
mod history;
mod scan;
mod top;

use rand_chacha::ChaCha8Rng;
use rand_core::{RngCore as _, SeedableRng as _};

pub use history::History;

use crate::engine::{SamplingParams, TokenLogprob};

/// A chosen token.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// Its id.
    pub id: u32,
    /// Log probabilities, if asked for.
    pub logprob: Option<TokenLogprob>,
}

/// The row holds something that is not a finite number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the logits hold {0}")]
pub struct NotFinite(pub &'static str);

/// Chooses the next token. The row is changed by penalties.
///
/// # Errors
/// If the row holds NaN or infinity.
pub fn sample(
    logits: &mut [f32],
    params: &SamplingParams,
    history: &History,
    seed: u64,
    top_logprobs: Option<usize>,
) -> Result<Sampled, NotFinite> {
    let raw_max = scan::finite_max(logits)?;
    let report = top_logprobs.map(|n| Report::of(logits, raw_max, n));
    let changed = history.apply(params, logits);
    let max = if changed { scan::finite_max(logits)? } else { raw_max };
    let id = if params.temperature <= 0.0 {
        scan::first_at(logits, max)
    } else {
        choose::choose(logits, max, params, uniform(seed, history.generated()))
    };
    Ok(Sampled { id, logprob: report.map(|report| report.about(id)) })
}

/// What the raw row says, kept while penalties change it.
struct Report {
    log_total: f32,
    top: Vec<(u32, f32)>,
    raw: Vec<f32>,
}

impl Report {
    fn of(logits: &[f32], max: f32, n: usize) -> Self {
        let log_total = max + exp::sum_exp(logits, max, 1.0).ln() as f32;
        let top = top::largest(logits, n).into_iter().map(|r| (r.id, r.x - log_total)).collect();
        Self { log_total, top, raw: logits.to_vec() }
    }

    fn about(self, id: u32) -> TokenLogprob {
        TokenLogprob { logprob: self.raw[id as usize] - self.log_total, top: self.top }
    }
}

/// The `index`-th uniform number of a seed, in [0, 1).
fn uniform(seed: u64, index: u64) -> f64 {
    /// A number takes two 32-bit words of the stream.
    const WORDS: u128 = 2;
    let mut stream = ChaCha8Rng::seed_from_u64(seed);
    stream.set_word_pos(u128::from(index) * WORDS);
    (stream.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests;
