//! One real `sanctum-mlx serve`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::http::{Reply, get, post, request, try_send};
use super::poll::{PATIENCE, eventually};
use super::process::{Process, binary};

/// Route of chat completions.
pub const CHAT: &str = "/v1/chat/completions";
/// Route of text completions.
pub const TEXT: &str = "/v1/completions";

/// A running worker.
#[derive(Debug)]
pub struct Worker {
    /// The process.
    pub process: Process,
    /// Where it listens.
    pub address: SocketAddr,
    dir: TempDir,
}

/// The command that serves a model on a port of the system's choice; it says where in `state_file`.
pub fn command(model: &Path, state_file: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(binary("sanctum-mlx"));
    command.arg("serve").arg("--model").arg(model).arg("--state-file").arg(state_file).args(args);
    command
}

impl Worker {
    /// Starts a worker and waits until it is ready.
    pub async fn start(model: &Path, args: &[&str]) -> Self {
        let worker = Self::spawn(model, args).await;
        eventually("readiness", PATIENCE, async || {
            let reply = try_send(
                worker.address,
                request(&http::Method::GET, "/readyz", &[], bytes::Bytes::new()),
            );
            let reply = reply.await?;
            if reply.status == 200 { Ok(()) } else { Err(reply.text()) }
        })
        .await;
        worker
    }

    /// Starts a worker and waits until it listens.
    ///
    /// # Panics
    /// If it ends instead.
    pub async fn spawn(model: &Path, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let state_file = state_file(&dir);
        let mut process = Process::start(&mut command(model, &state_file, args));
        let address = eventually("the state file", PATIENCE, async || {
            if let Some(status) = process.ended() {
                panic!("the worker ended with {status}:\n{}", process.err());
            }
            let text = std::fs::read(&state_file).map_err(|error| error.to_string())?;
            let state: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
            let address = state["address"].as_str().ok_or("no address")?;
            address.parse().map_err(|_| format!("{address} is no address"))
        })
        .await;
        Self { process, address, dir }
    }

    /// The file in which it says where it listens.
    pub fn state_file(&self) -> PathBuf {
        state_file(&self.dir)
    }

    /// `GET`.
    pub async fn get(&self, path: &str) -> Reply {
        get(self.address, path).await
    }

    /// `POST` of JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        post(self.address, path, body).await
    }

    /// Its metrics, now.
    pub async fn metrics(&self) -> Metrics {
        let reply = self.get("/metrics").await;
        assert_eq!(reply.status, 200);
        Metrics::parse(&reply.text())
    }

    /// Waits until the engine runs and holds nothing.
    pub async fn idle(&self, limit: std::time::Duration) {
        eventually("an idle engine", limit, async || {
            let state = self.get("/readyz").await.json();
            let idle = state["running"] == 0 && state["waiting"] == 0;
            if idle { Ok(()) } else { Err(state.to_string()) }
        })
        .await;
    }
}

fn state_file(dir: &TempDir) -> PathBuf {
    dir.path().join("worker.json")
}

/// The samples of a Prometheus text page, by name with labels.
#[derive(Debug, Default)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Reads a page.
    ///
    /// # Panics
    /// If a line is no sample.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let sample = |line: &str| {
            let (name, value) =
                line.rsplit_once(' ').unwrap_or_else(|| panic!("no sample: {line}"));
            let value = value.parse().unwrap_or_else(|_| panic!("no number: {line}"));
            (name.to_owned(), value)
        };
        Self(lines.map(sample).collect())
    }

    /// The sum of all samples of `name` whose labels contain every one of `labels`, written `key="value"`.
    ///
    /// # Panics
    /// If there is none.
    pub fn sum(&self, name: &str, labels: &[&str]) -> f64 {
        let fits = |key: &str| {
            let (own, rest) = key.split_at_checked(name.len()).unwrap_or((key, ""));
            own == name
                && (rest.is_empty() || rest.starts_with('{'))
                && labels.iter().all(|label| rest.contains(label))
        };
        let found: Vec<f64> =
            self.0.iter().filter(|(key, _)| fits(key)).map(|(_, value)| *value).collect();
        assert!(!found.is_empty(), "no sample of {name} with {labels:?}");
        found.iter().sum()
    }

    /// The labelled names of all samples.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}
