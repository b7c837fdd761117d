//! The one exponential of the host form.
//!
//! `exp(x) = 2^n * e^r` with `n = round(x / ln 2)` and `|r| <= ln 2 / 2`; `e^r` by its Taylor polynomial of degree 7,
//! whose remainder is below 6e-9, in Horner form. Together within 2 ulp (1.5e-7 relative) of the truth, as the test
//! holds. Below -87.3 it stays at 1.2e-38, above 88 at 1.7e38, so that nothing overflows or turns subnormal; NaN is NaN.

use super::lanes::Lanes;

const LOWEST: f32 = -87.3;
const HIGHEST: f32 = 88.0;
/// Added to a float below 2^22 it leaves the nearest integer in the low bits.
const ROUND: f32 = 12_582_912.0;
/// The upper bits of ln 2, few enough that `n * LN2_HIGH` is exact; and the rest.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;
/// `1 / i!` for `i` from 7 down to 0.
const COEFFICIENTS: [f32; 8] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

/// `e^x`, lane by lane.
///
/// # Safety
///
/// As for all of [`Lanes`].
#[inline(always)]
pub(super) unsafe fn exp<L: Lanes>(x: L::F) -> L::F {
    // SAFETY: the caller's promise.
    unsafe {
        let x = L::max(L::splat(LOWEST), L::min(L::splat(HIGHEST), x));
        let shifted = L::fma(x, L::splat(std::f32::consts::LOG2_E), L::splat(ROUND));
        let n = L::sub(shifted, L::splat(ROUND));
        let r = L::fma(n, L::splat(-LN2_HIGH), x);
        let r = L::fma(n, L::splat(-LN2_LOW), r);
        let mut p = L::splat(COEFFICIENTS[0]);
        for &coefficient in &COEFFICIENTS[1..] {
            p = L::fma(p, r, L::splat(coefficient));
        }
        // n's low bits move into the exponent; its upper bits and `ROUND`'s own fall off.
        let exponent = L::add_u(L::shl::<23>(L::bits(shifted)), L::splat_u(127 << 23));
        L::mul(p, L::from_bits(exponent))
    }
}

#[cfg(test)]
mod tests {
    use super::{HIGHEST, LOWEST, exp};
    use crate::host::isa::{Isa, Kernel};
    use crate::host::lanes::{LANES, Lanes};

    struct Exp([f32; LANES]);

    impl Kernel for Exp {
        type Output = [f32; LANES];

        #[inline(always)]
        unsafe fn run<L: Lanes>(self) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            // SAFETY: `Isa::run` chose `L`.
            unsafe { L::store(out.as_mut_ptr(), exp::<L>(L::load(self.0.as_ptr()))) };
            out
        }
    }

    #[test]
    fn it_is_within_two_ulp_and_the_same_everywhere() {
        let steps = 200_000;
        for i in 0..steps / LANES {
            let mut x = [0.0; LANES];
            for (j, x) in x.iter_mut().enumerate() {
                let share = (i * LANES + j) as f32 / steps as f32;
                *x = LOWEST + (HIGHEST - LOWEST) * share;
            }
            let expected = Isa::Scalar.run(Exp(x));
            for isa in Isa::available() {
                assert_eq!(isa.run(Exp(x)).map(f32::to_bits), expected.map(f32::to_bits));
            }
            for (x, y) in x.iter().zip(expected) {
                let truth = f64::from(*x).exp();
                assert!((f64::from(y) / truth - 1.0).abs() < 1.5e-7, "exp({x}) = {y}, not {truth}");
            }
        }
    }

    #[test]
    fn the_ends_are_finite_and_nan_stays() {
        let mut x = [0.0; LANES];
        x[..5].copy_from_slice(&[f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -1e30, 0.0]);
        for isa in Isa::available() {
            let y = isa.run(Exp(x));
            assert!(y[0] > 0.0 && y[0] < 1.3e-38 && y[3] == y[0], "{y:?}");
            assert!(y[1] > 1.6e38 && y[1].is_finite() && y[2].is_nan(), "{y:?}");
            assert_eq!(y[4], 1.0);
        }
    }
}
