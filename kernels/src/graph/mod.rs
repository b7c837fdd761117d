//! The graph form: blocks as MLX ops on MLX's default device, the form of GPUs.
//!
//! Weights stay quantised (`quantized_matmul`); norms, rotary embedding and attention are MLX's fused ops. Activations
//! have the checkpoint's float type on a GPU and f32 on a CPU, where MLX computes 16-bit floats slowly and quantised
//! products of them inexactly. MLX's kernels differ by the number of rows: a row's bits are *not* independent of its
//! neighbours here, as they are in the host form.

mod attention;
mod matrix;

use std::rc::Rc;

use mlx_rs::{Array, Dtype, fast, ops};

use crate::KernelError;
use crate::block::{Backend, HeadShape, MlpShape, MlpWeights, Prepared, Store};
use crate::mlx_array::indices;
use crate::tensor::HostTensor;

pub(crate) use attention::{Attention, Cache};
pub(crate) use matrix::{GraphLinear, GraphMatrix, float_array};

/// The rows `ids` of a table, in the table's float type.
pub(crate) fn embed(
    backend: &Backend,
    table: &GraphMatrix,
    ids: &[u32],
) -> Result<Array, KernelError> {
    backend.on_stream(|| table.rows_at(&indices(ids)))
}

/// See [`crate::block::Mlp`].
#[derive(Debug)]
pub(crate) struct Mlp {
    backend: Backend,
    eps: f32,
    norm: Array,
    gate: GraphLinear,
    up: GraphLinear,
    down: GraphLinear,
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
            norm: float_array(backend, &weights.norm)?,
            gate: GraphLinear::new(backend, &weights.gate)?,
            up: GraphLinear::new(backend, &weights.up)?,
            down: GraphLinear::new(backend, &weights.down)?,
        })
    }

    pub(crate) fn forward(&self, x: &Array) -> Result<Array, KernelError> {
        self.backend.on_stream(|| {
            let n = fast::rms_norm(x, Some(&self.norm), self.eps)?;
            let gate = self.gate.forward(&n)?;
            let silu = ops::multiply(&gate, ops::sigmoid(&gate)?)?;
            let inner = ops::multiply(&silu, self.up.forward(&n)?)?;
            residual(x, &self.down.forward(&inner)?)
        })
    }
}

/// See [`crate::block::Head`].
#[derive(Debug)]
pub(crate) struct Head {
    backend: Backend,
    eps: f32,
    norm: Array,
    matrix: Rc<GraphMatrix>,
}

impl Head {
    pub(crate) fn new(
        backend: &Backend,
        shape: HeadShape,
        norm: &HostTensor,
        matrix: Prepared,
    ) -> Result<Self, KernelError> {
        let Store::Graph(matrix) = matrix.into_store() else {
            return Err(KernelError::Foreign { what: "the head matrix" });
        };
        let norm = float_array(backend, norm)?;
        Ok(Self { backend: backend.clone(), eps: shape.norm_eps, norm, matrix })
    }

    pub(crate) fn forward(&self, x: &Array, rows: &[u32]) -> Result<Array, KernelError> {
        self.backend.on_stream(|| {
            let wanted = x.take_axis(indices(rows), 0)?;
            let n = fast::rms_norm(&wanted, Some(&self.norm), self.eps)?;
            as_type(self.matrix.multiply(&n)?, Dtype::Float32)
        })
    }
}

/// `x + y` in the type of `x`: the residual stream keeps its type whatever the weights' types are.
fn residual(x: &Array, y: &Array) -> Result<Array, KernelError> {
    as_type(ops::add(x, y)?, x.dtype())
}

/// The array in another type; itself if it has it.
fn as_type(array: Array, dtype: Dtype) -> Result<Array, KernelError> {
    if array.dtype() == dtype { Ok(array) } else { Ok(array.as_dtype(dtype)?) }
}
