//! Random weights and inputs from a seed, of every kind of matrix that checkpoints hold.

use half::{bf16, f16};
use sanctum_kernels::matrix::{AffineMatrix, Linear, Matrix};
use sanctum_kernels::tensor::{DType, HostTensor};

/// How a matrix is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Dense(DType),
    Affine { bits: u32, group: usize, scales: DType },
}

/// One of each: both widths, all groups, all float types.
pub(crate) const KINDS: [Kind; 8] = [
    Kind::Dense(DType::F32),
    Kind::Dense(DType::F16),
    Kind::Dense(DType::Bf16),
    Kind::Affine { bits: 4, group: 32, scales: DType::F16 },
    Kind::Affine { bits: 4, group: 64, scales: DType::Bf16 },
    Kind::Affine { bits: 4, group: 128, scales: DType::F32 },
    Kind::Affine { bits: 8, group: 32, scales: DType::Bf16 },
    Kind::Affine { bits: 8, group: 64, scales: DType::F16 },
];

/// SplitMix64: enough for weights, and the same everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `-1..1`.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// Uniform in `0..limit`.
    pub(crate) fn below(&mut self, limit: u32) -> u32 {
        (self.next() % u64::from(limit)) as u32
    }

    pub(crate) fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }

    /// A float tensor around `centre`, rounded to its type.
    pub(crate) fn tensor(
        &mut self,
        dtype: DType,
        shape: &[usize],
        centre: f32,
        spread: f32,
    ) -> HostTensor {
        let count = shape.iter().product();
        let values: Vec<f32> =
            self.units(count).into_iter().map(|unit| centre + spread * unit).collect();
        let halves = || values.iter().map(|&v| f16::from_f32(v)).collect::<Vec<_>>();
        let brains = || values.iter().map(|&v| bf16::from_f32(v)).collect::<Vec<_>>();
        match dtype {
            DType::F32 => HostTensor::from_values(shape.to_vec(), &values),
            DType::F16 => HostTensor::from_values(shape.to_vec(), &halves()),
            DType::Bf16 => HostTensor::from_values(shape.to_vec(), &brains()),
            other => panic!("{other:?} is no float"),
        }
        .expect("a tensor")
    }

    /// A matrix whose products with inputs of size 1 are of size 1.
    pub(crate) fn matrix(&mut self, kind: Kind, rows: usize, cols: usize) -> Matrix {
        let size = (3.0 / cols as f32).sqrt();
        match kind {
            Kind::Dense(dtype) => Matrix::dense(self.tensor(dtype, &[rows, cols], 0.0, size)),
            Kind::Affine { bits, group, scales } => {
                let words: Vec<u32> =
                    (0..rows * cols * bits as usize / 32).map(|_| self.next() as u32).collect();
                let packed = HostTensor::from_values(vec![rows, cols * bits as usize / 32], &words)
                    .expect("words");
                let highest = ((1 << bits) - 1) as f32;
                let (step, shape) = (2.0 * size / highest, [rows, cols / group]);
                let scales_tensor = self.tensor(scales, &shape, step, step / 4.0);
                let biases = self.tensor(scales, &shape, -size, size / 4.0);
                AffineMatrix::new(bits, group, packed, scales_tensor, biases).map(Matrix::from)
            }
        }
        .expect("a matrix")
    }

    pub(crate) fn linear(&mut self, kind: Kind, rows: usize, cols: usize, biased: bool) -> Linear {
        let matrix = self.matrix(kind, rows, cols);
        let dtype = match kind {
            Kind::Dense(dtype) => dtype,
            Kind::Affine { scales, .. } => scales,
        };
        let bias = biased.then(|| self.tensor(dtype, &[rows], 0.0, 0.5));
        Linear { matrix, bias }
    }
}
