//! From tokens back to text, and from the engine's events to the pieces of a reply.
//!
//! Owns incremental decoding, stop strings and what a choice looks like to the outside. It refuses to know HTTP: SSE
//! and JSON bodies are made in [`crate::http`].

mod choice;
mod stop;
mod text;
mod utf8;

pub use choice::{Choice, End, EndReason, Piece, ShownToken, TokenText};
pub use text::{Added, Opening, ReplyText};
