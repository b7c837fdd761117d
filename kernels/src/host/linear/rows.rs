//! Many rows of inputs against a tile of weights, as when a prompt is read or several slots decode.
//!
//! Owns the blocking: a strip of output rows is turned into floats once per chunk of inputs, small enough for the first
//! cache, and then meets all rows of inputs, a few at a time, in registers. Same order of sums as
//! [`single`](super::single), whatever the format.

use std::mem::MaybeUninit;

use half::{bf16, f16};

use super::codec::{Bytes, Codec, Float, FloatType, Floats, Format, Nibbles, TILE};
use super::panels::Layout;
use crate::host::lanes::{LANES, Lanes, block};

/// Rows of inputs that one job takes, at most.
pub(super) const ROWS_PER_JOB: usize = 96;
/// Inputs of a chunk: sixteen rows of them as floats are 16 KiB. A multiple of every block.
const CHUNK: usize = 256;
/// Blocks of a chunk at most: groups have 32 inputs or more.
const CHUNK_BLOCKS: usize = CHUNK / 32;

/// On a cache line: vectors that straddle two cost twice.
#[repr(align(64))]
pub(super) struct Lines<T>(pub(super) T);

/// A tile of weights against rows of prepared inputs.
#[derive(Clone, Copy)]
pub(super) struct TileOfRows<'a> {
    pub(super) layout: &'a Layout,
    pub(super) tile: *const u8,
    /// Prepared rows.
    pub(super) x: *const f32,
    /// Floats between them.
    pub(super) x_stride: usize,
    /// The rows' sums, `layout.blocks()` apart.
    pub(super) sums: *const f32,
    /// Rows, at most [`ROWS_PER_JOB`].
    pub(super) m: usize,
    /// Where the sums go, `[m][TILE]`.
    pub(super) out: *mut f32,
}

/// The part of a tile at work: `blocks` blocks of `N` strips, as floats.
struct Chunk {
    /// First strip, block and number of blocks.
    strip: usize,
    block: usize,
    blocks: usize,
    /// `[blocks][inputs of a block][N * 16]`.
    weights: *mut f32,
    /// `[blocks][scale, bias][N * 16]`; unused if dense.
    scales: *mut f32,
}

impl TileOfRows<'_> {
    /// Computes.
    ///
    /// # Safety
    ///
    /// As for [`tile_sums`](super::single::tile_sums), for every row; `out` is writable.
    #[inline(always)]
    pub(super) unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller's promise; strips are 0 and 1.
        unsafe {
            if L::STRIPS == 2 {
                self.strips::<L, 2>(0);
            } else {
                for strip in 0..2 {
                    self.strips::<L, 1>(strip);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn strips<L: Lanes, const N: usize>(self, strip: usize) {
        let mut weights = Lines([const { MaybeUninit::<f32>::uninit() }; CHUNK * TILE]);
        let mut scales = Lines([const { MaybeUninit::<f32>::uninit() }; CHUNK_BLOCKS * 2 * TILE]);
        let (weights, scales) = (weights.0.as_mut_ptr().cast(), scales.0.as_mut_ptr().cast());
        let (all, per_chunk) = (self.layout.blocks(), CHUNK / self.layout.block());
        // SAFETY: blocks and rows are those of the layout; a chunk has room for its blocks of N strips.
        unsafe {
            for row in 0..self.m {
                for s in 0..N {
                    L::store(self.out.add(row * TILE + (strip + s) * LANES), L::zero());
                }
            }
            let mut block = 0;
            while block < all {
                let blocks = per_chunk.min(all - block);
                let chunk = Chunk { strip, block, blocks, weights, scales };
                self.widen::<L, N>(&chunk);
                if self.layout.scales.is_some() {
                    self.meet_rows::<L, true, N>(&chunk);
                } else {
                    self.meet_rows::<L, false, N>(&chunk);
                }
                block += blocks;
            }
        }
    }

    /// Units of a block.
    fn units(&self, block: usize) -> usize {
        self.layout.block_units.min(self.layout.units - block * self.layout.block_units)
    }

    /// Turns a chunk's weights and scales into floats.
    #[inline(always)]
    unsafe fn widen<L: Lanes, const N: usize>(&self, chunk: &Chunk) {
        for b in 0..chunk.blocks {
            // SAFETY: the blocks of the tile, with the types that the layout names; the chunk has room for them.
            unsafe {
                let at = self.tile.add((chunk.block + b) * self.layout.block_bytes());
                let units = self.units(chunk.block + b);
                let to = chunk.weights.add(b * self.layout.block() * N * LANES);
                let strip = chunk.strip;
                match self.layout.format {
                    Format::Nibbles => widen_units::<L, Nibbles, N>(at, strip, units, to),
                    Format::Bytes => widen_units::<L, Bytes, N>(at, strip, units, to),
                    Format::Floats(FloatType::F32) => {
                        widen_units::<L, Floats<f32>, N>(at, strip, units, to);
                    }
                    Format::Floats(FloatType::F16) => {
                        widen_units::<L, Floats<f16>, N>(at, strip, units, to);
                    }
                    Format::Floats(FloatType::Bf16) => {
                        widen_units::<L, Floats<bf16>, N>(at, strip, units, to);
                    }
                }
                let at = at.wrapping_add(units * self.layout.format.unit_bytes());
                let to = chunk.scales.add(b * 2 * N * LANES);
                match self.layout.scales {
                    Some(FloatType::F32) => widen_scales::<L, f32, N>(at, strip, to),
                    Some(FloatType::F16) => widen_scales::<L, f16, N>(at, strip, to),
                    Some(FloatType::Bf16) => widen_scales::<L, bf16, N>(at, strip, to),
                    None => {}
                }
            }
        }
    }

    /// All rows against a chunk, in groups as even as can be.
    #[inline(always)]
    unsafe fn meet_rows<L: Lanes, const SCALED: bool, const N: usize>(&self, chunk: &Chunk) {
        let groups = self.m.div_ceil(L::ROWS);
        for group in 0..groups {
            let row = self.m * group / groups;
            let rows = self.m * (group + 1) / groups - row;
            // SAFETY: rows below `m`.
            unsafe {
                match rows {
                    1 => self.meet::<L, SCALED, 1, N>(chunk, row),
                    2 => self.meet::<L, SCALED, 2, N>(chunk, row),
                    3 => self.meet::<L, SCALED, 3, N>(chunk, row),
                    4 if L::ROWS > 3 => self.meet::<L, SCALED, 4, N>(chunk, row),
                    5 if L::ROWS > 3 => self.meet::<L, SCALED, 5, N>(chunk, row),
                    6 if L::ROWS > 3 => self.meet::<L, SCALED, 6, N>(chunk, row),
                    _ => unreachable!("a group has at most ROWS rows"),
                }
            }
        }
    }

    /// `R` rows against a chunk: first all products, then the running sums, which would have each block wait for the
    /// one before.
    #[inline(always)]
    unsafe fn meet<L: Lanes, const SCALED: bool, const R: usize, const N: usize>(
        &self,
        chunk: &Chunk,
        row: usize,
    ) {
        let inputs = self.layout.block();
        let mut products = [[[MaybeUninit::<L::F>::uninit(); N]; R]; CHUNK_BLOCKS];
        // SAFETY: `R` rows from `row` on are below `m`, the blocks are the tile's; products are written, then read.
        unsafe {
            let mut weights = chunk.weights.cast_const();
            let mut x = self.x.add(row * self.x_stride + chunk.block * inputs);
            let mut left = self.layout.width() - chunk.block * inputs;
            for products in products.iter_mut().take(chunk.blocks) {
                let d =
                    block::<L, R, N>((weights, N * LANES), (x, self.x_stride), inputs.min(left));
                for (products, d) in products.iter_mut().zip(&d) {
                    for (product, &d) in products.iter_mut().zip(d) {
                        product.write(d);
                    }
                }
                weights = weights.wrapping_add(inputs * N * LANES);
                x = x.wrapping_add(inputs);
                left = left.saturating_sub(inputs);
            }
            let out = self.out.add(row * TILE + chunk.strip * LANES);
            let mut t = [[L::zero(); N]; R];
            for (r, t) in t.iter_mut().enumerate() {
                for (s, t) in t.iter_mut().enumerate() {
                    *t = L::load(out.add(r * TILE + s * LANES));
                }
            }
            let all = self.layout.blocks();
            let sums = self.sums.wrapping_add(row * all + chunk.block);
            for (b, products) in products.iter().enumerate().take(chunk.blocks) {
                let scales = chunk.scales.cast_const().add(b * 2 * N * LANES);
                for r in 0..R {
                    for s in 0..N {
                        let d = products[r][s].assume_init();
                        if SCALED {
                            let sum = L::splat(*sums.add(r * all + b));
                            t[r][s] = L::fma(L::load(scales.add(s * LANES)), d, t[r][s]);
                            t[r][s] = L::fma(L::load(scales.add((N + s) * LANES)), sum, t[r][s]);
                        } else {
                            t[r][s] = L::add(t[r][s], d);
                        }
                    }
                }
            }
            for (r, t) in t.iter().enumerate() {
                for (s, &t) in t.iter().enumerate() {
                    L::store(out.add(r * TILE + s * LANES), t);
                }
            }
        }
    }
}

/// Writes a block's weights as floats, one run of `N` strips per input.
#[inline(always)]
unsafe fn widen_units<L: Lanes, C: Codec, const N: usize>(
    units: *const u8,
    strip: usize,
    count: usize,
    to: *mut f32,
) {
    // SAFETY: the caller's units, and room for as many.
    unsafe {
        for unit in 0..count {
            for s in 0..N {
                let raw = C::load::<L>(units.add(unit * C::FORMAT.unit_bytes()), strip + s);
                let to = to.add((unit * C::UNIT * N + s) * LANES);
                for i in 0..C::UNIT {
                    L::store(to.add(i * N * LANES), C::element::<L>(raw, i));
                }
            }
        }
    }
}

/// Writes a block's scales and biases as floats.
#[inline(always)]
unsafe fn widen_scales<L: Lanes, T: Float, const N: usize>(
    scales: *const u8,
    strip: usize,
    to: *mut f32,
) {
    // SAFETY: the caller's scales, and room for them.
    unsafe {
        for s in 0..N {
            let lane = (strip + s) * LANES;
            L::store(to.add(s * LANES), T::read::<L>(scales, lane));
            L::store(to.add((N + s) * LANES), T::read::<L>(scales, TILE + lane));
        }
    }
}
