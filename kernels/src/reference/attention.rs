//! Attention in plain ops: one segment after the other, the whole score matrix, the mask written out.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, ops};

use super::{DenseLinear, rms_norm};
use crate::KernelError;
use crate::block::{AttentionShape, AttentionWeights, Backend, Held, Segment};
use crate::mlx_array::{array_of_f32, concatenate, f32_array, rows_of, size};
use crate::rope::Rope;

/// Keys and values, `[kv_heads, positions, head_dim]`, of the positions seen so far; `None` before the first.
#[derive(Debug)]
pub(crate) struct Cache(Option<(Array, Array)>);

impl Cache {
    pub(crate) fn nbytes(&self) -> usize {
        self.0.as_ref().map_or(0, |(keys, values)| keys.nbytes() + values.nbytes())
    }
}

/// See [`crate::block::Attention`].
#[derive(Debug)]
pub(crate) struct Attention {
    backend: Backend,
    shape: AttentionShape,
    norm: Array,
    q: DenseLinear,
    k: DenseLinear,
    v: DenseLinear,
    o: DenseLinear,
}

impl Attention {
    pub(crate) fn new(
        backend: &Backend,
        shape: AttentionShape,
        weights: &AttentionWeights,
    ) -> Result<Self, KernelError> {
        Ok(Self {
            backend: backend.clone(),
            norm: array_of_f32(&weights.norm)?,
            q: DenseLinear::new(backend, &weights.q)?,
            k: DenseLinear::new(backend, &weights.k)?,
            v: DenseLinear::new(backend, &weights.v)?,
            o: DenseLinear::new(backend, &weights.o)?,
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
            let n = rms_norm(x, &self.norm, self.shape.norm_eps)?;
            let (q, k, v) = (self.q.forward(&n)?, self.k.forward(&n)?, self.v.forward(&n)?);
            let mut attended = Vec::with_capacity(segments.len());
            for segment in segments {
                let rows = segment.rows.clone();
                let q = rows_of(&q, rows.clone(), self.backend.stream())?;
                let k = rows_of(&k, rows.clone(), self.backend.stream())?;
                let v = rows_of(&v, rows, self.backend.stream())?;
                attended.push(self.attend(&q, &k, &v, segment)?);
            }
            Ok(ops::add(x, self.o.forward(&concatenate(attended, 0)?)?)?)
        })
    }

    /// Attends the rows of one segment, `q` `[T, heads * head_dim]`, to its past and to themselves.
    fn attend(
        &self,
        q: &Array,
        k: &Array,
        v: &Array,
        segment: &mut Segment<'_>,
    ) -> Result<Array, KernelError> {
        let AttentionShape { heads, kv_heads, head_dim, rope, .. } = &self.shape;
        let past = segment.cache.len();
        let rows = segment.rows.len();
        let Held::Reference(cache) = segment.cache.held() else {
            return Err(KernelError::Foreign { what: "a KV cache" });
        };

        let q = rotate(&heads_first(q, *heads, *head_dim)?, rope, past)?;
        let k = rotate(&heads_first(k, *kv_heads, *head_dim)?, rope, past)?;
        let v = heads_first(v, *kv_heads, *head_dim)?;
        let (keys, values) = match &cache.0 {
            Some((keys, values)) if past > 0 => {
                let held =
                    |a: &Array| a.try_index_device((.., ..size(past)), self.backend.stream());
                (concatenate(vec![held(keys)?, k], 1)?, concatenate(vec![held(values)?, v], 1)?)
            }
            None if past > 0 => return Err(KernelError::Foreign { what: "a KV cache" }),
            _ => (k, v),
        };
        cache.0 = Some((keys.clone(), values.clone()));

        // Query heads in groups of heads / kv_heads, each group over its own key head.
        let group = heads / kv_heads;
        let positions = past + rows;
        let q = q.reshape(&[size(*kv_heads), size(group), size(rows), size(*head_dim)])?;
        let keys = keys.expand_dims(1)?.transpose_axes(&[0, 1, 3, 2])?;
        let scale = Array::from_f32(1.0 / (*head_dim as f32).sqrt());
        let scores = ops::multiply(ops::matmul(&q, &keys)?, &scale)?;
        let scores = ops::add(&scores, causal_mask(past, rows))?;
        let weights = ops::softmax_axis(&scores, -1, true)?;
        let mixed = ops::matmul(&weights, values.expand_dims(1)?)?;
        debug_assert_eq!(weights.shape().last(), Some(&size(positions)));

        let mixed = mixed.reshape(&[size(*heads), size(rows), size(*head_dim)])?;
        Ok(mixed.transpose_axes(&[1, 0, 2])?.reshape(&[size(rows), size(heads * head_dim)])?)
    }
}

/// `[T, heads * head_dim]` as `[heads, T, head_dim]`.
fn heads_first(x: &Array, heads: usize, head_dim: usize) -> Result<Array, KernelError> {
    Ok(x.reshape(&[-1, size(heads), size(head_dim)])?.transpose_axes(&[1, 0, 2])?)
}

/// `0` where row `t` (at position `past + t`) may look at position `s`, minus infinity where `s` lies in its future.
fn causal_mask(past: usize, rows: usize) -> Array {
    let positions = past + rows;
    let mask: Vec<f32> = (0..rows)
        .flat_map(|t| {
            (0..positions).map(move |s| if s <= past + t { 0.0 } else { f32::NEG_INFINITY })
        })
        .collect();
    f32_array(&mask, &[rows, positions])
}

/// Rotates the first `rope.dims` of every head of `x` `[heads, T, head_dim]`, row `t` by the angles of `past + t`.
fn rotate(x: &Array, rope: &Rope, past: usize) -> Result<Array, KernelError> {
    let [heads, rows, head_dim] = *x.shape() else {
        return Err(KernelError::shape("rope input", "3 axes", x.ndim()));
    };
    let pairs = rope.periods.len();
    if pairs == 0 {
        return Ok(x.clone());
    }
    let angles: Vec<f64> = (0..rows as usize)
        .flat_map(|t| rope.periods.iter().map(move |&period| (past + t) as f64 / f64::from(period)))
        .collect();
    let table = |of: fn(f64) -> f64| -> Array {
        let values: Vec<f32> =
            angles.iter().map(|&a| (of(a) * f64::from(rope.mscale)) as f32).collect();
        f32_array(&values, &[1, rows as usize, pairs])
    };
    let (cos, sin) = (table(f64::cos), table(f64::sin));

    let parts = x.split_at_indices(&[size(rope.dims)], -1)?;
    let (first, second) = halves(&parts[0], pairs, rope.traditional)?;
    let turned_first = ops::subtract(ops::multiply(&first, &cos)?, ops::multiply(&second, &sin)?)?;
    let turned_second = ops::add(ops::multiply(&first, &sin)?, ops::multiply(&second, &cos)?)?;
    let turned = if rope.traditional {
        // Neighbours are a pair: interleave them again.
        let pair = vec![turned_first.expand_dims(-1)?, turned_second.expand_dims(-1)?];
        concatenate(pair, -1)?.reshape(&[heads, rows, size(rope.dims)])?
    } else {
        concatenate(vec![turned_first, turned_second], -1)?
    };
    if size(rope.dims) == head_dim {
        return Ok(turned);
    }
    concatenate(vec![turned, parts[1].clone()], -1)
}

/// The two members of every pair, `[heads, T, pairs]` each: neighbours if `traditional`, else one from each half.
fn halves(x: &Array, pairs: usize, traditional: bool) -> Result<(Array, Array), KernelError> {
    if !traditional {
        let parts = x.split_at_indices(&[size(pairs)], -1)?;
        return Ok((parts[0].clone(), parts[1].clone()));
    }
    let [heads, rows, _] = *x.shape() else {
        return Err(KernelError::shape("rope input", "3 axes", x.ndim()));
    };
    let paired = x.reshape(&[heads, rows, size(pairs), 2])?;
    let members = paired.unstack(-1)?;
    Ok((members[0].clone(), members[1].clone()))
}
