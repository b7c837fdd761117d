//! What a request has seen and said, as far as penalties need it.

use std::collections::{HashMap, HashSet};

use crate::engine::SamplingParams;

/// The tokens of a prompt and of the output so far.
#[derive(Clone, Debug, Default)]
pub struct History {
    generated: u64,
    /// Distinct tokens of the prompt; empty unless the repetition penalty is on.
    prompt: HashSet<u32>,
    /// How often each token was generated; empty unless a penalty is on.
    output: HashMap<u32, u32>,
    counts_output: bool,
}

impl History {
    /// Of a request that has generated nothing yet. Remembers only what these parameters need.
    #[must_use]
    pub fn new(prompt: &[u32], params: &SamplingParams) -> Self {
        let repetition = params.repetition_penalty != 1.0;
        Self {
            generated: 0,
            prompt: if repetition { prompt.iter().copied().collect() } else { HashSet::new() },
            output: HashMap::new(),
            counts_output: repetition
                || params.frequency_penalty != 0.0
                || params.presence_penalty != 0.0,
        }
    }

    /// Adds a generated token.
    pub fn push(&mut self, id: u32) {
        self.generated += 1;
        if self.counts_output {
            *self.output.entry(id).or_default() += 1;
        }
    }

    /// Tokens generated so far.
    #[must_use]
    pub fn generated(&self) -> u64 {
        self.generated
    }

    /// Applies bias and penalties to a row; whether anything may have changed.
    pub(super) fn apply(&self, params: &SamplingParams, logits: &mut [f32]) -> bool {
        let mut changed = false;
        for &(id, bias) in &params.logit_bias {
            if let Some(x) = logits.get_mut(id as usize) {
                *x += bias;
                changed = true;
            }
        }
        if params.repetition_penalty != 1.0 {
            let spoken = self.output.keys().filter(|id| !self.prompt.contains(id));
            for &id in self.prompt.iter().chain(spoken) {
                if let Some(x) = logits.get_mut(id as usize) {
                    let penalty = params.repetition_penalty;
                    *x = if *x > 0.0 { *x / penalty } else { *x * penalty };
                    changed = true;
                }
            }
        }
        if params.frequency_penalty != 0.0 || params.presence_penalty != 0.0 {
            for (&id, &count) in &self.output {
                if let Some(x) = logits.get_mut(id as usize) {
                    *x -= params.frequency_penalty * count as f32 + params.presence_penalty;
                    changed = true;
                }
            }
        }
        changed
    }
}
