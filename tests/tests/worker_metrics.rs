//! A worker's metrics: exactly the series that are promised, with values that match the traffic.

use std::collections::BTreeSet;

use sanctum_tests::live::events::EventStream;
use sanctum_tests::live::poll::{PATIENCE, eventually};
use sanctum_tests::live::script::Script;
use sanctum_tests::live::worker::{CHAT, TEXT, Worker};
use serde_json::json;

/// The families of SPEC O1, with the labels and the suffixes of their kind.
const PROMISED: &[(&str, &[&str])] = &[
    ("sanctum_mlx_http_requests_total", &["route", "method", "status"]),
    ("sanctum_mlx_http_duration_seconds_bucket", &["route", "method", "status", "le"]),
    ("sanctum_mlx_http_duration_seconds_sum", &["route", "method", "status"]),
    ("sanctum_mlx_http_duration_seconds_count", &["route", "method", "status"]),
    ("sanctum_mlx_http_inflight_requests", &[]),
    ("sanctum_mlx_inference_requests_total", &["stop_reason"]),
    ("sanctum_mlx_inference_completion_tokens_total", &[]),
    ("sanctum_mlx_inference_prompt_tokens_total", &[]),
    ("sanctum_mlx_inference_duration_seconds_bucket", &["le"]),
    ("sanctum_mlx_inference_tokens_per_sec_bucket", &["le"]),
    ("sanctum_mlx_inference_completion_tokens_bucket", &["le"]),
    ("sanctum_mlx_startup_seconds", &["phase"]),
    ("sanctum_mlx_model_loaded", &[]),
];

/// Name and label names of a sample.
fn parts(sample: &str) -> (&str, BTreeSet<&str>) {
    let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
    let labels =
        labels.trim_end_matches('}').split("\",").filter_map(|label| label.split_once('='));
    (name, labels.map(|(label, _)| label).collect())
}

#[tokio::test]
async fn what_happened_is_what_is_counted() {
    let script = Script::says("1234567890");
    let worker = Worker::start(&script.path(), &[]).await;
    let ask = |more: serde_json::Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "go"}]});
        body.as_object_mut()
            .expect("an object")
            .extend(more.as_object().expect("an object").clone());
        body
    };
    let whole = worker.post(CHAT, &ask(json!({"max_tokens": 4}))).await.ok();
    let prompt = whole["usage"]["prompt_tokens"].as_f64().expect("a number");
    let stream = EventStream::open(worker.address, CHAT, &ask(json!({}))).await;
    assert_eq!(stream.finish().await.well_ended().text(0), "1234567890");
    assert_eq!(worker.post(CHAT, &ask(json!({"n": "two"}))).await.status, 400);
    let text = worker.post(TEXT, &json!({"prompt": "go", "max_tokens": 3})).await.ok();
    let prompts = 2.0 * prompt + text["usage"]["prompt_tokens"].as_f64().expect("a number");
    assert_eq!(worker.get("/a/path/of/the/clients/own").await.status, 404);

    // A request is counted with the last byte of its reply, a moment after the client has read it.
    let metrics = eventually("the counts", PATIENCE, async || {
        let metrics = worker.metrics().await;
        let chats =
            metrics.sum("sanctum_mlx_http_requests_total", &["route=\"/v1/chat/completions\""]);
        let inflight = metrics.sum("sanctum_mlx_http_inflight_requests", &[]);
        if chats >= 3.0 && inflight == 1.0 {
            Ok(metrics)
        } else {
            Err(format!("{chats} chats, {inflight} in flight"))
        }
    })
    .await;
    let http = |labels: &[&str]| metrics.sum("sanctum_mlx_http_requests_total", labels);
    assert_eq!(http(&["route=\"/v1/chat/completions\"", "method=\"POST\"", "status=\"200\""]), 2.0);
    assert_eq!(http(&["route=\"/v1/chat/completions\"", "method=\"POST\"", "status=\"400\""]), 1.0);
    assert_eq!(http(&["route=\"/v1/completions\"", "status=\"200\""]), 1.0);
    assert_eq!(http(&["status=\"404\""]), 1.0);
    let ended = |reason: &str| {
        metrics.sum("sanctum_mlx_inference_requests_total", &[&format!("stop_reason=\"{reason}\"")])
    };
    assert_eq!(
        (ended("stop"), ended("length"), ended("cancelled"), ended("error")),
        (1.0, 2.0, 0.0, 0.0)
    );
    // Ten digits and the end token, and two that were cut.
    assert_eq!(metrics.sum("sanctum_mlx_inference_completion_tokens_total", &[]), 11.0 + 4.0 + 3.0);
    assert_eq!(metrics.sum("sanctum_mlx_inference_prompt_tokens_total", &[]), prompts);
    for family in ["duration_seconds", "tokens_per_sec", "completion_tokens"] {
        assert_eq!(
            metrics.sum(&format!("sanctum_mlx_inference_{family}_count"), &[]),
            3.0,
            "{family}"
        );
    }
    assert_eq!(metrics.sum("sanctum_mlx_model_loaded", &[]), 1.0);
    assert!(metrics.sum("sanctum_mlx_startup_seconds", &["phase=\"model_load\""]) > 0.0);
    assert_eq!(metrics.sum("sanctum_mlx_startup_seconds", &["phase=\"manifest_verify\""]), 0.0);

    for (name, labels) in PROMISED {
        let wanted: BTreeSet<&str> = labels.iter().copied().collect();
        let found: Vec<_> = metrics.names().map(parts).filter(|(found, _)| found == name).collect();
        assert!(!found.is_empty(), "no {name}");
        assert!(found.iter().all(|(_, labels)| *labels == wanted), "{name}: {found:?}");
    }
    let buckets = |family: &str| -> BTreeSet<String> {
        let prefix = format!("sanctum_mlx_{family}_bucket{{");
        let bound = |name: &str| {
            name.split("le=\"").nth(1).and_then(|rest| rest.split('"').next()).map(str::to_owned)
        };
        metrics.names().filter(|name| name.starts_with(&prefix)).filter_map(bound).collect()
    };
    for (family, bounds) in [
        ("http_duration_seconds", ["0.005", "180"]),
        ("inference_tokens_per_sec", ["0.5", "96"]),
        ("inference_completion_tokens", ["1", "4096"]),
    ] {
        for bound in bounds {
            assert!(buckets(family).contains(bound), "{family} has no bucket {bound}");
        }
    }
    let strangers: Vec<&str> =
        metrics.names().filter(|name| name.contains("clients/own")).collect();
    assert_eq!(strangers, Vec::<&str>::new(), "a client must not make new series");
}

#[tokio::test]
async fn series_exist_before_any_traffic() {
    let script = Script::says("ok");
    let worker = Worker::start(&script.path(), &[]).await;
    let reply = worker.get("/metrics").await;
    assert_eq!(reply.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let metrics = worker.metrics().await;
    assert_eq!(metrics.sum("sanctum_mlx_inference_completion_tokens_total", &[]), 0.0);
    assert_eq!(metrics.sum("sanctum_mlx_inference_requests_total", &[]), 0.0);
    assert_eq!(metrics.sum("sanctum_mlx_inference_tokens_per_sec_count", &[]), 0.0);
}
