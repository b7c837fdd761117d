//! A worker that fails is started again, or parked, and says why; other seats serve meanwhile.
//!
//! FAULTS 03, 13, 14, 15, 21. The workers are fakes, the router and its command are real.

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use sanctum_tests::live::fleet::{Fleet, gone};
use sanctum_tests::live::poll::{PATIENCE, eventually};
use serde_json::{Value, json};
use tempfile::tempdir;

/// A worker must be back and answering within this after a kill -9 (the bar).
const BACK_WITHIN: Duration = Duration::from_secs(10);

/// An instance of fake workers, each with its behaviour; a seat for each, named `seat-<backend>`.
fn instance(workers: &[(&str, &str)]) -> String {
    let fake = env!("CARGO_BIN_EXE_fake-worker");
    let mut text = format!(
        "worker_binary: {fake}\nmodels: {{ small: {{ path: none }} }}\n\
         health: {{ interval_ms: 50, timeout_ms: 300, misses: 3, bind_s: 1 }}\nbackends:\n"
    );
    for (name, keys) in workers {
        writeln!(text, "  {name}: {{ worker: {{ model: small, {keys} }} }}").expect("a string");
    }
    text.push_str("seats:\n");
    for (name, _) in workers {
        writeln!(text, "  seat-{name}: {{ backends: [{name}] }}").expect("a string");
    }
    text
}

async fn state_becomes(fleet: &Fleet, backend: &str, state: &str) -> Value {
    eventually(&format!("{backend} becomes {state}"), PATIENCE, async || {
        let found = fleet.backend(backend).await;
        if found["state"] == state { Ok(found) } else { Err(found.to_string()) }
    })
    .await
}

async fn ask(fleet: &Fleet, seat: &str) -> u16 {
    let body = json!({"model": seat, "messages": [{"role": "user", "content": "hello"}]});
    fleet.post("/v1/chat/completions", &body).await.status.as_u16()
}

fn says(backend: &Value, words: &str) {
    let said = [&backend["reason"], &backend["worker"]["last_exit"]["reason"]];
    let found = said.iter().any(|text| text.as_str().is_some_and(|text| text.contains(words)));
    assert!(found, "`{words}` is not said in {backend}");
}

#[tokio::test]
async fn a_killed_worker_is_reported_and_answers_again() {
    let fleet = Fleet::start(&instance(&[("a", "")]), &["a"]).await;
    let first = fleet.worker_pid("a").await;
    kill(first, Signal::SIGKILL).expect("it runs");
    let killed = Instant::now();
    let second = eventually("another process", BACK_WITHIN, async || {
        let found = fleet.backend("a").await;
        let pid = found["worker"]["pid"].as_i64();
        let other = pid.filter(|pid| *pid != i64::from(first.as_raw()));
        other.filter(|_| found["state"] == "ready").map(|_| found.clone()).ok_or(found.to_string())
    })
    .await;
    assert!(killed.elapsed() < BACK_WITHIN);
    says(&second, "killed by SIGKILL, which the router did not send (out of memory?)");
    assert_eq!(second["worker"]["restarts"], 1);
    assert_eq!(ask(&fleet, "seat-a").await, 200);
}

#[tokio::test]
async fn an_exit_takes_the_seat_out_at_once() {
    // A long delay before the restart leaves the state to be seen.
    let text = format!(
        "restart: {{ backoff_initial_ms: 60000, backoff_max_s: 60 }}\n{}",
        instance(&[("a", "")])
    );
    let fleet = Fleet::start(&text, &["a"]).await;
    kill(fleet.worker_pid("a").await, Signal::SIGKILL).expect("it runs");
    let down = state_becomes(&fleet, "a", "down").await;
    assert_eq!(down["worker"]["pid"], Value::Null);
    assert!(down["worker"]["next_start_unix"].is_number(), "{down}");
    assert_eq!(ask(&fleet, "seat-a").await, 503);
    // Whoever is asked in person starts it sooner.
    let said = fleet.sanctum(&["restart", "a"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(ask(&fleet, "seat-a").await, 200);
}

#[tokio::test]
async fn a_crash_loop_parks_one_worker_and_leaves_the_others_alone() {
    let rules = "restart: { backoff_initial_ms: 20, backoff_max_s: 1, jitter: 0.0, failures: 4 }\n";
    let workers = [("bad", "env: { FAKE_EXIT_CODE: '3' }"), ("good", "")];
    let fleet = Fleet::start(&format!("{rules}{}", instance(&workers)), &["good"]).await;
    let parked = state_becomes(&fleet, "bad", "parked").await;
    says(&parked, "crash loop: 4 failures, the last: it failed (exit code 3)");
    assert_eq!(parked["worker"]["restarts"], 3, "four starts in all");
    assert_eq!(ask(&fleet, "seat-good").await, 200);
    assert_eq!(ask(&fleet, "seat-bad").await, 503);
    let log = fleet.router.err();
    let delays: Vec<&str> = log.lines().filter_map(|line| line.split("delay_ms=").nth(1)).collect();
    assert_eq!(delays, ["20", "40", "80"], "growing delays in {log}");
}

#[tokio::test]
async fn a_refusal_by_the_gate_parks_at_once_until_an_operator_says_otherwise() {
    let dir = tempdir().expect("a directory");
    let once = dir.path().join("once");
    std::fs::write(&once, "").expect("written");
    let keys = format!("env: {{ FAKE_EXIT_CODE: '78', FAKE_EXIT_ONCE: '{}' }}", once.display());
    let fleet = Fleet::spawn(&instance(&[("a", &keys)])).await;
    let parked = state_becomes(&fleet, "a", "parked").await;
    says(&parked, "refused to start (exit code 78)");
    assert_eq!(parked["worker"]["restarts"], 0);
    let said = fleet.sanctum(&["restart", "a"]).await;
    assert_eq!(said.code, 0, "{}", said.err);
    assert_eq!(fleet.backend("a").await["state"], "ready");
}

#[tokio::test]
async fn a_missing_program_parks_at_once() {
    let text =
        instance(&[("a", "")]).replace(env!("CARGO_BIN_EXE_fake-worker"), "/no/such/program");
    let fleet = Fleet::spawn(&text).await;
    says(&state_becomes(&fleet, "a", "parked").await, "cannot run /no/such/program");
    let said = fleet.sanctum(&["restart", "a"]).await;
    assert_eq!(said.code, 1);
    assert!(said.err.contains("did not become ready"), "{}", said.err);
}

#[tokio::test]
async fn a_stopped_process_is_killed_and_replaced() {
    let fleet = Fleet::start(&instance(&[("a", "")]), &["a"]).await;
    let first = fleet.worker_pid("a").await;
    kill(first, Signal::SIGSTOP).expect("it runs");
    gone(first, PATIENCE).await;
    says(&state_becomes(&fleet, "a", "ready").await, "hung: 3 probes in a row unanswered");
    assert_ne!(fleet.worker_pid("a").await, first);
}

#[tokio::test]
async fn silent_probes_and_deaf_starts_count_as_failures() {
    let workers = [
        ("mute", "env: { FAKE_HANG: probes }"),
        ("deaf", "env: { FAKE_HANG: listen }"),
        ("good", ""),
    ];
    let text = format!("restart: {{ failures: 1 }}\n{}", instance(&workers));
    let fleet = Fleet::start(&text, &["good"]).await;
    says(&state_becomes(&fleet, "mute", "parked").await, "hung: 3 probes in a row unanswered");
    says(&state_becomes(&fleet, "deaf", "parked").await, "did not listen in time");
}

#[tokio::test]
async fn a_worker_that_loads_is_starting_and_says_how_far_it_is() {
    let fleet = Fleet::spawn(&instance(&[("a", "env: { FAKE_READY_AFTER_MS: '1500' }")])).await;
    let loading = eventually("a phase", PATIENCE, async || {
        let found = fleet.backend("a").await;
        if found["worker"]["phase"] == "model_load" { Ok(found) } else { Err(found.to_string()) }
    })
    .await;
    assert_eq!(loading["state"], "starting");
    let progress = loading["worker"]["progress"].as_f64().expect("a progress");
    assert!((0.0..1.0).contains(&progress), "{progress}");
    let ready = state_becomes(&fleet, "a", "ready").await;
    assert_eq!(ready["worker"]["phase"], Value::Null);
    assert_eq!(
        ready["worker"]["restarts"], 0,
        "loading is no failure, however long the probes say no"
    );
}

#[tokio::test]
async fn a_taken_port_is_one_clear_line_and_no_storm() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("bound").port();
    let rules = "restart: { backoff_initial_ms: 10, failures: 3 }\n";
    let text = format!("{rules}{}", instance(&[("a", &format!("port: {port}")), ("b", "")]));
    let fleet = Fleet::start(&text, &["b"]).await;
    let parked = state_becomes(&fleet, "a", "parked").await;
    says(&parked, "found its port taken (exit code 69)");
    assert_eq!(parked["worker"]["restarts"], 2);
    assert_eq!(ask(&fleet, "seat-b").await, 200);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn limits_of_the_instance_hold_for_the_process() {
    let keys = "open_files: 128, address_space_mb: 4096";
    let fleet = Fleet::start(&instance(&[("a", keys)]), &["a"]).await;
    let pid = fleet.worker_pid("a").await;
    let limits = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("limits"))
        .expect("the process's limits");
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).expect("a known limit");
        line[name.len()..].split_whitespace().next().map(str::to_owned)
    };
    assert_eq!(limit("Max open files").as_deref(), Some("128"));
    assert_eq!(limit("Max address space").as_deref(), Some("4294967296"));
}
