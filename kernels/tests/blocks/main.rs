//! The blocks: each form computes what the reference form does, and the reference form what an oracle in f64 does.

mod oracle;
mod ragged;
mod refusals;
mod weights;

use oracle::Rows;
use sanctum_kernels::rope::{Rope, RopeScaling, RopeSpec};
use sanctum_kernels::tensor::{DType, HostTensor};
use sanctum_kernels::{
    Array, Attention, AttentionShape, AttentionWeights, Backend, BackendOptions, Embed, Form, Head,
    HeadShape, KvCache, Mlp, MlpShape, MlpWeights, Segment, read_f32,
};
use weights::{KINDS, Kind, Random};

/// Largest difference allowed between two forms, relative to the largest value. Sums of up to 384 f32 products round
/// to about sqrt(384) * 2^-24 = 1e-6 of their size; a few of them follow each other in a block.
const TOLERANCE: f64 = 1e-5;

const HIDDEN: usize = 128;
const NORM_EPS: f32 = 1e-5;
/// Forms other than the reference.
const FORMS: [Form; 2] = [Form::Graph, Form::Host];

fn backend(form: Form) -> Backend {
    Backend::new(BackendOptions { form, threads: 2 }).expect("a backend")
}

/// Every kind of rotation.
fn ropes(head_dim: usize) -> Vec<Rope> {
    let original_max_positions = 64.0;
    let scalings = [
        (1.0, RopeScaling::None),
        (0.5, RopeScaling::None),
        (1.0, RopeScaling::Linear { factor: 4.0 }),
        (
            1.0,
            RopeScaling::Llama3 {
                factor: 8.0,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_positions,
            },
        ),
        (
            0.25,
            RopeScaling::Yarn {
                factor: 4.0,
                original_max_positions,
                beta_fast: 32.0,
                beta_slow: 1.0,
                mscale: 1.0,
                mscale_all_dim: 0.0,
            },
        ),
    ];
    let mut ropes: Vec<Rope> = scalings
        .map(|(partial, scaling)| {
            let spec = RopeSpec { head_dim, partial, theta: 10_000.0, scaling };
            Rope::from_spec(&spec).expect("a rope")
        })
        .into();
    ropes.push(Rope { traditional: true, ..ropes[1].clone() });
    assert!(ropes.iter().any(|rope| rope.mscale != 1.0));
    ropes
}

fn attention_shape(heads: usize, kv_heads: usize, head_dim: usize, rope: Rope) -> AttentionShape {
    AttentionShape {
        hidden: HIDDEN,
        heads,
        kv_heads,
        head_dim,
        norm_eps: NORM_EPS,
        rope,
        max_positions: 400,
    }
}

fn attention_weights(random: &mut Random, shape: &AttentionShape, kind: Kind) -> AttentionWeights {
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    AttentionWeights {
        norm: random.tensor(DType::F32, &[HIDDEN], 1.0, 0.5),
        q: random.linear(kind, q, HIDDEN, true),
        k: random.linear(kind, kv, HIDDEN, true),
        v: random.linear(kind, kv, HIDDEN, false),
        o: random.linear(kind, HIDDEN, q, true),
    }
}

fn mlp_weights(random: &mut Random, intermediate: usize, kind: Kind, biased: bool) -> MlpWeights {
    MlpWeights {
        norm: random.tensor(DType::Bf16, &[HIDDEN], 1.0, 0.5),
        gate: random.linear(kind, intermediate, HIDDEN, biased),
        up: random.linear(kind, intermediate, HIDDEN, biased),
        down: random.linear(kind, HIDDEN, intermediate, biased),
    }
}

fn hidden_states(random: &mut Random, rows: usize) -> Array {
    Array::from_slice(&random.units(rows * HIDDEN), &[rows as i32, HIDDEN as i32])
}

fn rows_of(array: &Array) -> Rows {
    let width = *array.shape().last().expect("an axis") as usize;
    let values = read_f32(array).expect("values");
    values.chunks(width).map(|row| row.iter().map(|&v| f64::from(v)).collect()).collect()
}

#[track_caller]
fn assert_close(found: &Rows, expected: &Rows, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: rows");
    let largest = expected.iter().flatten().fold(0.0, |m: f64, v| m.max(v.abs()));
    for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}: width of row {row}");
        for (column, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert!(
                (found - expected).abs() <= TOLERANCE * largest,
                "{what}: [{row}, {column}] is {found}, expected {expected}"
            );
        }
    }
}

/// One sequence in pieces of the given lengths.
fn attend(block: &Attention, x: &Array, pieces: &[usize]) -> Rows {
    let mut cache = block.new_cache();
    let mut out = vec![];
    let rows = rows_of(x);
    for &piece in pieces {
        let past = cache.len();
        let flat: Vec<f32> = rows[past..past + piece].iter().flatten().map(|&v| v as f32).collect();
        let x = Array::from_slice(&flat, &[piece as i32, HIDDEN as i32]);
        let mut segments = [Segment { rows: 0..piece, cache: &mut cache }];
        out.extend(rows_of(&block.forward(&x, &mut segments).expect("attention")));
        assert_eq!(cache.len(), past + piece);
    }
    assert!(cache.nbytes() > 0);
    out
}

#[test]
fn attention_is_what_the_oracle_says() {
    for (seed, rope) in ropes(64).into_iter().enumerate() {
        let seed = seed as u64;
        let mut random = Random::new(seed);
        let shape = attention_shape(4, 2, 64, rope);
        let weights = attention_weights(&mut random, &shape, KINDS[seed as usize]);
        let x = hidden_states(&mut random, 7);
        let expected = oracle::attention(&shape, &weights, &rows_of(&x));
        let block = Attention::new(&backend(Form::Reference), shape, weights).unwrap();
        assert_close(&attend(&block, &x, &[3, 4]), &expected, &format!("seed {seed}"));
    }
}

#[test]
fn mlp_is_what_the_oracle_says() {
    let reference = backend(Form::Reference);
    for (seed, kind) in KINDS.into_iter().enumerate() {
        let mut random = Random::new(seed as u64);
        let weights = mlp_weights(&mut random, 384, kind, seed % 2 == 0);
        let x = hidden_states(&mut random, 3);
        let expected = oracle::mlp(NORM_EPS, &weights, &rows_of(&x));
        let shape = MlpShape { hidden: HIDDEN, intermediate: 384, norm_eps: NORM_EPS };
        let block = Mlp::new(&reference, shape, weights).unwrap();
        assert_close(&rows_of(&block.forward(&x).unwrap()), &expected, &format!("{kind:?}"));
    }
}

#[test]
fn attention_of_every_form_is_the_reference() {
    let reference = backend(Form::Reference);
    for form in FORMS {
        let backend = backend(form);
        for (seed, kind) in KINDS.into_iter().enumerate() {
            let mut random = Random::new(seed as u64);
            let (heads, kv_heads, head_dim) =
                [(4, 2, 64), (2, 2, 64), (12, 4, 32), (2, 1, 128), (8, 1, 80)][seed % 5];
            let rope = ropes(head_dim).swap_remove(seed % 6);
            let shape = attention_shape(heads, kv_heads, head_dim, rope);
            let weights = attention_weights(&mut random, &shape, kind);
            // Past the step by which graph caches grow, with prompt chunks and single tokens.
            let x = hidden_states(&mut random, 266);
            let pieces = [5, 1, 1, 250, 2, 1, 6];
            let truth = Attention::new(&reference, shape.clone(), weights.clone()).unwrap();
            let block = Attention::new(&backend, shape, weights).unwrap();
            let what = format!("{form:?} {kind:?}, {heads}/{kv_heads} heads of {head_dim}");
            assert_close(&attend(&block, &x, &pieces), &attend(&truth, &x, &[266]), &what);
        }
    }
}

#[test]
fn mlp_of_every_form_is_the_reference() {
    let reference = backend(Form::Reference);
    for form in FORMS {
        let backend = backend(form);
        for (seed, kind) in KINDS.into_iter().enumerate() {
            let mut random = Random::new(seed as u64);
            let weights = mlp_weights(&mut random, 384, kind, seed % 2 == 1);
            let shape = MlpShape { hidden: HIDDEN, intermediate: 384, norm_eps: NORM_EPS };
            let truth = Mlp::new(&reference, shape, weights.clone()).unwrap();
            let block = Mlp::new(&backend, shape, weights).unwrap();
            for rows in [1, 2, 3, 4, 17] {
                let x = hidden_states(&mut random, rows);
                let found = rows_of(&block.forward(&x).unwrap());
                let expected = rows_of(&truth.forward(&x).unwrap());
                assert_close(&found, &expected, &format!("{form:?} {kind:?}, {rows} rows"));
            }
        }
    }
}

#[test]
fn embed_and_head_of_every_form_are_the_table_and_the_oracle() {
    for form in [Form::Reference, Form::Graph, Form::Host] {
        let backend = backend(form);
        for (seed, kind) in KINDS.into_iter().enumerate() {
            let what = format!("{form:?} {kind:?}");
            let mut random = Random::new(seed as u64);
            let vocab = 203;
            let matrix = random.matrix(kind, vocab, HIDDEN);
            let norm = random.tensor(DType::F16, &[HIDDEN], 1.0, 0.5);
            let table = backend.prepare(matrix.clone()).unwrap();
            assert_eq!((table.rows(), table.cols()), (vocab, HIDDEN));

            let embed = Embed::new(&backend, table.clone()).unwrap();
            let ids = [0, 202, 7, 7, 101];
            let x = embed.forward(&ids).unwrap();
            let expected: Rows = ids
                .iter()
                .map(|&id| matrix.row(id as usize).unwrap().into_iter().map(f64::from).collect())
                .collect();
            assert_close(&rows_of(&x), &expected, &what);

            // Tied: the same table.
            let shape = HeadShape { hidden: HIDDEN, norm_eps: NORM_EPS };
            let head = Head::new(&backend, shape, norm.clone(), table).unwrap();
            let wanted = [4, 0, 4];
            let logits = rows_of(&head.forward(&x, &wanted).unwrap());
            let expected: Rows = wanted
                .iter()
                .map(|&row| oracle::rms_norm(&expected[row as usize], &norm, NORM_EPS))
                .map(|n| oracle::product(&matrix, &n))
                .collect();
            assert_close(&logits, &expected, &what);
        }
    }
}

#[test]
fn a_truncated_cache_forgets() {
    for form in [Form::Reference, Form::Graph, Form::Host] {
        let mut random = Random::new(5);
        let shape = attention_shape(4, 2, 64, ropes(64).remove(0));
        let weights = attention_weights(&mut random, &shape, KINDS[4]);
        let block = Attention::new(&backend(form), shape, weights).unwrap();
        let (past, wrong, right) = (
            hidden_states(&mut random, 9),
            hidden_states(&mut random, 5),
            hidden_states(&mut random, 2),
        );
        let run = |cache: &mut KvCache, x: &Array| {
            let rows = 0..x.shape()[0] as usize;
            read_f32(&block.forward(x, &mut [Segment { rows, cache }]).unwrap()).unwrap()
        };
        let mut straight = block.new_cache();
        assert!(straight.is_empty());
        run(&mut straight, &past);
        let expected = run(&mut straight, &right);
        let mut rewound = block.new_cache();
        run(&mut rewound, &past);
        run(&mut rewound, &wrong);
        rewound.truncate(9);
        rewound.truncate(20);
        assert_eq!(rewound.len(), 9);
        assert_eq!(run(&mut rewound, &right), expected, "{form:?}");
    }
}

/// A float tensor of ones, where only its shape matters.
fn ones(shape: &[usize]) -> HostTensor {
    let count = shape.iter().product();
    HostTensor::from_values(shape.to_vec(), &vec![1f32; count]).expect("a tensor")
}
