//! One row of inputs against a tile of weights, as when a token is decoded.
//!
//! Owns the loop that must keep up with memory: every weight is read once, turned into a float and used at once, 32
//! output rows in parallel, without a shuffle. Same order of sums as [`rows`](super::rows).

use std::mem::MaybeUninit;

use super::codec::{Codec, Float, TILE};
use super::panels::Layout;
use crate::host::lanes::{LANES, Lanes};

/// How far ahead of the weights being used the next are asked for, in bytes.
const AHEAD: usize = 2048;
/// Blocks whose products are kept until their sums are taken.
const CHUNK_BLOCKS: usize = 16;

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
    // SAFETY: the units and blocks of the layout are walked in order, each once; products are written, then read.
    unsafe {
        let mut t = [L::zero(); 2];
        let mut products = [[MaybeUninit::<L::F>::uninit(); 2]; CHUNK_BLOCKS];
        let (block_bytes, all) = (layout.block_bytes(), layout.blocks());
        let (mut at, mut x, mut first) = (tile, x, 0);
        while first < all {
            let blocks = CHUNK_BLOCKS.min(all - first);
            let mut units_bytes = 0;
            for (b, products) in products.iter_mut().enumerate().take(blocks) {
                let units = layout.block_units.min(layout.units - (first + b) * layout.block_units);
                let d = block_products::<L, C>(at.wrapping_add(b * block_bytes), x, units);
                products[0].write(L::add(d[0][0], d[1][0]));
                products[1].write(L::add(d[0][1], d[1][1]));
                x = x.add(units * C::UNIT);
                units_bytes = units * C::FORMAT.unit_bytes();
            }
            // Apart from the products, so that no block waits for the one before.
            for (b, products) in products.iter().enumerate().take(blocks) {
                let scales = at.wrapping_add(b * block_bytes + units_bytes);
                let sum = sums.wrapping_add(first + b);
                for s in 0..2 {
                    t[s] = S::finish::<L>(t[s], products[s].assume_init(), sum, scales, s);
                }
            }
            at = at.wrapping_add(blocks * block_bytes);
            first += blocks;
        }
        t
    }
}

/// The two chains of a block, for two strips.
#[inline(always)]
unsafe fn block_products<L: Lanes, C: Codec>(
    at: *const u8,
    x: *const f32,
    units: usize,
) -> [[L::F; 2]; 2] {
    // SAFETY: the caller's units, and their inputs.
    unsafe {
        let mut d = [[L::zero(); 2]; 2];
        let (mut at, mut x) = (at, x);
        for _ in 0..units {
            let raw = [C::load::<L>(at, 0), C::load::<L>(at, 1)];
            macro_rules! elements {
                ($($i:literal)*) => {$(
                    if $i < C::UNIT {
                        C::add_products::<L>(raw, $i, L::splat(*x.add($i)), &mut d[$i % 2]);
                    }
                )*};
            }
            elements!(0 1 2 3 4 5 6 7);
            L::prefetch(at.wrapping_add(AHEAD));
            L::prefetch(at.wrapping_add(AHEAD + 64));
            at = at.add(C::FORMAT.unit_bytes());
            x = x.add(C::UNIT);
        }
        d
    }
}
