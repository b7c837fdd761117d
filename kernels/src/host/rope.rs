//! Rotating queries and keys.
//!
//! Owns [`RopeTable`]: cosines and sines by position, computed in f64, rounded once and kept. Layers with the same
//! rotation share one table.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::rope::Rope;

/// Positions by which a table grows at least.
const GROWTH: usize = 256;

/// Cosines and sines of one rotation, times its `mscale`. Grows as positions are asked for.
#[derive(Debug)]
pub struct RopeTable {
    rope: Rope,
    angles: Mutex<Arc<Angles>>,
}

/// The rotation of positions `0..positions`. Immutable.
#[derive(Debug, Default)]
pub struct Angles {
    positions: usize,
    pairs: usize,
    traditional: bool,
    /// `[positions][pairs]` each.
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// The tables in use.
static TABLES: Mutex<Vec<Weak<RopeTable>>> = Mutex::new(Vec::new());

impl RopeTable {
    /// The table of a rotation, shared with whoever uses the same.
    pub fn shared(rope: &Rope) -> Arc<Self> {
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|table| table.strong_count() > 0);
        if let Some(table) =
            tables.iter().filter_map(Weak::upgrade).find(|table| table.rope == *rope)
        {
            return table;
        }
        let table = Arc::new(Self { rope: rope.clone(), angles: Mutex::default() });
        tables.push(Arc::downgrade(&table));
        table
    }

    /// The rotation of positions `0..positions` at least.
    pub fn angles(&self, positions: usize) -> Arc<Angles> {
        let mut angles = self.angles.lock().unwrap_or_else(PoisonError::into_inner);
        if angles.positions < positions {
            *angles = Arc::new(self.extended(&angles, positions.max(2 * angles.positions)));
        }
        Arc::clone(&angles)
    }

    fn extended(&self, known: &Angles, positions: usize) -> Angles {
        let positions = positions.next_multiple_of(GROWTH);
        let Rope { periods, mscale, traditional, .. } = &self.rope;
        let (mut cos, mut sin) = (known.cos.clone(), known.sin.clone());
        for position in known.positions..positions {
            for &period in periods {
                let angle = position as f64 / f64::from(period);
                cos.push((angle.cos() * f64::from(*mscale)) as f32);
                sin.push((angle.sin() * f64::from(*mscale)) as f32);
            }
        }
        Angles { positions, pairs: periods.len(), traditional: *traditional, cos, sin }
    }
}

impl Angles {
    /// Turns a head's leading dimensions: `(a, b)` becomes `(a cos - b sin, a sin + b cos)`, each term rounded.
    ///
    /// # Panics
    ///
    /// If the position is beyond the table or the head narrower than the rotation.
    pub fn rotate(&self, head: &mut [f32], position: usize) {
        let pairs = self.pairs;
        let cos = &self.cos[position * pairs..][..pairs];
        let sin = &self.sin[position * pairs..][..pairs];
        let turn = |a: f32, b: f32, cos: f32, sin: f32| (a * cos - b * sin, a * sin + b * cos);
        let head = &mut head[..2 * pairs];
        if self.traditional {
            for ((pair, &cos), &sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
                (pair[0], pair[1]) = turn(pair[0], pair[1], cos, sin);
            }
        } else {
            let (first, second) = head.split_at_mut(pairs);
            for (((a, b), &cos), &sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                (*a, *b) = turn(*a, *b, cos, sin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::RopeTable;
    use crate::rope::Rope;

    fn rope(traditional: bool) -> Rope {
        Rope { dims: 4, periods: vec![1.0, 50.0], mscale: 1.5, traditional }
    }

    #[test]
    fn halves_or_neighbours_turn_and_the_rest_stays() {
        let head = [1.0f32, 2.0, 3.0, 4.0, 5.0];
        for (traditional, pairs) in [(false, [(0, 2), (1, 3)]), (true, [(0, 1), (2, 3)])] {
            let angles = RopeTable::shared(&rope(traditional)).angles(701);
            let mut turned = head;
            angles.rotate(&mut turned, 700);
            for ((a, b), period) in pairs.into_iter().zip([1.0, 50.0]) {
                let (sin, cos) = (700.0f64 / period).sin_cos();
                let (x, y) = (f64::from(head[a]), f64::from(head[b]));
                assert!((f64::from(turned[a]) - 1.5 * (x * cos - y * sin)).abs() < 2e-6);
                assert!((f64::from(turned[b]) - 1.5 * (x * sin + y * cos)).abs() < 2e-6);
            }
            assert_eq!(turned[4], 5.0);
        }
    }

    #[test]
    fn tables_are_shared_and_growing_changes_nothing() {
        let table = RopeTable::shared(&rope(false));
        assert!(Arc::ptr_eq(&table, &RopeTable::shared(&rope(false))));
        assert!(!Arc::ptr_eq(&table, &RopeTable::shared(&rope(true))));
        let (small, large) = (table.angles(3), table.angles(1000));
        assert!(large.positions >= 1000 && large.cos.starts_with(&small.cos));
        assert!(large.sin.starts_with(&small.sin));
    }
}
