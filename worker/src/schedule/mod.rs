//! Which rows the next step computes: a pure function of slots and queue, tested without a model.
//!
//! A step is a list of segments, one per slot: one row for a sequence that is decoding, a chunk of the prompt
//! for one that is not there yet. Decoding goes first, so a long prompt never stalls a running stream by more
//! than one step; what is left of the step's rows is shared equally between the prompts, so a long prompt does
//! not hold up a short one either. Waiting requests get slots in their order of arrival, and none is passed.

mod limits;

pub use limits::Limits;

/// A slot that holds a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Which slot.
    pub slot: usize,
    /// Prompt tokens not computed yet; 0 once the sequence decodes.
    pub prompt_left: usize,
    /// Arrival order, for what cannot be shared equally.
    pub arrival: u64,
    /// Bytes of KV cache the request may come to hold.
    pub kv_bytes: u64,
}

/// A request without a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Tokens of its prompt; at least one.
    pub prompt: usize,
    /// Arrival order; ascending along the queue.
    pub arrival: u64,
    /// Bytes of KV cache it may come to hold; never above `Limits::kv_bytes`.
    pub kv_bytes: u64,
}

/// One slot's rows in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentPlan {
    /// Which slot.
    pub slot: usize,
    /// How many tokens; at least one.
    pub rows: usize,
    /// Whether the last row's logits are wanted: it decodes, or its prompt ends here.
    pub wants_logits: bool,
}

/// What to do next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepPlan {
    /// The slots that the first requests of the queue get, in order.
    pub admit: Vec<usize>,
    /// The rows to compute, at most one segment a slot; prompts admitted by this very plan included.
    pub segments: Vec<SegmentPlan>,
}

impl StepPlan {
    /// Rows of all segments.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows).sum()
    }
}

/// The next step for these slots (in any order) and this queue (oldest first).
#[must_use]
pub fn plan(queue: &[Waiting], slots: &[Slot], limits: &Limits) -> StepPlan {
    let admitted = admit(queue, slots, limits);
    let mut active: Vec<Slot> = slots.iter().chain(&admitted).copied().collect();
    active.sort_unstable_by_key(|slot| slot.arrival);

    let decoding = active.iter().filter(|slot| slot.prompt_left == 0).count();
    let budget = limits.step_rows(decoding > 0);
    let prompts: Vec<usize> =
        active.iter().map(|slot| slot.prompt_left).filter(|&left| left > 0).collect();
    let mut shares = share(budget.saturating_sub(decoding), &prompts).into_iter();

    let segments = active.iter().filter_map(|slot| {
        let rows = if slot.prompt_left == 0 { 1 } else { shares.next().unwrap_or(0) };
        let wants_logits = rows >= slot.prompt_left;
        (rows > 0).then_some(SegmentPlan { slot: slot.slot, rows, wants_logits })
    });
    StepPlan {
        segments: segments.collect(),
        admit: admitted.iter().map(|slot| slot.slot).collect(),
    }
}

/// The first requests of the queue that fit free slots and KV memory. The first that does not fit ends it:
/// passing it would let small requests starve a large one.
fn admit(queue: &[Waiting], slots: &[Slot], limits: &Limits) -> Vec<Slot> {
    let mut reserved: u64 = slots.iter().map(|slot| slot.kv_bytes).sum();
    let free = (0..limits.slots()).filter(|n| slots.iter().all(|slot| slot.slot != *n));
    let mut admitted = Vec::new();
    for (slot, request) in free.zip(queue) {
        reserved = reserved.saturating_add(request.kv_bytes);
        if reserved > limits.kv_bytes() {
            break;
        }
        admitted.push(Slot {
            slot,
            prompt_left: request.prompt,
            arrival: request.arrival,
            kv_bytes: request.kv_bytes,
        });
    }
    admitted
}

/// Shares `rows` equally: nobody gets more than it wants, what one does not want the others get, and a
/// remainder goes to the first.
fn share(mut rows: usize, wants: &[usize]) -> Vec<usize> {
    let mut shares = vec![0; wants.len()];
    // From the smallest want up: who wants no more than an equal share of what is left gets it all.
    let mut order: Vec<usize> = (0..wants.len()).collect();
    order.sort_by_key(|&i| wants[i]);
    for (done, &i) in order.iter().enumerate() {
        let level = rows / (order.len() - done);
        if wants[i] > level {
            order[done..].iter().for_each(|&j| shares[j] = level);
            rows -= level * (order.len() - done);
            break;
        }
        shares[i] = wants[i];
        rows -= wants[i];
    }
    for (share, &want) in shares.iter_mut().zip(wants) {
        let more = rows.min(want - *share);
        *share += more;
        rows -= more;
    }
    shares
}

#[cfg(test)]
mod tests;
