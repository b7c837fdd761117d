//! Weight matrices as MLX arrays, and products with them.

use mlx_rs::{Array, ops};

use super::as_type;
use crate::KernelError;
use crate::block::Backend;
use crate::matrix::{Linear, Matrix};
use crate::mlx_array::{array_of, array_of_f32};
use crate::tensor::HostTensor;

/// A matrix `[out, in]`, as stored in the checkpoint but for its floats on a CPU, which are f32.
#[derive(Debug)]
pub(crate) enum GraphMatrix {
    Dense {
        /// `[out, in]`.
        table: Array,
        /// A lazy view, `[in, out]`.
        transposed: Array,
    },
    Affine {
        packed: Array,
        scales: Array,
        biases: Array,
        group: i32,
        bits: i32,
    },
}

impl GraphMatrix {
    pub(crate) fn new(backend: &Backend, matrix: &Matrix) -> Result<Self, KernelError> {
        backend.on_stream(|| match matrix {
            Matrix::Dense(tensor) => {
                let table = float_array(backend, tensor)?;
                let transposed = table.transpose()?;
                transposed.eval()?;
                Ok(Self::Dense { table, transposed })
            }
            Matrix::Affine(affine) => Ok(Self::Affine {
                packed: array_of(&affine.packed)?,
                scales: float_array(backend, &affine.scales)?,
                biases: float_array(backend, &affine.biases)?,
                group: crate::mlx_array::size(affine.group),
                bits: i32::from(affine.bits),
            }),
        })
    }

    pub(crate) fn nbytes(&self) -> usize {
        match self {
            Self::Dense { table, .. } => table.nbytes(),
            Self::Affine { packed, scales, biases, .. } => {
                packed.nbytes() + scales.nbytes() + biases.nbytes()
            }
        }
    }

    /// `x . weightT`, in the type of `x`.
    pub(crate) fn multiply(&self, x: &Array) -> Result<Array, KernelError> {
        let y = match self {
            Self::Dense { transposed, .. } => ops::matmul(x, transposed)?,
            Self::Affine { packed, scales, biases, group, bits } => {
                ops::quantized_matmul(x, packed, scales, biases, true, *group, *bits)?
            }
        };
        as_type(y, x.dtype())
    }

    /// The rows at `ids`, dequantised.
    pub(crate) fn rows_at(&self, ids: &Array) -> Result<Array, KernelError> {
        Ok(match self {
            Self::Dense { table, .. } => table.take_axis(ids, 0)?,
            Self::Affine { packed, scales, biases, group, bits } => ops::dequantize(
                packed.take_axis(ids, 0)?,
                scales.take_axis(ids, 0)?,
                &biases.take_axis(ids, 0)?,
                *group,
                *bits,
            )?,
        })
    }
}

/// A [`GraphMatrix`] with its bias `[out]`.
#[derive(Debug)]
pub(crate) struct GraphLinear {
    matrix: GraphMatrix,
    bias: Option<Array>,
}

impl GraphLinear {
    pub(crate) fn new(backend: &Backend, linear: &Linear) -> Result<Self, KernelError> {
        let bias = linear.bias.as_ref().map(|bias| float_array(backend, bias)).transpose()?;
        Ok(Self { matrix: GraphMatrix::new(backend, &linear.matrix)?, bias })
    }

    pub(crate) fn forward(&self, x: &Array) -> Result<Array, KernelError> {
        let y = self.matrix.multiply(x)?;
        match &self.bias {
            Some(bias) => as_type(ops::add(&y, bias)?, x.dtype()),
            None => Ok(y),
        }
    }
}

/// A float tensor in the type this form computes with: its own on a GPU, f32 on a CPU.
pub(crate) fn float_array(backend: &Backend, tensor: &HostTensor) -> Result<Array, KernelError> {
    if backend.on_gpu() { array_of(tensor) } else { array_of_f32(tensor) }
}
