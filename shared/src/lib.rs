//! What router and worker share: configuration, wire types, streaming, the accept loop. No MLX, no model.
#![forbid(unsafe_code)]

pub mod instance;
pub mod openai;
