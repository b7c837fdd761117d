//! The worker's metrics: names, labels and buckets, in one place.
//!
//! Text format 0.0.4. Labels come from closed sets only: no client can make a new series. What the engine knows is
//! read from its snapshot when somebody asks, so that asking costs the engine nothing.

use std::time::Instant;

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusRecorder};

use crate::engine::EngineSnapshot;

/// `Content-Type` of what `/metrics` answers.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const HTTP_REQUESTS: &str = "sanctum_mlx_http_requests_total";
const HTTP_DURATION: &str = "sanctum_mlx_http_duration_seconds";
const HTTP_INFLIGHT: &str = "sanctum_mlx_http_inflight_requests";
const INFERENCE_REQUESTS: &str = "sanctum_mlx_inference_requests_total";
const INFERENCE_COMPLETION_TOTAL: &str = "sanctum_mlx_inference_completion_tokens_total";
const INFERENCE_PROMPT_TOTAL: &str = "sanctum_mlx_inference_prompt_tokens_total";
const INFERENCE_DURATION: &str = "sanctum_mlx_inference_duration_seconds";
const INFERENCE_RATE: &str = "sanctum_mlx_inference_tokens_per_sec";
const INFERENCE_COMPLETION: &str = "sanctum_mlx_inference_completion_tokens";
const STARTUP: &str = "sanctum_mlx_startup_seconds";
const MODEL_LOADED: &str = "sanctum_mlx_model_loaded";

/// 5 ms to 180 s.
const DURATION_S: [f64; 15] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 180.0];
/// 0.5 to 96 tokens per second for small machines, and up for large ones.
const TOKENS_PER_S: [f64; 18] = [
    0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0, 192.0, 256.0, 384.0,
    512.0, 1024.0,
];
/// 1 to 4096 tokens.
const TOKENS: [f64; 13] =
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

/// A recorder that knows the buckets. Whoever makes it installs it.
pub fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let full = |name: &str| Matcher::Full(name.to_owned());
    Ok(PrometheusBuilder::new()
        .set_buckets_for_metric(full(HTTP_DURATION), &DURATION_S)?
        .set_buckets_for_metric(full(INFERENCE_DURATION), &DURATION_S)?
        .set_buckets_for_metric(full(INFERENCE_RATE), &TOKENS_PER_S)?
        .set_buckets_for_metric(full(INFERENCE_COMPLETION), &TOKENS)?
        .build_recorder())
}

/// Makes every series that can exist without traffic exist, at zero: absence must mean "not scraped".
pub fn begin() {
    describe_counter!(HTTP_REQUESTS, "HTTP requests answered.");
    describe_histogram!(HTTP_DURATION, "From the request's head to the reply's last byte.");
    describe_gauge!(HTTP_INFLIGHT, "HTTP requests under way.");
    describe_counter!(INFERENCE_REQUESTS, "Sequences generated, by how they ended.");
    describe_counter!(INFERENCE_COMPLETION_TOTAL, "Tokens generated.");
    describe_counter!(INFERENCE_PROMPT_TOTAL, "Prompt tokens of the sequences generated.");
    describe_histogram!(INFERENCE_DURATION, "From submission to the end of a sequence.");
    describe_histogram!(INFERENCE_RATE, "Tokens per second of a sequence, from submission to end.");
    describe_histogram!(INFERENCE_COMPLETION, "Tokens per sequence.");
    describe_gauge!(STARTUP, "How long a phase of the start took.");
    describe_gauge!(MODEL_LOADED, "1 once the model serves.");
    describe_engine();
    gauge!(HTTP_INFLIGHT).set(0.0);
    for reason in StopReason::ALL {
        counter!(INFERENCE_REQUESTS, "stop_reason" => reason.name()).absolute(0);
    }
    counter!(INFERENCE_COMPLETION_TOTAL).absolute(0);
    counter!(INFERENCE_PROMPT_TOTAL).absolute(0);
    for name in [INFERENCE_DURATION, INFERENCE_RATE, INFERENCE_COMPLETION] {
        let _registered = histogram!(name);
    }
    // Nothing verifies a manifest yet, and that takes no time.
    startup_seconds("manifest_verify", 0.0);
    model_loaded(false);
    engine(&EngineSnapshot::default());
}

fn describe_engine() {
    describe_gauge!("sanctum_mlx_engine_healthy", "0 once the engine's steps keep failing.");
    describe_gauge!("sanctum_mlx_queue_waiting_requests", "Requests without a slot.");
    describe_gauge!("sanctum_mlx_queue_limit_requests", "Most requests without a slot.");
    describe_gauge!("sanctum_mlx_batch_running_requests", "Requests that hold a slot.");
    describe_gauge!("sanctum_mlx_batch_slots", "Slots there are.");
    describe_gauge!("sanctum_mlx_batch_last_step_rows", "Rows of the last step.");
    describe_gauge!("sanctum_mlx_kv_cache_bytes", "KV cache held.");
    describe_gauge!("sanctum_mlx_kv_cache_reserved_bytes", "KV cache running requests may need.");
    describe_gauge!("sanctum_mlx_kv_cache_limit_bytes", "KV cache there may be.");
    describe_gauge!("sanctum_mlx_memory_active_bytes", "Memory MLX holds in arrays.");
    describe_gauge!("sanctum_mlx_memory_cache_bytes", "Memory MLX keeps for reuse.");
    describe_counter!("sanctum_mlx_batch_steps_total", "Steps computed.");
    describe_counter!("sanctum_mlx_batch_failed_steps_total", "Steps that failed.");
    describe_counter!("sanctum_mlx_batch_prefill_tokens_total", "Prompt tokens computed.");
    describe_counter!("sanctum_mlx_batch_decode_tokens_total", "Tokens generated by the engine.");
}

/// Records how long a phase of the start took.
pub fn startup_seconds(phase: &'static str, seconds: f64) {
    gauge!(STARTUP, "phase" => phase).set(seconds);
}

/// Records whether the model serves.
pub fn model_loaded(loaded: bool) {
    gauge!(MODEL_LOADED).set(f64::from(u8::from(loaded)));
}

/// Records what the engine is doing.
#[expect(clippy::cast_precision_loss, reason = "gauges are floats; 2^53 bytes are enough")]
pub fn engine(snapshot: &EngineSnapshot) {
    gauge!("sanctum_mlx_engine_healthy").set(f64::from(u8::from(snapshot.healthy)));
    gauge!("sanctum_mlx_queue_waiting_requests").set(snapshot.waiting as f64);
    gauge!("sanctum_mlx_queue_limit_requests").set(snapshot.queue_limit as f64);
    gauge!("sanctum_mlx_batch_running_requests").set(snapshot.running as f64);
    gauge!("sanctum_mlx_batch_slots").set(snapshot.slots as f64);
    gauge!("sanctum_mlx_batch_last_step_rows").set(snapshot.last_step_rows as f64);
    gauge!("sanctum_mlx_kv_cache_bytes").set(snapshot.kv_bytes as f64);
    gauge!("sanctum_mlx_kv_cache_reserved_bytes").set(snapshot.kv_reserved_bytes as f64);
    gauge!("sanctum_mlx_kv_cache_limit_bytes").set(snapshot.kv_limit_bytes as f64);
    gauge!("sanctum_mlx_memory_active_bytes").set(snapshot.mlx_active_bytes as f64);
    gauge!("sanctum_mlx_memory_cache_bytes").set(snapshot.mlx_cache_bytes as f64);
    counter!("sanctum_mlx_batch_steps_total").absolute(snapshot.steps);
    counter!("sanctum_mlx_batch_failed_steps_total").absolute(snapshot.failed_steps);
    counter!("sanctum_mlx_batch_prefill_tokens_total").absolute(snapshot.prefill_tokens);
    counter!("sanctum_mlx_batch_decode_tokens_total").absolute(snapshot.decode_tokens);
}

/// How a sequence ended, as the label says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// An end token or a stop string.
    Stop,
    /// The token limit.
    Length,
    /// The client left.
    Cancelled,
    /// A fault.
    Error,
}

impl StopReason {
    const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Cancelled, Self::Error];

    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
            Self::Error => "error",
        }
    }
}

/// A sequence under way. It is recorded once: at its end, or as cancelled when it is dropped before.
#[derive(Debug)]
pub struct Inference {
    begun: Instant,
    prompt_tokens: usize,
    tokens: usize,
    ended: bool,
}

impl Inference {
    /// A sequence that starts now.
    pub fn begin(prompt_tokens: usize) -> Self {
        Self { begun: Instant::now(), prompt_tokens, tokens: 0, ended: false }
    }

    /// Counts a token.
    pub fn token(&mut self) {
        self.tokens += 1;
    }

    /// Tokens counted so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Records the end, once. `tokens` are those that were generated: an end token is one, though nobody is shown it.
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^53")]
    pub fn end(&mut self, reason: StopReason, tokens: usize) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let seconds = self.begun.elapsed().as_secs_f64();
        counter!(INFERENCE_REQUESTS, "stop_reason" => reason.name()).increment(1);
        counter!(INFERENCE_COMPLETION_TOTAL).increment(tokens as u64);
        counter!(INFERENCE_PROMPT_TOTAL).increment(self.prompt_tokens as u64);
        histogram!(INFERENCE_DURATION).record(seconds);
        histogram!(INFERENCE_COMPLETION).record(tokens as f64);
        if tokens > 0 && seconds > 0.0 {
            histogram!(INFERENCE_RATE).record(tokens as f64 / seconds);
        }
        tracing::info!(
            reason = reason.name(),
            prompt_tokens = self.prompt_tokens,
            completion_tokens = tokens,
            seconds,
            "sequence ended"
        );
    }
}

impl Drop for Inference {
    fn drop(&mut self) {
        self.end(StopReason::Cancelled, self.tokens);
    }
}

/// An HTTP request under way. It is recorded when it is dropped, with the last byte of the reply.
#[derive(Debug)]
pub struct HttpRequest {
    begun: Instant,
    route: &'static str,
    method: &'static str,
    status: &'static str,
}

/// Recorded where the client left before there was a status (nginx's number for it).
const CLIENT_LEFT: &str = "499";

impl HttpRequest {
    /// A request whose head has arrived. `route` and `method` must come from closed sets.
    pub fn begin(route: &'static str, method: &'static str) -> Self {
        gauge!(HTTP_INFLIGHT).increment(1.0);
        Self { begun: Instant::now(), route, method, status: CLIENT_LEFT }
    }

    /// Sets the reply's status.
    pub fn answered(&mut self, status: http::StatusCode) {
        self.status = status_label(status);
    }
}

impl Drop for HttpRequest {
    fn drop(&mut self) {
        gauge!(HTTP_INFLIGHT).decrement(1.0);
        let seconds = self.begun.elapsed().as_secs_f64();
        let labels = [("route", self.route), ("method", self.method), ("status", self.status)];
        counter!(HTTP_REQUESTS, &labels).increment(1);
        histogram!(HTTP_DURATION, &labels).record(seconds);
    }
}

/// The statuses we send, as labels.
fn status_label(status: http::StatusCode) -> &'static str {
    match status.as_u16() {
        200 => "200",
        204 => "204",
        400 => "400",
        404 => "404",
        405 => "405",
        408 => "408",
        413 => "413",
        415 => "415",
        429 => "429",
        500 => "500",
        503 => "503",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(record: impl FnOnce()) -> String {
        let recorder = recorder().expect("buckets are not empty");
        metrics::with_local_recorder(&recorder, || {
            begin();
            record();
        });
        recorder.handle().render()
    }

    fn exercise() {
        HttpRequest::begin("/v1/models", "GET").answered(http::StatusCode::OK);
        let mut inference = Inference::begin(5);
        inference.token();
        inference.end(StopReason::Length, inference.tokens());
        startup_seconds("model_load", 1.5);
    }

    /// The families of SPEC O1 with their types and label names, in its own order.
    const SPEC: [(&str, &str, &[&str]); 11] = [
        ("sanctum_mlx_http_requests_total", "counter", &["route", "method", "status"]),
        ("sanctum_mlx_http_duration_seconds", "histogram", &["route", "method", "status"]),
        ("sanctum_mlx_http_inflight_requests", "gauge", &[]),
        ("sanctum_mlx_inference_requests_total", "counter", &["stop_reason"]),
        ("sanctum_mlx_inference_completion_tokens_total", "counter", &[]),
        ("sanctum_mlx_inference_prompt_tokens_total", "counter", &[]),
        ("sanctum_mlx_inference_duration_seconds", "histogram", &[]),
        ("sanctum_mlx_inference_tokens_per_sec", "histogram", &[]),
        ("sanctum_mlx_inference_completion_tokens", "histogram", &[]),
        ("sanctum_mlx_startup_seconds", "gauge", &["phase"]),
        ("sanctum_mlx_model_loaded", "gauge", &[]),
    ];

    /// Label names of the first sample of a family, without `le`.
    fn labels(text: &str, family: &str, kind: &str) -> Vec<String> {
        let sample =
            if kind == "histogram" { format!("{family}_bucket") } else { family.to_owned() };
        let line = text
            .lines()
            .find(|line| {
                line.strip_prefix(&sample).is_some_and(|rest| rest.starts_with(['{', ' ']))
            })
            .unwrap_or_else(|| panic!("no sample of {family} in\n{text}"));
        let Some((_, rest)) = line.split_once('{') else { return Vec::new() };
        let names = rest.split("\",").filter_map(|pair| pair.split_once('=').map(|(name, _)| name));
        names.filter(|name| *name != "le").map(str::to_owned).collect()
    }

    #[test]
    fn every_family_of_the_spec_is_there_with_its_labels() {
        let text = rendered(exercise);
        for (family, kind, names) in SPEC {
            assert!(
                text.contains(&format!("# TYPE {family} {kind}\n")),
                "{family} {kind} in\n{text}"
            );
            assert_eq!(labels(&text, family, kind), names, "{family}");
        }
        for phase in ["manifest_verify", "model_load"] {
            assert!(text.contains(&format!("sanctum_mlx_startup_seconds{{phase=\"{phase}\"}}")));
        }
    }

    #[test]
    fn buckets_span_what_the_spec_says() {
        let text = rendered(exercise);
        for (family, first, last) in [
            ("sanctum_mlx_http_duration_seconds", "0.005", "180"),
            ("sanctum_mlx_inference_duration_seconds", "0.005", "180"),
            ("sanctum_mlx_inference_tokens_per_sec", "0.5", "1024"),
            ("sanctum_mlx_inference_completion_tokens", "1", "4096"),
        ] {
            let bounds: Vec<&str> = text
                .lines()
                .filter(|line| line.starts_with(&format!("{family}_bucket{{")))
                .filter_map(|line| line.split("le=\"").nth(1)?.split('"').next())
                .collect();
            assert_eq!(bounds.first(), Some(&first), "{family}");
            assert_eq!(bounds[bounds.len() - 2..], [last, "+Inf"], "{family}");
        }
        assert!(text.contains("sanctum_mlx_inference_tokens_per_sec_bucket{le=\"96\"}"));
    }

    #[test]
    fn what_needs_no_traffic_is_there_before_it() {
        let text = rendered(|| {});
        for (family, ..) in SPEC.iter().skip(2) {
            assert!(text.contains(family), "{family} in\n{text}");
        }
        assert!(text.contains("sanctum_mlx_queue_waiting_requests 0"));
    }

    #[test]
    fn a_sequence_that_is_dropped_was_cancelled() {
        let text = rendered(|| {
            let mut inference = Inference::begin(5);
            inference.token();
            drop(inference);
        });
        assert!(text.contains("requests_total{stop_reason=\"cancelled\"} 1"), "{text}");
        assert!(text.contains("sanctum_mlx_inference_completion_tokens_total 1"), "{text}");
    }

    #[test]
    fn a_request_without_a_status_is_one_whose_client_left() {
        let text = rendered(|| drop(HttpRequest::begin("/v1/models", "GET")));
        assert!(text.contains("status=\"499\"} 1"), "{text}");
        assert!(text.contains("sanctum_mlx_http_inflight_requests 0"), "{text}");
    }
}
