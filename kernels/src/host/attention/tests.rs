//! Every path gives the scalar bits, a row's bits do not depend on its company, and all are near the truth.

use proptest::prelude::*;

use super::{Heads, KvStore, Rows, Slot, attend};
use crate::host::isa::Isa;
use crate::host::pool::Pool;
use crate::host::rope::RopeTable;
use crate::rope::Rope;

fn noise(seed: u64, i: usize) -> f32 {
    let mixed =
        (seed ^ (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 40) as f32 / 8_388_608.0 - 1.0
}

/// Raw queries, keys and values of one sequence.
#[derive(Debug, Clone)]
struct Sequence {
    heads: Heads,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl Sequence {
    fn new(heads: Heads, len: usize, seed: u64) -> Self {
        let numbers = |count: usize, seed: u64, scale: f32| -> Vec<f32> {
            (0..count * heads.head_dim * len).map(|i| noise(seed, i) * scale).collect()
        };
        let (q, k) = (numbers(heads.heads, seed, 2.0), numbers(heads.kv_heads, seed + 1, 2.0));
        Self { heads, q, k, v: numbers(heads.kv_heads, seed + 2, 1.0) }
    }

    fn len(&self) -> usize {
        self.q.len() / self.heads.heads / self.heads.head_dim
    }

    fn rows(&self, of: &[f32], rows: std::ops::Range<usize>) -> Vec<f32> {
        let width = of.len() / self.len();
        of[rows.start * width..rows.end * width].to_vec()
    }

    /// Attends in chunks of the given lengths, the last one repeated.
    fn attend(&self, pool: &Pool, isa: Isa, rope: &RopeTable, chunks: &[usize]) -> Vec<f32> {
        let mut store = KvStore::new(self.heads.kv_heads, self.heads.head_dim);
        let mut outs = Vec::new();
        let (mut start, mut chunks) = (0, chunks.iter().copied());
        let mut chunk = 1;
        while start < self.len() {
            chunk = chunks.next().unwrap_or(chunk).clamp(1, self.len() - start);
            let rows = start..start + chunk;
            let mut out = vec![f32::NAN; chunk * self.heads.heads * self.heads.head_dim];
            let call = Rows {
                q: &mut self.rows(&self.q, rows.clone()),
                k: &mut self.rows(&self.k, rows.clone()),
                v: &self.rows(&self.v, rows),
                out: &mut out,
            };
            attend(
                pool,
                isa,
                self.heads,
                rope,
                call,
                &mut [Slot { rows: 0..chunk, start, store: &mut store }],
            );
            outs.extend(out);
            start += chunk;
        }
        outs
    }

    /// The truth, in f64.
    fn reference(&self, rope: &Rope) -> Vec<f64> {
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let turned = |of: &[f32], heads: usize, row: usize, head: usize| -> Vec<f64> {
            let mut x: Vec<f64> = of[(row * heads + head) * head_dim..][..head_dim]
                .iter()
                .map(|&x| f64::from(x))
                .collect();
            let half = rope.dims / 2;
            for (i, &period) in rope.periods.iter().enumerate() {
                let (sin, cos) = (row as f64 / f64::from(period)).sin_cos();
                (x[i], x[i + half]) =
                    (x[i] * cos - x[i + half] * sin, x[i] * sin + x[i + half] * cos);
            }
            x
        };
        let mut out = Vec::new();
        for row in 0..self.len() {
            for head in 0..heads {
                let kv = head / (heads / kv_heads);
                let q = turned(&self.q, heads, row, head);
                let scores: Vec<f64> = (0..=row)
                    .map(|key| {
                        let k = turned(&self.k, kv_heads, key, kv);
                        q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>() / (head_dim as f64).sqrt()
                    })
                    .collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                out.extend((0..head_dim).map(|dim| {
                    let value =
                        |key: usize| f64::from(self.v[(key * kv_heads + kv) * head_dim + dim]);
                    weights.iter().enumerate().map(|(key, weight)| weight * value(key)).sum::<f64>()
                        / sum
                }));
            }
        }
        out
    }
}

fn rope(dims: usize) -> Rope {
    let periods = (0..dims / 2).map(|i| 100f32.powf(2.0 * i as f32 / dims as f32)).collect();
    Rope { dims, periods, mscale: 1.0, traditional: false }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_path_and_every_cut_has_the_scalar_bits(
        head_dim in prop_oneof![Just(32usize), Just(64), Just(80), Just(128), Just(20)],
        kv_heads in 1usize..4,
        group in 1usize..9,
        len in 1usize..70,
        chunks in prop::collection::vec(1usize..40, 1..6),
        seed: u64,
    ) {
        let heads = Heads { heads: kv_heads * group, kv_heads, head_dim };
        let sequence = Sequence::new(heads, len, seed);
        let rope = rope(head_dim / 2);
        let table = RopeTable::shared(&rope);
        let expected = sequence.attend(&Pool::new(1), Isa::Scalar, &table, &[1]);
        let pool = Pool::new(3);
        for isa in Isa::available() {
            for chunks in [&[len][..], &chunks] {
                let out = sequence.attend(&pool, isa, &table, chunks);
                prop_assert_eq!(bits(&out), bits(&expected), "{:?} {:?}", isa, chunks);
            }
        }
        for (found, truth) in expected.iter().zip(sequence.reference(&rope)) {
            // Values are below 1, scores below 4 * sqrt(128): their f32 error, some 2e-6, passes through exp.
            prop_assert!((f64::from(*found) - truth).abs() < 2e-5, "{found} for {truth}");
        }
    }
}

#[test]
fn spans_are_joined_alike_however_they_are_shared_out() {
    let heads = Heads { heads: 6, kv_heads: 2, head_dim: 32 };
    let sequence = Sequence::new(heads, 700, 7);
    let rope = rope(32);
    let table = RopeTable::shared(&rope);
    let alone = sequence.attend(&Pool::new(1), Isa::detect(), &table, &[700]);
    for (found, truth) in alone.iter().zip(sequence.reference(&rope)) {
        assert!((f64::from(*found) - truth).abs() < 2e-5, "{found} for {truth}");
    }
    // Eight threads and single rows: every span is a job.
    for chunks in [&[690, 1][..], &[300, 200, 3, 190, 7], &[255, 1, 1, 255, 188]] {
        for isa in Isa::available() {
            let out = sequence.attend(&Pool::new(8), isa, &table, chunks);
            assert_eq!(bits(&out), bits(&alone), "{isa:?} {chunks:?}");
        }
    }
}

#[test]
fn slots_of_one_call_do_not_see_each_other_and_their_order_does_not_matter() {
    let heads = Heads { heads: 4, kv_heads: 2, head_dim: 64 };
    let table = RopeTable::shared(&rope(64));
    let pool = Pool::new(2);
    let sequences = [(5, 40), (33, 1), (300, 17)].map(|(past, rows)| {
        let sequence = Sequence::new(heads, past + rows, past as u64);
        let alone = sequence.attend(&pool, Isa::detect(), &table, &[past, rows]);
        (past, rows, sequence, alone)
    });
    for order in [[0, 1, 2], [2, 0, 1]] {
        let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
        let mut stores = Vec::new();
        for (past, rows, sequence, _) in order.map(|i| &sequences[i]) {
            let mut store = KvStore::new(heads.kv_heads, heads.head_dim);
            let mut out = sequence.rows(&sequence.q, 0..*past);
            let call = Rows {
                q: &mut sequence.rows(&sequence.q, 0..*past),
                k: &mut sequence.rows(&sequence.k, 0..*past),
                v: &sequence.rows(&sequence.v, 0..*past),
                out: &mut out,
            };
            let slot = Slot { rows: 0..*past, start: 0, store: &mut store };
            attend(&pool, Isa::detect(), heads, &table, call, &mut [slot]);
            stores.push(store);
            q.extend(sequence.rows(&sequence.q, *past..past + rows));
            k.extend(sequence.rows(&sequence.k, *past..past + rows));
            v.extend(sequence.rows(&sequence.v, *past..past + rows));
        }
        let mut out = vec![0.0; q.len()];
        let mut next = 0;
        let mut slots: Vec<Slot<'_>> = order
            .iter()
            .zip(&mut stores)
            .map(|(&i, store)| {
                let (past, rows, ..) = sequences[i];
                next += rows;
                Slot { rows: next - rows..next, start: past, store }
            })
            .collect();
        let call = Rows { q: &mut q, k: &mut k, v: &v, out: &mut out };
        attend(&pool, Isa::detect(), heads, &table, call, &mut slots);
        let mut out = &out[..];
        for (past, rows, _, alone) in order.map(|i| &sequences[i]) {
            let width = heads.heads * heads.head_dim;
            let (mine, rest) = out.split_at(rows * width);
            assert_eq!(bits(mine), bits(&alone[past * width..]), "{order:?} {past}");
            out = rest;
        }
    }
}

#[test]
fn what_comes_later_cannot_be_seen_even_if_it_is_not_a_number() {
    let heads = Heads { heads: 2, kv_heads: 1, head_dim: 32 };
    let table = RopeTable::shared(&rope(32));
    let clean = Sequence::new(heads, 50, 3);
    let mut dirty = clean.clone();
    dirty.v[20 * 32..].fill(f32::NAN);
    dirty.k[20 * 32..].fill(f32::INFINITY);
    for isa in Isa::available() {
        let expected = clean.attend(&Pool::new(2), isa, &table, &[50]);
        let out = dirty.attend(&Pool::new(2), isa, &table, &[50]);
        assert_eq!(bits(&out[..20 * 64]), bits(&expected[..20 * 64]), "{isa:?}");
        assert!(out[20 * 64..].iter().all(|value| value.is_nan()), "{isa:?}");
    }
}
