//! Every path gives the scalar path's bits, a row's bits do not depend on its company, and all are near the truth.

use half::{bf16, f16};
use proptest::prelude::*;

use super::{Panels, Product, multiply};
use crate::host::isa::Isa;
use crate::host::pool::Pool;
use crate::matrix::{AffineMatrix, Matrix};
use crate::tensor::{DType, HostTensor};

/// Numbers in about -1..1 that depend on the seed and the place only.
fn noise(seed: u64, i: usize) -> f32 {
    let mixed =
        (seed ^ (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    let mixed = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    (mixed >> 40) as f32 / 8_388_608.0 - 1.0
}

fn floats(dtype: DType, shape: Vec<usize>, value: impl Fn(usize) -> f32) -> HostTensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    match dtype {
        DType::F16 => {
            let halves: Vec<f16> = values.into_iter().map(f16::from_f32).collect();
            HostTensor::from_values(shape, &halves)
        }
        DType::Bf16 => {
            let halves: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
            HostTensor::from_values(shape, &halves)
        }
        _ => HostTensor::from_values(shape, &values),
    }
    .unwrap()
}

/// How a matrix is stored: bits (32: dense), group, type of scales or weights.
type Storage = (u32, usize, DType);

fn matrix((bits, group, dtype): Storage, rows: usize, cols: usize, seed: u64) -> Matrix {
    if bits == 32 {
        return Matrix::dense(floats(dtype, vec![rows, cols], |i| noise(seed, i))).unwrap();
    }
    let words = cols * bits as usize / 32;
    let packed: Vec<u32> =
        (0..rows * words).map(|i| noise(seed, i).to_bits().wrapping_mul(0x9e37_79b9)).collect();
    let packed = HostTensor::from_values(vec![rows, words], &packed).unwrap();
    let range = (1 << bits) as f32;
    let shape = vec![rows, cols / group];
    let scales = floats(dtype, shape.clone(), |i| (1.5 + noise(seed + 1, i)) / range);
    let biases = floats(dtype, shape, |i| noise(seed + 2, i) - 0.5);
    AffineMatrix::new(bits, group, packed, scales, biases).unwrap().into()
}

fn storages() -> impl Strategy<Value = Storage> {
    let dtype = prop_oneof![Just(DType::F32), Just(DType::F16), Just(DType::Bf16)];
    let group = prop_oneof![Just(32usize), Just(64), Just(128)];
    (prop_oneof![Just(4u32), Just(8), Just(32)], group, dtype)
}

fn inputs(m: usize, k: usize, seed: u64) -> Vec<f32> {
    (0..m * k).map(|i| noise(seed + 3, i)).collect()
}

fn product(pool: &Pool, panels: &Panels, bias: Option<&[f32]>, x: &[f32], m: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; m * panels.rows()];
    multiply(pool, &mut [Product { panels, bias, out: &mut out }], x, m);
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_path_and_every_row_has_the_scalar_bits(
        storage in storages(),
        rows in 1usize..80,
        groups in 1usize..7,
        odd in 0usize..32,
        m in 1usize..11,
        with_bias: bool,
        seed: u64,
    ) {
        let (bits_, group, _) = storage;
        let cols = if bits_ == 32 { groups * 32 + odd } else { groups * group };
        let matrix = matrix(storage, rows, cols, seed);
        let x = inputs(m, cols, seed);
        let bias: Vec<f32> = (0..rows).map(|i| noise(seed + 4, i)).collect();
        let bias = with_bias.then_some(&bias[..]);
        let (alone, pair) = (Pool::new(1), Pool::new(2));

        let scalar = Panels::pack(&matrix, Isa::Scalar);
        let expected: Vec<f32> =
            x.chunks(cols).flat_map(|row| product(&alone, &scalar, bias, row, 1)).collect();
        for isa in Isa::available() {
            let panels = Panels::pack(&matrix, isa);
            prop_assert_eq!(bits(&product(&pair, &panels, bias, &x, m)), bits(&expected), "{:?}", isa);
            let rows: Vec<f32> =
                x.chunks(cols).flat_map(|row| product(&pair, &panels, bias, row, 1)).collect();
            prop_assert_eq!(bits(&rows), bits(&expected), "{:?} row by row", isa);
        }

        // |error| <= (cols + 4) half-ulp steps of the sum of magnitudes, affine terms taken apart.
        for (row, out) in expected.chunks(rows).enumerate() {
            let x = &x[row * cols..][..cols];
            for (n, &found) in out.iter().enumerate() {
                let weights = matrix.row(n).unwrap();
                let terms = weights.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x));
                let truth = terms.sum::<f64>() + bias.map_or(0.0, |bias| f64::from(bias[n]));
                let magnitude: f64 = x.iter().map(|&x| f64::from(x.abs()) * 6.0).sum::<f64>() + 1.0;
                let allowed = 2f64.powi(-24) * (cols as f64).sqrt() * magnitude;
                prop_assert!((f64::from(found) - truth).abs() <= allowed, "{found} for {truth}");
            }
        }
    }
}

#[test]
fn many_rows_and_several_layers_of_one_input_are_each_as_if_alone() {
    let cols = 384;
    let storages: [Storage; 4] =
        [(4, 64, DType::F16), (8, 64, DType::Bf16), (4, 64, DType::F16), (32, 0, DType::F16)];
    let matrices: Vec<Matrix> = storages
        .iter()
        .zip([70, 33, 32, 5])
        .map(|(&storage, rows)| matrix(storage, rows, cols, 9))
        .collect();
    let m = 2 * super::ROWS_PER_JOB + 7;
    let x = inputs(m, cols, 5);
    let pool = Pool::new(3);
    for isa in Isa::available() {
        let panels: Vec<Panels> = matrices.iter().map(|matrix| Panels::pack(matrix, isa)).collect();
        let mut outs: Vec<Vec<f32>> =
            panels.iter().map(|panels| vec![0.0; m * panels.rows()]).collect();
        let mut products: Vec<Product<'_>> = panels
            .iter()
            .zip(&mut outs)
            .map(|(panels, out)| Product { panels, bias: None, out })
            .collect();
        multiply(&pool, &mut products, &x, m);
        for (panels, out) in panels.iter().zip(&outs) {
            for row in [0, 1, 95, 96, 97, m - 1] {
                let alone = product(&pool, panels, None, &x[row * cols..][..cols], 1);
                assert_eq!(
                    bits(&out[row * panels.rows()..][..panels.rows()]),
                    bits(&alone),
                    "{row}"
                );
            }
        }
    }
}

#[test]
fn a_row_is_looked_up_as_it_was_packed() {
    for storage in
        [(4, 32, DType::F16), (8, 128, DType::F32), (32, 0, DType::Bf16), (32, 0, DType::F32)]
    {
        let cols = if storage.0 == 32 { 131 } else { 256 };
        let matrix = matrix(storage, 67, cols, 3);
        let panels = Panels::pack(&matrix, Isa::detect());
        assert_eq!((panels.rows(), panels.cols()), (67, cols));
        let mut row = vec![0.0; cols];
        for n in [0, 15, 16, 31, 32, 63, 64, 66] {
            panels.row_into(n, &mut row);
            assert_eq!(bits(&row), bits(&matrix.row(n).unwrap()), "{storage:?} row {n}");
        }
    }
}

#[test]
fn not_a_number_and_infinity_stay_in_their_row() {
    let matrix = matrix((4, 32, DType::F16), 40, 96, 1);
    let pool = Pool::new(2);
    for isa in Isa::available() {
        let panels = Panels::pack(&matrix, isa);
        let mut x = inputs(3, 96, 2);
        let clean = product(&pool, &panels, None, &x, 3);
        x[96 + 5] = f32::NAN;
        x[96 + 40] = f32::INFINITY;
        let out = product(&pool, &panels, None, &x, 3);
        assert!(out[40..80].iter().all(|value| value.is_nan()));
        assert_eq!(bits(&out[..40]), bits(&clean[..40]));
        assert_eq!(bits(&out[80..]), bits(&clean[80..]));
    }
}

#[test]
#[should_panic(expected = "inputs of a linear layer")]
fn sizes_must_match() {
    let panels = Panels::pack(&matrix((4, 32, DType::F16), 8, 64, 1), Isa::Scalar);
    product(&Pool::new(1), &panels, None, &[0.0; 63], 1);
}
