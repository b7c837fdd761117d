//! A `fake-backend` under test: started, asked what it saw, ended.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::Value;

use super::http::get;
use super::poll::{PATIENCE, eventually};
use super::process::{Process, binary};

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
