//! Lanes as two AVX2 registers.

#[cfg_attr(not(test), expect(clippy::wildcard_imports, reason = "a page of intrinsics"))]
use std::arch::x86_64::*;

use super::Lanes;
use crate::host::isa::Kernel;

/// AVX2, FMA and F16C.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct Avx2;

/// Runs a kernel compiled for this set.
///
/// # Safety
///
/// The processor has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::host) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise, and this function enables the set.
    unsafe { kernel.run::<Avx2>() }
}

/// Defines operations register by register; `$i` is the register's number.
macro_rules! registers {
    ($($name:ident($($arg:ident: $of:ty),*) -> $to:ty = |$i:ident| $each:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $of),*) -> $to {
            // SAFETY: the caller promises the instruction set, and pointers good for sixteen elements.
            unsafe { [{ let $i = 0; $each }, { let $i = 1; $each }] }
        }
    )*};
}

impl Lanes for Avx2 {
    type F = [__m256; 2];
    type U = [__m256i; 2];
    const ROWS: usize = 3;
    const STRIPS: usize = 1;

    registers! {
        zero() -> Self::F = |_i| _mm256_setzero_ps();
        splat(value: f32) -> Self::F = |_i| _mm256_set1_ps(value);
        load(from: *const f32) -> Self::F = |i| _mm256_loadu_ps(from.add(8 * i));
        load_f16(from: *const u16) -> Self::F
            = |i| _mm256_cvtph_ps(_mm_loadu_si128(from.add(8 * i).cast()));
        load_bf16(from: *const u16) -> Self::F = |i| _mm256_castsi256_ps(
            _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8 * i).cast())))
        );
        add(a: Self::F, b: Self::F) -> Self::F = |i| _mm256_add_ps(a[i], b[i]);
        sub(a: Self::F, b: Self::F) -> Self::F = |i| _mm256_sub_ps(a[i], b[i]);
        mul(a: Self::F, b: Self::F) -> Self::F = |i| _mm256_mul_ps(a[i], b[i]);
        div(a: Self::F, b: Self::F) -> Self::F = |i| _mm256_div_ps(a[i], b[i]);
        fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F = |i| _mm256_fmadd_ps(a[i], b[i], c[i]);
        min(a: Self::F, b: Self::F) -> Self::F = |i| _mm256_min_ps(a[i], b[i]);
        max(a: Self::F, b: Self::F) -> Self::F = |i| _mm256_max_ps(a[i], b[i]);
        splat_u(value: u32) -> Self::U = |_i| _mm256_set1_epi32(value.cast_signed());
        load_u(from: *const u32) -> Self::U = |i| _mm256_loadu_si256(from.add(8 * i).cast());
        and(a: Self::U, b: Self::U) -> Self::U = |i| _mm256_and_si256(a[i], b[i]);
        add_u(a: Self::U, b: Self::U) -> Self::U = |i| _mm256_add_epi32(a[i], b[i]);
        to_float(a: Self::U) -> Self::F = |i| _mm256_cvtepi32_ps(a[i]);
        bits(a: Self::F) -> Self::U = |i| _mm256_castps_si256(a[i]);
        from_bits(a: Self::U) -> Self::F = |i| _mm256_castsi256_ps(a[i]);
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::F) {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_ps(to, value[0]);
            _mm256_storeu_ps(to.add(8), value[1]);
        }
    }

    #[inline(always)]
    unsafe fn shl<const BITS: i32>(a: Self::U) -> Self::U {
        // SAFETY: as above.
        unsafe { [_mm256_slli_epi32::<BITS>(a[0]), _mm256_slli_epi32::<BITS>(a[1])] }
    }

    #[inline(always)]
    unsafe fn shr<const BITS: i32>(a: Self::U) -> Self::U {
        // SAFETY: as above.
        unsafe { [_mm256_srli_epi32::<BITS>(a[0]), _mm256_srli_epi32::<BITS>(a[1])] }
    }

    #[inline(always)]
    unsafe fn masked_fma(words: [Self::U; 2], mask: u32, x: Self::F, d: &mut [Self::F; 2]) {
        // SAFETY: the caller promises the instruction set.
        unsafe { masked_fma(words, _mm256_set1_epi32(mask.cast_signed()), x[0], d) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch reads nothing that could fault.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }
}

/// See [`Lanes::masked_fma`]. In assembly, because a step's eight sums, four words, input, mask and two temporaries are
/// all sixteen registers: the compiler, seeing several steps, takes another order and spills, at a fifth of the speed.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn masked_fma(words: [[__m256i; 2]; 2], mask: __m256i, x: __m256, d: &mut [[__m256; 2]; 2]) {
    let [[a, b], [c, d]] = d;
    // SAFETY: arithmetic on registers.
    unsafe {
        std::arch::asm!(
            "vpand {t}, {mask}, {wa}",
            "vpand {u}, {mask}, {wb}",
            "vcvtdq2ps {t}, {t}",
            "vcvtdq2ps {u}, {u}",
            "vfmadd231ps {a}, {t}, {x}",
            "vfmadd231ps {b}, {u}, {x}",
            "vpand {t}, {mask}, {wc}",
            "vpand {u}, {mask}, {wd}",
            "vcvtdq2ps {t}, {t}",
            "vcvtdq2ps {u}, {u}",
            "vfmadd231ps {c}, {t}, {x}",
            "vfmadd231ps {d}, {u}, {x}",
            wa = in(ymm_reg) words[0][0],
            wb = in(ymm_reg) words[0][1],
            wc = in(ymm_reg) words[1][0],
            wd = in(ymm_reg) words[1][1],
            mask = in(ymm_reg) mask,
            x = in(ymm_reg) x,
            a = inout(ymm_reg) *a,
            b = inout(ymm_reg) *b,
            c = inout(ymm_reg) *c,
            d = inout(ymm_reg) *d,
            t = out(ymm_reg) _,
            u = out(ymm_reg) _,
            options(nomem, nostack, preserves_flags)
        );
    }
}
