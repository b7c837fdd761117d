//! What this crate refuses, and how it says so.
//!
//! Owns [`KernelError`], the one error of the blocks. Shapes, positions and indices are checked before anything is
//! computed, so a wrong size is a value of this type and never a panic; what MLX refuses arrives here too.

use crate::matrix::MatrixError;
use crate::tensor::TensorError;

/// Why a block could not be built or run.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// A tensor or argument has another shape or type than the block's shape demands.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// The tensor or argument, in the block's own terms (`attention q`, `head rows`).
        what: &'static str,
        /// What the block's shape demands.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A segment does not fit into its KV cache.
    #[error("the KV cache holds {held} of {max} positions, {adding} more do not fit")]
    CacheFull {
        /// Positions held before the call.
        held: usize,
        /// Positions the segment would add.
        adding: usize,
        /// The block's limit, `AttentionShape::max_positions`.
        max: usize,
    },
    /// A segment builds on positions that were never written, because the step that should have done it failed.
    #[error("the KV cache is filled up to {filled}, but {expected} positions should have been")]
    CacheBehind {
        /// Positions written.
        filled: usize,
        /// Positions the segment builds on.
        expected: usize,
    },
    /// A value prepared or cached by one form was handed to another.
    #[error("{what} was made by another form or another shape of this block")]
    Foreign {
        /// What was handed over.
        what: &'static str,
    },
    /// Options that no backend can be made of.
    #[error("{0}")]
    Options(&'static str),
    /// A weight tensor is malformed.
    #[error("a tensor is malformed")]
    Tensor(#[from] TensorError),
    /// A weight matrix is malformed.
    #[error("a weight matrix is malformed")]
    Matrix(#[from] MatrixError),
    /// MLX failed while building or evaluating a graph.
    #[error("MLX failed")]
    Mlx(#[from] mlx_rs::error::Exception),
    /// The host-op shim could not add its node to MLX's graph.
    #[error("the host op could not be built: {0}")]
    HostOp(String),
}

impl KernelError {
    /// A [`KernelError::Shape`] from anything printable.
    pub(crate) fn shape(
        what: &'static str,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Self {
        Self::Shape { what, expected: expected.to_string(), found: found.to_string() }
    }
}
