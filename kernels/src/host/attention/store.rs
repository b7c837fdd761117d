//! Where a slot's keys and values lie.
//!
//! Owns [`KvStore`]: per key head, spans of 256 positions that are never moved. Within a span the keys come in blocks of
//! 32, turned so that the same dimension of 32 keys lies side by side (a score per lane); the values lie row by row, each
//! filled up to whole vectors (a dimension per lane). Length is the caller's business: a position is written before it
//! is read, and may be written again.

use crate::host::lanes::LANES;
use crate::tensor::AlignedBytes;

/// Positions of a span. Attention also sums per span: changing it changes bits.
pub(super) const SPAN: usize = 256;
/// Keys of a block: a tile's lanes.
pub(super) const BLOCK: usize = 2 * LANES;

/// Keys and values of one slot and one block of the model.
#[derive(Debug)]
pub struct KvStore {
    pub(super) heads: Vec<HeadStore>,
    head_dim: usize,
}

/// Those of one key head.
#[derive(Debug)]
pub(super) struct HeadStore {
    head_dim: usize,
    spans: Vec<AlignedBytes>,
}

impl KvStore {
    /// An empty store.
    pub fn new(kv_heads: usize, head_dim: usize) -> Self {
        let head = || HeadStore { head_dim, spans: Vec::new() };
        Self { heads: (0..kv_heads).map(|_| head()).collect(), head_dim }
    }

    /// Makes room for `positions` positions.
    pub fn reserve(&mut self, positions: usize) {
        for head in &mut self.heads {
            while head.spans.len() * SPAN < positions {
                head.spans
                    .push(AlignedBytes::zeroed(span_floats(self.head_dim) * size_of::<f32>()));
            }
        }
    }

    /// Gives room beyond `positions` positions back.
    pub fn shrink(&mut self, positions: usize) {
        for head in &mut self.heads {
            head.spans.truncate(positions.div_ceil(SPAN));
        }
    }

    /// Bytes reserved.
    pub fn nbytes(&self) -> usize {
        self.heads.iter().flat_map(|head| &head.spans).map(|span| span.len()).sum()
    }

    pub(super) fn shape(&self) -> (usize, usize) {
        (self.heads.len(), self.head_dim)
    }
}

impl HeadStore {
    /// Writes a position's key and value.
    pub(super) fn write(&mut self, position: usize, key: &[f32], value: &[f32]) {
        let head_dim = self.head_dim;
        let span = self.spans[position / SPAN].as_values_mut::<f32>();
        let (keys, values) = span.split_at_mut(SPAN * head_dim);
        let within = position % SPAN;
        let block = &mut keys[within / BLOCK * BLOCK * head_dim..][..BLOCK * head_dim];
        for (lanes, &key) in block.chunks_exact_mut(BLOCK).zip(key) {
            lanes[within % BLOCK] = key;
        }
        values[within * value_width(head_dim)..][..head_dim].copy_from_slice(value);
    }

    /// A span's keys, `[blocks][head_dim][BLOCK]`, and values, `[SPAN][value_width]`.
    pub(super) fn span(&self, span: usize) -> (&[f32], &[f32]) {
        self.spans[span].as_values::<f32>().split_at(SPAN * self.head_dim)
    }
}

/// Floats between values: the head filled up to whole vectors.
pub(super) fn value_width(head_dim: usize) -> usize {
    head_dim.next_multiple_of(LANES)
}

fn span_floats(head_dim: usize) -> usize {
    SPAN * (head_dim + value_width(head_dim))
}
