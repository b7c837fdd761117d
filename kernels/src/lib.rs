//! MLX on this host, and the blocks of the models. The only crate with `unsafe`.
//!
//! A model is a short list of [`block`]s over weights ([`matrix`], [`tensor`]) and a [`rope`]; the worker strings them
//! together. Below the blocks lie three forms of the same arithmetic, and [`host_op`], by which our own CPU kernels take
//! part in MLX's lazy graph. [`device`] tells what machine and which MLX this is. Refuses to know about models, files
//! and requests.

pub mod block;
pub mod device;
mod error;
mod graph;
pub mod host;
pub mod host_op;
mod hosted;
pub mod matrix;
mod mlx_array;
mod reference;
pub mod rope;
pub mod tensor;

pub use block::{
    Attention, AttentionShape, AttentionWeights, Backend, BackendOptions, Embed, Form, Head,
    HeadShape, KvCache, Mlp, MlpShape, MlpWeights, Prepared, Segment, read_f32,
};
pub use error::KernelError;
/// MLX's array, whose handle the blocks take and give. It must stay on the thread that owns MLX.
pub use mlx_rs::Array;
