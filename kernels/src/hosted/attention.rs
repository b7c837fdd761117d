//! Attention as one host op over all segments of a call.
//!
//! Owns the caches' memory and the order in which ops touch it. A cache is written by closures that run later than
//! `forward`, so each op also puts out a *fence*, an array without meaning that the next op on that cache takes as input:
//! MLX's own graph then keeps the ops in order, and alive even if nobody asks for their results.

use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mlx_rs::{Array, Dtype};

use super::scratch::Buffers;
use super::{Norm, PackedLinear, add, check_f32};
use crate::KernelError;
use crate::block::{AttentionShape, AttentionWeights, Backend, Held, HostParts, Segment};
use crate::host::attention::{Heads, KvStore, Rows, Slot, attend};
use crate::host::linear;
use crate::host::rope::RopeTable;
use crate::host_op::{HostOp, host_op};

/// A slot's keys and values.
#[derive(Debug)]
pub(crate) struct Cache {
    heads: Heads,
    filled: Arc<Mutex<Filled>>,
    /// Put out by the last op that writes here.
    fence: Option<Rc<Array>>,
}

/// What the ops see of a cache.
#[derive(Debug)]
struct Filled {
    store: KvStore,
    /// Positions written without a gap. Less than a later op expects if an earlier one failed.
    positions: usize,
}

/// See [`crate::block::Attention`].
#[derive(Debug)]
pub(crate) struct Attention(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    host: HostParts,
    heads: Heads,
    rope: Arc<RopeTable>,
    norm: Norm,
    q: PackedLinear,
    k: PackedLinear,
    v: PackedLinear,
    o: PackedLinear,
}

/// A segment as its op knows it.
struct Part {
    rows: Range<usize>,
    start: usize,
    filled: Arc<Mutex<Filled>>,
}

impl Cache {
    pub(crate) fn nbytes(&self) -> usize {
        lock(&self.filled).store.nbytes()
    }
}

impl Attention {
    pub(crate) fn new(
        backend: &Backend,
        shape: AttentionShape,
        weights: &AttentionWeights,
    ) -> Result<Self, KernelError> {
        let host = backend.host()?;
        let AttentionShape { heads, kv_heads, head_dim, norm_eps, rope, .. } = shape;
        Ok(Self(Arc::new(Parts {
            host: host.clone(),
            heads: Heads { heads, kv_heads, head_dim },
            rope: RopeTable::shared(&rope),
            norm: Norm::new(&weights.norm, norm_eps)?,
            q: PackedLinear::new(host, &weights.q)?,
            k: PackedLinear::new(host, &weights.k)?,
            v: PackedLinear::new(host, &weights.v)?,
            o: PackedLinear::new(host, &weights.o)?,
        })))
    }

    pub(crate) fn new_cache(&self) -> Cache {
        let heads = self.0.heads;
        let store = KvStore::new(heads.kv_heads, heads.head_dim);
        let filled = Arc::new(Mutex::new(Filled { store, positions: 0 }));
        Cache { heads, filled, fence: None }
    }

    pub(crate) fn forward(
        &self,
        x: &Array,
        segments: &mut [Segment<'_>],
    ) -> Result<Array, KernelError> {
        check_f32(x)?;
        let mut parts = Vec::with_capacity(segments.len());
        let mut fences: Vec<Rc<Array>> = Vec::with_capacity(1);
        for segment in &mut *segments {
            let (rows, start) = (segment.rows.clone(), segment.cache.len());
            let cache = self.own(segment)?;
            parts.push(Part { rows, start, filled: Arc::clone(&cache.filled) });
            // The slots of a step mostly share the fence of the step before.
            if let Some(fence) = &cache.fence
                && !fences.iter().any(|known| Rc::ptr_eq(known, fence))
            {
                fences.push(Rc::clone(fence));
            }
        }
        let inputs: Vec<&Array> = std::iter::once(x).chain(fences.iter().map(|f| &**f)).collect();
        let op = HostOp {
            name: c"attention",
            inputs: &inputs,
            outputs: &[(x.shape(), Dtype::Float32), (&[1], Dtype::Uint8)],
            in_place: Some(0),
        };
        let block = Arc::clone(&self.0);
        let mut outputs = host_op(op, move |_, outputs| {
            outputs[1].values::<u8>()?.fill(0);
            block.run(outputs[0].values()?, &parts)
        })?;
        let (Some(fence), Some(y)) = (outputs.pop(), outputs.pop()) else {
            return Err(KernelError::HostOp("attention has two outputs".into()));
        };
        let fence = Rc::new(fence);
        for segment in segments {
            self.own(segment)?.fence = Some(Rc::clone(&fence));
        }
        Ok(y)
    }

    /// The segment's cache, if it is one of this form and these sizes.
    fn own<'a>(&self, segment: &'a mut Segment<'_>) -> Result<&'a mut Cache, KernelError> {
        match segment.cache.held() {
            Held::Host(cache) if cache.heads == self.0.heads => Ok(cache),
            _ => Err(KernelError::Foreign { what: "a KV cache" }),
        }
    }
}

impl Parts {
    /// Adds the block's output to `x`, rows of hidden states, and fills the caches.
    fn run(&self, x: &mut [f32], parts: &[Part]) -> Result<(), KernelError> {
        let mut caches: Vec<MutexGuard<'_, Filled>> =
            parts.iter().map(|part| lock(&part.filled)).collect();
        let mut slots = Vec::with_capacity(parts.len());
        for (part, filled) in parts.iter().zip(&mut caches) {
            let Filled { store, positions } = &mut **filled;
            if *positions < part.start {
                return Err(KernelError::CacheBehind { filled: *positions, expected: part.start });
            }
            // Should this op fail, what it may have overwritten does not count.
            *positions = part.start;
            slots.push(Slot { rows: part.rows.clone(), start: part.start, store });
        }

        let pool = &*self.host.pool;
        let Heads { heads, kv_heads, head_dim } = self.heads;
        let rows = x.len() / self.q.panels.cols();
        let mut buffers = self.host.scratch.lock();
        let Buffers { normed, first, second, third, mixed, projected } = &mut *buffers;
        let n = normed.take(x.len());
        let q = first.take(rows * heads * head_dim);
        let k = second.take(rows * kv_heads * head_dim);
        let v = third.take(rows * kv_heads * head_dim);
        let out = mixed.take(q.len());
        let y = projected.take(x.len());

        self.norm.apply(&self.host, x, n);
        linear::multiply(pool, &mut [self.q.to(q), self.k.to(k), self.v.to(v)], n, rows);
        let call = Rows { q, k, v, out };
        attend(pool, self.host.isa, self.heads, &self.rope, call, &mut slots);
        linear::multiply(pool, &mut [self.o.to(y)], out, rows);
        add(x, y);

        drop(slots);
        for (part, filled) in parts.iter().zip(&mut caches) {
            filled.positions = part.start + part.rows.len();
        }
        Ok(())
    }
}

/// What an op that panicked left behind is guarded by `positions`, not by poison.
fn lock(filled: &Mutex<Filled>) -> MutexGuard<'_, Filled> {
    filled.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Linear, Matrix};
    use crate::rope::Rope;
    use crate::tensor::HostTensor;
    use crate::{BackendOptions, Form};

    #[test]
    fn an_op_refuses_a_cache_that_an_earlier_failure_left_behind() {
        let backend = Backend::new(BackendOptions { form: Form::Host, threads: 1 }).unwrap();
        let linear = || {
            let tensor = HostTensor::from_values(vec![4, 4], &[0.5f32; 16]).unwrap();
            Linear { matrix: Matrix::dense(tensor).unwrap(), bias: None }
        };
        let rope = Rope { dims: 2, periods: vec![1.0], mscale: 1.0, traditional: false };
        let shape = AttentionShape {
            hidden: 4,
            heads: 2,
            kv_heads: 2,
            head_dim: 2,
            norm_eps: 1e-5,
            rope,
            max_positions: 8,
        };
        let norm = HostTensor::from_values(vec![4], &[1f32; 4]).unwrap();
        let weights = AttentionWeights { norm, q: linear(), k: linear(), v: linear(), o: linear() };
        let block = Attention::new(&backend, shape, &weights).unwrap();
        let filled = block.new_cache().filled;
        let run = |start: usize| {
            let part = Part { rows: 0..2, start, filled: Arc::clone(&filled) };
            block.0.run(&mut [1.0; 8], &[part])
        };
        run(0).unwrap();
        run(2).unwrap();
        let error = run(5).unwrap_err();
        assert!(matches!(error, KernelError::CacheBehind { filled: 4, expected: 5 }), "{error}");
        run(3).unwrap();
        assert_eq!(lock(&filled).positions, 5);
    }
}
