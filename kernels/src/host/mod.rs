//! The arithmetic of the host form: linear layers, norm, rotation, attention and SwiGLU on this machine's vector units.
//!
//! Owns the order in which every sum is taken, so that a result's bits depend on nothing but the numbers that enter it:
//! not on the instruction set, the number of rows in a call, their order, how a prompt was cut up, or the threads. It
//! refuses to know of MLX, blocks and models.
//!
//! # The order of sums
//!
//! Vector lanes always run across *outputs*, never across what is summed: output rows of a matrix, keys of a score,
//! dimensions of a value. `fma` is rounded once, and everything is f32.
//!
//! - **A block of products** ([`lanes`]' `block`): two chains, `d0` over even and `d1` over odd positions,
//!   `d = fma(w, x, d)` in ascending order from `+0`; the block is `d0 + d1`.
//! - **Affine rows**: per group of the matrix `t = fma(scale, block(q, x), t)`, then `t = fma(bias, sum(x), t)`, from
//!   `t = +0`, groups ascending. Dense rows: `t = t + block(w, x)` over blocks of 64 inputs. A layer's bias is added last.
//!   Quantised `q` and `x` enter as `q * 2^s` and `x * 2^-s` with `s` the element's bit position in its word: the same
//!   product, without a shift.
//! - **Sums of one row** (squares of the norm, inputs of a group, softmax weights): 32 strided partial sums, folded in
//!   halves.
//! - **Attention**: see [`attention`].
//!
//! The tests hold every instruction set to the scalar path bit for bit (NaN payloads aside).

pub mod attention;
mod exp;
pub mod isa;
mod lanes;
pub mod linear;
mod memory;
pub mod mlp;
pub mod norm;
mod peak;
pub mod pool;
pub mod rope;
mod shared_mut;

pub use peak::{FMA_LOOP_FLOPS, fma_loop};
