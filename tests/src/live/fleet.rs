//! One real `sanctum-router` with the workers it starts, and the `sanctum` that talks to it.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use super::checkpoint::smollm2;
use super::http::{Reply, get, post};
use super::poll::{PATIENCE, eventually};
use super::process::{Process, binary, is_alive};

/// A running instance.
#[derive(Debug)]
pub struct Fleet {
    /// The router.
    pub router: Process,
    /// Where callers come in.
    pub address: SocketAddr,
    /// Where operators come in.
    pub admin: SocketAddr,
    dir: TempDir,
}

/// What `sanctum` said.
#[derive(Debug)]
pub struct Said {
    /// Its exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Fleet {
    /// Starts a router on `instance` (its listeners and directories are added here) and waits for its addresses.
    ///
    /// # Panics
    /// If it ends instead.
    pub async fn spawn(instance: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("instance.yaml");
        let here = "listen: [\"127.0.0.1:0\"]\nadmin: \"127.0.0.1:0\"\nstate_dir: state\n";
        fs::write(&file, format!("name: test\n{here}{instance}")).expect("written");
        let mut command = Command::new(binary("sanctum-router"));
        let mut router = Process::start(command.arg("--instance").arg(&file));
        let state_file = dir.path().join("state/router.json");
        let (address, admin) = eventually("the router's addresses", PATIENCE, async || {
            if let Some(status) = router.ended() {
                panic!("the router ended with {status}:\n{}", router.err());
            }
            let text = fs::read(&state_file).map_err(|error| error.to_string())?;
            let state: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
            let parse = |value: &Value| value.as_str().and_then(|text| text.parse().ok());
            parse(&state["listen"][0]).zip(parse(&state["admin"])).ok_or_else(|| state.to_string())
        })
        .await;
        Self { router, address, admin, dir }
    }

    /// Starts a fleet and waits until the workers named are ready.
    pub async fn start(instance: &str, workers: &[&str]) -> Self {
        let fleet = Self::spawn(instance).await;
        for worker in workers {
            fleet.ready(worker, PATIENCE).await;
        }
        fleet
    }

    /// Waits until a backend is ready.
    pub async fn ready(&self, backend: &str, limit: Duration) {
        eventually(&format!("readiness of {backend}"), limit, async || {
            let state = self.backend(backend).await;
            if state["state"] == "ready" { Ok(()) } else { Err(state.to_string()) }
        })
        .await;
    }

    /// What the router says of a backend.
    ///
    /// # Panics
    /// If it has none of that name.
    pub async fn backend(&self, name: &str) -> Value {
        let status = self.sanctum(&["status", "--json"]).await;
        assert_eq!(status.code, 0, "{}", status.err);
        let status: Value = serde_json::from_str(&status.out).expect("JSON");
        let backends = status["backends"].as_array().expect("a list of backends");
        backends
            .iter()
            .find(|backend| backend["name"] == name)
            .expect("a backend of that name")
            .clone()
    }

    /// The process of a backend's worker.
    ///
    /// # Panics
    /// If there is none.
    pub async fn worker_pid(&self, backend: &str) -> Pid {
        let state = self.backend(backend).await;
        let pid = state["worker"]["pid"].as_i64().unwrap_or_else(|| panic!("no process: {state}"));
        Pid::from_raw(i32::try_from(pid).expect("ids fit"))
    }

    /// Runs `sanctum` on this instance.
    pub async fn sanctum(&self, args: &[&str]) -> Said {
        sanctum(&self.file(), args).await
    }

    /// The instance's file.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("instance.yaml")
    }

    /// `GET`.
    pub async fn get(&self, path: &str) -> Reply {
        get(self.address, path).await
    }

    /// `POST` of JSON.
    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        post(self.address, path, body).await
    }
}

/// An instance of two real workers on the embedded model, shaped as the one that ships: seats with personas, defaults
/// and instructions, and a cloud that is not configured.
pub fn two_real_workers() -> String {
    let model = smollm2();
    let worker = "{ worker: { model: smollm2, threads: 1, slots: 8, context: 2048, queue: 32 } }";
    format!(
        "models: {{ smollm2: {{ path: {} }} }}
backends:
  smollm2-a: {worker}
  smollm2-b: {worker}
  cloud-main: {{ url: 'https://cloud.invalid/v1', model: big, api_key_env: SANCTUM_TEST_NO_SUCH_KEY }}
seats:
  council-secure: {{ backends: [smollm2-a, smollm2-b], personas: [yoda, windu], defaults: {{ temperature: 0 }} }}
  coder: {{ backends: [smollm2-b, smollm2-a], system: 'You write code, and little else.' }}
  spatial: {{ backends: [cloud-main], fallback: [coder], defaults: {{ temperature: 0, max_tokens: 8 }} }}
  cloud: {{ backends: [cloud-main] }}
",
        model.display()
    )
}

/// Runs `sanctum` with an instance's file, to its end.
///
/// # Panics
/// If it does not end.
pub async fn sanctum(instance: &Path, args: &[&str]) -> Said {
    let mut command = Command::new(binary("sanctum"));
    command.args(args).env("SANCTUM_INSTANCE", instance);
    let mut process = Process::start(&mut command);
    process.close_input();
    let code = process.exit_code(PATIENCE).await;
    Said { code, out: process.out(), err: process.err() }
}

/// Waits until a process is gone.
pub async fn gone(pid: Pid, limit: Duration) {
    eventually(&format!("the end of process {pid}"), limit, async || {
        if is_alive(pid) { Err("alive".to_owned()) } else { Ok(()) }
    })
    .await;
}
