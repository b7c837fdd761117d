//! Lanes as an array: the path that defines the bits of all others, and runs anywhere.

use half::{bf16, f16};

use super::{LANES, Lanes};

/// Plain Rust.
#[derive(Debug, Clone, Copy)]
pub(in crate::host) struct Scalar;

macro_rules! lanewise {
    ($($name:ident($($arg:ident: $of:ty),+) -> $to:ty = $lane:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: [$of; LANES]),+) -> [$to; LANES] {
            let mut out = [<$to>::default(); LANES];
            for (i, out) in out.iter_mut().enumerate() {
                $(let $arg = $arg[i];)+
                *out = $lane;
            }
            out
        }
    )*};
}

impl Lanes for Scalar {
    type F = [f32; LANES];
    type U = [u32; LANES];
    const ROWS: usize = 3;
    const STRIPS: usize = 1;

    lanewise! {
        add(a: f32, b: f32) -> f32 = a + b;
        sub(a: f32, b: f32) -> f32 = a - b;
        mul(a: f32, b: f32) -> f32 = a * b;
        div(a: f32, b: f32) -> f32 = a / b;
        fma(a: f32, b: f32, c: f32) -> f32 = a.mul_add(b, c);
        min(a: f32, b: f32) -> f32 = if a < b { a } else { b };
        max(a: f32, b: f32) -> f32 = if a > b { a } else { b };
        and(a: u32, b: u32) -> u32 = a & b;
        add_u(a: u32, b: u32) -> u32 = a.wrapping_add(b);
        to_float(a: u32) -> f32 = a as f32;
        bits(a: f32) -> u32 = a.to_bits();
        from_bits(a: u32) -> f32 = f32::from_bits(a);
    }

    #[inline(always)]
    unsafe fn zero() -> Self::F {
        [0.0; LANES]
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        // SAFETY: the caller's pointer is good for sixteen floats.
        unsafe { from.cast::<Self::F>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: Self::F) {
        // SAFETY: as in `load`.
        unsafe { to.cast::<Self::F>().write_unaligned(value) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u16) -> Self::F {
        // SAFETY: as in `load`.
        unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(|h| f16::from_bits(h).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        // SAFETY: as in `load`.
        unsafe { from.cast::<[u16; LANES]>().read_unaligned() }.map(|h| bf16::from_bits(h).to_f32())
    }

    #[inline(always)]
    unsafe fn splat_u(value: u32) -> Self::U {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn load_u(from: *const u32) -> Self::U {
        // SAFETY: as in `load`.
        unsafe { from.cast::<Self::U>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn shl<const BITS: i32>(a: Self::U) -> Self::U {
        a.map(|a| a << BITS)
    }

    #[inline(always)]
    unsafe fn shr<const BITS: i32>(a: Self::U) -> Self::U {
        a.map(|a| a >> BITS)
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
}
