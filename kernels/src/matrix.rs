//! Weight matrices as checkpoints hold them: dense, or affine-quantised in MLX's packing.
//!
//! Owns the checks by which a [`Matrix`] is valid once it exists. Refuses bit widths, group sizes and types that the
//! kernels do not know, naming what was found. Does no arithmetic beyond widening a single row.

use std::ops::Deref;

use crate::tensor::{DType, HostTensor, TensorError};

/// Why tensors are not a weight matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MatrixError {
    /// Another number of axes, or other sizes.
    #[error("{tensor}: expected {expected}, found {found:?}")]
    Shape {
        /// Which tensor.
        tensor: &'static str,
        /// What the others ask for.
        expected: String,
        /// Its sizes.
        found: Vec<usize>,
    },
    /// An element type that has no kernel.
    #[error("{tensor}: expected {expected}, found {found:?}")]
    Type {
        /// Which tensor.
        tensor: &'static str,
        /// Types that would do.
        expected: &'static str,
        /// Its type.
        found: DType,
    },
    /// A bit width other than 4 and 8.
    #[error("{0}-bit weights are not supported, only 4 and 8")]
    Bits(u32),
    /// A group size other than 32, 64 and 128.
    #[error("groups of {0} are not supported, only 32, 64 and 128")]
    Group(usize),
    /// A row that is not there.
    #[error("row {row} of a matrix of {rows}")]
    Row {
        /// Row asked for.
        row: usize,
        /// Rows held.
        rows: usize,
    },
}

/// A weight matrix `[out, in]`, applied as `y = x . Wᵀ`.
#[derive(Debug, Clone)]
pub enum Matrix {
    /// Floats.
    Dense(DenseMatrix),
    /// Quantised.
    Affine(AffineMatrix),
}

/// A matrix of floats: a tensor that [`Matrix::dense`] has checked.
#[derive(Debug, Clone)]
pub struct DenseMatrix(HostTensor);

/// A matrix of 4- or 8-bit integers with a scale and a bias per group of inputs: `w = q * scale + bias`.
#[derive(Debug, Clone)]
pub struct AffineMatrix {
    pub(crate) bits: u8,
    pub(crate) group: usize,
    pub(crate) packed: HostTensor,
    pub(crate) scales: HostTensor,
    pub(crate) biases: HostTensor,
}

/// A linear layer: a matrix and perhaps a bias `[out]`, added last.
#[derive(Debug, Clone)]
pub struct Linear {
    /// The weights.
    pub matrix: Matrix,
    /// What is added to every output row.
    pub bias: Option<HostTensor>,
}

impl AffineMatrix {
    /// Checks and joins the three tensors of a quantised matrix.
    ///
    /// `packed` is u32 `[out, in * bits / 32]` with element 0 of a word in its low bits; `scales` and `biases` are
    /// `[out, in / group]`, both of the same float type.
    pub fn new(
        bits: u32,
        group: usize,
        packed: HostTensor,
        scales: HostTensor,
        biases: HostTensor,
    ) -> Result<Self, MatrixError> {
        let bits = match bits {
            4 => 4u8,
            8 => 8,
            other => return Err(MatrixError::Bits(other)),
        };
        if ![32, 64, 128].contains(&group) {
            return Err(MatrixError::Group(group));
        }
        if packed.dtype() != DType::U32 {
            let found = packed.dtype();
            return Err(MatrixError::Type { tensor: "weight", expected: "u32", found });
        }
        let words = group * usize::from(bits) / 32;
        let (rows, groups) = match *packed.shape() {
            [rows, cols] if rows > 0 && cols > 0 && cols.is_multiple_of(words) => {
                (rows, cols / words)
            }
            _ => {
                return Err(MatrixError::Shape {
                    tensor: "weight",
                    expected: format!("[out, a multiple of {words} words]"),
                    found: packed.shape().to_vec(),
                });
            }
        };
        check_floats("scales", &scales)?;
        check_shape("scales", &scales, [rows, groups])?;
        check_shape("biases", &biases, [rows, groups])?;
        if biases.dtype() != scales.dtype() {
            let found = biases.dtype();
            return Err(MatrixError::Type {
                tensor: "biases",
                expected: "the scales' type",
                found,
            });
        }
        Ok(Self { bits, group, packed, scales, biases })
    }

    /// Bits of an element, 4 or 8.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Inputs that share a scale and a bias: 32, 64 or 128.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Element type of scales and biases.
    pub fn scale_type(&self) -> DType {
        self.scales.dtype()
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.packed.shape()[0]
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.packed.shape()[1] * 32 / usize::from(self.bits)
    }
}

impl Matrix {
    /// A dense matrix over a float tensor `[out, in]`.
    pub fn dense(tensor: HostTensor) -> Result<Self, MatrixError> {
        check_floats("weight", &tensor)?;
        match *tensor.shape() {
            [rows, cols] if rows > 0 && cols > 0 => Ok(Self::Dense(DenseMatrix(tensor))),
            _ => Err(MatrixError::Shape {
                tensor: "weight",
                expected: "[out, in], neither zero".into(),
                found: tensor.shape().to_vec(),
            }),
        }
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        match self {
            Self::Dense(tensor) => tensor.shape()[0],
            Self::Affine(affine) => affine.rows(),
        }
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        match self {
            Self::Dense(tensor) => tensor.shape()[1],
            Self::Affine(affine) => affine.cols(),
        }
    }

    /// Bytes of the tensors.
    pub fn nbytes(&self) -> usize {
        match self {
            Self::Dense(tensor) => tensor.bytes().len(),
            Self::Affine(affine) => affine.packed.bytes().len() + 2 * affine.scales.bytes().len(),
        }
    }

    /// One row's weights in f32, `q * scale + bias` rounded once: what importers and tests compare with.
    pub fn row(&self, row: usize) -> Result<Vec<f32>, MatrixError> {
        if row >= self.rows() {
            return Err(MatrixError::Row { row, rows: self.rows() });
        }
        match self {
            Self::Dense(tensor) => one_row(tensor, row, HostTensor::to_f32),
            Self::Affine(affine) => {
                let words =
                    one_row(&affine.packed, row, |view| Ok(view.values::<u32>()?.to_vec()))?;
                let scales = one_row(&affine.scales, row, HostTensor::to_f32)?;
                let biases = one_row(&affine.biases, row, HostTensor::to_f32)?;
                let bits = u32::from(affine.bits);
                let elements = words.iter().flat_map(|word| {
                    (0..32 / bits).map(move |i| (word >> (i * bits)) & ((1 << bits) - 1))
                });
                Ok(elements
                    .enumerate()
                    .map(|(k, q)| {
                        (q as f32).mul_add(scales[k / affine.group], biases[k / affine.group])
                    })
                    .collect())
            }
        }
    }
}

impl Deref for DenseMatrix {
    type Target = HostTensor;

    fn deref(&self) -> &HostTensor {
        &self.0
    }
}

impl From<AffineMatrix> for Matrix {
    fn from(affine: AffineMatrix) -> Self {
        Self::Affine(affine)
    }
}

fn one_row<T>(
    tensor: &HostTensor,
    row: usize,
    read: impl Fn(&HostTensor) -> Result<Vec<T>, TensorError>,
) -> Result<Vec<T>, MatrixError> {
    let missing = MatrixError::Row { row, rows: tensor.shape()[0] };
    tensor.rows(row..row + 1).and_then(|view| read(&view)).map_err(|_| missing)
}

fn check_floats(tensor: &'static str, found: &HostTensor) -> Result<(), MatrixError> {
    if found.dtype().is_float() {
        return Ok(());
    }
    Err(MatrixError::Type { tensor, expected: "f32, f16 or bf16", found: found.dtype() })
}

fn check_shape(
    tensor: &'static str,
    found: &HostTensor,
    expected: [usize; 2],
) -> Result<(), MatrixError> {
    if found.shape() == expected {
        return Ok(());
    }
    let (expected, found) = (format!("{expected:?}"), found.shape().to_vec());
    Err(MatrixError::Shape { tensor, expected, found })
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    fn words(rows: usize, cols: usize) -> HostTensor {
        HostTensor::from_values(vec![rows, cols], &vec![0x7654_3210u32; rows * cols]).unwrap()
    }

    fn floats(rows: usize, cols: usize, value: f32) -> HostTensor {
        HostTensor::from_values(vec![rows, cols], &vec![f16::from_f32(value); rows * cols]).unwrap()
    }

    #[test]
    fn a_row_is_scaled_and_shifted() {
        let matrix: Matrix =
            AffineMatrix::new(4, 32, words(3, 8), floats(3, 2, 0.5), floats(3, 2, -1.0))
                .unwrap()
                .into();
        assert_eq!((matrix.rows(), matrix.cols(), matrix.nbytes()), (3, 64, 96 + 24));
        let row = matrix.row(2).unwrap();
        assert_eq!(row[..9], [-1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 2.5, -1.0]);
        assert_eq!(matrix.row(3), Err(MatrixError::Row { row: 3, rows: 3 }));
        let bytes = AffineMatrix::new(8, 32, words(1, 8), floats(1, 1, 1.0), floats(1, 1, 0.0));
        assert_eq!(Matrix::from(bytes.unwrap()).row(0).unwrap()[..4], [16., 50., 84., 118.]);
    }

    #[test]
    fn messages_name_the_tensor_the_expected_and_the_found() {
        let (ok_scales, ok_biases) = (floats(3, 2, 0.5), floats(3, 2, 0.5));
        let text = |bits, group, packed, scales, biases| {
            AffineMatrix::new(bits, group, packed, scales, biases).unwrap_err().to_string()
        };
        assert_eq!(
            text(3, 32, words(3, 8), ok_scales.clone(), ok_biases.clone()),
            "3-bit weights are not supported, only 4 and 8"
        );
        assert_eq!(
            text(4, 16, words(3, 8), ok_scales.clone(), ok_biases.clone()),
            "groups of 16 are not supported, only 32, 64 and 128"
        );
        assert_eq!(
            text(4, 32, words(3, 6), ok_scales.clone(), ok_biases.clone()),
            "weight: expected [out, a multiple of 4 words], found [3, 6]"
        );
        assert_eq!(
            text(4, 32, words(3, 8), ok_scales.clone(), floats(3, 1, 0.)),
            "biases: expected [3, 2], found [3, 1]"
        );
        let wide = HostTensor::from_values(vec![3, 2], &[0f32; 6]).unwrap();
        assert_eq!(
            text(4, 32, words(3, 8), ok_scales, wide),
            "biases: expected the scales' type, found F32"
        );
        assert_eq!(
            text(4, 32, floats(3, 8, 0.), ok_biases.clone(), ok_biases),
            "weight: expected u32, found F16"
        );
        assert_eq!(
            Matrix::dense(words(1, 1)).unwrap_err().to_string(),
            "weight: expected f32, f16 or bf16, found U32"
        );
    }
}
