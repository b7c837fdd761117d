//! Lanes as one AVX-512 register.

#[cfg_attr(not(test), expect(clippy::wildcard_imports, reason = "a page of intrinsics"))]
use std::arch::x86_64::*;

use super::Lanes;
use crate::host::isa::Kernel;

/// AVX-512F.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct Avx512;

/// Runs a kernel compiled for this set.
///
/// # Safety
///
/// The processor has AVX-512F.
#[target_feature(enable = "avx512f")]
pub(in crate::host) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise, and this function enables the set.
    unsafe { kernel.run::<Avx512>() }
}

macro_rules! register {
    ($($name:ident($($arg:ident: $of:ty),*) -> $to:ty = $each:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $of),*) -> $to {
            // SAFETY: the caller promises the instruction set, and pointers good for sixteen elements.
            unsafe { $each }
        }
    )*};
}

impl Lanes for Avx512 {
    type F = __m512;
    type U = __m512i;
    const ROWS: usize = 6;
    const STRIPS: usize = 2;

    register! {
        zero() -> Self::F = _mm512_setzero_ps();
        splat(value: f32) -> Self::F = _mm512_set1_ps(value);
        load(from: *const f32) -> Self::F = _mm512_loadu_ps(from);
        load_f16(from: *const u16) -> Self::F = _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()));
        load_bf16(from: *const u16) -> Self::F = _mm512_castsi512_ps(
            _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))
        );
        add(a: Self::F, b: Self::F) -> Self::F = _mm512_add_ps(a, b);
        sub(a: Self::F, b: Self::F) -> Self::F = _mm512_sub_ps(a, b);
        mul(a: Self::F, b: Self::F) -> Self::F = _mm512_mul_ps(a, b);
        div(a: Self::F, b: Self::F) -> Self::F = _mm512_div_ps(a, b);
        fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F = _mm512_fmadd_ps(a, b, c);
        min(a: Self::F, b: Self::F) -> Self::F = _mm512_min_ps(a, b);
        max(a: Self::F, b: Self::F) -> Self::F = _mm512_max_ps(a, b);
        splat_u(value: u32) -> Self::U = _mm512_set1_epi32(value.cast_signed());
        load_u(from: *const u32) -> Self::U = _mm512_loadu_si512(from.cast());
        and(a: Self::U, b: Self::U) -> Self::U = _mm512_and_si512(a, b);
        add_u(a: Self::U, b: Self::U) -> Self::U = _mm512_add_epi32(a, b);
        to_float(a: Self::U) -> Self::F = _mm512_cvtepi32_ps(a);
        bits(a: Self::F) -> Self::U = _mm512_castps_si512(a);
        from_bits(a: Self::U) -> Self::F = _mm512_castsi512_ps(a);
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::F) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn shl<const BITS: i32>(a: Self::U) -> Self::U {
        // SAFETY: as above; the constant is below 32. The variable shift takes the same time and any constant type.
        unsafe { _mm512_sllv_epi32(a, _mm512_set1_epi32(BITS)) }
    }

    #[inline(always)]
    unsafe fn shr<const BITS: i32>(a: Self::U) -> Self::U {
        // SAFETY: as in `shl`.
        unsafe { _mm512_srlv_epi32(a, _mm512_set1_epi32(BITS)) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch reads nothing that could fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}
