//! The kernels of one decoded token of SmolLM2-135M, in the order a worker runs them, without MLX between them.
//!
//! The weights are noise, their sizes and places in memory are the model's: 98 MB that are read once per token.

use std::hint::black_box;
use std::time::Instant;

use sanctum_kernels::host::attention::{Heads, KvStore, Rows, Slot, attend};
use sanctum_kernels::host::isa::Isa;
use sanctum_kernels::host::linear::{Panels, Product, multiply};
use sanctum_kernels::host::mlp::silu_mul;
use sanctum_kernels::host::norm::rms_norm;
use sanctum_kernels::host::pool::Pool;
use sanctum_kernels::host::rope::RopeTable;
use sanctum_kernels::rope::{Rope, RopeScaling, RopeSpec};

const HIDDEN: usize = 576;
const INNER: usize = 1536;
const LAYERS: usize = 30;
const VOCABULARY: usize = 49_152;
const HEADS: Heads = Heads { heads: 9, kv_heads: 3, head_dim: 64 };
const KV: usize = HEADS.kv_heads * HEADS.head_dim;
/// Tokens measured, and the position of the first.
const TOKENS: usize = 200;
const START: usize = 100;

/// Calls of a token, by what they do.
pub(crate) const PARTS: [&str; 7] =
    ["norms", "q/k/v", "attention", "o", "gate/up", "SwiGLU", "down"];

/// Every call's time, in seconds.
#[derive(Debug, Default)]
pub(crate) struct Times {
    parts: [Vec<f64>; PARTS.len()],
    head: Vec<f64>,
}

impl Times {
    /// A token's share of each of [`PARTS`], and of the head, if no call is disturbed.
    pub(crate) fn of_token(self) -> ([f64; PARTS.len()], f64) {
        let parts = self.parts.map(|times| {
            let calls = times.len() as f64 / TOKENS as f64;
            super::fastest_tenth(times) * calls
        });
        (parts, super::fastest_tenth(self.head))
    }
}

struct Layer {
    q: Panels,
    k: Panels,
    v: Panels,
    o: Panels,
    gate: Panels,
    up: Panels,
    down: Panels,
    store: KvStore,
}

/// Buffers of one row.
struct State {
    x: Vec<f32>,
    n: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    mixed: Vec<f32>,
    gate: Vec<f32>,
    up: Vec<f32>,
    logits: Vec<f32>,
}

/// Decodes [`TOKENS`] tokens.
pub(crate) fn token_times(pool: &Pool, isa: Isa) -> Times {
    let matrix = |n: usize, k: usize| super::quantised(n, k, 4, 32, isa);
    let mut layers: Vec<Layer> = (0..LAYERS)
        .map(|_| Layer {
            q: matrix(HIDDEN, HIDDEN),
            k: matrix(KV, HIDDEN),
            v: matrix(KV, HIDDEN),
            o: matrix(HIDDEN, HIDDEN),
            gate: matrix(INNER, HIDDEN),
            up: matrix(INNER, HIDDEN),
            down: matrix(HIDDEN, INNER),
            store: KvStore::new(HEADS.kv_heads, HEADS.head_dim),
        })
        .collect();
    let head = super::quantised(VOCABULARY, HIDDEN, 8, 32, isa);
    let spec = RopeSpec { head_dim: 64, partial: 1.0, theta: 1e5, scaling: RopeScaling::None };
    let rope = RopeTable::shared(&Rope::from_spec(&spec).expect("a valid rotation"));
    let zeros = |len: usize| vec![0.0; len];
    let mut state = State {
        x: zeros(HIDDEN),
        n: zeros(HIDDEN),
        q: zeros(HIDDEN),
        k: zeros(KV),
        v: zeros(KV),
        mixed: zeros(HIDDEN),
        gate: zeros(INNER),
        up: zeros(INNER),
        logits: zeros(VOCABULARY),
    };
    let mut times = Times::default();
    for position in START..START + TOKENS {
        for (i, x) in state.x.iter_mut().enumerate() {
            *x = ((i * 7 + position) % 31) as f32 / 15.0 - 1.0;
        }
        for layer in &mut layers {
            layer.decode(pool, isa, &rope, &mut state, position, &mut times.parts);
        }
        timed(&mut times.head, || {
            multiply(pool, &mut [product(&head, &mut state.logits)], &state.x, 1);
        });
        black_box(&mut state.logits);
    }
    times
}

impl Layer {
    fn decode(
        &mut self,
        pool: &Pool,
        isa: Isa,
        rope: &RopeTable,
        state: &mut State,
        position: usize,
        times: &mut [Vec<f64>; PARTS.len()],
    ) {
        let State { x, n, q, k, v, mixed, gate, up, .. } = state;
        let weight = [1.0; HIDDEN];
        let [norms, qkv, attention, o, gate_up, swiglu, down] = times;
        timed(norms, || rms_norm(pool, isa, x, &weight, 1e-5, n));
        timed(qkv, || {
            let mut products = [product(&self.q, q), product(&self.k, k), product(&self.v, v)];
            multiply(pool, &mut products, n, 1);
        });
        timed(attention, || {
            let rows = Rows { q, k, v, out: mixed };
            let slot = Slot { rows: 0..1, start: position, store: &mut self.store };
            attend(pool, isa, HEADS, rope, rows, &mut [slot]);
        });
        timed(o, || multiply(pool, &mut [product(&self.o, n)], mixed, 1));
        timed(norms, || rms_norm(pool, isa, n, &weight, 1e-5, x));
        timed(gate_up, || {
            multiply(pool, &mut [product(&self.gate, gate), product(&self.up, up)], x, 1);
        });
        timed(swiglu, || silu_mul(pool, isa, gate, up));
        timed(down, || multiply(pool, &mut [product(&self.down, n)], gate, 1));
        std::mem::swap(x, n);
    }
}

fn product<'a>(panels: &'a Panels, out: &'a mut [f32]) -> Product<'a> {
    Product { panels, bias: None, out }
}

fn timed(times: &mut Vec<f64>, work: impl FnOnce()) {
    let started = Instant::now();
    work();
    times.push(started.elapsed().as_secs_f64());
}
