//! A `fake-backend` under test: started, asked what it saw, ended.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use super::http::get;
use super::poll::{PATIENCE, eventually};
use super::process::{Process, binary};

/// A port on which nobody listens: binding it takes privileges, and no service has it.
const CLOSED: &str = "http://127.0.0.1:1/v1";

/// A running `fake-backend`. It behaves as the `model` of each request says; see its source.
#[derive(Debug)]
pub struct FakeBackend {
    /// Where it listens.
    pub address: SocketAddr,
    /// The process.
    pub process: Process,
}

impl FakeBackend {
    /// Starts one on a free port.
    ///
    /// # Panics
    /// If it does not come up.
    pub async fn start() -> Self {
        let process = Process::start(&mut Command::new(binary("fake-backend")));
        let address = eventually("the fake's address", PATIENCE, async || {
            let out = process.out();
            // Until the line end the number may be cut.
            let line = out.split_once('\n').map(|(line, _)| line).unwrap_or_default();
            line.parse().map_err(|_| out.clone())
        })
        .await;
        Self { address, process }
    }

    /// An instance in which each seat's backends behave as said, in that order; `refused` is a closed port,
    /// `refused+normal` a closed port with a fallback URL that behaves so.
    ///
    /// # Panics
    /// Never: writing to a string does not fail.
    pub fn instance(&self, seats: &[(&str, &[&str])]) -> String {
        let mut backends = String::from("backends:\n");
        let mut lines = String::from("seats:\n");
        for (seat, behaviours) in seats {
            let names: Vec<String> = (0..behaviours.len()).map(|n| format!("{seat}-{n}")).collect();
            for (name, behaviour) in names.iter().zip(*behaviours) {
                let (url, model) = match behaviour.strip_prefix("refused") {
                    Some(rest) => (CLOSED.to_owned(), rest.trim_start_matches('+')),
                    None => (self.url(), *behaviour),
                };
                let fallback =
                    if url == CLOSED && !model.is_empty() { self.url() } else { String::new() };
                let fallback =
                    if fallback.is_empty() { fallback } else { format!("\"{fallback}\"") };
                let model = if model.is_empty() { "nobody" } else { model };
                writeln!(
                    backends,
                    "  {name}: {{ url: \"{url}\", model: \"{model}\", fallback_urls: [{fallback}] }}"
                )
                .expect("written");
            }
            writeln!(lines, "  {seat}: {{ backends: [{}] }}", names.join(", ")).expect("written");
        }
        backends + &lines
    }

    /// The base URL.
    pub fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    /// What it saw of a behaviour: `begun`, `ended`, `left`, `fresh`, `head`, `body`.
    pub async fn saw(&self, behaviour: &str) -> Value {
        get(self.address, "/stats").await.ok()[behaviour].clone()
    }

    /// Waits until `count` requests of a behaviour have been abandoned by the router.
    pub async fn left(&self, behaviour: &str, count: u64) {
        self.counted(behaviour, "left", count).await;
    }

    /// Waits until a count of a behaviour is reached.
    pub async fn counted(&self, behaviour: &str, what: &str, count: u64) {
        eventually(&format!("{count} {what} of {behaviour}"), PATIENCE, async || {
            let seen = self.saw(behaviour).await;
            if seen[what].as_u64() >= Some(count) { Ok(()) } else { Err(seen.to_string()) }
        })
        .await;
    }
}
