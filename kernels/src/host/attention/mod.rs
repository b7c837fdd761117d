//! Causal attention with grouped keys and values.
//!
//! Owns [`attend`] and the [`KvStore`]. A query at position `p` sees the keys `0..=p` and nothing else: not even a
//! number that is not one, in a later value, reaches it.
//!
//! # Order
//!
//! Queries are turned, then scaled by `1 / sqrt(head_dim)`. A score is the sum from `+0` of blocks of 64 dimensions.
//! Keys are taken in spans of 256 positions from position 0. Within a span: the largest score; weights
//! `exp(score - largest)`; their sum, in the order for sums of one row; per dimension, the sum from `+0` of blocks of 32
//! keys. Spans are joined one by one, in order, each rescaled to the larger of the largest scores. The result is the
//! weighted values times `1 / sum`. Nothing of this depends on how many rows come at once, so spans can also be taken by
//! different threads.

mod span;
mod store;
#[cfg(test)]
mod tests;

use std::ops::Range;

use self::span::{Join, QUERIES, Spans, States, state_len};
pub use self::store::KvStore;
use self::store::{HeadStore, SPAN};
use super::isa::Isa;
use super::pool::Pool;
use super::rope::{Angles, RopeTable};
use super::shared_mut::SharedMut;

/// Products below which a call is not worth waking other threads.
const ALONE_BELOW: usize = 1 << 16;

/// Sizes of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads, a multiple of `kv_heads`; head `h` reads key head `h / (heads / kv_heads)`.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

/// The rows of one slot within a call.
#[derive(Debug)]
pub struct Slot<'a> {
    /// Its rows of queries, keys and values.
    pub rows: Range<usize>,
    /// Position of the first of them; what the store holds from there on is overwritten.
    pub start: usize,
    /// The slot's keys and values.
    pub store: &'a mut KvStore,
}

/// Rows of one call, all `[rows, ...]`, row by row.
#[derive(Debug)]
pub struct Rows<'a> {
    /// Queries, `[rows, heads * head_dim]`. Left turned and scaled.
    pub q: &'a mut [f32],
    /// Keys, `[rows, kv_heads * head_dim]`. Left turned.
    pub k: &'a mut [f32],
    /// Values, `[rows, kv_heads * head_dim]`.
    pub v: &'a [f32],
    /// Where the result goes, `[rows, heads * head_dim]`.
    pub out: &'a mut [f32],
}

/// Turns queries and keys, appends keys and values to their slots, and attends.
///
/// Rows outside all slots are left alone.
///
/// # Panics
///
/// If sizes do not match, or slots share rows.
pub fn attend(
    pool: &Pool,
    isa: Isa,
    heads: Heads,
    rope: &RopeTable,
    rows: Rows<'_>,
    slots: &mut [Slot<'_>],
) {
    check(heads, &rows, slots);
    let Rows { q, k, v, out } = rows;
    let end = |slot: &Slot<'_>| slot.start + slot.rows.len();
    for slot in &mut *slots {
        slot.store.reserve(slot.start + slot.rows.len());
    }
    let angles = rope.angles(slots.iter().map(end).max().unwrap_or_default());
    let products: usize = slots.iter().map(|slot| slot.rows.len() * end(slot)).sum::<usize>()
        * heads.heads
        * heads.head_dim;
    let run = |jobs: usize, job: &(dyn Fn(usize) + Sync)| {
        if products < ALONE_BELOW { (0..jobs).for_each(job) } else { pool.run(jobs, job) }
    };
    append(run, heads, &angles, q, k, v, slots);

    let plan = Plan::of(heads, slots, pool.threads());
    let state_len = state_len(heads.head_dim);
    let mut split = vec![0.0; plan.split_vectors * state_len];
    let out = SharedMut::new(out);
    {
        let split = SharedMut::new(&mut split);
        let (slots, q) = (&*slots, &*q);
        run(plan.jobs.len(), &|job| {
            let job = &plan.jobs[job];
            let mut floats = vec![0.0; job.vectors(heads) * state_len];
            job.run(isa, heads, &slots[job.slot], q, &mut floats);
            if let Some(place) = job.split {
                // SAFETY: every job has a place of its own.
                let states = unsafe { split.part(place * state_len, floats.len()) };
                states.copy_from_slice(&floats);
            } else {
                // SAFETY: jobs that are not split differ in rows or heads.
                unsafe { job.finish(heads, &slots[job.slot], &floats, &out) };
            }
        });
    }
    // Spans that different jobs took, in order.
    for jobs in plan.jobs.chunk_by(Job::same_vectors) {
        let [first, later @ ..] = jobs else { continue };
        let Some(place) = first.split else { continue };
        let len = first.vectors(heads) * state_len;
        let (earlier, rest) = split[place * state_len..].split_at_mut(len);
        for later in rest.chunks_exact(len).take(later.len()) {
            let earlier = States { floats: &mut *earlier, head_dim: heads.head_dim };
            isa.run(Join { earlier, later });
        }
        // SAFETY: no job is running any more.
        unsafe { first.finish(heads, &slots[first.slot], earlier, &out) };
    }
}

fn check(heads: Heads, rows: &Rows<'_>, slots: &[Slot<'_>]) {
    let (q_width, k_width) = (heads.heads * heads.head_dim, heads.kv_heads * heads.head_dim);
    assert!(k_width > 0 && heads.heads.is_multiple_of(heads.kv_heads), "{heads:?}");
    let count = rows.q.len() / q_width;
    assert_eq!(rows.q.len(), count * q_width, "queries");
    assert_eq!(rows.out.len(), rows.q.len(), "outputs of an attention");
    assert!(rows.k.len() == count * k_width && rows.v.len() == rows.k.len(), "keys and values");
    let mut taken = 0;
    for slot in slots {
        assert!(taken <= slot.rows.start && slot.rows.start <= slot.rows.end, "slots in order");
        assert!(slot.rows.end <= count, "rows of a slot");
        assert_eq!(slot.store.shape(), (heads.kv_heads, heads.head_dim), "shape of a store");
        taken = slot.rows.end;
    }
}

/// Turns queries and keys and writes keys and values.
fn append(
    run: impl Fn(usize, &(dyn Fn(usize) + Sync)),
    heads: Heads,
    angles: &Angles,
    q: &mut [f32],
    k: &mut [f32],
    v: &[f32],
    slots: &mut [Slot<'_>],
) {
    let Heads { kv_heads, head_dim, .. } = heads;
    let (group, scale) = (heads.heads / kv_heads, 1.0 / (head_dim as f32).sqrt());
    let rows: Vec<(Range<usize>, usize)> =
        slots.iter().map(|slot| (slot.rows.clone(), slot.start)).collect();
    let stores: Vec<SharedMut<'_, HeadStore>> =
        slots.iter_mut().map(|slot| SharedMut::new(&mut slot.store.heads)).collect();
    let (q, k) = (SharedMut::new(q), SharedMut::new(k));
    run(rows.len() * kv_heads, &|job| {
        let (slot, head) = (job / kv_heads, job % kv_heads);
        let (rows, start) = rows[slot].clone();
        // SAFETY: every job has a slot and head of its own: slots are distinct `&mut`, and check() saw that they do not
        // share rows.
        let store = unsafe { &mut stores[slot].part(head, 1)[0] };
        for (row, position) in rows.zip(start..) {
            let key_at = (row * kv_heads + head) * head_dim;
            // SAFETY: as above.
            let (queries, key) =
                unsafe { (q.part(key_at * group, group * head_dim), k.part(key_at, head_dim)) };
            for query in queries.chunks_exact_mut(head_dim) {
                angles.rotate(query, position);
                for value in query {
                    *value *= scale;
                }
            }
            angles.rotate(key, position);
            store.write(position, key, &v[key_at..][..head_dim]);
        }
    });
}

/// Who does what.
struct Plan {
    /// Jobs for the same vectors follow each other.
    jobs: Vec<Job>,
    /// Vectors of all jobs whose states must be joined.
    split_vectors: usize,
}

/// Some rows of a slot and one key head's queries, against some spans.
struct Job {
    slot: usize,
    kv_head: usize,
    /// Counted from the slot's first.
    rows: Range<usize>,
    spans: Range<usize>,
    /// Where among the split vectors its states go; `None` if it takes all spans.
    split: Option<usize>,
}

impl Plan {
    fn of(heads: Heads, slots: &[Slot<'_>], threads: usize) -> Self {
        let group = heads.heads / heads.kv_heads;
        let rows_per_job = (QUERIES / group).max(1);
        let whole: usize =
            slots.iter().map(|slot| slot.rows.len().div_ceil(rows_per_job) * heads.kv_heads).sum();
        // Cutting by span pays only while there would be too few jobs to share out evenly.
        let split = threads > 1 && whole < 4 * threads;
        let mut plan = Self { jobs: Vec::with_capacity(whole), split_vectors: 0 };
        for (slot, of) in slots.iter().enumerate() {
            for kv_head in 0..heads.kv_heads {
                for from in (0..of.rows.len()).step_by(rows_per_job) {
                    let rows = from..of.rows.len().min(from + rows_per_job);
                    let spans = (of.start + rows.end).div_ceil(SPAN);
                    if !split || spans == 1 {
                        plan.jobs.push(Job { slot, kv_head, rows, spans: 0..spans, split: None });
                        continue;
                    }
                    for span in 0..spans {
                        let split = Some(plan.split_vectors);
                        plan.split_vectors += rows.len() * group;
                        let (rows, spans) = (rows.clone(), span..span + 1);
                        plan.jobs.push(Job { slot, kv_head, rows, spans, split });
                    }
                }
            }
        }
        plan
    }
}

impl Job {
    fn vectors(&self, heads: Heads) -> usize {
        self.rows.len() * (heads.heads / heads.kv_heads)
    }

    fn same_vectors(&self, other: &Self) -> bool {
        (self.slot, self.kv_head, &self.rows) == (other.slot, other.kv_head, &other.rows)
    }

    /// Where the group's queries of a row lie.
    fn place(&self, heads: Heads, slot: &Slot<'_>, row: usize) -> usize {
        let group = heads.heads / heads.kv_heads;
        ((slot.rows.start + row) * heads.kv_heads + self.kv_head) * group * heads.head_dim
    }

    fn run(&self, isa: Isa, heads: Heads, slot: &Slot<'_>, q: &[f32], floats: &mut [f32]) {
        let (group, head_dim) = (heads.heads / heads.kv_heads, heads.head_dim);
        let mut queries = Vec::with_capacity(self.vectors(heads) * head_dim);
        let mut positions = Vec::with_capacity(self.vectors(heads));
        for row in self.rows.clone() {
            queries.extend_from_slice(&q[self.place(heads, slot, row)..][..group * head_dim]);
            positions.extend(std::iter::repeat_n(slot.start + row, group));
        }
        let head = &slot.store.heads[self.kv_head];
        // A group of more heads than a job's vectors is taken in turns.
        let state_len = state_len(head_dim);
        for ((queries, positions), floats) in queries
            .chunks(QUERIES * head_dim)
            .zip(positions.chunks(QUERIES))
            .zip(floats.chunks_mut(QUERIES * state_len))
        {
            let states = States { floats, head_dim };
            isa.run(Spans { head, spans: self.spans.clone(), queries, positions, states });
        }
    }

    /// Writes `values / sum`.
    ///
    /// # Safety
    ///
    /// No other job writes these rows and heads of `out`.
    unsafe fn finish(
        &self,
        heads: Heads,
        slot: &Slot<'_>,
        floats: &[f32],
        out: &SharedMut<'_, f32>,
    ) {
        let (group, head_dim) = (heads.heads / heads.kv_heads, heads.head_dim);
        let state_len = state_len(head_dim);
        for (row, states) in self.rows.clone().zip(floats.chunks_exact(group * state_len)) {
            // SAFETY: the caller's promise.
            let out = unsafe { out.part(self.place(heads, slot, row), group * head_dim) };
            for (out, state) in out.chunks_exact_mut(head_dim).zip(states.chunks_exact(state_len)) {
                let factor = 1.0 / state[state_len - 1];
                for (out, value) in out.iter_mut().zip(state) {
                    *out = value * factor;
                }
            }
        }
    }
}
