//! The MLP block: `x + down(silu(gate(n)) * up(n))` with `n = rms_norm(x)`.
//!
//! Owns the shape and the checks; the arithmetic is in the form's module.

use mlx_rs::Array;

use super::{Backend, Form, check};
use crate::KernelError;
use crate::matrix::Linear;
use crate::tensor::HostTensor;
use crate::{graph, hosted, reference};

/// The sizes of an MLP block.
#[derive(Debug, Clone, Copy)]
pub struct MlpShape {
    /// Width of the hidden states.
    pub hidden: usize,
    /// Width between gate/up and down.
    pub intermediate: usize,
    /// Epsilon of the RMS norm, added to the mean square.
    pub norm_eps: f32,
}

/// The weights of an MLP block. Biases may be absent one by one.
#[derive(Debug, Clone)]
pub struct MlpWeights {
    /// Weight of the RMS norm, `[hidden]`.
    pub norm: HostTensor,
    /// Gate, `[intermediate, hidden]`.
    pub gate: Linear,
    /// Up, `[intermediate, hidden]`.
    pub up: Linear,
    /// Down, `[hidden, intermediate]`.
    pub down: Linear,
}

/// A gated MLP block of one layer.
#[derive(Debug)]
pub struct Mlp {
    hidden: usize,
    form: MlpForm,
}

#[derive(Debug)]
enum MlpForm {
    Host(hosted::Mlp),
    Graph(graph::Mlp),
    Reference(reference::Mlp),
}

impl MlpShape {
    fn check(&self, weights: &MlpWeights) -> Result<(), KernelError> {
        check::norm("mlp norm", &weights.norm, self.hidden)?;
        check::linear("mlp gate", &weights.gate, self.intermediate, self.hidden)?;
        check::linear("mlp up", &weights.up, self.intermediate, self.hidden)?;
        check::linear("mlp down", &weights.down, self.hidden, self.intermediate)
    }
}

impl Mlp {
    /// Checks and prepares the weights for the backend's form.
    #[expect(clippy::needless_pass_by_value, reason = "the weights are not needed after this")]
    pub fn new(
        backend: &Backend,
        shape: MlpShape,
        weights: MlpWeights,
    ) -> Result<Self, KernelError> {
        shape.check(&weights)?;
        let form = match backend.form() {
            Form::Host => MlpForm::Host(hosted::Mlp::new(backend, shape, &weights)?),
            Form::Graph => MlpForm::Graph(graph::Mlp::new(backend, shape, &weights)?),
            Form::Reference => MlpForm::Reference(reference::Mlp::new(backend, shape, &weights)?),
        };
        Ok(Self { hidden: shape.hidden, form })
    }

    /// The block's output for `x` `[N, hidden]`, of the same shape and type.
    pub fn forward(&self, x: &Array) -> Result<Array, KernelError> {
        check::hidden_states(x, self.hidden)?;
        match &self.form {
            MlpForm::Host(form) => form.forward(x),
            MlpForm::Graph(form) => form.forward(x),
            MlpForm::Reference(form) => form.forward(x),
        }
    }
}
