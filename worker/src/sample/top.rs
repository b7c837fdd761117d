//! The largest numbers of a row without sorting it.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A number and where it stands; larger numbers are greater, and among equals the lower id.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ranked {
    x: f32,
    id: u32,
}

impl Eq for Ranked {}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        // Adding 0.0 makes −0.0 equal to 0.0, as a comparison of numbers would.
        (self.x + 0.0).total_cmp(&(other.x + 0.0)).then(other.id.cmp(&self.id))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Above this many, selecting in place beats a heap.
const HEAP_MOST: usize = 1024;

/// The `n` largest numbers with their ids, largest first, the lower id first among equals.
pub(super) fn largest(row: &[f32], n: usize) -> Vec<(u32, f32)> {
    let ranked = row.iter().zip(0..).map(|(&x, id)| Ranked { x, id });
    if n >= row.len() {
        return sorted(ranked.collect());
    }
    if n > HEAP_MOST {
        let mut all: Vec<_> = ranked.collect();
        all.select_nth_unstable_by(n, |a, b| b.cmp(a));
        all.truncate(n);
        return sorted(all);
    }
    let mut heap = BinaryHeap::with_capacity(n + 1);
    for candidate in ranked {
        if heap.len() < n {
            heap.push(Reverse(candidate));
        } else if let Some(mut least) = heap.peek_mut()
            && candidate.x > least.0.x
        {
            // Ids ascend along the row: an equal number that comes later never displaces one that is held.
            *least = Reverse(candidate);
        }
    }
    sorted(heap.into_iter().map(|Reverse(ranked)| ranked).collect())
}

/// The largest candidates that reach `mass` together: weights of `(id, x)` by `weigh`, largest first.
///
/// Sorts only as far as needed, in growing steps.
pub(super) fn largest_until(
    candidates: Vec<(u32, f32)>,
    mass: f64,
    weigh: impl Fn(f32) -> f64,
) -> Vec<(u32, f32)> {
    const FIRST: usize = 64;
    let mut all: Vec<_> = candidates.into_iter().map(|(id, x)| Ranked { x, id }).collect();
    let (mut sorted, mut reached) = (0, 0.0);
    while sorted < all.len() {
        let rest = &mut all[sorted..];
        let step = (sorted * 3).max(FIRST).min(rest.len());
        if step < rest.len() {
            rest.select_nth_unstable_by(step, |a, b| b.cmp(a));
        }
        rest[..step].sort_unstable_by(|a, b| b.cmp(a));
        for ranked in &rest[..step] {
            reached += weigh(ranked.x);
            sorted += 1;
            if reached >= mass {
                all.truncate(sorted);
                break;
            }
        }
    }
    all.into_iter().map(|ranked| (ranked.id, ranked.x)).collect()
}

fn sorted(mut ranked: Vec<Ranked>) -> Vec<(u32, f32)> {
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    ranked.into_iter().map(|ranked| (ranked.id, ranked.x)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(row: &[f32], n: usize) -> Vec<(u32, f32)> {
        let mut all: Vec<_> = row.iter().copied().zip(0u32..).map(|(x, id)| (id, x)).collect();
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("numbers").then(a.0.cmp(&b.0)));
        all.truncate(n);
        all
    }

    proptest! {
        #[test]
        fn equals_a_full_sort(row in proptest::collection::vec(-4i8..4, 1..200), n in 0usize..220) {
            let row: Vec<f32> = row.into_iter().map(f32::from).collect();
            prop_assert_eq!(largest(&row, n), plain(&row, n));
        }

        #[test]
        fn takes_no_more_than_the_mass_needs(
            row in proptest::collection::vec(1u8..200, 1..600), share in 0.01f64..1.0,
        ) {
            let row: Vec<f32> = row.into_iter().map(f32::from).collect();
            let mass = share * row.iter().map(|&x| f64::from(x)).sum::<f64>();
            let all = plain(&row, row.len());
            let mut reached = 0.0;
            let needed = 1 + all.iter().take_while(|(_, x)| {
                reached += f64::from(*x);
                reached < mass
            }).count();
            let got = largest_until(row.iter().copied().zip(0..).map(|(x, i)| (i, x)).collect(), mass, f64::from);
            prop_assert_eq!(&got[..], &all[..needed.min(all.len())]);
        }
    }

    #[test]
    fn many_are_selected_in_place_with_the_same_result() {
        let row: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 997) as f32).collect();
        assert_eq!(largest(&row, 2000), plain(&row, 2000));
    }
}
