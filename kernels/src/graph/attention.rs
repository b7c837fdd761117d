//! Attention as MLX ops: projections over all rows at once, MLX's fused attention per segment.
//!
//! A cache is a pair of arrays `[1, kv_heads, capacity, head_dim]` that grow by [`GROWTH_POSITIONS`]; `slice_update`
//! writes the new rows, in place once MLX sees that nobody else holds the old array.

use mlx_rs::fast::{self, ScaledDotProductAttentionMask as Mask};
use mlx_rs::ops::indexing::{TryIndexMutOp, TryIndexOp};
use mlx_rs::{Array, Dtype, ops};

use super::{GraphLinear, float_array, residual};
use crate::KernelError;
use crate::block::{AttentionShape, AttentionWeights, Backend, Held, Segment};
use crate::mlx_array::{concatenate, f32_array, rows_of, size};

/// Positions by which a cache grows.
const GROWTH_POSITIONS: usize = 256;

/// Keys and values, `[1, kv_heads, capacity, head_dim]` each; `None` before the first position.
#[derive(Debug)]
pub(crate) struct Cache(Option<(Array, Array)>);

/// See [`crate::block::Attention`].
#[derive(Debug)]
pub(crate) struct Attention {
    backend: Backend,
    shape: AttentionShape,
    norm: Array,
    q: GraphLinear,
    k: GraphLinear,
    v: GraphLinear,
    o: GraphLinear,
    /// MLX's name for the rotary periods.
    freqs: Array,
    /// `mscale` on the rotary dims and 1 beyond them, `[head_dim]`; absent if all are 1.
    rotary_scale: Option<Array>,
}

impl Cache {
    pub(crate) fn nbytes(&self) -> usize {
        self.0.as_ref().map_or(0, |(keys, values)| keys.nbytes() + values.nbytes())
    }
}

impl Attention {
    pub(crate) fn new(
        backend: &Backend,
        shape: AttentionShape,
        weights: &AttentionWeights,
    ) -> Result<Self, KernelError> {
        let rope = &shape.rope;
        let freqs = f32_array(&rope.periods, &[rope.periods.len()]);
        let rotary_scale = (rope.mscale != 1.0).then(|| {
            let mut scale = vec![rope.mscale; shape.head_dim];
            scale[rope.dims..].fill(1.0);
            f32_array(&scale, &[shape.head_dim])
        });
        Ok(Self {
            backend: backend.clone(),
            norm: float_array(backend, &weights.norm)?,
            q: GraphLinear::new(backend, &weights.q)?,
            k: GraphLinear::new(backend, &weights.k)?,
            v: GraphLinear::new(backend, &weights.v)?,
            o: GraphLinear::new(backend, &weights.o)?,
            freqs,
            rotary_scale,
            shape,
        })
    }

    #[expect(clippy::unused_self, reason = "the three forms are called alike")]
    pub(crate) fn new_cache(&self) -> Cache {
        Cache(None)
    }

    pub(crate) fn forward(
        &self,
        x: &Array,
        segments: &mut [Segment<'_>],
    ) -> Result<Array, KernelError> {
        self.backend.on_stream(|| {
            let n = fast::rms_norm(x, Some(&self.norm), self.shape.norm_eps)?;
            let (q, k, v) = (self.q.forward(&n)?, self.k.forward(&n)?, self.v.forward(&n)?);
            let mut attended = Vec::with_capacity(segments.len());
            for segment in segments {
                let part = |a: &Array| rows_of(a, segment.rows.clone(), self.backend.stream());
                let (q, k, v) = (part(&q)?, part(&k)?, part(&v)?);
                attended.push(self.attend(&q, &k, &v, segment)?);
            }
            residual(x, &self.o.forward(&concatenate(attended, 0)?)?)
        })
    }

    fn attend(
        &self,
        q: &Array,
        k: &Array,
        v: &Array,
        segment: &mut Segment<'_>,
    ) -> Result<Array, KernelError> {
        let AttentionShape { heads, kv_heads, head_dim, .. } = self.shape;
        let (past, rows) = (segment.cache.len(), segment.rows.len());
        let Held::Graph(cache) = segment.cache.held() else {
            return Err(KernelError::Foreign { what: "a KV cache" });
        };
        let q = self.rotate(&heads_first(q, heads, head_dim)?, past)?;
        let k = self.rotate(&heads_first(k, kv_heads, head_dim)?, past)?;
        let v = heads_first(v, kv_heads, head_dim)?;
        let (keys, values) = self.extend(cache, &k, &v, past)?;

        let scale = 1.0 / (head_dim as f32).sqrt();
        // "causal" aligns the last query with the last key.
        let mixed = if rows > 1 {
            fast::scaled_dot_product_attention(&q, &keys, &values, scale, Mask::Causal, None)?
        } else {
            fast::scaled_dot_product_attention(&q, &keys, &values, scale, None::<Mask<'_>>, None)?
        };
        Ok(mixed.transpose_axes(&[0, 2, 1, 3])?.reshape(&[size(rows), size(heads * head_dim)])?)
    }

    /// Rotary embedding of `x` `[1, heads, T, head_dim]`, row `t` at position `past + t`.
    fn rotate(&self, x: &Array, past: usize) -> Result<Array, KernelError> {
        let rope = &self.shape.rope;
        if rope.dims == 0 {
            return Ok(x.clone());
        }
        let scaled = match &self.rotary_scale {
            Some(scale) => &ops::multiply(x, &scale.as_dtype(x.dtype())?)?,
            None => x,
        };
        let (dims, offset) = (size(rope.dims), size(past));
        Ok(fast::rope(scaled, dims, rope.traditional, None, 1.0, offset, &self.freqs)?)
    }

    /// Writes the new keys and values at `past` and returns all that are held then.
    fn extend(
        &self,
        cache: &mut Cache,
        k: &Array,
        v: &Array,
        past: usize,
    ) -> Result<(Array, Array), KernelError> {
        let stream = self.backend.stream();
        let end = past + usize::try_from(k.dim(2)).unwrap_or_default();
        let (mut keys, mut values) = match cache.0.take() {
            Some((keys, values)) => (self.grown(keys, end)?, self.grown(values, end)?),
            None if past > 0 => return Err(KernelError::Foreign { what: "a KV cache" }),
            None => {
                (self.grown_from_nothing(end, k.dtype())?, self.grown_from_nothing(end, v.dtype())?)
            }
        };
        let new = (.., .., size(past)..size(end));
        keys.try_index_mut_device(new.clone(), k, stream)?;
        values.try_index_mut_device(new, v, stream)?;
        let held = (.., .., ..size(end));
        let all = (keys.try_index_device(held, stream)?, values.try_index_device(held, stream)?);
        cache.0 = Some((keys, values));
        Ok(all)
    }

    /// The array with room for `positions`.
    fn grown(&self, array: Array, positions: usize) -> Result<Array, KernelError> {
        let capacity = usize::try_from(array.dim(2)).unwrap_or_default();
        if positions <= capacity {
            return Ok(array);
        }
        let more = self.grown_from_nothing(positions - capacity, array.dtype())?;
        concatenate(vec![array, more], 2)
    }

    /// Zeros with room for `positions`, rounded up to the step of growth and held below the limit.
    fn grown_from_nothing(&self, positions: usize, dtype: Dtype) -> Result<Array, KernelError> {
        let AttentionShape { kv_heads, head_dim, .. } = self.shape;
        let room = positions.next_multiple_of(GROWTH_POSITIONS);
        Ok(ops::zeros_dtype(&[1, size(kv_heads), size(room), size(head_dim)], dtype)?)
    }
}

/// `[T, heads * head_dim]` as `[1, heads, T, head_dim]`.
fn heads_first(x: &Array, heads: usize, head_dim: usize) -> Result<Array, KernelError> {
    Ok(x.reshape(&[1, -1, size(heads), size(head_dim)])?.transpose_axes(&[0, 2, 1, 3])?)
}
