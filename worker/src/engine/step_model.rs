//! What the engine needs of a model, so that its loop can be tested with one that fails on purpose.

use std::error::Error;
use std::ops::Range;

use sanctum_kernels::device;

use crate::model::{Model, SequenceCache, SequenceRows};

/// A model as the step loop sees it. It stays on the engine's thread.
pub trait StepModel {
    /// The state of one sequence.
    type Cache;

    /// The state of a sequence without tokens.
    fn new_cache(&self) -> Self::Cache;

    /// Bytes a state holds now.
    fn cache_bytes(cache: &Self::Cache) -> u64;

    /// Computes the next rows of several sequences, whose ranges tile `ids` in order, and gives the logits of the
    /// rows `wanted`, one after the other.
    ///
    /// # Errors
    /// A sentence; the states of this step must be thrown away then.
    fn step(
        &self,
        ids: &[u32],
        sequences: &mut [(Range<usize>, &mut Self::Cache)],
        wanted: &[u32],
    ) -> Result<Vec<f32>, String>;

    /// Gives back memory kept for reuse; called when nothing is left to do.
    fn rest(&self) {}

    /// Bytes in use and bytes kept for reuse by the numeric library.
    fn memory(&self) -> (u64, u64) {
        (0, 0)
    }
}

impl StepModel for Model {
    type Cache = SequenceCache;

    fn new_cache(&self) -> SequenceCache {
        Self::new_cache(self)
    }

    fn cache_bytes(cache: &SequenceCache) -> u64 {
        cache.nbytes()
    }

    fn step(
        &self,
        ids: &[u32],
        sequences: &mut [(Range<usize>, &mut SequenceCache)],
        wanted: &[u32],
    ) -> Result<Vec<f32>, String> {
        let mut rows: Vec<SequenceRows<'_>> = sequences
            .iter_mut()
            .map(|(rows, cache)| SequenceRows { rows: rows.clone(), cache })
            .collect();
        Self::step(self, ids, &mut rows, wanted).map_err(|error| with_causes(&error))
    }

    fn rest(&self) {
        if let Err(error) = device::clear_memory_cache() {
            tracing::warn!(error = %with_causes(&error), "MLX's memory cache was not cleared");
        }
    }

    fn memory(&self) -> (u64, u64) {
        device::memory_use()
            .map_or((0, 0), |memory| (memory.active_bytes as u64, memory.cache_bytes as u64))
    }
}

/// An error and all its causes in one line.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
