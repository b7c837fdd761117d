//! What a model computes for one prompt: last logits, the best token after every position, a greedy continuation.

use sanctum_kernels::KernelError;

use crate::model::{Model, SequenceCache, SequenceRows};

/// Rows of a step. Their logits are all read, so this bounds memory: 64 rows of 150,000 logits are 38 MB.
const ROWS: usize = 64;

/// One prompt, computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The logits after the last token.
    pub logits: Vec<f32>,
    /// The most probable token after every position.
    pub argmax: Vec<u32>,
    /// The continuation by most probable tokens.
    pub greedy: Vec<u32>,
}

impl Run {
    /// Computes a prompt (at least one token) and `greedy` tokens after it.
    ///
    /// # Errors
    /// If the kernels refuse or fail.
    pub fn of(model: &Model, ids: &[u32], greedy: usize) -> Result<Self, KernelError> {
        let vocab = model.sizes().vocab;
        let mut cache = model.new_cache();
        let mut argmax = Vec::with_capacity(ids.len());
        let mut logits = Vec::new();
        for chunk in ids.chunks(ROWS) {
            let rows = step(model, chunk, &mut cache)?;
            argmax.extend(rows.chunks_exact(vocab).map(best));
            logits = rows[rows.len() - vocab..].to_vec();
        }
        let mut tokens = Vec::with_capacity(greedy);
        let mut next = argmax.last().copied();
        while let Some(token) = next.filter(|_| tokens.len() < greedy) {
            tokens.push(token);
            next = if tokens.len() < greedy {
                Some(best(&step(model, &[token], &mut cache)?))
            } else {
                None
            };
        }
        Ok(Self { logits, argmax, greedy: tokens })
    }
}

/// The logits of all rows.
fn step(model: &Model, ids: &[u32], cache: &mut SequenceCache) -> Result<Vec<f32>, KernelError> {
    let wanted: Vec<u32> = (0..ids.len() as u32).collect();
    model.step(ids, &mut [SequenceRows { rows: 0..ids.len(), cache }], &wanted)
}

/// The most probable token, the lowest id among equals.
fn best(row: &[f32]) -> u32 {
    let mut best = 0;
    for (id, &x) in row.iter().enumerate() {
        if x > row[best] {
            best = id;
        }
    }
    best as u32
}
