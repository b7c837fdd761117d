//! Knobs of the engine and how it tells that it is starting.

/// How many requests, rows and bytes the engine handles at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Requests that run at once.
    pub slots: usize,
    /// Requests that may wait for a slot.
    pub queue: usize,
    /// Most rows of a step in which nobody decodes.
    pub prefill_rows: usize,
    /// Most rows of a step in which somebody decodes, who waits for it.
    pub shared_rows: usize,
    /// Most bytes of KV cache that running requests may come to hold.
    pub kv_limit_bytes: u64,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self { slots: 8, queue: 32, prefill_rows: 256, shared_rows: 64, kv_limit_bytes: 4 << 30 }
    }
}

/// How far the start has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// How much of it is done, from 0 to 1.
    pub fraction: f32,
}

/// The parts of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Weights are read, checked and laid out for this machine.
    Loading,
    /// The first steps are computed, so that no request pays for them.
    Prewarming,
}

impl Phase {
    /// Its name in `/readyz`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Prewarming => "prewarming",
        }
    }
}
