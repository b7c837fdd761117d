//! What router and worker share: configuration, wire types, streaming, the accept loop. No MLX, no model.
#![forbid(unsafe_code)]

pub mod accept;
pub mod exit;
pub mod instance;
pub mod limits;
pub mod log;
pub mod openai;
pub mod request_id;
pub mod sse;
pub mod timer;
