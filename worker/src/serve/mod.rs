//! `sanctum-mlx serve`: the life of a worker process.
//!
//! Bind first, answer `/livez` at once, load in the background, serve, drain, end. Owns the order of these, the exit
//! code and the state file. It refuses nothing itself: what is refused is said by the room that refuses it, in one
//! line, and decides the exit code here.

mod load;
mod state_file;
mod stop;

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sanctum_shared::accept::{self, AcceptLimits};
use sanctum_shared::openai::json::JsonLimits;
use sanctum_shared::{exit, log};
use tokio::sync::{oneshot, watch};
use tokio::time::{interval, sleep, timeout};

use crate::cli::{LogArg, ServeArgs, complain};
use crate::engine::StartError;
use crate::http::completions::unix_now;
use crate::http::{App, HttpLimits, router};
use crate::load::LoadError;
use crate::metrics;
use load::{ServeLoadError, load};
use state_file::{State, StateFile};
use stop::{Stop, reached, watch_for_stop};

/// Threads that move bytes; the computing ones are the engine's.
const HTTP_THREADS: usize = 2;
/// Requests whose text is prepared at the same time.
const PREPARING: usize = 2;
/// How often the metrics' samples are folded together while nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);
/// What connections get beyond the drain limit, to hear that their replies were given up.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How long a load that is given up may take to end: it notices between two tensors.
const LOAD_END: Duration = Duration::from_secs(5);
/// How long the engine's thread may take to end after the last reply.
const ENGINE_END: Duration = Duration::from_secs(5);

/// Serves until told to stop; the result is the process's exit code.
pub fn run(args: &ServeArgs) -> u8 {
    let format = match args.log_format {
        LogArg::Text => log::Format::Text,
        LogArg::Json => log::Format::Json,
    };
    if let Err(error) = log::init(format, std::env::var(log::LEVEL_VARIABLE).ok().as_deref()) {
        complain(&error);
        return exit::CONFIG;
    }
    let recorder = match metrics::recorder() {
        Ok(recorder) => recorder,
        Err(error) => {
            complain(&error);
            return exit::INTERNAL;
        }
    };
    let registry = recorder.handle();
    if let Err(error) = ::metrics::set_global_recorder(recorder) {
        complain(&error);
        return exit::INTERNAL;
    }
    metrics::begin();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(HTTP_THREADS)
        .thread_name("http")
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            complain(&error);
            return exit::TEMPORARY;
        }
    };
    let limits = HttpLimits {
        body_bytes: args.body_limit_mb << 20,
        json: JsonLimits::default(),
        preparing: PREPARING,
    };
    let name = args.name.clone().unwrap_or_else(|| name_of(&args.model));
    let app = Arc::new(App::new(name, &args.model, limits, registry));
    let code = runtime.block_on(live(args, &app));
    // Text that is still being prepared belongs to clients who have left.
    runtime.shutdown_background();
    code
}

fn name_of(dir: &Path) -> String {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    absolute.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

async fn live(args: &ServeArgs, app: &Arc<App>) -> u8 {
    let started_unix = unix_now();
    let stop = match watch_for_stop(args.exit_with_parent) {
        Ok(stop) => stop,
        Err(error) => {
            complain(&error);
            return exit::INTERNAL;
        }
    };
    let listener = match accept::bind(args.listen) {
        Ok(listener) => listener,
        Err(error) => {
            complain(&error);
            return error.exit_code();
        }
    };
    let address = listener.local_addr().unwrap_or(args.listen);
    let state = State { pid: std::process::id(), address, model: app.name.clone(), started_unix };
    let written = args.state_file.as_deref().map(|path| StateFile::write(path, &state)).transpose();
    let _state_file = match written {
        Ok(file) => file,
        Err(error) => {
            complain(&error);
            return io_exit_code(&error).unwrap_or(exit::CONFIG);
        }
    };
    tracing::info!(%address, model = app.name, pid = state.pid, "listening");

    let drain = Duration::from_secs(args.drain_seconds);
    let accept_limits = AcceptLimits {
        connections: args.connections,
        drain: drain + LAST_WORDS,
        ..AcceptLimits::default()
    };
    let draining = {
        let (app, stop) = (Arc::clone(app), stop.clone());
        async move {
            reached(stop, Stop::Drain).await;
            tracing::info!("stopping: no new requests, running ones finish");
            app.drain();
            if let Some(served) = app.loaded() {
                served.engine.shutdown();
            }
        }
    };
    let serving = accept::serve(listener, router(Arc::clone(app)), accept_limits, draining);
    let (load_ends, load_ended) = oneshot::channel();
    let code = tokio::select! {
        report = serving => {
            tracing::info!(connections = report.accepted, cut = report.cut, "stopped");
            exit::OK
        }
        () = reached(stop.clone(), Stop::Now) => {
            tracing::info!("stopped at once");
            exit::OK
        }
        code = broken(args, app, started_unix, load_ends) => code,
        () = give_up(app, stop, drain) => exit::INTERNAL,
        () = upkeep(app) => exit::INTERNAL,
    };
    // However it came here, a load under way is not wanted any more.
    app.drain();
    // The sender is dropped when the load's thread ends, or was never there.
    if timeout(LOAD_END, load_ended).await.is_err() {
        tracing::warn!("the load did not end in time");
    }
    end_engine(app).await;
    code
}

/// Loads the model and watches over it; completes only with a reason to end the process.
/// `ends` is dropped when the thread that loads has ended.
async fn broken(
    args: &ServeArgs,
    app: &Arc<App>,
    started_unix: u64,
    ends: oneshot::Sender<()>,
) -> u8 {
    let (send, loaded) = oneshot::channel();
    let (args, loading) = (args.clone(), Arc::clone(app));
    let spawned = thread::Builder::new().name("load".into()).spawn(move || {
        // The receiver is gone only if the process is ending.
        let _ = send.send(load(&args, &loading, started_unix));
        drop(ends);
    });
    if let Err(error) = spawned {
        complain(&error);
        return exit::TEMPORARY;
    }
    match loaded.await {
        Ok(Ok(())) => {}
        Ok(Err(ServeLoadError::Start(StartError::Load(LoadError::GivenUp)))) => {
            // Only a process that stops gives up: the accept loop has the last word.
            return std::future::pending().await;
        }
        Ok(Err(error)) => {
            complain(&error);
            return load_exit_code(&error);
        }
        Err(_) => {
            tracing::error!("the load panicked");
            return exit::INTERNAL;
        }
    }
    match app.loaded() {
        Some(served) => served.engine.closed().await,
        None => return exit::INTERNAL,
    }
    if app.is_draining() {
        // It ended because it was told to: the accept loop has the last word.
        return std::future::pending().await;
    }
    tracing::error!("the engine ended unasked");
    // The replies that it failed are still to be told so.
    sleep(LAST_WORDS).await;
    exit::INTERNAL
}

/// A model that cannot be loaded will not load the next time either, unless the system was at fault.
fn load_exit_code(error: &ServeLoadError) -> u8 {
    if let Some(code) = io_exit_code(error) {
        return code;
    }
    match error {
        ServeLoadError::NoDirectory(_)
        | ServeLoadError::Tokenize(_)
        | ServeLoadError::Template(_) => exit::CONFIG,
        ServeLoadError::Start(
            StartError::Load(_) | StartError::Prewarm(_) | StartError::KvMemory { .. },
        ) => exit::CONFIG,
        ServeLoadError::Start(StartError::Backend(_)) => exit::UNAVAILABLE,
        ServeLoadError::Start(StartError::Thread(_)) => exit::TEMPORARY,
        ServeLoadError::Start(StartError::Panicked) => exit::INTERNAL,
    }
}

/// What an error that the system caused means: what is wrong with the files stays wrong, all else (a full disk, no
/// descriptors left, a failed read) may pass. `None` if the system had no part in it.
fn io_exit_code(error: &(dyn Error + 'static)) -> Option<u8> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(match error.kind() {
                ErrorKind::NotFound
                | ErrorKind::PermissionDenied
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::InvalidInput
                | ErrorKind::InvalidData
                | ErrorKind::UnexpectedEof
                | ErrorKind::ReadOnlyFilesystem => exit::CONFIG,
                _ => exit::TEMPORARY,
            });
        }
        cause = error.source();
    }
    None
}

/// At the drain limit, ends the replies that still run with an error event, rather than with a cut connection.
/// Never completes.
async fn give_up(app: &App, stop: watch::Receiver<Stop>, drain: Duration) {
    reached(stop, Stop::Drain).await;
    sleep(drain).await;
    if let Some(served) = app.loaded() {
        served.engine.stop_now();
    }
    std::future::pending::<()>().await;
}

async fn upkeep(app: &App) {
    let mut tick = interval(UPKEEP);
    loop {
        tick.tick().await;
        app.metrics.run_upkeep();
    }
}

/// Waits for the engine's thread, so that MLX is not torn down under its feet.
async fn end_engine(app: &App) {
    let Some(served) = app.loaded() else { return };
    served.engine.stop_now();
    if timeout(ENGINE_END, served.engine.closed()).await.is_err() {
        tracing::warn!("the engine did not end in time");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn unreadable(source: io::Error) -> ServeLoadError {
        let error = LoadError::Read { path: PathBuf::from("model.safetensors"), source };
        ServeLoadError::Start(StartError::Load(error))
    }

    #[test]
    fn only_faults_that_may_pass_are_tried_again() {
        // ENOSPC, EMFILE and EIO by their numbers, which Linux and macOS share.
        for number in [28, 24, 5] {
            let error = unreadable(io::Error::from_raw_os_error(number));
            assert_eq!(load_exit_code(&error), exit::TEMPORARY, "{number}");
        }
        for kind in [ErrorKind::NotFound, ErrorKind::PermissionDenied] {
            assert_eq!(load_exit_code(&unreadable(kind.into())), exit::CONFIG, "{kind}");
        }
        let damaged =
            LoadError::File { path: PathBuf::from("config.json"), why: "is empty".into() };
        let damaged = ServeLoadError::Start(StartError::Load(damaged));
        assert_eq!(load_exit_code(&damaged), exit::CONFIG);
        let panicked = ServeLoadError::Start(StartError::Panicked);
        assert_eq!(load_exit_code(&panicked), exit::INTERNAL);
    }
}
