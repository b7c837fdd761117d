//! Starts the engine: one thread that loads the model, tries it, and then runs the step loop.

use std::io;
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;

use sanctum_kernels::{Backend, BackendOptions};

use super::step_model::StepModel;
use super::turn::{Engine, trial};
use super::{EngineHandle, EngineOptions, EngineSnapshot, ModelInfo, Phase, Progress};
use crate::load::{LoadError, LoadProgress};
use crate::model::{self, LoadedModel, OpenOptions};
use crate::schedule::Limits;

/// Most rows of the prompt that prewarming computes.
const PREWARM_ROWS: usize = 64;

/// Why there is no engine.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model directory was refused.
    #[error("the model cannot be loaded")]
    Load(#[from] LoadError),
    /// The backend refused to start.
    #[error("the backend cannot start")]
    Backend(#[from] sanctum_kernels::KernelError),
    /// The model was loaded but does not compute.
    #[error("the model cannot compute: {0}")]
    Prewarm(String),
    /// The KV cache memory holds no prompt and reply at all.
    #[error("the KV cache memory holds {positions} tokens, at least 2 are needed")]
    KvMemory {
        /// Tokens it holds.
        positions: usize,
    },
    /// The system refused a thread.
    #[error("the engine's thread cannot start")]
    Thread(#[source] io::Error),
    /// Loading panicked.
    #[error("loading the model panicked")]
    Panicked,
}

/// Starts the thread that owns MLX and returns once the model is loaded and prewarmed: seconds, for a large one, so
/// call it where waiting is allowed. `load` runs on the new thread, must create the backend there, and tells
/// its argument what fraction of the weights it has read. `progress` breaks to give up the load.
///
/// The context is cut to what the KV cache memory holds, once and here: what is advertised is what is served.
///
/// # Errors
/// If the model cannot be loaded or computes nonsense; the thread has ended then.
pub fn start<M, L>(
    options: &EngineOptions,
    progress: impl Fn(Progress) -> ControlFlow<()> + Send + 'static,
    load: L,
) -> Result<EngineHandle, StartError>
where
    M: StepModel,
    L: FnOnce(&mut LoadProgress<'_>) -> Result<(M, ModelInfo), StartError> + Send + 'static,
{
    let (started, handle) = mpsc::sync_channel(1);
    let limits = Limits::new(
        options.slots,
        options.prefill_rows,
        options.shared_rows,
        options.kv_limit_bytes,
    );
    let queue = options.queue;
    let body = move || match prepare(limits, queue, &progress, load) {
        Ok((engine, handle)) => {
            // The one who waits can only be gone if the process is ending.
            let _ = started.send(Ok(handle));
            engine.run();
        }
        Err(error) => {
            let _ = started.send(Err(error));
        }
    };
    thread::Builder::new().name("mlx".to_owned()).spawn(body).map_err(StartError::Thread)?;
    handle.recv().unwrap_or(Err(StartError::Panicked))
}

/// Starts the engine for the model in a directory: `start` with our own loader.
///
/// # Errors
/// As `start`.
pub fn start_model(
    options: &EngineOptions,
    backend: BackendOptions,
    open: OpenOptions,
    progress: impl Fn(Progress) + Send + 'static,
) -> Result<EngineHandle, StartError> {
    let tell = move |at| {
        progress(at);
        ControlFlow::Continue(())
    };
    start(options, tell, move |read| {
        let backend = Backend::new(backend)?;
        let LoadedModel { model, info } = model::open(&open, &backend, read)?;
        Ok((model, info))
    })
}

fn prepare<M: StepModel>(
    limits: Limits,
    queue: usize,
    progress: &impl Fn(Progress) -> ControlFlow<()>,
    load: impl FnOnce(&mut LoadProgress<'_>) -> Result<(M, ModelInfo), StartError>,
) -> Result<(Engine<M>, EngineHandle), StartError> {
    let tell = |phase, fraction| progress(Progress { phase, fraction });
    let (model, mut info) = load(&mut |fraction| tell(Phase::Loading, fraction))?;
    info.context_length = info.context_length.min(positions(limits.kv_bytes(), &info));
    if info.context_length < 2 {
        return Err(StartError::KvMemory { positions: info.context_length });
    }
    if tell(Phase::Prewarming, 0.0).is_break() {
        return Err(StartError::Load(LoadError::GivenUp));
    }
    let rows = PREWARM_ROWS.min(limits.step_rows(false)).min(info.context_length - 1);
    trial(&model, &info, rows).map_err(StartError::Prewarm)?;
    model.rest();
    if tell(Phase::Prewarming, 1.0).is_break() {
        return Err(StartError::Load(LoadError::GivenUp));
    }
    let state = EngineSnapshot {
        healthy: true,
        accepting: true,
        slots: limits.slots(),
        queue_limit: queue,
        kv_limit_bytes: limits.kv_bytes(),
        ..EngineSnapshot::default()
    };
    let (handle, inbox) = EngineHandle::from_parts(info.clone(), state);
    Ok((Engine::new(model, info, limits, state, inbox), handle))
}

/// Tokens whose states fit `kv_bytes`.
fn positions(kv_bytes: u64, info: &ModelInfo) -> usize {
    let fitting = kv_bytes.checked_div(info.kv_bytes_per_token).unwrap_or(u64::MAX);
    usize::try_from(fitting).unwrap_or(usize::MAX)
}
