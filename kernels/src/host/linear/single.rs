//! One row of inputs against a tile of weights, as when a token is decoded.
//!
//! Owns the loop that must keep up with memory: every weight is read once, turned into a float and used at once, 32
//! output rows in parallel, without a shuffle. Same order of sums as [`rows`](super::rows).

use super::codec::{Codec, Float, TILE};
use super::panels::Layout;
use crate::host::lanes::{LANES, Lanes};

/// How far ahead of the weights being used the next are asked for, in bytes.
const AHEAD: usize = 2048;

/// Scales and biases of a block, or their absence.
pub(super) trait Scale {
    /// `t` after a block: `d` is its products, at `sum` the sum of its inputs, at `scales` what follows its units.
    ///
    /// # Safety
    ///
    /// As for all of [`Lanes`]; sum and scales are readable, unless there are none.
    unsafe fn finish<L: Lanes>(
        t: L::F,
        d: L::F,
        sum: *const f32,
        scales: *const u8,
        strip: usize,
    ) -> L::F;
}

/// Dense matrices.
pub(super) struct Unscaled;

impl Scale for Unscaled {
    #[inline(always)]
    unsafe fn finish<L: Lanes>(t: L::F, d: L::F, _: *const f32, _: *const u8, _: usize) -> L::F {
        // SAFETY: the caller's promise.
        unsafe { L::add(t, d) }
    }
}

impl<T: Float> Scale for T {
    #[inline(always)]
    unsafe fn finish<L: Lanes>(
        t: L::F,
        d: L::F,
        sum: *const f32,
        scales: *const u8,
        strip: usize,
    ) -> L::F {
        // SAFETY: the caller's promise.
        unsafe {
            let t = L::fma(T::read::<L>(scales, strip * LANES), d, t);
            L::fma(T::read::<L>(scales, TILE + strip * LANES), L::splat(*sum), t)
        }
    }
}

/// The 32 sums of a tile.
///
/// # Safety
///
/// As for all of [`Lanes`]; `tile` is a tile of this layout, whose format is `C`'s and whose scales are `S`'s; `x` is
/// `layout.width()` prepared inputs and `sums` the sums of its blocks.
#[inline(always)]
pub(super) unsafe fn tile_sums<L: Lanes, C: Codec, S: Scale>(
    layout: &Layout,
    tile: *const u8,
    x: *const f32,
    sums: *const f32,
) -> [L::F; 2] {
    // SAFETY: the units and blocks of the layout are walked in order, each once.
    unsafe {
        let unit_bytes = C::FORMAT.unit_bytes();
        let mut t = [L::zero(); 2];
        let (mut at, mut x) = (tile, x);
        for block in 0..layout.blocks() {
            let units = layout.block_units.min(layout.units - block * layout.block_units);
            let mut even = [L::zero(); 2];
            let mut odd = [L::zero(); 2];
            for _ in 0..units {
                let raw = [C::load::<L>(at, 0), C::load::<L>(at, 1)];
                L::prefetch(at.wrapping_add(AHEAD));
                L::prefetch(at.wrapping_add(AHEAD + 64));
                let mut i = 0;
                while i < C::UNIT {
                    let (x0, x1) = (L::splat(*x.add(i)), L::splat(*x.add(i + 1)));
                    for s in 0..2 {
                        even[s] = L::fma(C::element::<L>(raw[s], i), x0, even[s]);
                        odd[s] = L::fma(C::element::<L>(raw[s], i + 1), x1, odd[s]);
                    }
                    i += 2;
                }
                at = at.add(unit_bytes);
                x = x.add(C::UNIT);
            }
            for s in 0..2 {
                let d = L::add(even[s], odd[s]);
                t[s] = S::finish::<L>(t[s], d, sums.wrapping_add(block), at, s);
            }
            at = tile.wrapping_add((block + 1) * layout.block_bytes());
        }
        t
    }
}
