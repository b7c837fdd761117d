//! RMS norm.

use super::isa::{Isa, Kernel};
use super::lanes::{LANES, Lanes, sum_squares};
use super::pool::Pool;
use super::shared_mut::SharedMut;

/// Elements below which a call is not worth waking other threads.
const ALONE_BELOW: usize = 1 << 15;
const ROWS_PER_JOB: usize = 8;

/// `out = (x * (1 / sqrt(mean(x²) + eps))) * weight`, row by row; the width is `weight`'s.
///
/// The mean is the sum of squares in the order of the host module's sums, divided by the width.
///
/// # Panics
///
/// If `x` and `out` are not equally long, or not whole rows.
pub fn rms_norm(pool: &Pool, isa: Isa, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let width = weight.len();
    assert_eq!(x.len(), out.len(), "outputs of a norm");
    assert!(
        width > 0 && x.len().is_multiple_of(width),
        "{} inputs of a norm over {width}",
        x.len()
    );
    let rows = x.len() / width;
    let per_job = if x.len() < ALONE_BELOW { rows.max(1) } else { ROWS_PER_JOB };
    let out = SharedMut::new(out);
    pool.run(rows.div_ceil(per_job), &|job| {
        let (from, to) = (job * per_job, rows.min((job + 1) * per_job));
        // SAFETY: every job has rows of its own.
        let out = unsafe { out.part(from * width, (to - from) * width) };
        isa.run(RmsNorm { x: &x[from * width..to * width], weight, eps, out });
    });
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            // SAFETY: `Isa::run` chose `L`; `k` stays below the width of all three.
            unsafe {
                let mean = sum_squares::<L>(x.as_ptr(), width) / width as f32;
                let factor = 1.0 / (mean + self.eps).sqrt();
                let whole = width / LANES * LANES;
                let mut k = 0;
                while k < whole {
                    let scaled = L::mul(L::load(x.as_ptr().add(k)), L::splat(factor));
                    let weighted = L::mul(scaled, L::load(self.weight.as_ptr().add(k)));
                    L::store(out.as_mut_ptr().add(k), weighted);
                    k += LANES;
                }
                for k in whole..width {
                    out[k] = (x[k] * factor) * self.weight[k];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::rms_norm;
    use crate::host::isa::Isa;
    use crate::host::pool::Pool;

    #[test]
    fn every_set_gives_the_scalar_bits_near_the_truth() {
        let pool = Pool::new(2);
        for width in [1, 15, 16, 33, 64, 576, 1000] {
            for rows in [1, 3, 70] {
                let x: Vec<f32> =
                    (0..rows * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
                let weight: Vec<f32> = (0..width).map(|i| 1.0 + (i % 5) as f32 / 4.0).collect();
                let mut expected = vec![0.0; x.len()];
                rms_norm(&Pool::new(1), Isa::Scalar, &x, &weight, 1e-5, &mut expected);
                for isa in Isa::available() {
                    let mut out = vec![0.0; x.len()];
                    rms_norm(&pool, isa, &x, &weight, 1e-5, &mut out);
                    assert_eq!(out, expected, "{isa:?} {width} {rows}");
                    rms_norm(&pool, isa, &x[..width], &weight, 1e-5, &mut out[..width]);
                    assert_eq!(out[..width], expected[..width], "{isa:?} {width} alone");
                }
                for (x, out) in x.chunks(width).zip(expected.chunks(width)) {
                    let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                    let factor = 1.0 / (squares / width as f64 + 1e-5).sqrt();
                    for ((&x, &out), &weight) in x.iter().zip(out).zip(&weight) {
                        let truth = f64::from(x) * factor * f64::from(weight);
                        // Four roundings and the sum's: well within 1e-6 relative.
                        assert!((f64::from(out) - truth).abs() <= 1e-6 * truth.abs() + 1e-30);
                    }
                }
            }
        }
    }
}
