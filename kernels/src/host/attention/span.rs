//! Some queries of one head group against the keys and values of some spans.
//!
//! Owns the arithmetic of attention (its order is told in the parent module). Works on [`QUERIES`] query vectors at a
//! time, so that keys and values fetched once serve many, with all intermediate numbers in the first caches.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::store::{BLOCK, HeadStore, SPAN, value_width};
use crate::host::exp::exp;
use crate::host::isa::Kernel;
use crate::host::lanes::{LANES, Lanes, PARTIALS, add_blocks, sum};

/// Query vectors of one job, at most.
pub(super) const QUERIES: usize = 24;
/// Dimensions of a head whose products make one block of a score.
const SCORE_BLOCK: usize = 64;

/// What has been seen of the keys, for one query vector: `[value_width]` weighted values, the largest score, the weights'
/// sum. A sum of zero means nothing yet.
#[derive(Debug)]
pub(super) struct States<'a> {
    /// `[vectors][value_width + 2]`.
    pub(super) floats: &'a mut [f32],
    pub(super) head_dim: usize,
}

/// Floats of one vector's state.
pub(super) fn state_len(head_dim: usize) -> usize {
    value_width(head_dim) + 2
}

/// A job: `states` takes in the spans.
pub(super) struct Spans<'a> {
    pub(super) head: &'a HeadStore,
    pub(super) spans: Range<usize>,
    /// Query vectors, `[vectors][head_dim]`, scaled; at most [`QUERIES`].
    pub(super) queries: &'a [f32],
    /// Position of each vector; it sees the keys up to and including that position. Ascending.
    pub(super) positions: &'a [usize],
    pub(super) states: States<'a>,
}

/// A job: joins the states of later spans to those of earlier ones.
pub(super) struct Join<'a> {
    pub(super) earlier: States<'a>,
    pub(super) later: &'a [f32],
}

/// The numbers of one span.
struct Scratch {
    /// Scores, then weights: `[QUERIES][SPAN]`.
    weights: [MaybeUninit<f32>; QUERIES * SPAN],
}

impl Kernel for Spans<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let mut scratch = Scratch { weights: [const { MaybeUninit::uninit() }; QUERIES * SPAN] };
        let weights = scratch.weights.as_mut_ptr().cast::<f32>();
        let head_dim = self.states.head_dim;
        let mut partial = vec![0.0; self.states.floats.len()];
        for span in self.spans.clone() {
            // The keys of this span that each vector sees.
            let mut seen = [0; QUERIES];
            for (seen, &position) in seen.iter_mut().zip(self.positions) {
                *seen = (position + 1).saturating_sub(span * SPAN).min(SPAN);
            }
            let seen = &seen[..self.positions.len()];
            partial.fill(0.0);
            let mut states = States { floats: &mut partial, head_dim };
            // SAFETY: `Isa::run` chose `L`; the store holds every position up to the last vector's, and `weights` has
            // room for all vectors.
            unsafe {
                let (keys, values) = self.head.span(span);
                scores::<L>((keys, values), self.queries, head_dim, seen, weights);
                softmax::<L>(seen, weights, &mut states);
                mix::<L>(values, head_dim, seen, weights, &mut states);
                join::<L>(&mut *self.states.floats, states.floats, head_dim);
            }
        }
    }
}

impl Kernel for Join<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: `Isa::run` chose `L`.
        unsafe { join::<L>(self.earlier.floats, self.later, self.earlier.head_dim) }
    }
}

/// Writes the products of queries and keys, 32 keys at a time; those beyond what a vector sees are arbitrary.
///
/// Meanwhile asks for the next keys and for these keys' values: a decoded token finds none of them in a cache.
#[inline(always)]
unsafe fn scores<L: Lanes>(
    (keys, values): (&[f32], &[f32]),
    queries: &[f32],
    head_dim: usize,
    seen: &[usize],
    weights: *mut f32,
) {
    let most = seen.last().copied().unwrap_or_default();
    for (block, keys) in keys.chunks_exact(BLOCK * head_dim).take(most.div_ceil(BLOCK)).enumerate()
    {
        let first = seen.partition_point(|&seen| seen <= block * BLOCK);
        let next = keys.as_ptr().wrapping_add(BLOCK * head_dim);
        let value = values.as_ptr().wrapping_add(block * BLOCK * value_width(head_dim));
        // SAFETY: vectors and dimensions within `queries`, blocks within the span.
        unsafe {
            for line in 0..BLOCK * value_width(head_dim) / LANES {
                L::prefetch(value.wrapping_add(line * LANES).cast());
                L::prefetch(next.wrapping_add(line * LANES).cast());
            }
            for vector in first..seen.len() {
                let to = weights.add(vector * SPAN + block * BLOCK);
                L::store(to, L::zero());
                L::store(to.add(LANES), L::zero());
            }
            let mut dim = 0;
            while dim < head_dim {
                let products = Products {
                    w: keys.as_ptr().add(dim * BLOCK),
                    w_stride: BLOCK,
                    strips: BLOCK / LANES,
                    x: queries.as_ptr().add(first * head_dim + dim),
                    x_stride: head_dim,
                    t: weights.add(first * SPAN + block * BLOCK),
                    t_stride: SPAN,
                };
                products.add_rows::<L>(seen.len() - first, SCORE_BLOCK.min(head_dim - dim));
                dim += SCORE_BLOCK;
            }
        }
    }
}

/// Turns each vector's scores into weights, `exp(score - largest)`, and notes the largest and the weights' sum.
#[inline(always)]
unsafe fn softmax<L: Lanes>(seen: &[usize], weights: *mut f32, states: &mut States<'_>) {
    let width = value_width(states.head_dim);
    for (vector, (&seen, state)) in
        seen.iter().zip(states.floats.chunks_exact_mut(width + 2)).enumerate()
    {
        if seen == 0 {
            continue;
        }
        // SAFETY: a vector's row has room for a span, which is whole strides of 32.
        unsafe {
            let row = weights.add(vector * SPAN);
            let end = seen.next_multiple_of(PARTIALS);
            for key in seen..end {
                *row.add(key) = f32::NEG_INFINITY;
            }
            let mut largest = [L::splat(f32::NEG_INFINITY); 2];
            for key in (0..end).step_by(PARTIALS) {
                for (half, largest) in largest.iter_mut().enumerate() {
                    *largest = L::max(*largest, L::load(row.add(key + half * LANES)));
                }
            }
            let mut lanes = [0.0; LANES];
            L::store(lanes.as_mut_ptr(), L::max(largest[0], largest[1]));
            let mut most = lanes[0];
            for &lane in &lanes[1..] {
                most = if most > lane { most } else { lane };
            }
            for key in (0..end).step_by(LANES) {
                let score = L::sub(L::load(row.add(key)), L::splat(most));
                L::store(row.add(key), exp::<L>(score));
            }
            state[width] = most;
            state[width + 1] = sum::<L>(row, seen);
        }
    }
}

/// Adds up the values, weighted, 32 keys at a time. Never touches a value that a vector does not see.
#[inline(always)]
unsafe fn mix<L: Lanes>(
    values: &[f32],
    head_dim: usize,
    seen: &[usize],
    weights: *const f32,
    states: &mut States<'_>,
) {
    let width = value_width(head_dim);
    let most = seen.last().copied().unwrap_or_default();
    let of_block =
        |vector: usize, block: usize| seen[vector].saturating_sub(block * BLOCK).min(BLOCK);
    for (block, values) in values.chunks_exact(BLOCK * width).take(most.div_ceil(BLOCK)).enumerate()
    {
        let mut vector = seen.partition_point(|&seen| seen <= block * BLOCK);
        // Runs of vectors that see equally many keys of the block: all but a prompt's last block is one run.
        while vector < seen.len() {
            let keys = of_block(vector, block);
            let run =
                (vector..seen.len()).take_while(|&other| of_block(other, block) == keys).count();
            // SAFETY: vectors of the job, keys of the block, and states as wide as the values.
            unsafe {
                let products = Products {
                    w: values.as_ptr(),
                    w_stride: width,
                    strips: width / LANES,
                    x: weights.add(vector * SPAN + block * BLOCK),
                    x_stride: SPAN,
                    t: states.floats.as_mut_ptr().add(vector * (width + 2)),
                    t_stride: width + 2,
                };
                products.add_rows::<L>(run, keys);
            }
            vector += run;
        }
    }
}

/// Joins states in the order of their spans: both are rescaled to the larger of the two largest scores.
#[inline(always)]
unsafe fn join<L: Lanes>(earlier: &mut [f32], later: &[f32], head_dim: usize) {
    let width = value_width(head_dim);
    for (earlier, later) in earlier.chunks_exact_mut(width + 2).zip(later.chunks_exact(width + 2)) {
        if later[width + 1] == 0.0 {
            continue;
        }
        if earlier[width + 1] == 0.0 {
            earlier.copy_from_slice(later);
            continue;
        }
        let (a, b) = (earlier[width], later[width]);
        let most = if a > b { a } else { b };
        // SAFETY: `width` is whole vectors of both.
        unsafe {
            let factors = [exp::<L>(L::splat(a - most)), exp::<L>(L::splat(b - most))];
            for dim in (0..width).step_by(LANES) {
                let to = earlier.as_mut_ptr().add(dim);
                let a = L::mul(L::load(to), factors[0]);
                L::store(to, L::add(a, L::mul(L::load(later.as_ptr().add(dim)), factors[1])));
            }
            let mut lanes = [[0.0; LANES]; 2];
            L::store(lanes[0].as_mut_ptr(), factors[0]);
            L::store(lanes[1].as_mut_ptr(), factors[1]);
            earlier[width] = most;
            earlier[width + 1] = earlier[width + 1] * lanes[0][0] + later[width + 1] * lanes[1][0];
        }
    }
}

/// `t[row] += block(w, x[row])` for `strips` vectors of outputs.
#[derive(Clone, Copy)]
struct Products {
    w: *const f32,
    w_stride: usize,
    strips: usize,
    x: *const f32,
    x_stride: usize,
    t: *mut f32,
    t_stride: usize,
}

impl Products {
    /// All rows, a few at a time.
    #[inline(always)]
    unsafe fn add_rows<L: Lanes>(self, rows: usize, len: usize) {
        let mut row = 0;
        while row < rows {
            // SAFETY: rows below `rows`.
            unsafe {
                let here = Self {
                    x: self.x.add(row * self.x_stride),
                    t: self.t.add(row * self.t_stride),
                    ..self
                };
                match rows - row {
                    left if left >= L::ROWS && L::ROWS == 6 => {
                        here.add_strips::<L, 6>(len);
                        row += 6;
                    }
                    left if left >= 3 => {
                        here.add_strips::<L, 3>(len);
                        row += 3;
                    }
                    2 => {
                        here.add_strips::<L, 2>(len);
                        row += 2;
                    }
                    _ => {
                        here.add_strips::<L, 1>(len);
                        row += 1;
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn add_strips<L: Lanes, const R: usize>(self, len: usize) {
        let x = (self.x, self.x_stride);
        let mut strip = 0;
        while strip < self.strips {
            // SAFETY: strips below `strips`.
            unsafe {
                let w = (self.w.add(strip * LANES), self.w_stride);
                let t = (self.t.add(strip * LANES), self.t_stride);
                if L::STRIPS == 2 && strip + 2 <= self.strips {
                    add_blocks::<L, R, 2>(w, x, len, t);
                    strip += 2;
                } else {
                    add_blocks::<L, R, 1>(w, x, len, t);
                    strip += 1;
                }
            }
        }
    }
}
