//! One prompt's verdict: pure arithmetic over two runs.

use std::fmt;

use super::{ReferencePrompt, Run};

/// How far one prompt agrees.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptReport {
    /// Its name in the reference.
    pub name: String,
    /// Its length.
    pub tokens: usize,
    /// The largest difference of a logit over the reference logits' standard deviation.
    pub error: f32,
    /// Greedy tokens that agree before the first that does not, and how many there are.
    pub greedy: Option<(usize, usize)>,
    /// Positions with the same most probable token, and how many there are.
    pub argmax: Option<(usize, usize)>,
}

impl PromptReport {
    /// Whether the logits are within `tolerance` and all tokens agree.
    #[must_use]
    pub fn passes(&self, tolerance: f32) -> bool {
        let all = |count: Option<(usize, usize)>| count.is_none_or(|(agree, of)| agree == of);
        self.error <= tolerance && all(self.greedy) && all(self.argmax)
    }
}

impl fmt::Display for PromptReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |count: Option<(usize, usize)>| {
            count.map_or_else(|| "-".to_owned(), |(agree, of)| format!("{agree}/{of}"))
        };
        let Self { name, tokens, error, greedy, argmax } = self;
        let (greedy, argmax) = (count(*greedy), count(*argmax));
        write!(f, "{name:<12} {tokens:>6} {error:>12.2e} {greedy:>9} {argmax:>12}")
    }
}

/// Compares what the reference has of a prompt with what we computed.
#[must_use]
pub fn compare(theirs: &ReferencePrompt, ours: &Run) -> PromptReport {
    let largest = if theirs.logits.len() == ours.logits.len() {
        let pairs = theirs.logits.iter().zip(&ours.logits);
        // NaN must not vanish in a maximum: it counts as infinitely wrong.
        pairs
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, |max: f32, d| if d.is_nan() { f32::INFINITY } else { max.max(d) })
    } else {
        f32::INFINITY
    };
    let prefix = |theirs: &Vec<u32>| {
        let agree = theirs.iter().zip(&ours.greedy).take_while(|(a, b)| a == b).count();
        (agree, theirs.len())
    };
    let same = |theirs: &Vec<u32>| {
        let agree = theirs.iter().zip(&ours.argmax).filter(|(a, b)| a == b).count();
        (agree, theirs.len())
    };
    PromptReport {
        name: theirs.name.clone(),
        tokens: theirs.ids.len(),
        error: largest / standard_deviation(&theirs.logits),
        greedy: theirs.greedy.as_ref().map(prefix),
        argmax: theirs.argmax.as_ref().map(same),
    }
}

/// Of a population; a row without spread counts as having the smallest positive one, so that any error is large.
fn standard_deviation(row: &[f32]) -> f32 {
    let n = row.len().max(1) as f64;
    let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
    (variance.sqrt() as f32).max(f32::MIN_POSITIVE)
}
