//! `instance.yaml`: the one description of an instance, and the [`Instance`] that is left once nothing in it can be wrong.
//!
//! Owns the file's keys, defaults, ranges and cross-references. Anything unknown, ambiguous or without effect is
//! refused with `file:line:column`, and all such places are reported together. It opens no port, reads no
//! environment variable and looks at no other file: those may change while the instance runs.
//!
//! In order: `node` (text → tree), `fields` (one section, key by key), `file` (tree → [`file::File`] as written),
//! `address` (sockets and URLs), `resolve` (names → [`Instance`]).

mod address;
mod fields;
mod file;
mod node;
mod problem;
mod resolve;
mod seats;
mod settings;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::Uri;

pub use problem::{InstanceError, Pos, Problem, Problems};
pub use seats::{Candidate, Defaults, Seat, SecondModel, Target};
pub use settings::{Health, Limits, Restart, Timeouts};

/// A whole instance, parsed: every name resolves, no port clashes, every number is in range.
#[derive(Debug, Clone)]
pub struct Instance {
    /// What the operator calls it.
    pub name: String,
    /// The file it came from.
    pub file: PathBuf,
    /// Addresses the router serves; port 0 means any free port. Never empty.
    pub listen: Vec<SocketAddr>,
    /// Address of the admin listener; always loopback.
    pub admin: SocketAddr,
    /// Directory of `router.json`, `logs/` and `workers/`; absolute if the file's path was.
    pub state_dir: PathBuf,
    /// The worker program; `None` means `sanctum-mlx` beside the running executable, then in PATH.
    pub worker_binary: Option<PathBuf>,
    /// Backends in the order written. Seats share these very objects.
    pub backends: Vec<Arc<Backend>>,
    /// Seats in the order written. Never empty.
    pub seats: Vec<Arc<Seat>>,
    /// When and how often a failed worker is started again.
    pub restart: Restart,
    /// How workers are probed.
    pub health: Health,
    /// How long the router waits for what.
    pub timeouts: Timeouts,
    /// What a caller may send.
    pub limits: Limits,
}

/// Where a seat's requests may go.
#[derive(Debug, Clone, PartialEq)]
pub struct Backend {
    /// Its name: unique, and fit for a file name, a header and a metric label.
    pub name: String,
    /// A worker of our own, or somebody's URL.
    pub kind: BackendKind,
    /// Other URLs that offer the same model, tried in this order. Base URLs, such as `http://host:8000/v1`.
    pub fallback_urls: Vec<Uri>,
}

/// What stands behind a backend.
#[derive(Debug, Clone, PartialEq)]
pub enum BackendKind {
    /// A process that the router starts and watches.
    Worker(Box<Worker>),
    /// An OpenAI-compatible server that somebody else runs.
    Remote(Remote),
}

/// A worker process to start. `None` leaves the worker its own default.
#[derive(Debug, Clone, PartialEq)]
pub struct Worker {
    /// The model it serves.
    pub model: Arc<Model>,
    /// Compute threads.
    pub threads: Option<u32>,
    /// Requests decoded together.
    pub slots: Option<u32>,
    /// Positions per request, in tokens; the worker's own setting before the model's.
    pub context: Option<u32>,
    /// Requests that may wait for a slot.
    pub queue: Option<u32>,
    /// Port on loopback; 0 means any free port.
    pub port: u16,
    /// Environment variables set for it, over those of the router.
    pub env: BTreeMap<String, String>,
    /// Further flags for `sanctum-mlx serve`, as given.
    pub args: Vec<String>,
    /// Directory of another libmlx (the CUDA build); put first on the dynamic loader's path.
    pub library_path: Option<PathBuf>,
    /// Most address space of the process, in MiB (RLIMIT_AS).
    pub address_space_mb: Option<u64>,
    /// Most open files of the process (RLIMIT_NOFILE).
    pub open_files: Option<u64>,
}

/// A model on this machine's disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// The name it is served under.
    pub name: String,
    /// Directory in MLX format; relative ones are relative to the instance file.
    pub path: PathBuf,
    /// Positions per request, in tokens; `None` means the checkpoint's own.
    pub context: Option<u32>,
}

/// An OpenAI-compatible server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// Base URL, such as `https://api.openai.com/v1`, without a trailing slash.
    pub url: Uri,
    /// Name of the model there; `None` forwards the name that the caller gave.
    pub model: Option<String>,
    /// Environment variable that holds the key. Unset at start, the backend is "not configured" and never called.
    pub api_key_env: Option<String>,
}

impl Instance {
    /// Reads and checks `path`.
    ///
    /// # Errors
    /// [`InstanceError::Read`] if the file cannot be read, [`InstanceError::Invalid`] with every place that is wrong.
    pub fn load(path: &Path) -> Result<Self, InstanceError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| InstanceError::Read { path: path.to_owned(), source })?;
        Self::parse(&text, path)
    }

    /// Checks `text` as if it were the contents of `path`.
    ///
    /// # Errors
    /// [`InstanceError::Invalid`] with every place that is wrong.
    pub fn parse(text: &str, path: &Path) -> Result<Self, InstanceError> {
        let mut problems = Problems::new(path);
        let file = node::parse(text, &mut problems)
            .and_then(|root| file::File::read(&root, &mut problems));
        let instance = file.and_then(|file| resolve::resolve(file, path, &mut problems));
        match instance {
            Some(instance) if problems.is_empty() => Ok(instance),
            _ => Err(InstanceError::Invalid(problems.sorted())),
        }
    }

    /// What a request for `model` means here: a seat's name, a persona's, or a second model's.
    #[must_use]
    pub fn target(&self, model: &str) -> Option<Target<'_>> {
        self.seats.iter().find_map(|seat| seat.target(model))
    }

    /// Every name that `/v1/models` lists, in the order of the file: seats, each followed by its personas and second model.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.seats.iter().flat_map(|seat| seat.names())
    }
}

impl Worker {
    /// Positions per request that apply, in tokens: the worker's setting, else the model's.
    #[must_use]
    pub fn context(&self) -> Option<u32> {
        self.context.or(self.model.context)
    }
}
