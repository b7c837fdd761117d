//! `sanctum-mlx bench`: how fast this host runs a model, through the engine that serves requests.
//!
//! It measures what users feel: the first token of a short prompt, the rate of prefill, and the rate of decoding for
//! one request and for several at once. Sampling (greedy) is included, HTTP and text are not. It judges nothing: times
//! depend on the machine, so no test asserts them.

mod command;
mod measure;
mod report;

use crate::engine::{EngineError, StartError, SubmitError};

pub use command::{BenchArgs, run};
pub use measure::{BenchOptions, measure};
pub use report::{Batch, Report};

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The engine does not start.
    #[error("the engine cannot start")]
    Start(#[from] StartError),
    /// The engine refused a request.
    #[error("the engine refused a request")]
    Submit(#[from] SubmitError),
    /// A request failed.
    #[error("a request failed")]
    Engine(#[from] EngineError),
    /// The engine ended without an answer.
    #[error("the engine's thread ended")]
    Ended,
    /// The result cannot be printed.
    #[error("cannot write the result")]
    Write(#[from] std::io::Error),
}
