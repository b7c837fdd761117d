//! Lanes as four NEON registers.

#[cfg_attr(not(test), expect(clippy::wildcard_imports, reason = "a page of intrinsics"))]
use std::arch::aarch64::*;

use super::Lanes;
use crate::host::isa::Kernel;

/// NEON.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct Neon;

/// Runs a kernel compiled for this set.
///
/// # Safety
///
/// The processor has NEON.
#[target_feature(enable = "neon")]
pub(in crate::host) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller's promise, and this function enables the set.
    unsafe { kernel.run::<Neon>() }
}

/// Defines operations register by register; `$i` is the register's number.
macro_rules! registers {
    ($($name:ident($($arg:ident: $of:ty),*) -> $to:ty = |$i:ident| $each:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $of),*) -> $to {
            // SAFETY: the caller promises the instruction set, and pointers good for sixteen elements.
            unsafe {
                [
                    { let $i = 0; $each },
                    { let $i = 1; $each },
                    { let $i = 2; $each },
                    { let $i = 3; $each },
                ]
            }
        }
    )*};
}

impl Lanes for Neon {
    type F = [float32x4_t; 4];
    type U = [uint32x4_t; 4];
    const ROWS: usize = 3;
    const STRIPS: usize = 1;

    registers! {
        zero() -> Self::F = |_i| vdupq_n_f32(0.0);
        splat(value: f32) -> Self::F = |_i| vdupq_n_f32(value);
        load(from: *const f32) -> Self::F = |i| vld1q_f32(from.add(4 * i));
        load_f16(from: *const u16) -> Self::F = |i| widen_f16(vmovl_u16(vld1_u16(from.add(4 * i))));
        load_bf16(from: *const u16) -> Self::F
            = |i| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.add(4 * i))));
        add(a: Self::F, b: Self::F) -> Self::F = |i| vaddq_f32(a[i], b[i]);
        sub(a: Self::F, b: Self::F) -> Self::F = |i| vsubq_f32(a[i], b[i]);
        mul(a: Self::F, b: Self::F) -> Self::F = |i| vmulq_f32(a[i], b[i]);
        div(a: Self::F, b: Self::F) -> Self::F = |i| vdivq_f32(a[i], b[i]);
        fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F = |i| vfmaq_f32(c[i], a[i], b[i]);
        // NEON's own minimum prefers NaN; x86 and the contract take the second operand.
        min(a: Self::F, b: Self::F) -> Self::F = |i| vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]);
        max(a: Self::F, b: Self::F) -> Self::F = |i| vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]);
        splat_u(value: u32) -> Self::U = |_i| vdupq_n_u32(value);
        load_u(from: *const u32) -> Self::U = |i| vld1q_u32(from.add(4 * i));
        and(a: Self::U, b: Self::U) -> Self::U = |i| vandq_u32(a[i], b[i]);
        add_u(a: Self::U, b: Self::U) -> Self::U = |i| vaddq_u32(a[i], b[i]);
        to_float(a: Self::U) -> Self::F = |i| vcvtq_f32_u32(a[i]);
        bits(a: Self::F) -> Self::U = |i| vreinterpretq_u32_f32(a[i]);
        from_bits(a: Self::U) -> Self::F = |i| vreinterpretq_f32_u32(a[i]);
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::F) {
        // SAFETY: as above.
        unsafe {
            vst1q_f32(to, value[0]);
            vst1q_f32(to.add(4), value[1]);
            vst1q_f32(to.add(8), value[2]);
            vst1q_f32(to.add(12), value[3]);
        }
    }

    #[inline(always)]
    unsafe fn shl<const BITS: i32>(a: Self::U) -> Self::U {
        // SAFETY: as above; a shift by a variable, because the constant one refuses 0.
        unsafe { shift(a, BITS) }
    }

    #[inline(always)]
    unsafe fn shr<const BITS: i32>(a: Self::U) -> Self::U {
        // SAFETY: as in `shl`; to the left by a negative count is to the right.
        unsafe { shift(a, -BITS) }
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
}

#[inline(always)]
unsafe fn shift(a: [uint32x4_t; 4], bits: i32) -> [uint32x4_t; 4] {
    // SAFETY: the caller promises the instruction set.
    unsafe {
        let bits = vdupq_n_s32(bits);
        [vshlq_u32(a[0], bits), vshlq_u32(a[1], bits), vshlq_u32(a[2], bits), vshlq_u32(a[3], bits)]
    }
}

/// Half precision to single, exactly, without the half-precision types that Rust's NEON lacks.
///
/// Moved into place, the exponent is 112 too small, which a product with 2^112 mends for normal and subnormal numbers
/// alike; only infinity and NaN need their exponent filled up.
#[inline(always)]
unsafe fn widen_f16(half: uint32x4_t) -> float32x4_t {
    // SAFETY: the caller promises the instruction set.
    unsafe {
        let sign = vshlq_n_u32::<16>(vandq_u32(half, vdupq_n_u32(0x8000)));
        let magnitude = vshlq_n_u32::<13>(vandq_u32(half, vdupq_n_u32(0x7fff)));
        let two_to_112 = vdupq_n_f32(f32::from_bits((112 + 127) << 23));
        let number = vmulq_f32(vreinterpretq_f32_u32(magnitude), two_to_112);
        let special = vcgeq_u32(magnitude, vdupq_n_u32(0x7c00 << 13));
        let filled = vandq_u32(special, vdupq_n_u32(0x7f80_0000));
        vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(vreinterpretq_u32_f32(number), filled), sign))
    }
}
