//! Sixteen lanes of f32, whatever the registers: the vocabulary in which all kernels are written once.
//!
//! Owns the operations and, per instruction set, their meaning: two registers of AVX2, one of AVX-512, four of NEON, an
//! array. Each operation is exact or rounded once, so that all sets give the same bits. Refuses horizontal operations:
//! nothing may sum across lanes.
//!
//! Everything here is `unsafe` for one reason: it must be compiled into a function that enables the instruction set
//! (entered by [`Isa::run`](super::isa::Isa::run)), and pointers must be good for sixteen elements.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
mod block;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
mod scalar;
mod sum;

pub(super) use block::{add_blocks, block};
pub(super) use scalar::Scalar;
pub(super) use sum::{PARTIALS, sum, sum_squares};

/// Lanes of a vector.
pub(super) const LANES: usize = 16;

/// One instruction set. See the module for what makes a call safe.
pub(super) trait Lanes: Copy {
    /// Sixteen floats.
    type F: Copy;
    /// Sixteen unsigned integers of 32 bits.
    type U: Copy;
    /// Rows of inputs that [`block`] takes at once for many-row products.
    const ROWS: usize;
    /// Vectors of outputs that it takes at once.
    const STRIPS: usize;

    /// All lanes `+0`.
    unsafe fn zero() -> Self::F;
    /// All lanes `value`.
    unsafe fn splat(value: f32) -> Self::F;
    /// Reads sixteen floats, at any alignment.
    unsafe fn load(from: *const f32) -> Self::F;
    /// Writes sixteen floats, at any alignment.
    unsafe fn store(to: *mut f32, value: Self::F);
    /// Reads sixteen half-precision floats.
    unsafe fn load_f16(from: *const u16) -> Self::F;
    /// Reads sixteen upper halves of floats.
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    /// `a + b`
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `if a < b { a } else { b }`: the second if either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// `if a > b { a } else { b }`: the second if either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;

    /// All lanes `value`.
    unsafe fn splat_u(value: u32) -> Self::U;
    /// Reads sixteen words, at any alignment.
    unsafe fn load_u(from: *const u32) -> Self::U;
    /// `a & b`
    unsafe fn and(a: Self::U, b: Self::U) -> Self::U;
    /// `a + b`, wrapping.
    unsafe fn add_u(a: Self::U, b: Self::U) -> Self::U;
    /// `a << BITS`
    unsafe fn shl<const BITS: i32>(a: Self::U) -> Self::U;
    /// `a >> BITS`, filling with zeros.
    unsafe fn shr<const BITS: i32>(a: Self::U) -> Self::U;
    /// Values below 2³¹ as floats, rounded to nearest.
    unsafe fn to_float(a: Self::U) -> Self::F;
    /// The floats' bits.
    unsafe fn bits(a: Self::F) -> Self::U;
    /// Floats of these bits.
    unsafe fn from_bits(a: Self::U) -> Self::F;

    /// `d[s] = fma(float(words[s] & mask), x, d[s])`: the inner step of integer weights.
    #[inline(always)]
    unsafe fn masked_fma(words: [Self::U; 2], mask: u32, x: Self::F, d: &mut [Self::F; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            for (d, &words) in d.iter_mut().zip(&words) {
                *d = Self::fma(Self::to_float(Self::and(words, Self::splat_u(mask))), x, *d);
            }
        }
    }

    /// Asks for the cache line at `at`, which need not be readable, to be fetched.
    unsafe fn prefetch(at: *const u8);
}
