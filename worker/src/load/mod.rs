//! From a directory on disk to checked weights: `config.json` and `model*.safetensors`.
//!
//! Nothing in the directory is trusted. Headers are checked before memory is allocated, shapes before data is read,
//! and every refusal names the file, and the field or tensor with what was expected and found. It knows no model
//! family: `model` asks for what its families need.

mod checkpoint;
mod error;
mod fields;
mod finite;
mod header;
mod quantization;
mod shard;
mod weights;

pub use checkpoint::Checkpoint;
pub use error::LoadError;
pub use fields::Fields;
pub use header::{HeaderError, StoredType, TensorEntry};
pub use quantization::{Affine, Quantization};
pub use shard::Shard;
pub use weights::{LoadProgress, Weights};
