//! What the supervisor tells the world: for each event its log line and its metric together.

use std::time::Duration;

use metrics::{counter, describe_counter, describe_gauge, gauge};

const STARTS: &str = "sanctum_router_worker_starts_total";
const EXITS: &str = "sanctum_router_worker_exits_total";
const READY: &str = "sanctum_router_worker_ready";
const PARKED: &str = "sanctum_router_worker_parked";

/// Names what the series mean; once per process.
pub(crate) fn describe() {
    describe_counter!(STARTS, "Worker processes started.");
    describe_counter!(EXITS, "Worker processes ended, by reason.");
    describe_gauge!(READY, "1 if the backend's worker takes requests.");
    describe_gauge!(
        PARKED,
        "1 if the backend's worker is started no more until an operator says so."
    );
}

/// A process was started.
pub(super) struct Started<'a> {
    pub(super) backend: &'a str,
    pub(super) pid: u32,
    pub(super) generation: u64,
}

impl Started<'_> {
    pub(super) fn emit(self) {
        let Self { backend, pid, generation } = self;
        tracing::info!(backend, pid, generation, "worker started");
        counter!(STARTS, "backend" => backend.to_owned()).increment(1);
        gauge!(PARKED, "backend" => backend.to_owned()).set(0);
    }
}

/// A worker takes requests, after so long.
pub(super) struct Ready<'a> {
    pub(super) backend: &'a str,
    pub(super) pid: u32,
    pub(super) after: Duration,
}

impl Ready<'_> {
    pub(super) fn emit(self) {
        let Self { backend, pid, after } = self;
        let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(backend, pid, after_ms, "worker ready");
        gauge!(READY, "backend" => backend.to_owned()).set(1);
    }
}

/// A worker that was ready takes no requests for now.
pub(super) struct NotReady<'a> {
    pub(super) backend: &'a str,
    pub(super) phase: &'a str,
}

impl NotReady<'_> {
    pub(super) fn emit(self) {
        let Self { backend, phase } = self;
        tracing::warn!(backend, phase, "worker not ready any more");
        gauge!(READY, "backend" => backend.to_owned()).set(0);
    }
}

/// A process ended.
pub(super) struct Ended<'a> {
    pub(super) backend: &'a str,
    pub(super) generation: u64,
    pub(super) reason: &'a str,
    pub(super) label: &'static str,
    /// Whether it was the one that served the backend.
    pub(super) served: bool,
}

impl Ended<'_> {
    pub(super) fn emit(self) {
        let Self { backend, generation, reason, label, served } = self;
        if label == "asked" {
            tracing::info!(backend, generation, "worker {reason}");
        } else {
            tracing::warn!(backend, generation, "worker {reason}");
        }
        counter!(EXITS, "backend" => backend.to_owned(), "reason" => label).increment(1);
        if served {
            gauge!(READY, "backend" => backend.to_owned()).set(0);
        }
    }
}

/// A worker will be started again.
pub(super) struct StartingAgain<'a> {
    pub(super) backend: &'a str,
    pub(super) delay: Duration,
}

impl StartingAgain<'_> {
    pub(super) fn emit(self) {
        let Self { backend, delay } = self;
        let delay_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(backend, delay_ms, "worker will be started again");
    }
}

/// A worker is started no more.
pub(super) struct Parked<'a> {
    pub(super) backend: &'a str,
    pub(super) reason: &'a str,
}

impl Parked<'_> {
    pub(super) fn emit(self) {
        let Self { backend, reason } = self;
        tracing::error!(backend, reason, "worker parked until an operator restarts it");
        gauge!(PARKED, "backend" => backend.to_owned()).set(1);
    }
}
