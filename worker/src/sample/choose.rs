//! The random choice: temperature, the three cuts, and one uniform number.

use super::exp::{exp, sum_exp};
use super::top;
use crate::engine::SamplingParams;

/// Chooses by `uniform` in [0, 1) from a row whose largest number is `max`, at a temperature above zero.
pub(super) fn choose(row: &[f32], max: f32, params: &SamplingParams, uniform: f64) -> u32 {
    // Keeps the product finite: colder than this, only the largest number is left anyway.
    let scale = (1.0 / params.temperature).min(1e30);
    let weigh = |x: f32| f64::from(exp((x - max) * scale));
    let top_k = if params.top_k == 0 { row.len() } else { params.top_k };
    if top_k >= row.len() && params.top_p >= 1.0 && params.min_p <= 0.0 {
        return walk_row(row, max, scale, uniform);
    }
    let mut kept = if top_k < row.len() {
        top::largest(row, top_k)
    } else {
        let least = least_weight(row, max, scale, params);
        let weighed = row.iter().zip(0..).filter(|&(&x, _)| weigh(x) >= least);
        weighed.map(|(&x, id)| (id, x)).collect()
    };
    if params.top_p < 1.0 {
        let total = if top_k < row.len() { total(&kept, weigh) } else { sum_exp(row, max, scale) };
        kept = top::largest_until(kept, f64::from(params.top_p) * total, weigh);
    }
    // The largest weight is exp(0) = 1, so `min_p` is a weight as it stands.
    let min_p = f64::from(params.min_p.min(1.0));
    kept.retain(|&(_, x)| weigh(x) >= min_p);
    walk(&kept, weigh, uniform)
}

/// A weight below which no token can survive the cuts: those below `(1 − top_p) / V` of the total weigh less
/// than `1 − top_p` together, so the others reach `top_p` without them.
fn least_weight(row: &[f32], max: f32, scale: f32, params: &SamplingParams) -> f64 {
    let by_min_p = f64::from(params.min_p);
    // With `top_p` off or `min_p` on alone, `min_p` is the whole cut; with both, `top_p` is taken first.
    if params.top_p >= 1.0 {
        return by_min_p;
    }
    /// Room for the rounding of the two sums.
    const SLACK: f64 = 0.999;
    let share = 1.0 - f64::from(params.top_p);
    SLACK * share * sum_exp(row, max, scale) / row.len() as f64
}

fn total(kept: &[(u32, f32)], weigh: impl Fn(f32) -> f64) -> f64 {
    kept.iter().map(|&(_, x)| weigh(x)).sum()
}

/// The first candidate at which the running weight passes `uniform` of the total.
fn walk(kept: &[(u32, f32)], weigh: impl Fn(f32) -> f64, uniform: f64) -> u32 {
    let target = uniform * total(kept, &weigh);
    let mut reached = 0.0;
    for &(id, x) in kept {
        reached += weigh(x);
        if reached > target {
            return id;
        }
    }
    // Rounding can leave the last sum at the target.
    kept.last().map_or(0, |&(id, _)| id)
}

/// The same over a whole row in the order of ids: blocks are summed first, only one is walked.
fn walk_row(row: &[f32], max: f32, scale: f32, uniform: f64) -> u32 {
    const BLOCK: usize = 1024;
    let sums: Vec<f64> = row.chunks(BLOCK).map(|block| sum_exp(block, max, scale)).collect();
    let mut left = uniform * sums.iter().sum::<f64>();
    let last = sums.len() - 1;
    let mut block = 0;
    while block < last && left >= sums[block] {
        left -= sums[block];
        block += 1;
    }
    let start = block * BLOCK;
    let mut likely = start;
    for (i, &x) in row[start..].iter().take(BLOCK).enumerate() {
        let weight = f64::from(exp((x - max) * scale));
        if weight > 0.0 {
            likely = start + i;
        }
        left -= weight;
        if left < 0.0 {
            break;
        }
    }
    likely as u32
}
