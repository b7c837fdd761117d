//! The reference form: every block in plain f32 MLX ops on the CPU, written to be read.
//!
//! The tests take it for the truth and the worker can fall back on it. It refuses nothing that the blocks accept and is
//! not meant to be fast: weights are widened to f32, the causal mask and the rotary angles are written out.

mod attention;

use std::rc::Rc;

use mlx_rs::{Array, ops};

use crate::KernelError;
use crate::block::{Backend, HeadShape, MlpShape, MlpWeights, Prepared, Store};
use crate::matrix::{Linear, Matrix};
use crate::mlx_array::{array_of, array_of_f32, indices};
use crate::tensor::HostTensor;

pub(crate) use attention::{Attention, Cache};

/// A matrix as f32 `[out, in]`, dequantised if need be.
pub(crate) fn dense(backend: &Backend, matrix: &Matrix) -> Result<Array, KernelError> {
    backend.on_stream(|| match matrix {
        Matrix::Dense(tensor) => array_of_f32(tensor),
        Matrix::Affine(affine) => {
            let weight = ops::dequantize(
                array_of(&affine.packed)?,
                array_of_f32(&affine.scales)?,
                &array_of_f32(&affine.biases)?,
                i32::try_from(affine.group).ok(),
                i32::from(affine.bits),
            )?;
            weight.eval()?;
            Ok(weight)
        }
    })
}

/// `x * rsqrt(mean(x^2) + eps) * weight`, over the last axis.
fn rms_norm(x: &Array, weight: &Array, eps: f32) -> Result<Array, KernelError> {
    let mean_square = x.square()?.mean_axis(-1, true)?;
    let scale = ops::add(&mean_square, Array::from_f32(eps))?.rsqrt()?;
    Ok(ops::multiply(ops::multiply(x, &scale)?, weight)?)
}

/// `x . weightT + bias`.
#[derive(Debug)]
struct DenseLinear {
    weight: Array,
    bias: Option<Array>,
}

impl DenseLinear {
    fn new(backend: &Backend, linear: &Linear) -> Result<Self, KernelError> {
        let bias = linear.bias.as_ref().map(array_of_f32).transpose()?;
        Ok(Self { weight: dense(backend, &linear.matrix)?, bias })
    }

    fn forward(&self, x: &Array) -> Result<Array, KernelError> {
        let y = ops::matmul(x, self.weight.transpose()?)?;
        match &self.bias {
            Some(bias) => Ok(ops::add(&y, bias)?),
            None => Ok(y),
        }
    }
}

/// The rows `ids` of `table`.
pub(crate) fn embed(
    backend: &Backend,
    table: &Rc<Array>,
    ids: &[u32],
) -> Result<Array, KernelError> {
    backend.on_stream(|| Ok(table.take_axis(indices(ids), 0)?))
}

/// See [`crate::block::Mlp`].
#[derive(Debug)]
pub(crate) struct Mlp {
    backend: Backend,
    eps: f32,
    norm: Array,
    gate: DenseLinear,
    up: DenseLinear,
    down: DenseLinear,
}

impl Mlp {
    pub(crate) fn new(
        backend: &Backend,
        shape: MlpShape,
        weights: &MlpWeights,
    ) -> Result<Self, KernelError> {
        Ok(Self {
            backend: backend.clone(),
            eps: shape.norm_eps,
            norm: array_of_f32(&weights.norm)?,
            gate: DenseLinear::new(backend, &weights.gate)?,
            up: DenseLinear::new(backend, &weights.up)?,
            down: DenseLinear::new(backend, &weights.down)?,
        })
    }

    pub(crate) fn forward(&self, x: &Array) -> Result<Array, KernelError> {
        self.backend.on_stream(|| {
            let n = rms_norm(x, &self.norm, self.eps)?;
            let gate = self.gate.forward(&n)?;
            let silu = ops::multiply(&gate, ops::sigmoid(&gate)?)?;
            let inner = ops::multiply(&silu, self.up.forward(&n)?)?;
            Ok(ops::add(x, self.down.forward(&inner)?)?)
        })
    }
}

/// See [`crate::block::Head`].
#[derive(Debug)]
pub(crate) struct Head {
    backend: Backend,
    eps: f32,
    norm: Array,
    matrix: Rc<Array>,
}

impl Head {
    pub(crate) fn new(
        backend: &Backend,
        shape: HeadShape,
        norm: &HostTensor,
        matrix: Prepared,
    ) -> Result<Self, KernelError> {
        let Store::Reference(matrix) = matrix.into_store() else {
            return Err(KernelError::Foreign { what: "the head matrix" });
        };
        let norm = array_of_f32(norm)?;
        Ok(Self { backend: backend.clone(), eps: shape.norm_eps, norm, matrix })
    }

    pub(crate) fn forward(&self, x: &Array, rows: &[u32]) -> Result<Array, KernelError> {
        self.backend.on_stream(|| {
            let n = rms_norm(x, &self.norm, self.eps)?;
            let wanted = n.take_axis(indices(rows), 0)?;
            Ok(ops::matmul(&wanted, self.matrix.transpose()?)?)
        })
    }
}
