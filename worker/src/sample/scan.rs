//! One pass over a row: its largest number, or that it holds something that is none.

use super::NotFinite;

const LANES: usize = 16;

/// The largest number of a row, which must be finite throughout and not empty.
pub(super) fn finite_max(row: &[f32]) -> Result<f32, NotFinite> {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    // x · 0 is 0 for a number and NaN for everything else; NaN then stays in the sum.
    let mut taint = [0.0f32; LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for xs in whole {
        for ((lane, taint), &x) in lanes.iter_mut().zip(&mut taint).zip(xs) {
            *lane = if x > *lane { x } else { *lane };
            *taint += x * 0.0;
        }
    }
    for ((lane, taint), &x) in lanes.iter_mut().zip(&mut taint).zip(rest) {
        *lane = if x > *lane { x } else { *lane };
        *taint += x * 0.0;
    }
    let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if taint.iter().any(|t| t.is_nan()) {
        let nan = row.iter().any(|x| x.is_nan());
        return Err(NotFinite(if nan { "NaN" } else { "infinity" }));
    }
    if max.is_finite() { Ok(max) } else { Err(NotFinite("nothing")) }
}

/// The lowest index that holds `max`.
pub(super) fn first_at(row: &[f32], max: f32) -> u32 {
    row.iter().position(|&x| x == max).unwrap_or(0) as u32
}
