//! One run of the router, from free ports to the last worker's end.
//!
//! Owns the order of things. Ports are bound before any worker starts, so that a second router fails at once and
//! harms nothing. `router.json` appears when everything listens and goes when the run ends. On the first signal new
//! requests are refused, running ones finish within the drain limit, then the workers stop; a second signal ends
//! everything at once.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sanctum_shared::accept::{AcceptLimits, BindError, bind, serve};
use sanctum_shared::exit;
use sanctum_shared::instance::Instance;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::admin::{self, Admin};
use crate::house::House;
use crate::supervise::{Fleet, FleetError};
use crate::{http, metrics};

/// Time between two rounds of housekeeping.
const HOUSEKEEPING: Duration = Duration::from_secs(5);
/// What operators' requests get to end after the callers' have.
const ADMIN_DRAIN: Duration = Duration::from_secs(1);
/// Operators' connections at a time; their descriptors are among those kept.
const ADMIN_CONNECTIONS: usize = 32;
/// Most descriptors kept for logs, workers, probes and the like.
const SPARE_FILES: u64 = 128;

/// A run that could not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A port is not to be had.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The supervisor could not begin.
    #[error("cannot start the fleet")]
    Fleet(#[source] FleetError),
    /// `router.json` could not be written.
    #[error("cannot write {}", path.display())]
    StateFile {
        /// Where to.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A part of this program failed at once.
    #[error("cannot set up {what}")]
    SetUp {
        /// The part.
        what: &'static str,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl RunError {
    /// The process's exit code for it.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Bind(error) => error.exit_code(),
            Self::Fleet(_) | Self::StateFile { .. } => exit::FAILURE,
            Self::SetUp { .. } => exit::INTERNAL,
        }
    }

    fn set_up(what: &'static str) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> Self {
        move |source| Self::SetUp { what, source }
    }
}

/// Serves `instance` until a signal ends it.
///
/// # Errors
/// Only before anything is served.
pub async fn run(instance: Arc<Instance>) -> Result<(), RunError> {
    let mut signals = Signals::new().map_err(|e| RunError::set_up("signals")(e.into()))?;
    let files = raise_file_limit();
    let listeners: Vec<TcpListener> =
        instance.listen.iter().map(|&address| bind(address)).collect::<Result<_, _>>()?;
    let admin_listener = bind(instance.admin)?;
    let listen = addresses(&listeners)?;
    let admin_address = addresses(std::slice::from_ref(&admin_listener))?[0];
    let recorder = metrics::install().map_err(|e| RunError::set_up("metrics")(e.into()))?;

    let fleet = Fleet::start(&instance, |name| std::env::var(name).ok().filter(|v| !v.is_empty()))
        .await
        .map_err(RunError::Fleet)?;
    let started_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let house = House::new(&instance, fleet.view(), started_unix);
    let house = Arc::new(house.map_err(|e| RunError::set_up("TLS")(e.into()))?);
    let state_file = StateFile::write(&instance.state_dir, &listen, admin_address)?;

    let limits = accept_limits(&instance, files, listeners.len());
    let (stop, stopped) = watch::channel(false);
    let mut doors = JoinSet::new();
    for listener in listeners {
        let service = http::service(house.clone());
        doors.spawn(serve(listener, service, limits.clone(), until(stopped.clone())));
    }
    let (close_admin, admin_closed) = watch::channel(false);
    let operators = Admin {
        instance: instance.clone(),
        fleet: fleet.clone(),
        metrics: Some(recorder.clone()),
        listen: listen.clone(),
        started_unix,
    };
    let admin_limits =
        AcceptLimits { drain: ADMIN_DRAIN, connections: ADMIN_CONNECTIONS, ..limits };
    let service = admin::service(operators);
    let admin_door =
        tokio::spawn(serve(admin_listener, service, admin_limits, until(admin_closed)));
    let keeping = tokio::spawn({
        let house = house.clone();
        async move {
            let mut ticks = interval(HOUSEKEEPING);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                recorder.run_upkeep();
                house.tidy();
            }
        }
    });
    tracing::info!(instance = instance.name, ?listen, admin = %admin_address, "serving");

    let name = signals.next().await;
    tracing::info!(signal = name, "draining");
    house.begin_drain();
    let _ = stop.send(true);
    let wind_down = async {
        while doors.join_next().await.is_some() {}
        let _ = close_admin.send(true);
        fleet.stop(instance.timeouts.drain).await;
        let _ = admin_door.await;
    };
    tokio::select! {
        () = wind_down => tracing::info!("ended"),
        name = signals.next() => {
            tracing::warn!(signal = name, "second signal: ending at once");
            fleet.kill().await;
        }
    }
    keeping.abort();
    drop(state_file);
    Ok(())
}

async fn until(mut stopped: watch::Receiver<bool>) {
    // The sender lives as long as the run; without it the run has ended, too.
    let _ = stopped.wait_for(|stopped| *stopped).await;
}

fn addresses(listeners: &[TcpListener]) -> Result<Vec<SocketAddr>, RunError> {
    let all: io::Result<_> = listeners.iter().map(TcpListener::local_addr).collect();
    all.map_err(|e| RunError::set_up("listeners")(e.into()))
}

/// SIGTERM and SIGINT mean the same.
struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { term: signal(SignalKind::terminate())?, int: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}

/// `router.json`: how the tools find this router. Removed when dropped.
#[derive(Debug)]
struct StateFile(PathBuf);

impl StateFile {
    fn write(dir: &Path, listen: &[SocketAddr], admin: SocketAddr) -> Result<Self, RunError> {
        let path = dir.join("router.json");
        let part = dir.join(format!("router.json.{}", std::process::id()));
        let text = json!({"pid": std::process::id(), "listen": listen, "admin": admin}).to_string();
        // Readers see all of it or nothing.
        std::fs::write(&part, text)
            .and_then(|()| std::fs::rename(&part, &path))
            .map_err(|source| RunError::StateFile { path: path.clone(), source })?;
        Ok(Self(path))
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(%error, "router.json was gone already");
        }
    }
}

/// As many open files as the system lets us have; how many those are.
fn raise_file_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return u64::MAX };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    }
}

/// The limits of each of so many listeners, with no more connections in all than there are descriptors for both sides.
fn accept_limits(instance: &Instance, files: u64, listeners: usize) -> AcceptLimits {
    let limits = &instance.limits;
    let spare = SPARE_FILES.min(files / 4);
    let affordable = usize::try_from((files - spare) / 2).unwrap_or(usize::MAX) / listeners.max(1);
    AcceptLimits {
        header_timeout: limits.header_timeout,
        idle_timeout: limits.idle,
        body_stall: limits.body_stall,
        write_stall: limits.slow_reader,
        header_bytes: limits.header_bytes,
        header_count: limits.header_count,
        connections: limits.connections.min(affordable).max(1),
        drain: instance.timeouts.drain,
        ..AcceptLimits::default()
    }
}

/// An error that ends the program, with its exit code.
pub type Fatal = (u8, Box<dyn std::error::Error + Send + Sync>);

/// [`run`] on a runtime of its own.
///
/// # Errors
/// As [`run`], and if there can be no runtime.
pub fn block_on(instance: Arc<Instance>) -> Result<(), Fatal> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| (exit::INTERNAL, error.into()))?;
    let outcome =
        runtime.block_on(run(instance)).map_err(|error| (error.exit_code(), error.into()));
    // What still runs after a second signal is not waited for.
    runtime.shutdown_background();
    outcome
}

/// Says on standard error why the program ends, causes included.
pub fn complain(error: &(dyn std::error::Error + 'static)) {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        line.push_str(": ");
        line.push_str(&inner.to_string());
        cause = inner.source();
    }
    #[expect(clippy::print_stderr, reason = "for whoever started the program, whatever the log is")]
    {
        eprintln!("{line}");
    }
}
