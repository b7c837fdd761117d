//! The inner loop of everything: a block of products, `d0 + d1`.
//!
//! Owns the two chains (see the host module). Serves rows of inputs against rows of weights, queries against keys and
//! softmax weights against values; only [`linear`](crate::host::linear)'s single-row kernel has a loop of its own, in
//! the same order.

use super::{LANES, Lanes};

/// Positions that [`block`] takes without looking up.
const UNROLLED: usize = 16;

/// Sums `w[k][lane] * x[row][k]` over `k` in `0..len`: even `k` in one chain, odd ones in another, then both.
///
/// `w` is `len` runs of `S * 16` floats, `w_stride` apart; `x` is `R` rows of `len` floats, `x_stride` apart.
///
/// # Safety
///
/// As for all of [`Lanes`]; the memory described is readable.
#[inline(always)]
pub(in crate::host) unsafe fn block<L: Lanes, const R: usize, const S: usize>(
    (w, w_stride): (*const f32, usize),
    (x, x_stride): (*const f32, usize),
    len: usize,
) -> [[L::F; S]; R] {
    // SAFETY: k < len below, so that all reads are of the memory described.
    unsafe {
        let mut even = [[L::zero(); S]; R];
        let mut odd = [[L::zero(); S]; R];
        let (mut at, mut x, mut left) = (w, x, len);
        // Unrolled, so that a quantisation group takes few enough turns for their end to be foreseen.
        while left >= UNROLLED {
            for k in 0..UNROLLED / 2 {
                let w = at.add(2 * k * w_stride);
                chain::<L, R, S>(&mut even, w, x.add(2 * k), x_stride);
                chain::<L, R, S>(&mut odd, w.add(w_stride), x.add(2 * k + 1), x_stride);
            }
            (at, x, left) = (at.add(UNROLLED * w_stride), x.add(UNROLLED), left - UNROLLED);
        }
        while left >= 2 {
            chain::<L, R, S>(&mut even, at, x, x_stride);
            chain::<L, R, S>(&mut odd, at.add(w_stride), x.add(1), x_stride);
            (at, x, left) = (at.add(2 * w_stride), x.add(2), left - 2);
        }
        if left > 0 {
            chain::<L, R, S>(&mut even, at, x, x_stride);
        }
        for r in 0..R {
            for s in 0..S {
                even[r][s] = L::add(even[r][s], odd[r][s]);
            }
        }
        even
    }
}

#[inline(always)]
unsafe fn chain<L: Lanes, const R: usize, const S: usize>(
    d: &mut [[L::F; S]; R],
    w: *const f32,
    x: *const f32,
    x_stride: usize,
) {
    // SAFETY: as in `block`.
    unsafe {
        let mut weights = [L::zero(); S];
        for (s, weights) in weights.iter_mut().enumerate() {
            *weights = L::load(w.add(s * LANES));
        }
        for (r, d) in d.iter_mut().enumerate() {
            let x = L::splat(*x.add(r * x_stride));
            for s in 0..S {
                d[s] = L::fma(weights[s], x, d[s]);
            }
        }
    }
}

/// `t[row] = t[row] + block(w, x[row])` for `R` rows of `S * 16` floats, `t_stride` apart.
///
/// # Safety
///
/// As for [`block`]; `t` is writable.
#[inline(always)]
pub(in crate::host) unsafe fn add_blocks<L: Lanes, const R: usize, const S: usize>(
    w: (*const f32, usize),
    x: (*const f32, usize),
    len: usize,
    (t, t_stride): (*mut f32, usize),
) {
    // SAFETY: the caller's promise.
    unsafe {
        let d = block::<L, R, S>(w, x, len);
        for (r, d) in d.iter().enumerate() {
            for (s, &d) in d.iter().enumerate() {
                let t = t.add(r * t_stride + s * LANES);
                L::store(t, L::add(L::load(t), d));
            }
        }
    }
}
