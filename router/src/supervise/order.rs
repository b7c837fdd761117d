//! What a keeper is told, and what it answers to a restart.
//!
//! Owns the words between operators and keepers; what is done about them is `keeper`'s.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

/// What a keeper is told.
#[derive(Debug)]
pub(super) enum Order {
    /// Replace the worker, or start it if it does not run.
    Restart(oneshot::Sender<Result<Restarted, RestartError>>),
    /// End every process and then the keeper; running requests get so long.
    Stop(Duration),
    /// End every process now.
    Kill,
}

/// A worker that was replaced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarted {
    /// The new process.
    pub pid: u32,
    /// Whether it was ready before the old one was stopped, so that no request could miss a worker.
    pub seamless: bool,
}

/// Why a worker was not replaced.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    /// No backend has that name.
    #[error("there is no backend `{0}`")]
    Unknown(String),
    /// The backend is somebody's URL.
    #[error("backend `{0}` is a URL: the router does not run it")]
    NotOurs(String),
    /// Another restart of it runs.
    #[error("another restart of this backend is under way")]
    Busy,
    /// The router is going down.
    #[error("the router is stopping")]
    Stopping,
    /// The new process was not ready in the time allowed.
    #[error("the new worker was not ready within {limit_s} s{}", fate(*kept))]
    TooSlow {
        /// The time allowed, in seconds.
        limit_s: u64,
        /// Whether the old one serves on; if not, the new one may yet become ready.
        kept: bool,
    },
    /// The new process ended before it was ready.
    #[error("the new worker did not become ready: it {reason}")]
    Failed {
        /// How it ended.
        reason: String,
    },
}

fn fate(kept: bool) -> &'static str {
    if kept { ": it was stopped, and the old one serves on" } else { ": see `sanctum status`" }
}
