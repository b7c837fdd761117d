//! What a step and the slots may hold.

/// Limits of the scheduler; made so that every slot can take part in every step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    slots: usize,
    prefill_rows: usize,
    shared_rows: usize,
    kv_bytes: u64,
}

impl Limits {
    /// Limits for this many slots (at least one).
    ///
    /// `prefill_rows` is the most rows of a step in which nobody decodes, `shared_rows` of one in which somebody
    /// does: smaller, because every running stream waits for that step. Both are raised to the number of slots.
    #[must_use]
    pub fn new(slots: usize, prefill_rows: usize, shared_rows: usize, kv_bytes: u64) -> Self {
        let slots = slots.max(1);
        let shared_rows = shared_rows.max(slots);
        Self { slots, prefill_rows: prefill_rows.max(shared_rows), shared_rows, kv_bytes }
    }

    /// Requests that can run at once.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Most bytes of KV cache that running requests may come to hold together.
    #[must_use]
    pub fn kv_bytes(&self) -> u64 {
        self.kv_bytes
    }

    /// Most rows of a step.
    #[must_use]
    pub fn step_rows(&self, somebody_decodes: bool) -> usize {
        if somebody_decodes { self.shared_rows } else { self.prefill_rows }
    }
}
