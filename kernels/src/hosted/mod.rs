//! The host form: each block is one lazy host op that runs this crate's own CPU kernels.
//!
//! Owns what lies between the blocks and [`crate::host`]: packed weights, the closures and their scratch memory. All
//! arithmetic is [`crate::host`]'s, whose results depend on a row's own numbers only. A closure holds everything it needs
//! behind an `Arc`, for it runs on the thread of MLX's stream.

mod attention;
mod scratch;

use std::sync::Arc;

use mlx_rs::{Array, Dtype};

use crate::KernelError;
use crate::block::{Backend, HeadShape, HostParts, MlpShape, MlpWeights, Prepared, Store};
use crate::host::linear::{self, Panels, Product};
use crate::host::{mlp, norm};
use crate::host_op::{HostOp, host_op};
use crate::matrix::Linear;
use crate::mlx_array::size;
use crate::tensor::HostTensor;

pub(crate) use attention::{Attention, Cache};
pub(crate) use scratch::Scratch;

use scratch::Buffers;

/// A linear layer's packed matrix and f32 bias.
#[derive(Debug)]
struct PackedLinear {
    panels: Panels,
    bias: Option<Vec<f32>>,
}

impl PackedLinear {
    fn new(host: &HostParts, linear: &Linear) -> Result<Self, KernelError> {
        let bias = linear.bias.as_ref().map(HostTensor::to_f32).transpose()?;
        Ok(Self { panels: Panels::pack(&linear.matrix, host.isa), bias })
    }
}

/// The RMS norm before a block.
#[derive(Debug)]
struct Norm {
    weight: Vec<f32>,
    eps: f32,
}

/// The rows `ids` of a table.
pub(crate) fn embed(_: &Backend, table: &Arc<Panels>, ids: &[u32]) -> Result<Array, KernelError> {
    let (table, ids) = (Arc::clone(table), ids.to_vec());
    let hidden = table.cols();
    let shape = [size(ids.len()), size(hidden)];
    let op = HostOp {
        name: c"embed",
        inputs: &[],
        outputs: &[(&shape, Dtype::Float32)],
        in_place: None,
    };
    only(host_op(op, move |_, outputs| {
        let rows = outputs[0].values::<f32>()?.chunks_exact_mut(hidden);
        for (&id, row) in ids.iter().zip(rows) {
            table.row_into(id as usize, row);
        }
        Ok(())
    })?)
}

/// See [`crate::block::Mlp`].
#[derive(Debug)]
pub(crate) struct Mlp(Arc<MlpParts>);

#[derive(Debug)]
struct MlpParts {
    host: HostParts,
    norm: Norm,
    gate: PackedLinear,
    up: PackedLinear,
    down: PackedLinear,
}

impl Mlp {
    pub(crate) fn new(
        backend: &Backend,
        shape: MlpShape,
        weights: &MlpWeights,
    ) -> Result<Self, KernelError> {
        let host = backend.host()?;
        Ok(Self(Arc::new(MlpParts {
            host: host.clone(),
            norm: Norm::new(&weights.norm, shape.norm_eps)?,
            gate: PackedLinear::new(host, &weights.gate)?,
            up: PackedLinear::new(host, &weights.up)?,
            down: PackedLinear::new(host, &weights.down)?,
        })))
    }

    pub(crate) fn forward(&self, x: &Array) -> Result<Array, KernelError> {
        check_f32(x)?;
        let parts = Arc::clone(&self.0);
        let op = HostOp {
            name: c"mlp",
            inputs: &[x],
            outputs: &[(x.shape(), Dtype::Float32)],
            in_place: Some(0),
        };
        only(host_op(op, move |_, outputs| {
            parts.run(outputs[0].values()?);
            Ok(())
        })?)
    }
}

impl MlpParts {
    /// Adds the block's output to `x`, rows of hidden states.
    fn run(&self, x: &mut [f32]) {
        let pool = &*self.host.pool;
        let rows = x.len() / self.gate.panels.cols();
        let mut buffers = self.host.scratch.lock();
        let Buffers { normed, first, second, projected, .. } = &mut *buffers;

        let n = normed.take(x.len());
        self.norm.apply(&self.host, x, n);
        let gate = first.take(rows * self.gate.panels.rows());
        let up = second.take(rows * self.up.panels.rows());
        linear::multiply(pool, &mut [self.gate.to(gate), self.up.to(up)], n, rows);
        mlp::silu_mul(pool, self.host.isa, gate, up);
        let y = projected.take(x.len());
        linear::multiply(pool, &mut [self.down.to(y)], gate, rows);
        add(x, y);
    }
}

/// See [`crate::block::Head`].
#[derive(Debug)]
pub(crate) struct Head(Arc<HeadParts>);

#[derive(Debug)]
struct HeadParts {
    host: HostParts,
    norm: Norm,
    panels: Arc<Panels>,
}

impl Head {
    pub(crate) fn new(
        backend: &Backend,
        shape: HeadShape,
        norm: &HostTensor,
        matrix: Prepared,
    ) -> Result<Self, KernelError> {
        let Store::Host(panels) = matrix.into_store() else {
            return Err(KernelError::Foreign { what: "the head matrix" });
        };
        let (host, norm) = (backend.host()?.clone(), Norm::new(norm, shape.norm_eps)?);
        Ok(Self(Arc::new(HeadParts { host, norm, panels })))
    }

    pub(crate) fn forward(&self, x: &Array, rows: &[u32]) -> Result<Array, KernelError> {
        check_f32(x)?;
        let (parts, rows) = (Arc::clone(&self.0), rows.to_vec());
        let shape = [size(rows.len()), size(parts.panels.rows())];
        let op = HostOp {
            name: c"head",
            inputs: &[x],
            outputs: &[(&shape, Dtype::Float32)],
            in_place: None,
        };
        only(host_op(op, move |inputs, outputs| {
            parts.run(inputs[0].values()?, &rows, outputs[0].values()?);
            Ok(())
        })?)
    }
}

impl HeadParts {
    /// Writes the logits of some rows of `x`.
    fn run(&self, x: &[f32], rows: &[u32], logits: &mut [f32]) {
        let hidden = self.panels.cols();
        let mut buffers = self.host.scratch.lock();
        let Buffers { normed, projected, .. } = &mut *buffers;
        let wanted = projected.take(rows.len() * hidden);
        for (to, &row) in wanted.chunks_exact_mut(hidden).zip(rows) {
            to.copy_from_slice(&x[row as usize * hidden..][..hidden]);
        }
        let n = normed.take(wanted.len());
        self.norm.apply(&self.host, wanted, n);
        let product = Product { panels: &self.panels, bias: None, out: logits };
        linear::multiply(&self.host.pool, &mut [product], n, rows.len());
    }
}

impl PackedLinear {
    fn to<'a>(&'a self, out: &'a mut [f32]) -> Product<'a> {
        Product { panels: &self.panels, bias: self.bias.as_deref(), out }
    }
}

impl Norm {
    fn new(weight: &HostTensor, eps: f32) -> Result<Self, KernelError> {
        Ok(Self { weight: weight.to_f32()?, eps })
    }

    fn apply(&self, host: &HostParts, x: &[f32], out: &mut [f32]) {
        norm::rms_norm(&host.pool, host.isa, x, &self.weight, self.eps, out);
    }
}

/// `x += y`.
fn add(x: &mut [f32], y: &[f32]) {
    for (x, y) in x.iter_mut().zip(y) {
        *x += y;
    }
}

/// The host form computes in f32 only.
fn check_f32(x: &Array) -> Result<(), KernelError> {
    match x.dtype() {
        Dtype::Float32 => Ok(()),
        found => Err(KernelError::shape("hidden states", "Float32", format_args!("{found:?}"))),
    }
}

/// The only output of an op.
fn only(mut outputs: Vec<Array>) -> Result<Array, KernelError> {
    outputs.pop().ok_or_else(|| KernelError::HostOp("no output".into()))
}
