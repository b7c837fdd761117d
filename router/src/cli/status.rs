//! `sanctum status`: the fleet at a glance.

use std::io::{self, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use super::call::Caller;
use super::table::{Table, span};
use super::{CliError, Router, find};
use crate::admin::{SeatState, Status};
use crate::supervise::{BackendStatus, State};

pub(super) async fn run(router: &Router, json: bool) -> Result<(), CliError> {
    let url = find::admin_url(router.admin.as_deref(), &router.instance)?;
    let url = format!("{url}/admin/status");
    let body = Caller::new(None)?.look(&url).await?;
    let mut out = io::stdout().lock();
    if json {
        out.write_all(&body)?;
        writeln!(out)?;
        return Ok(());
    }
    let status: Status = serde_json::from_slice(&body)
        .map_err(|source| CliError::Nonsense { url: url.clone(), source })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    out.write_all(show(&status, now).as_bytes())?;
    Ok(())
}

fn show(status: &Status, now_unix: u64) -> String {
    let listen: Vec<String> = status.listen.iter().map(ToString::to_string).collect();
    let mut seats = Table::new(&["SEAT", "STATE", "ALSO KNOWN AS", "ANSWERED BY"]);
    for seat in &status.seats {
        let aliases: Vec<&str> =
            seat.personas.iter().chain(&seat.second_model).map(String::as_str).collect();
        let state = match seat.state {
            SeatState::Ready => "ready",
            SeatState::Fallback => "fallback",
            SeatState::Down => "down",
        };
        seats.row(vec![
            seat.name.clone(),
            state.to_owned(),
            or_dash(aliases.join(", ")),
            seat.candidates.join(", "),
        ]);
    }
    let mut backends =
        Table::new(&["BACKEND", "STATE", "MODEL", "PID", "UP", "RESTARTS", "REMARKS"]);
    for backend in &status.backends {
        backends.row(backend_row(backend, now_unix));
    }
    format!(
        "{} (router {}, pid {}, up {}) on {}\n\n{}\n{}",
        status.name,
        status.version,
        status.pid,
        span(status.uptime_s),
        listen.join(", "),
        seats.lines(),
        backends.lines()
    )
}

fn backend_row(backend: &BackendStatus, now_unix: u64) -> Vec<String> {
    let state = match backend.state {
        State::Starting => "starting",
        State::Ready => "ready",
        State::Down => "down",
        State::Parked => "parked",
        State::NotConfigured => "not configured",
    };
    let worker = backend.worker.as_ref();
    let field = |value: Option<String>| or_dash(value.unwrap_or_default());
    vec![
        backend.name.clone(),
        state.to_owned(),
        field(backend.model.clone()),
        field(worker.and_then(|worker| worker.pid).map(|pid| pid.to_string())),
        field(
            worker
                .and_then(|worker| worker.started_unix)
                .map(|started| span(now_unix.saturating_sub(started))),
        ),
        field(worker.map(|worker| worker.restarts.to_string())),
        remarks(backend, now_unix),
    ]
}

/// What an operator should know beyond the state: why it is so, or what happened last.
fn remarks(backend: &BackendStatus, now_unix: u64) -> String {
    let mut remarks = Vec::new();
    if let Some(reason) = &backend.reason {
        remarks.push(reason.clone());
    }
    if let Some(worker) = &backend.worker {
        if let Some(phase) = &worker.phase {
            let progress = worker.progress.map(|done| format!(" {:.0} %", done * 100.0));
            remarks.push(format!("{phase}{}", progress.unwrap_or_default()));
        }
        if let Some(next) = worker.next_start_unix {
            let wait = (next - now_unix as f64).max(0.0);
            remarks.push(format!("starts again in {wait:.0} s"));
        }
        if let Some(exit) = worker.last_exit.as_ref().filter(|_| backend.reason.is_none()) {
            let ago = span(now_unix.saturating_sub(exit.at_unix));
            remarks.push(format!("{ago} ago it {}", exit.reason));
        }
    } else if let Some(url) = &backend.url {
        remarks.push(url.clone());
    }
    remarks.join("; ")
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_says_what_an_operator_asks_first() {
        let status = serde_json::json!({
            "name": "home", "file": "i.yaml", "version": "0.1.0", "pid": 7, "uptime_s": 3700,
            "listen": ["127.0.0.1:8900"],
            "seats": [
                {"name": "council", "state": "ready", "personas": ["yoda"], "candidates": ["a", "coder/b"], "second_model": null},
                {"name": "cloud", "state": "down", "personas": [], "candidates": ["far"], "second_model": "big"}],
            "backends": [
                {"name": "a", "kind": "worker", "state": "ready", "reason": null, "model": "small", "url": "http://127.0.0.1:1/v1", "fallback_urls": [],
                 "worker": {"pid": 8, "address": "127.0.0.1:1", "phase": null, "progress": null, "started_unix": 900, "restarts": 1,
                            "last_exit": {"reason": "failed (exit code 1)", "at_unix": 880}, "next_start_unix": null}},
                {"name": "far", "kind": "url", "state": "not_configured", "reason": "the environment variable K is not set", "model": null,
                 "url": "https://far/v1", "fallback_urls": [], "worker": null}],
        });
        let status: Status = serde_json::from_value(status).expect("a status");
        let expected = "\
home (router 0.1.0, pid 7, up 1h01m) on 127.0.0.1:8900

SEAT     STATE  ALSO KNOWN AS  ANSWERED BY
council  ready  yoda           a, coder/b
cloud    down   big            far

BACKEND  STATE           MODEL  PID  UP     RESTARTS  REMARKS
a        ready           small  8    1m40s  1         2m00s ago it failed (exit code 1)
far      not configured  -      -    -      -         the environment variable K is not set; https://far/v1
";
        assert_eq!(show(&status, 1000), expected);
    }
}
