//! The largest numbers of a row without sorting it.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A number and where it stands; larger numbers are greater, and among equals the lower id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ranked {
    pub(super) x: f32,
    pub(super) id: u32,
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
pub(super) fn largest(row: &[f32], n: usize) -> Vec<Ranked> {
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

fn sorted(mut ranked: Vec<Ranked>) -> Vec<Ranked> {
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    ranked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plain(row: &[f32], n: usize) -> Vec<Ranked> {
        let mut all: Vec<_> = row.iter().zip(0..).map(|(&x, id)| Ranked { x, id }).collect();
        all.sort_by(|a, b| b.x.partial_cmp(&a.x).expect("numbers").then(a.id.cmp(&b.id)));
        all.truncate(n);
        all
    }

    proptest! {
        #[test]
        fn equals_a_full_sort(row in proptest::collection::vec(-4i8..4, 1..200), n in 0usize..220) {
            let row: Vec<f32> = row.into_iter().map(f32::from).collect();
            prop_assert_eq!(largest(&row, n), plain(&row, n));
        }
    }

    #[test]
    fn many_are_selected_in_place_with_the_same_result() {
        let row: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 997) as f32).collect();
        assert_eq!(largest(&row, 2000), plain(&row, 2000));
    }
}
