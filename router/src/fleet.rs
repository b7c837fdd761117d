//! What the data path knows of the fleet: per backend its URLs, its key and its state, as of now.
//!
//! Owns the shape only. `supervise` publishes it whenever something changes; the data path reads it without waiting
//! and never writes. A request that started with one view keeps it to its end.

use std::sync::Arc;

use http::{HeaderValue, Uri};
use tokio::sync::watch;

/// State of a backend's own URL (its fallback URLs are judged by their answers alone).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BackendState {
    /// A worker that was spawned and is not ready yet.
    Starting,
    /// Ready; a remote URL always counts as ready, its answers tell the rest.
    Ready,
    /// A worker that ended or hangs and will be started again.
    Down {
        /// Why, for operators.
        reason: String,
    },
    /// A worker that nobody starts again without an operator: a crash loop or a refusal by its gate.
    Parked {
        /// Why, for operators.
        reason: String,
    },
    /// The key's environment variable is not set: never called, its fallback URLs neither.
    NotConfigured {
        /// The variable.
        variable: String,
    },
}

/// One backend as of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendView {
    /// Its name in the instance.
    pub name: Arc<str>,
    /// Base URL of the backend itself, such as `http://127.0.0.1:40001/v1`; `None` while a worker has no address.
    pub primary: Option<Uri>,
    /// Base URLs tried after it, in order.
    pub fallbacks: Vec<Uri>,
    /// Name of the model there; `None` forwards the caller's.
    pub model: Option<Arc<str>>,
    /// Value of the `authorization` header, marked sensitive. Sent to the server of `primary` only.
    pub authorization: Option<HeaderValue>,
    /// State of `primary`.
    pub state: BackendState,
}

/// A live view of all backends, in the order of the instance.
#[derive(Debug, Clone)]
pub struct FleetView(watch::Receiver<Arc<Vec<BackendView>>>);

impl FleetView {
    /// A view of what is sent there. The length and order of the list must never change.
    pub fn new(receiver: watch::Receiver<Arc<Vec<BackendView>>>) -> Self {
        Self(receiver)
    }

    /// All backends as of now.
    pub fn now(&self) -> Arc<Vec<BackendView>> {
        self.0.borrow().clone()
    }
}
