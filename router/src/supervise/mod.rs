//! The fleet: every local worker of the instance, kept running.
//!
//! Owns worker processes and the directories of the state directory that concern them. It routes nothing: the data
//! path reads [`FleetView`], operators read [`BackendStatus`]. Nothing that was started here outlives
//! [`Fleet::stop`], and what an earlier router left behind is ended first.
//!
//! `policy` decides, `keeper` acts on one backend, `process` holds one process, `board` publishes.

mod board;
mod ending;
mod events;
mod keeper;
mod launch;
mod logfile;
mod memory;
mod order;
mod policy;
mod probe;
mod process;
mod state_file;
#[cfg(test)]
mod tests;

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sanctum_shared::instance::{BackendKind, Instance};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinSet;

pub use board::{LastExit, WorkerStatus};
pub(crate) use events::describe as describe_metrics;
pub(crate) use launch::worker_program;
pub use order::{RestartError, Restarted};

use crate::fleet::{BackendState, FleetView};
use board::Board;
use keeper::{Keeper, Parts};
use launch::Launch;
use order::Order;
use policy::Policy;

/// A handle on the fleet; clones are the same fleet. When the last one is dropped every worker is killed.
#[derive(Debug, Clone)]
pub struct Fleet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    instance: Arc<Instance>,
    board: Arc<Board>,
    /// Per backend of the instance; `None` for a URL.
    orders: Vec<Option<mpsc::UnboundedSender<Order>>>,
    keepers: Mutex<JoinSet<()>>,
    /// Locked for as long as the fleet lives; the system unlocks it however we end.
    _lock: File,
}

/// Why there is no fleet.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// The state directory cannot be used.
    #[error("cannot use the state directory {}", path.display())]
    StateDir {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Two routers would end each other's workers.
    #[error("another router runs on the state directory {}", path.display())]
    Taken {
        /// The directory.
        path: PathBuf,
    },
}

/// Who runs a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// We do.
    Worker,
    /// Somebody else.
    Url,
}

/// A backend's state in a word; see [`BackendState`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words are those of BackendState")]
pub enum State {
    Starting,
    Ready,
    Down,
    Parked,
    NotConfigured,
}

/// What operators see of one backend.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BackendStatus {
    /// Its name.
    pub name: String,
    /// Who runs it.
    pub kind: Kind,
    /// How it is.
    pub state: State,
    /// Why, unless it is ready or starting.
    pub reason: Option<String>,
    /// Name of the model there.
    pub model: Option<String>,
    /// Base URL, once there is one.
    pub url: Option<String>,
    /// URLs tried after it.
    pub fallback_urls: Vec<String>,
    /// The worker, if it is one.
    pub worker: Option<WorkerStatus>,
}

impl Fleet {
    /// Ends what an earlier router left behind, then starts every worker; it does not wait until they are ready.
    ///
    /// `variable` reads the environment, for the keys of URLs.
    ///
    /// # Errors
    /// The state directory cannot be used, or another router uses it.
    pub async fn start(
        instance: &Arc<Instance>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, FleetError> {
        let (state_dir, lock) = prepare(&instance.state_dir)?;
        state_file::end_stale(&state_dir)
            .await
            .map_err(|source| FleetError::StateDir { path: state_dir.clone(), source })?;
        let board = Arc::new(Board::new(instance, variable));
        let program = worker_program(instance.worker_binary.as_deref());
        let keys: Arc<[String]> = key_variables(instance).map(str::to_owned).collect();
        let mut keepers = JoinSet::new();
        let mut orders = Vec::with_capacity(instance.backends.len());
        for (index, backend) in instance.backends.iter().enumerate() {
            let BackendKind::Worker(worker) = &backend.kind else {
                orders.push(None);
                continue;
            };
            let (order, received) = mpsc::unbounded_channel();
            let parts = Parts {
                index,
                backend: backend.name.clone(),
                launch: Launch {
                    program: program.clone(),
                    worker: worker.as_ref().clone(),
                    log: state_dir.join("logs").join(format!("{}.log", backend.name)),
                    inherited_library_path: std::env::var_os(launch::LIBRARY_PATH),
                    drain: instance.timeouts.drain,
                    withheld: Arc::clone(&keys),
                },
                rules: instance.health.clone(),
                drain: instance.timeouts.drain,
                takeover: instance.restart.takeover,
                policy: Policy::new(instance.restart.clone()),
                board: Arc::clone(&board),
                state_dir: state_dir.clone(),
                chance,
            };
            keepers.spawn(Keeper::new(parts, received).run());
            orders.push(Some(order));
        }
        let instance = Arc::clone(instance);
        let keepers = Mutex::new(keepers);
        Ok(Self(Arc::new(Inner { instance, board, orders, keepers, _lock: lock })))
    }

    /// What the data path reads.
    #[must_use]
    pub fn view(&self) -> FleetView {
        self.0.board.view()
    }

    /// What operators read, in the order of the instance.
    #[must_use]
    pub fn status(&self) -> Vec<BackendStatus> {
        let views = self.view().now();
        let backends = self.0.instance.backends.iter().enumerate().zip(views.iter());
        backends
            .map(|((index, backend), view)| {
                let (state, reason) = words(&view.state);
                let is_worker = matches!(backend.kind, BackendKind::Worker(_));
                BackendStatus {
                    name: backend.name.clone(),
                    kind: if is_worker { Kind::Worker } else { Kind::Url },
                    state,
                    reason,
                    model: view.model.as_deref().map(str::to_owned),
                    url: view.primary.as_ref().map(ToString::to_string),
                    fallback_urls: view.fallbacks.iter().map(ToString::to_string).collect(),
                    worker: is_worker.then(|| self.0.board.status(index)),
                }
            })
            .collect()
    }

    /// Replaces a backend's worker: the new one is ready before the old one stops, unless its port is fixed or
    /// memory is short. Starts it if it waits or is parked. Returns when the new one is ready.
    ///
    /// # Errors
    /// See [`RestartError`]; after [`RestartError::Failed`] an old worker that served still serves.
    pub async fn restart(&self, backend: &str) -> Result<Restarted, RestartError> {
        let index = self.0.instance.backends.iter().position(|known| known.name == backend);
        let index = index.ok_or_else(|| RestartError::Unknown(backend.to_owned()))?;
        let orders = self.0.orders[index]
            .as_ref()
            .ok_or_else(|| RestartError::NotOurs(backend.to_owned()))?;
        let (reply, answer) = oneshot::channel();
        orders.send(Order::Restart(reply)).map_err(|_| RestartError::Stopping)?;
        answer.await.unwrap_or(Err(RestartError::Stopping))
    }

    /// Ends every worker; each gets `drain` to finish what it has. Returns when none is left.
    pub async fn stop(&self, drain: Duration) {
        self.end(|| Order::Stop(drain)).await;
    }

    /// Kills every worker, also after a [`Fleet::stop`] that was given up. Returns when none is left.
    pub async fn kill(&self) {
        self.end(|| Order::Kill).await;
    }

    async fn end(&self, order: impl Fn() -> Order) {
        for orders in self.0.orders.iter().flatten() {
            // A keeper that is gone has nothing left to end.
            let _ = orders.send(order());
        }
        let mut keepers = self.0.keepers.lock().await;
        while keepers.join_next().await.is_some() {}
    }
}

/// The variables that hold keys of URLs: the router's own, no worker's business.
fn key_variables(instance: &Instance) -> impl Iterator<Item = &str> {
    instance.backends.iter().filter_map(|backend| match &backend.kind {
        BackendKind::Remote(remote) => remote.api_key_env.as_deref(),
        BackendKind::Worker(_) => None,
    })
}

fn words(state: &BackendState) -> (State, Option<String>) {
    match state {
        BackendState::Starting => (State::Starting, None),
        BackendState::Ready => (State::Ready, None),
        BackendState::Down { reason } => (State::Down, Some(reason.clone())),
        BackendState::Parked { reason } => (State::Parked, Some(reason.clone())),
        BackendState::NotConfigured { variable } => {
            (State::NotConfigured, Some(format!("the environment variable {variable} is not set")))
        }
    }
}

/// Makes the directories, and their path absolute: workers and later routers must read it the same way. Then locks
/// them against another router.
fn prepare(state_dir: &Path) -> Result<(PathBuf, File), FleetError> {
    let make = |path: &Path| {
        std::fs::create_dir_all(path.join("logs"))?;
        std::fs::create_dir_all(path.join("workers"))?;
        let path = path.canonicalize()?;
        let lock = File::create(path.join("lock"))?;
        Ok((path, lock))
    };
    let unusable = |source| FleetError::StateDir { path: state_dir.to_owned(), source };
    let (path, lock) = make(state_dir).map_err(unusable)?;
    match lock.try_lock() {
        Ok(()) => Ok((path, lock)),
        Err(TryLockError::WouldBlock) => Err(FleetError::Taken { path }),
        Err(TryLockError::Error(source)) => Err(unusable(source)),
    }
}

/// Uniform in 0..1, from the generator that also makes request ids.
fn chance() -> f64 {
    let bits = (uuid::Uuid::new_v4().as_u128() & u128::from(u32::MAX)) as u32;
    f64::from(bits) / f64::from(u32::MAX)
}
