//! The engine: one thread owns MLX and runs every request, everyone else talks to it by messages.
//!
//! It takes token ids and gives token ids. It owns slots, caches, the step loop and cancellation. It refuses to
//! know text, HTTP or templates.

mod event;
mod handle;
mod request;
mod state;

pub use event::{EngineError, Event, Finish, FinishReason, Timings, TokenEvent, TokenLogprob};
pub use handle::{
    Command, Disconnected, EngineHandle, EventSink, EventStream, Inbox, QueuePlace, Submission,
    SubmitError,
};
pub use request::{GenerateRequest, SamplingParams};
pub use state::{EngineSnapshot, ModelInfo};
