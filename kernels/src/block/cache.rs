//! A slot's keys and values of one attention block.
//!
//! Owns the length and the limit; where the values lie is the form's business. The length runs ahead of what is
//! computed: `forward` advances it when the work enters MLX's graph, and the graph keeps the writes in order.

use std::ops::Range;

use crate::KernelError;
use crate::{graph, hosted, reference};

/// Keys (after rotary embedding) and values of one slot and one block.
#[derive(Debug)]
pub struct KvCache {
    held: Held,
    len: usize,
    max: usize,
}

/// Where the values lie.
#[derive(Debug)]
pub(crate) enum Held {
    Host(hosted::Cache),
    Graph(graph::Cache),
    Reference(reference::Cache),
}

/// The rows of one slot within a call, at consecutive positions from `cache.len()` on.
#[derive(Debug)]
pub struct Segment<'a> {
    /// Rows of the hidden states.
    pub rows: Range<usize>,
    /// The slot's cache of this block.
    pub cache: &'a mut KvCache,
}

impl KvCache {
    pub(crate) fn new(held: Held, max: usize) -> Self {
        Self { held, len: 0, max }
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes reserved for keys and values now.
    pub fn nbytes(&self) -> usize {
        match &self.held {
            Held::Host(cache) => cache.nbytes(),
            Held::Graph(cache) => cache.nbytes(),
            Held::Reference(cache) => cache.nbytes(),
        }
    }

    /// Forgets the positions from `len` on; more than is held is no change.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    pub(crate) fn held(&mut self) -> &mut Held {
        &mut self.held
    }

    pub(crate) fn check_room(&self, adding: usize) -> Result<(), KernelError> {
        if self.len.checked_add(adding).is_some_and(|total| total <= self.max) {
            return Ok(());
        }
        Err(KernelError::CacheFull { held: self.len, adding, max: self.max })
    }

    pub(crate) fn advance(&mut self, positions: usize) {
        self.len += positions;
    }
}
