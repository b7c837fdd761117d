//! The gate of SwiGLU.

use super::exp::exp;
use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Lanes};
use super::pool::Pool;
use super::shared_mut::SharedMut;

/// Elements below which a call is not worth waking other threads.
const ALONE_BELOW: usize = 1 << 13;
const PER_JOB: usize = 1 << 11;

/// `gate = gate / (1 + exp(-gate)) * up`, element by element.
///
/// # Panics
///
/// If the two are not equally long.
pub fn silu_mul(pool: &Pool, isa: Isa, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up");
    let per_job = if up.len() < ALONE_BELOW { up.len().max(1) } else { PER_JOB };
    let gate = SharedMut::new(gate);
    pool.run(up.len().div_ceil(per_job), &|job| {
        let (from, to) = (job * per_job, up.len().min((job + 1) * per_job));
        // SAFETY: every job has a range of its own.
        let gate = unsafe { gate.part(from, to - from) };
        isa.run(SiluMul { gate, up: &up[from..to] });
    });
}

struct SiluMul<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for SiluMul<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let whole = self.up.len() / LANES * LANES;
        // SAFETY: `Isa::run` chose `L`; `k` stays within both, and the rest has arrays of its own.
        unsafe {
            let mut k = 0;
            while k < whole {
                sixteen::<L>(self.gate.as_mut_ptr().add(k), self.up.as_ptr().add(k));
                k += LANES;
            }
            if whole < self.up.len() {
                let (mut gate, mut up) = ([0.0; LANES], [0.0; LANES]);
                let rest = self.up.len() - whole;
                gate[..rest].copy_from_slice(&self.gate[whole..]);
                up[..rest].copy_from_slice(&self.up[whole..]);
                sixteen::<L>(gate.as_mut_ptr(), up.as_ptr());
                self.gate[whole..].copy_from_slice(&gate[..rest]);
            }
        }
    }
}

#[inline(always)]
unsafe fn sixteen<L: Lanes>(gate: *mut f32, up: *const f32) {
    // SAFETY: the caller's sixteen floats each.
    unsafe {
        let g = L::load(gate);
        let e = exp::<L>(L::sub(L::zero(), g));
        let silu = L::div(g, L::add(L::splat(1.0), e));
        L::store(gate, L::mul(silu, L::load(up)));
    }
}

#[cfg(test)]
mod tests {
    use super::silu_mul;
    use crate::host::isa::Isa;
    use crate::host::pool::Pool;

    #[test]
    fn every_set_gives_the_scalar_bits_near_the_truth() {
        for len in [1, 16, 31, 1536, 20_000] {
            let gate: Vec<f32> =
                (0..len).map(|i| ((i * 37 % 1009) as f32 - 504.0) / 12.0).collect();
            let up: Vec<f32> = (0..len).map(|i| (i % 13) as f32 - 6.5).collect();
            let mut expected = gate.clone();
            silu_mul(&Pool::new(1), Isa::Scalar, &mut expected, &up);
            for isa in Isa::available() {
                let mut out = gate.clone();
                silu_mul(&Pool::new(2), isa, &mut out, &up);
                assert_eq!(out, expected, "{isa:?} {len}");
            }
            for ((&gate, &up), &out) in gate.iter().zip(&up).zip(&expected) {
                let truth = f64::from(gate) / (1.0 + f64::from(-gate).exp()) * f64::from(up);
                // The exponential's two ulp and four roundings.
                assert!((f64::from(out) - truth).abs() <= 5e-7 * truth.abs(), "{gate}: {out}");
            }
        }
    }

    #[test]
    fn extremes_do_not_turn_into_nonsense() {
        for isa in Isa::available() {
            let mut gate = [1e30, -1e30, f32::NAN, 0.0, -100.0];
            silu_mul(&Pool::new(1), isa, &mut gate, &[1.0; 5]);
            assert_eq!((gate[0], gate[3]), (1e30, 0.0));
            assert!(gate[1].abs() < 1e-7 && gate[2].is_nan() && gate[4].abs() < 1e-30, "{gate:?}");
        }
    }
}
