//! `exp` for probabilities: vectorises, and gives the same bits on every machine (libm's does neither).

/// Below this, `exp` is taken as zero: 2⁻¹²⁶ is the smallest normal number.
const LOWEST: f32 = -87.0;

/// `exp(x)` for x ≤ 0, within 2 units in the last place; 0 below −87.
///
/// x = n·ln 2 + r with |r| ≤ ln 2 / 2; exp(r) is its Taylor series to the 7th power, and 2ⁿ is made of bits.
#[inline]
pub(super) fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    // ln 2 in two parts: the first has few bits, so n times it is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5·2²³ rounds to the nearest whole number.
    const ROUND: f32 = 12_582_912.0;
    let clamped = if x > LOWEST { x } else { LOWEST };
    let shifted = clamped * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (clamped - n * LN2_HIGH) - n * LN2_LOW;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    // The low bits of `shifted` count n from those of ROUND: no conversion, which would not vectorise well.
    let biased = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127);
    let scale = f32::from_bits(biased << 23);
    if x > LOWEST { p * scale } else { 0.0 }
}

/// Numbers added side by side, so that the additions vectorise; part of the definition of the sum's order.
const LANES: usize = 16;

/// Σ exp((x − max)·scale), in f64 over fixed blocks.
pub(super) fn sum_exp(row: &[f32], max: f32, scale: f32) -> f64 {
    const BLOCK: usize = 64 * LANES;
    row.chunks(BLOCK).map(|block| block_sum(block, max, scale)).sum()
}

fn block_sum(block: &[f32], max: f32, scale: f32) -> f64 {
    let mut lanes = [0.0f32; LANES];
    let (whole, rest) = block.as_chunks::<LANES>();
    for xs in whole {
        for (lane, x) in lanes.iter_mut().zip(xs) {
            *lane += exp((x - max) * scale);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(rest) {
        *lane += exp((x - max) * scale);
    }
    lanes.iter().map(|&lane| f64::from(lane)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_library_to_two_ulps() {
        for i in 0..200_000 {
            let x = -(i as f32) * 4.3e-4;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.5e-7, "exp({x}) is off by {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-100.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn sums_like_a_plain_loop() {
        let row: Vec<f32> = (0..5000).map(|i| (i as f32 * 0.37).sin() * 9.0).collect();
        let plain: f64 = row.iter().map(|&x| (f64::from(x - 9.0) * 0.5).exp()).sum();
        assert!((sum_exp(&row, 9.0, 0.5) - plain).abs() < 1e-5 * plain);
    }
}
