//! Clients that others wrote work unmodified against a router with real workers: `openai` and `langchain-openai`.
//!
//! The scripts in `tests/python/clients/` name each check that passed; a check that did not run is a failure.

use sanctum_tests::live::fleet::{Fleet, two_real_workers};
use sanctum_tests::live::python::Python;

async fn passes(script: &str, checks: &[&str]) {
    let python = Python::with("clients/requirements.txt");
    let fleet = Fleet::start(&two_real_workers(), &["smollm2-a", "smollm2-b"]).await;
    let url = format!("http://{}/v1", fleet.address);
    let said = python.run(&format!("clients/{script}"), &[&url]).await;
    let passed: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("passed ")).collect();
    assert_eq!(passed, checks);
}

#[tokio::test]
async fn the_openai_client_works() {
    let checks = [
        "whole",
        "streamed",
        "stream_helper",
        "raw_response",
        "text_completion",
        "options",
        "models",
        "unknown_model",
        "bad_requests",
        "too_long",
        "not_configured",
        "leaving",
    ];
    passes("openai_sync.py", &checks).await;
}

#[tokio::test]
async fn the_asynchronous_openai_client_works() {
    passes("openai_async.py", &["concurrent_streams", "cancelled_task", "errors", "listing"]).await;
}

#[tokio::test]
async fn langchain_works() {
    let checks = [
        "invoke",
        "stream",
        "conversation",
        "chain_and_batch",
        "asynchronous",
        "text_model",
        "errors",
    ];
    passes("langchain_client.py", &checks).await;
}
