//! The random choice: temperature, the three cuts, and one uniform number.
//!
//! Nothing is sorted that need not be: a cut is a place in the order of weights, found in a histogram of which only
//! one column is sorted. Candidates are walked in a fixed order (of ids; of weights after `top_k`), which is as good
//! as any other for choosing by one number.

use super::exp::{exp, sum_exp};
use super::top::{self, Ranked};
use crate::engine::SamplingParams;

/// A row at a temperature: the weight of a logit is `exp((x − max) / temperature)`, at most 1.
struct Tempered<'a> {
    row: &'a [f32],
    max: f32,
    scale: f32,
}

/// Chooses by `uniform` in [0, 1) from a row whose largest number is `max`, at a temperature above zero.
pub(super) fn choose(row: &[f32], max: f32, params: &SamplingParams, uniform: f64) -> u32 {
    // Keeps products finite: colder than this, only the largest number is left anyway.
    let scale = (1.0 / params.temperature).min(1e30);
    let row = Tempered { row, max, scale };
    let cuts_k = params.top_k > 0 && params.top_k < row.row.len();
    if !cuts_k && params.top_p >= 1.0 && params.min_p <= 0.0 {
        return row.walk(uniform);
    }
    let mut kept = if cuts_k { top::largest(row.row, params.top_k) } else { row.likely(params) };
    if params.top_p < 1.0 {
        let total = if cuts_k { row.total(&kept) } else { sum_exp(row.row, max, scale) };
        let cutoff = row.cutoff(&kept, f64::from(params.top_p) * total);
        kept.retain(|&ranked| ranked >= cutoff);
    }
    if params.min_p > 0.0 {
        // The largest weight is exp(0) = 1, so `min_p` is a weight as it stands.
        let min_p = params.min_p.min(1.0);
        kept.retain(|ranked| row.weight(ranked.x) >= min_p);
    }
    row.walk_kept(&kept, uniform)
}

impl Tempered<'_> {
    fn weight(&self, x: f32) -> f32 {
        exp((x - self.max) * self.scale)
    }

    fn total(&self, kept: &[Ranked]) -> f64 {
        kept.iter().map(|ranked| f64::from(self.weight(ranked.x))).sum()
    }

    /// The tokens that may survive `top_p` and `min_p`, generously; in order of ids.
    ///
    /// Those below `(1 − top_p) / V` of the total weigh less than `1 − top_p` together, so the others reach `top_p`
    /// without them.
    fn likely(&self, params: &SamplingParams) -> Vec<Ranked> {
        /// Room for rounding, in nats.
        const SLACK: f32 = 1e-3;
        let least = if params.top_p < 1.0 {
            let share = f64::from(1.0 - params.top_p) / self.row.len() as f64;
            (share * sum_exp(self.row, self.max, self.scale)) as f32
        } else {
            params.min_p
        };
        let floor = self.max + (least.ln() - SLACK) / self.scale;
        let ranked = self.row.iter().zip(0..).map(|(&x, id)| Ranked { x, id });
        ranked.filter(|ranked| ranked.x >= floor).collect()
    }

    /// The last candidate, in order of weights, of those that reach `mass` together.
    fn cutoff(&self, kept: &[Ranked], mass: f64) -> Ranked {
        /// Columns of the histogram, and how many there are to a nat.
        const COLUMNS: usize = 512;
        const PER_NAT: f32 = 16.0;
        let column = |x: f32| (((self.max - x) * self.scale * PER_NAT) as usize).min(COLUMNS - 1);
        let mut columns = [0.0f64; COLUMNS];
        for ranked in kept {
            columns[column(ranked.x)] += f64::from(self.weight(ranked.x));
        }
        let mut reached = 0.0;
        let mut crossing = 0;
        while crossing < COLUMNS - 1 && reached + columns[crossing] < mass {
            reached += columns[crossing];
            crossing += 1;
        }
        let mut inside: Vec<Ranked> =
            kept.iter().filter(|ranked| column(ranked.x) == crossing).copied().collect();
        inside.sort_unstable_by(|a, b| b.cmp(a));
        for ranked in &inside {
            reached += f64::from(self.weight(ranked.x));
            if reached >= mass {
                return *ranked;
            }
        }
        // Rounding can leave the sum just short: then everything down to this column belongs to it.
        let last = inside.last().or_else(|| kept.iter().min());
        last.copied().unwrap_or(Ranked { x: self.max, id: 0 })
    }

    /// The first candidate at which the running weight passes `uniform` of the total.
    fn walk_kept(&self, kept: &[Ranked], uniform: f64) -> u32 {
        let target = uniform * self.total(kept);
        let mut reached = 0.0;
        for ranked in kept {
            reached += f64::from(self.weight(ranked.x));
            if reached > target {
                return ranked.id;
            }
        }
        // Rounding can leave the last sum at the target.
        kept.last().map_or(0, |ranked| ranked.id)
    }

    /// The same over the whole row in the order of ids: blocks are summed first, only one is walked.
    fn walk(&self, uniform: f64) -> u32 {
        const BLOCK: usize = 1024;
        let blocks = self.row.chunks(BLOCK);
        let sums: Vec<f64> = blocks.map(|block| sum_exp(block, self.max, self.scale)).collect();
        let mut left = uniform * sums.iter().sum::<f64>();
        let last = sums.len() - 1;
        let mut block = 0;
        while block < last && left >= sums[block] {
            left -= sums[block];
            block += 1;
        }
        let start = block * BLOCK;
        let mut likely = start;
        for (i, &x) in self.row[start..].iter().take(BLOCK).enumerate() {
            let weight = f64::from(self.weight(x));
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
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The cutoff is where a full sort puts it, unless the mass falls within rounding of a boundary.
        #[test]
        fn the_cutoff_is_that_of_a_full_sort(
            row in proptest::collection::vec(-40i16..40, 1..600),
            share in 0.01f64..0.999,
            scale in 0.2f32..3.0,
        ) {
            let row: Vec<f32> = row.into_iter().map(|x| f32::from(x) * 0.23).collect();
            let max = row.iter().copied().fold(f32::MIN, f32::max);
            let tempered = Tempered { row: &row, max, scale };
            let all = top::largest(&row, row.len());
            let mass = share * tempered.total(&all);
            let mut reached = 0.0;
            let weights = all.iter().map(|r| { reached += f64::from(tempered.weight(r.x)); reached });
            let sums: Vec<f64> = weights.collect();
            prop_assume!(sums.iter().all(|sum| (sum / mass - 1.0).abs() > 1e-9));
            let expected = all[sums.iter().position(|&sum| sum >= mass).expect("a share below one")];
            prop_assert_eq!(tempered.cutoff(&all, mass), expected);
        }
    }
}
