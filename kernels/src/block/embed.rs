//! The embedding block: token ids to rows of the table.

use mlx_rs::Array;

use super::{Backend, Prepared, Store, check};
use crate::KernelError;
use crate::{graph, hosted, reference};

/// Looks token ids up in a table `[vocab, hidden]`.
#[derive(Debug)]
pub struct Embed {
    backend: Backend,
    table: Prepared,
}

impl Embed {
    /// A block over a table that a tied [`Head`](super::Head) may share.
    pub fn new(backend: &Backend, table: Prepared) -> Result<Self, KernelError> {
        if table.form() != backend.form() {
            return Err(KernelError::Foreign { what: "the embedding table" });
        }
        Ok(Self { backend: backend.clone(), table })
    }

    /// The hidden states `[N, hidden]` of `N` ids: f32, or on a GPU in graph form the table's float type.
    pub fn forward(&self, ids: &[u32]) -> Result<Array, KernelError> {
        check::indices("token ids", ids, self.table.rows())?;
        check::mlx_size("token ids", ids.len())?;
        match self.table.store() {
            Store::Host(panels) => hosted::embed(&self.backend, panels, ids),
            Store::Graph(matrix) => graph::embed(&self.backend, matrix, ids),
            Store::Reference(table) => reference::embed(&self.backend, table, ids),
        }
    }
}
