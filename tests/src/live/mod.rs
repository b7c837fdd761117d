//! Real binaries under test: where they lie, how they are started and asked, and that they are gone afterwards.
//!
//! Owns processes (`process`), what they are asked with (`http`, `events`), waiting (`poll`), and the two things that
//! can be started: one worker (`worker`) or a router with its workers (`fleet`), over checkpoints from `checkpoint`
//! and `script`; and the Python that others' clients are written in (`python`). Nothing in here reaches into a process: what a test knows comes over a socket, a file, a signal or an
//! exit code, as it would for anybody.

pub mod backend;
pub mod checkpoint;
pub mod events;
pub mod fleet;
pub mod http;
pub mod poll;
pub mod process;
pub mod python;
pub mod script;
pub mod tensors;
pub mod worker;
