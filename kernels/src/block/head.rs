//! The head block: final norm, the rows that are wanted, logits over the vocabulary.

use mlx_rs::Array;

use super::{Backend, Form, Prepared, check};
use crate::KernelError;
use crate::tensor::HostTensor;
use crate::{graph, hosted, reference};

/// The sizes of a head block; the vocabulary is the matrix's.
#[derive(Debug, Clone, Copy)]
pub struct HeadShape {
    /// Width of the hidden states.
    pub hidden: usize,
    /// Epsilon of the RMS norm, added to the mean square.
    pub norm_eps: f32,
}

/// Turns hidden states into logits.
#[derive(Debug)]
pub struct Head {
    hidden: usize,
    form: HeadForm,
}

#[derive(Debug)]
enum HeadForm {
    Host(hosted::Head),
    Graph(graph::Head),
    Reference(reference::Head),
}

impl Head {
    /// A block over the norm's weight `[hidden]` and a matrix `[vocab, hidden]`, which may be the embedding table.
    #[expect(clippy::needless_pass_by_value, reason = "the weights are not needed after this")]
    pub fn new(
        backend: &Backend,
        shape: HeadShape,
        norm: HostTensor,
        matrix: Prepared,
    ) -> Result<Self, KernelError> {
        check::norm("head norm", &norm, shape.hidden)?;
        if matrix.cols() != shape.hidden {
            return Err(KernelError::shape("head matrix columns", shape.hidden, matrix.cols()));
        }
        if matrix.form() != backend.form() {
            return Err(KernelError::Foreign { what: "the head matrix" });
        }
        let hidden = shape.hidden;
        let form = match backend.form() {
            Form::Host => HeadForm::Host(hosted::Head::new(backend, shape, &norm, matrix)?),
            Form::Graph => HeadForm::Graph(graph::Head::new(backend, shape, &norm, matrix)?),
            Form::Reference => {
                HeadForm::Reference(reference::Head::new(backend, shape, &norm, matrix)?)
            }
        };
        Ok(Self { hidden, form })
    }

    /// The logits, f32 `[rows.len(), vocab]`, of the rows named (any order, repeats allowed) of `x` `[N, hidden]`.
    pub fn forward(&self, x: &Array, rows: &[u32]) -> Result<Array, KernelError> {
        let held = check::hidden_states(x, self.hidden)?;
        check::indices("head rows", rows, held)?;
        check::mlx_size("head rows", rows.len())?;
        match &self.form {
            HeadForm::Host(form) => form.forward(x, rows),
            HeadForm::Graph(form) => form.forward(x, rows),
            HeadForm::Reference(form) => form.forward(x, rows),
        }
    }
}
