//! What every request may look at: the model once it serves, the progress until then, limits, the registry of metrics.
//!
//! Probes read only this: never the engine's queue, never the disk.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use metrics_exporter_prometheus::PrometheusHandle;
use sanctum_shared::openai::error::ApiError;
use sanctum_shared::openai::json::JsonLimits;
use sanctum_shared::openai::models::Model;
use tokio::sync::Semaphore;

use crate::engine::EngineHandle;
use crate::template::ChatTemplate;
use crate::tokenize::{SamplingDefaults, TextTokenizer};

/// What one process puts up with.
#[derive(Debug, Clone, Copy)]
pub struct HttpLimits {
    /// Largest request body, in bytes.
    pub body_bytes: usize,
    /// What a JSON body may hold.
    pub json: JsonLimits,
    /// Requests whose text is prepared (checked, templated, tokenised) at the same time.
    pub preparing: usize,
}

/// A model that serves.
#[derive(Debug)]
pub struct Served {
    /// The engine.
    pub engine: EngineHandle,
    /// Its tokenizer.
    pub tokenizer: TextTokenizer,
    /// Its chat template.
    pub template: ChatTemplate,
    /// Its authors' sampling parameters.
    pub sampling: SamplingDefaults,
    /// `system_fingerprint` of every reply.
    pub fingerprint: String,
    /// How it is listed.
    pub card: Model,
}

/// How far the load has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Loading {
    /// What is being done.
    pub phase: String,
    /// 0 to 1.
    pub progress: f32,
}

/// The state shared by all handlers.
#[derive(Debug)]
pub struct App {
    /// The name that requests use.
    pub name: String,
    /// The limits.
    pub limits: HttpLimits,
    /// What `/metrics` renders.
    pub metrics: PrometheusHandle,
    /// One permit per generation whose text is being prepared.
    preparing: Arc<Semaphore>,
    /// One permit per text that is tokenised or detokenised for its own sake: a long one must not hold up replies.
    tokenizing: Arc<Semaphore>,
    /// The model directory's base name, which also names it.
    base_name: Option<String>,
    loading: Mutex<Loading>,
    served: OnceLock<Served>,
    draining: AtomicBool,
}

/// The name by which every worker answers, whatever it serves.
const ANY: &str = "default";

/// Texts tokenised or detokenised at the same time for their own sake.
const TOKENIZING: usize = 1;

/// Wait advised to clients while the model loads, in seconds.
const LOADING_RETRY_S: u32 = 5;
/// Wait advised to clients while the process stops, in seconds.
const DRAINING_RETRY_S: u32 = 2;

impl App {
    /// The state of a process that will serve the checkpoint in `dir` under `name`.
    pub fn new(name: String, dir: &Path, limits: HttpLimits, metrics: PrometheusHandle) -> Self {
        Self {
            name,
            limits,
            metrics,
            preparing: Arc::new(Semaphore::new(limits.preparing.max(1))),
            tokenizing: Arc::new(Semaphore::new(TOKENIZING)),
            base_name: dir.file_name().map(|name| name.to_string_lossy().into_owned()),
            loading: Mutex::new(Loading { phase: "starting".into(), progress: 0.0 }),
            served: OnceLock::new(),
            draining: AtomicBool::new(false),
        }
    }

    /// Reports how far the load has come.
    pub fn progress(&self, phase: &str, progress: f32) {
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        *loading = Loading { phase: phase.to_owned(), progress: progress.clamp(0.0, 1.0) };
    }

    /// How far the load has come.
    pub fn loading(&self) -> Loading {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The model begins to serve. A second call changes nothing.
    pub fn serve(&self, served: Served) {
        // The only caller sets it once.
        let _ = self.served.set(served);
    }

    /// No new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Whether new requests are refused.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// The model, if it is loaded; it may be draining.
    pub fn loaded(&self) -> Option<&Served> {
        self.served.get()
    }

    /// The model, for a new request.
    pub fn admit(&self) -> Result<&Served, ApiError> {
        if self.is_draining() {
            return Err(shutting_down());
        }
        self.loaded().ok_or_else(|| {
            ApiError::unavailable(
                "model_loading",
                "The model is still loading.",
                Some(LOADING_RETRY_S),
            )
        })
    }

    /// Refuses a request for another model than the one served.
    pub fn check_model(&self, asked: Option<&str>) -> Result<(), ApiError> {
        match asked {
            None | Some("" | ANY) => Ok(()),
            Some(asked) if asked == self.name || Some(asked) == self.base_name.as_deref() => Ok(()),
            Some(asked) => Err(ApiError::model_not_found(asked)),
        }
    }

    /// Prepares a generation by `work` off the async threads, a bounded number at a time.
    pub async fn prepare<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.bounded(&self.preparing, work).await
    }

    /// Tokenises or detokenises by `work`, likewise.
    pub async fn tokenize<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.bounded(&self.tokenizing, work).await
    }

    async fn bounded<T: Send + 'static>(
        self: &Arc<Self>,
        permits: &Arc<Semaphore>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        // The semaphore is never closed.
        let permit = Arc::clone(permits).acquire_owned().await.map_err(|_| shutting_down())?;
        let app = Arc::clone(self);
        let work = move || {
            // Held by the work and not by who waits for it: a client that leaves does not end the work.
            let _permit = permit;
            work(&app)
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| {
            tracing::error!(error = %panic, "preparing a request failed");
            Err(ApiError::internal("The request could not be prepared."))
        })
    }
}

/// 503 of a process that stops.
pub fn shutting_down() -> ApiError {
    ApiError::unavailable("shutting_down", "The server is shutting down.", Some(DRAINING_RETRY_S))
}
