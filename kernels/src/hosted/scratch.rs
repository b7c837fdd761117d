//! Memory that the blocks of a backend use one after the other.
//!
//! Host ops run one at a time on MLX's stream, so one set of buffers serves all blocks; it grows to the largest call and
//! then costs no allocation. Contents never pass from one op to the next.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The buffers, for whichever op runs.
#[derive(Debug, Default)]
pub(crate) struct Scratch(Mutex<Buffers>);

/// Named by what attention and MLP keep in them.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// The normed hidden states.
    pub(crate) normed: Buffer,
    /// Queries, or the gate.
    pub(crate) first: Buffer,
    /// Keys, or up.
    pub(crate) second: Buffer,
    /// Values.
    pub(crate) third: Buffer,
    /// Attended values.
    pub(crate) mixed: Buffer,
    /// The last projection, before it is added to the hidden states.
    pub(crate) projected: Buffer,
}

/// f32 memory that only grows.
#[derive(Debug, Default)]
pub(crate) struct Buffer(Vec<f32>);

impl Scratch {
    /// The buffers. What a panicking op left in them does not matter.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Buffers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffer {
    /// `len` floats of arbitrary content.
    pub(crate) fn take(&mut self, len: usize) -> &mut [f32] {
        if self.0.len() < len {
            self.0.resize(len, 0.0);
        }
        &mut self.0[..len]
    }
}
