//! The attention block: `x + o(attend(rope(qkv(rms_norm(x)))))`, causal, with grouped keys and values.
//!
//! Owns the shape and the checks; the arithmetic is in the form's module. Refuses segments that do not tile the rows.

use mlx_rs::Array;

use super::check;
use super::{Backend, Form, Held, KvCache, Segment};
use crate::KernelError;
use crate::matrix::Linear;
use crate::rope::Rope;
use crate::tensor::HostTensor;
use crate::{graph, hosted, reference};

/// The sizes of an attention block.
#[derive(Debug, Clone)]
pub struct AttentionShape {
    /// Width of the hidden states.
    pub hidden: usize,
    /// Query heads, a multiple of `kv_heads`.
    pub heads: usize,
    /// Key and value heads; query head `h` reads key head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of a head. Scores are scaled by its inverse square root.
    pub head_dim: usize,
    /// Epsilon of the RMS norm, added to the mean square.
    pub norm_eps: f32,
    /// Rotary embedding of the first `rope.dims` of each query and key head.
    pub rope: Rope,
    /// The most positions a cache of this block may hold.
    pub max_positions: usize,
}

/// The weights of an attention block. Biases may be absent one by one.
#[derive(Debug, Clone)]
pub struct AttentionWeights {
    /// Weight of the RMS norm, `[hidden]`.
    pub norm: HostTensor,
    /// Queries, `[heads * head_dim, hidden]`.
    pub q: Linear,
    /// Keys, `[kv_heads * head_dim, hidden]`.
    pub k: Linear,
    /// Values, `[kv_heads * head_dim, hidden]`.
    pub v: Linear,
    /// Output, `[hidden, heads * head_dim]`.
    pub o: Linear,
}

/// An attention block of one layer.
#[derive(Debug)]
pub struct Attention {
    hidden: usize,
    max_positions: usize,
    form: AttentionForm,
}

#[derive(Debug)]
enum AttentionForm {
    Host(hosted::Attention),
    Graph(graph::Attention),
    Reference(reference::Attention),
}

impl AttentionShape {
    fn check(&self, weights: &AttentionWeights) -> Result<(), KernelError> {
        if self.kv_heads == 0 || self.heads == 0 || !self.heads.is_multiple_of(self.kv_heads) {
            return Err(KernelError::shape(
                "attention heads",
                "a positive multiple of kv_heads",
                format_args!("{} and {}", self.heads, self.kv_heads),
            ));
        }
        let rope = &self.rope;
        if rope.dims > self.head_dim || rope.dims != 2 * rope.periods.len() {
            return Err(KernelError::shape(
                "attention rope",
                format_args!("2 x periods, at most head_dim {}", self.head_dim),
                format_args!("{} dims and {} periods", rope.dims, rope.periods.len()),
            ));
        }
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        check::norm("attention norm", &weights.norm, self.hidden)?;
        check::linear("attention q", &weights.q, queries, self.hidden)?;
        check::linear("attention k", &weights.k, keys, self.hidden)?;
        check::linear("attention v", &weights.v, keys, self.hidden)?;
        check::linear("attention o", &weights.o, self.hidden, queries)
    }
}

impl Attention {
    /// Checks and prepares the weights for the backend's form.
    #[expect(clippy::needless_pass_by_value, reason = "the weights are not needed after this")]
    pub fn new(
        backend: &Backend,
        shape: AttentionShape,
        weights: AttentionWeights,
    ) -> Result<Self, KernelError> {
        shape.check(&weights)?;
        let (hidden, max_positions) = (shape.hidden, shape.max_positions);
        let form = match backend.form() {
            Form::Host => AttentionForm::Host(hosted::Attention::new(backend, shape, &weights)?),
            Form::Graph => AttentionForm::Graph(graph::Attention::new(backend, shape, &weights)?),
            Form::Reference => {
                AttentionForm::Reference(reference::Attention::new(backend, shape, &weights)?)
            }
        };
        Ok(Self { hidden, max_positions, form })
    }

    /// An empty cache for one slot of this block.
    pub fn new_cache(&self) -> KvCache {
        let held = match &self.form {
            AttentionForm::Host(form) => Held::Host(form.new_cache()),
            AttentionForm::Graph(form) => Held::Graph(form.new_cache()),
            AttentionForm::Reference(form) => Held::Reference(form.new_cache()),
        };
        KvCache::new(held, self.max_positions)
    }

    /// Attends each segment's rows to its cache and to themselves; advances the caches' lengths.
    ///
    /// `x` is `[N, hidden]`; the result has the same shape and type. The segments must tile `0..N` in order, none empty.
    /// On an error no cache length has changed.
    pub fn forward(&self, x: &Array, segments: &mut [Segment<'_>]) -> Result<Array, KernelError> {
        let rows = check::hidden_states(x, self.hidden)?;
        self.check_segments(rows, segments)?;
        let y = match &self.form {
            AttentionForm::Host(form) => form.forward(x, segments),
            AttentionForm::Graph(form) => form.forward(x, segments),
            AttentionForm::Reference(form) => form.forward(x, segments),
        }?;
        for segment in segments {
            segment.cache.advance(segment.rows.len());
        }
        Ok(y)
    }

    fn check_segments(&self, rows: usize, segments: &[Segment<'_>]) -> Result<(), KernelError> {
        let mut next = 0;
        for segment in segments {
            if segment.rows.start != next || segment.rows.end <= next || segment.rows.end > rows {
                return Err(KernelError::shape(
                    "attention segments",
                    format_args!("segments that tile 0..{rows} in order"),
                    format_args!("{:?} where {next}.. was due", segment.rows),
                ));
            }
            next = segment.rows.end;
            segment.cache.check_room(segment.rows.len())?;
        }
        if next != rows {
            return Err(KernelError::shape(
                "attention segments",
                format_args!("segments that tile 0..{rows} in order"),
                format_args!("none for rows {next}.."),
            ));
        }
        Ok(())
    }
}
