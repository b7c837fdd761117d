//! What the router tells operators: one struct per event, which makes the log line and the metrics together.
//!
//! Owns the names of all `sanctum_router_*` series of the data path. It never sees a prompt, and names no URL: only
//! seats and backends, whose number the instance bounds.

use std::sync::Arc;
use std::time::Duration;

use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use sanctum_shared::request_id::RequestId;
use tokio::time::Instant;

use crate::backend::failure::Failure;

/// Bounds of histograms of time, in seconds.
const SECONDS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0,
];

/// Installs the recorder of this process; the handle renders text format 0.0.4. Call `run_upkeep` on it regularly.
///
/// # Errors
/// When a recorder is installed already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .install_recorder()
}

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Body,
    Queue,
    Connect,
    /// Sent; no content yet.
    Wait,
    /// Content has gone to the client, or is about to.
    Relay,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Body => "body",
            Self::Queue => "queue",
            Self::Connect => "connect",
            Self::Wait => "wait",
            Self::Relay => "relay",
        }
    }
}

/// How a request ended, beside its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Answered to the end.
    Answered,
    /// The caller's mistake.
    Refused,
    /// Nobody could answer, or nobody had the time.
    Failed,
    /// Content had gone out when the backend broke.
    Interrupted,
    /// The client left.
    Cancelled,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "cancelled",
        }
    }
}

/// One request, from its head to its last byte. Dropped unfinished, it says that the client left.
#[derive(Debug)]
pub(crate) struct Ticket {
    id: RequestId,
    endpoint: &'static str,
    seat: Arc<str>,
    backend: Option<Arc<str>>,
    attempts: u32,
    stream: bool,
    phase: Phase,
    began: Instant,
    queued: Option<Instant>,
    attempt_began: Instant,
    first_token: Option<Duration>,
    ended: bool,
}

impl Ticket {
    pub(crate) fn new(id: RequestId, endpoint: &'static str) -> Self {
        let now = Instant::now();
        Self {
            id,
            endpoint,
            seat: Arc::from(""),
            backend: None,
            attempts: 0,
            stream: false,
            phase: Phase::Body,
            began: now,
            queued: None,
            attempt_began: now,
            first_token: None,
            ended: false,
        }
    }

    pub(crate) fn id(&self) -> &RequestId {
        &self.id
    }

    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    pub(crate) fn seat(&self) -> &str {
        &self.seat
    }

    /// The backend asked last.
    pub(crate) fn backend(&self) -> Option<&str> {
        self.backend.as_deref()
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The request is for `seat` and goes to its queue.
    pub(crate) fn queue(&mut self, seat: Arc<str>, stream: bool) {
        gauge!("sanctum_router_inflight_requests", "seat" => seat.clone()).increment(1);
        gauge!("sanctum_router_queued_requests", "seat" => seat.clone()).increment(1);
        self.seat = seat;
        self.stream = stream;
        self.phase = Phase::Queue;
        self.queued = Some(Instant::now());
    }

    /// The queue is behind it, one way or the other.
    pub(crate) fn dequeue(&mut self) {
        if let Some(since) = self.queued.take() {
            gauge!("sanctum_router_queued_requests", "seat" => self.seat.clone()).decrement(1);
            histogram!("sanctum_router_queue_seconds", "seat" => self.seat.clone())
                .record(since.elapsed());
        }
    }

    /// `backend` is asked.
    pub(crate) fn attempt(&mut self, backend: Arc<str>) {
        self.backend = Some(backend);
        self.attempts += 1;
        self.phase = Phase::Connect;
        self.attempt_began = Instant::now();
    }

    /// The request is on its way to the backend.
    pub(crate) fn sent(&mut self) {
        self.phase = Phase::Wait;
    }

    /// The attempt gave nothing; `more` tells whether another follows.
    pub(crate) fn failed_over(&mut self, failure: &Failure, more: bool) {
        let backend = self.backend.clone().unwrap_or_default();
        let reason = failure.reason();
        self.attempt_outcome(reason);
        if more {
            counter!("sanctum_router_failovers_total", "seat" => self.seat.clone(), "backend" => backend.clone(), "reason" => reason)
                .increment(1);
        }
        let cause = std::error::Error::source(failure).map(root).unwrap_or_default();
        tracing::warn!(request = %self.id, seat = %self.seat, %backend, reason, %failure, cause, more, "attempt failed");
    }

    /// The answer goes to the client from here on.
    pub(crate) fn relay(&mut self) {
        self.phase = Phase::Relay;
        let waited = self.attempt_began.elapsed();
        self.first_token = Some(waited);
        let backend = self.backend.clone().unwrap_or_default();
        histogram!("sanctum_router_first_token_seconds", "backend" => backend).record(waited);
    }

    /// How the backend did in an attempt that was not given up: `ok`, or a failure's reason.
    pub(crate) fn attempt_outcome(&self, outcome: &'static str) {
        let backend = self.backend.clone().unwrap_or_default();
        counter!("sanctum_router_attempts_total", "backend" => backend, "outcome" => outcome)
            .increment(1);
    }

    /// The request has ended; only the first call counts.
    pub(crate) fn end(&mut self, status: u16, outcome: Outcome) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.dequeue();
        let seat = &self.seat;
        let took = self.began.elapsed();
        if !seat.is_empty() {
            gauge!("sanctum_router_inflight_requests", "seat" => seat.clone()).decrement(1);
        }
        counter!(
            "sanctum_router_requests_total",
            "seat" => seat.clone(), "route" => self.endpoint, "status" => status_label(status), "outcome" => outcome.name()
        )
        .increment(1);
        histogram!("sanctum_router_request_seconds", "seat" => seat.clone(), "route" => self.endpoint)
            .record(took);
        if outcome == Outcome::Cancelled {
            counter!("sanctum_router_cancelled_total", "seat" => seat.clone(), "phase" => self.phase.name())
                .increment(1);
        }
        tracing::info!(
            request = %self.id,
            %seat,
            route = self.endpoint,
            stream = self.stream,
            status,
            outcome = outcome.name(),
            phase = self.phase.name(),
            backend = self.backend.as_deref().unwrap_or(""),
            attempts = self.attempts,
            ms = took.as_millis() as u64,
            first_token_ms = self.first_token.map(|waited| waited.as_millis() as u64),
            "request"
        );
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // 499: the client closed the request, as common servers write it.
        self.end(499, Outcome::Cancelled);
    }
}

/// A request that was answered without a seat: unknown route or model, bad body, drain.
pub(crate) fn status_label(status: u16) -> &'static str {
    match status {
        200 => "200",
        400 => "400",
        401 => "401",
        403 => "403",
        404 => "404",
        405 => "405",
        408 => "408",
        413 => "413",
        415 => "415",
        422 => "422",
        429 => "429",
        499 => "499",
        500 => "500",
        502 => "502",
        503 => "503",
        504 => "504",
        201..=399 => "2xx",
        _ if status < 500 => "4xx",
        _ => "5xx",
    }
}

/// The last error of a chain: what the system said.
fn root(error: &(dyn std::error::Error + 'static)) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
