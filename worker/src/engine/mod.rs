//! The engine: one thread owns MLX and runs every request, everyone else talks to it by messages.
//!
//! It takes token ids and gives token ids. It owns slots, caches, the step loop and cancellation. It refuses to
//! know text, HTTP or templates.

mod event;
mod handle;
mod options;
mod request;
mod running;
mod start;
mod state;
mod step_model;
mod turn;

pub use event::{EngineError, Event, Finish, FinishReason, Timings, TokenEvent, TokenLogprob};
pub use handle::{
    Command, Disconnected, EngineHandle, EventSink, EventStream, Inbox, QueuePlace, Submission,
    SubmitError,
};
pub use options::{EngineOptions, Phase, Progress};
pub use request::{GenerateRequest, SamplingParams};
pub use start::{StartError, start, start_model};
pub use state::{EngineSnapshot, ModelInfo};
pub use step_model::StepModel;

#[cfg(test)]
mod tests;
