//! The blocks of the models: embed, attention, MLP, head.
//!
//! A block is what a model's layer list is made of, and the unit in which work reaches the processor. Each has three
//! forms behind one signature ([`Form`]): *host* runs as one lazy host op on our own CPU kernels, *graph* as MLX ops
//! (the GPU's form), *reference* as plain f32 MLX ops that the tests take for the truth.
//!
//! Hidden states of all slots lie end to end, `[N, hidden]`. Linear work runs over all rows at once; attention runs per
//! [`Segment`] against that slot's [`KvCache`]. Every `forward` only adds to MLX's lazy graph: nothing is computed, and
//! no cache is written, before something is evaluated. Whatever the sizes given, `forward` checks and never panics.
//!
//! After an evaluation has failed, the arrays it was to produce and the caches its blocks were given hold rubbish: drop
//! them. Weights and backend stay usable.

mod attention;
mod backend;
mod cache;
mod check;
mod embed;
mod head;
mod mlp;
mod read;

pub use attention::{Attention, AttentionShape, AttentionWeights};
pub use backend::{Backend, BackendOptions, Form, Prepared};
pub use cache::{KvCache, Segment};
pub use embed::Embed;
pub use head::{Head, HeadShape};
pub use mlp::{Mlp, MlpShape, MlpWeights};
pub use read::read_f32;

pub(crate) use backend::{HostParts, Store};
pub(crate) use cache::Held;
