//! From a model directory to a model that serves: text side, weights, engine.
//!
//! Runs on a thread of its own while probes are answered already. The text side comes first: it takes milliseconds
//! and refuses most broken directories.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use sanctum_kernels::device::{MemoryLimits, set_memory_limits};
use sanctum_kernels::{Backend, BackendOptions};
use sanctum_shared::openai::models::Model as Card;
use sha2::{Digest, Sha256};

use crate::cli::ServeArgs;
use crate::engine::{self, EngineOptions, ModelInfo, StartError};
use crate::http::completions::unix_now;
use crate::http::{App, Served};
use crate::metrics;
use crate::model::{OpenOptions, open};
use crate::template::{ChatTemplate, TemplateError};
use crate::tokenize::{CheckpointText, TextTokenizer, TokenizeError};

/// Why the model does not serve.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeLoadError {
    /// There is no such directory.
    #[error("{}: there is no such model directory", .0.display())]
    NoDirectory(PathBuf),
    /// The text side is not usable.
    #[error(transparent)]
    Tokenize(#[from] TokenizeError),
    /// The chat template is not usable.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The weights or the engine are not usable.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Bytes of a mebibyte.
const MIB: usize = 1 << 20;

/// Loads what `args` name and lets `app` serve it.
pub(super) fn load(
    args: &ServeArgs,
    app: &Arc<App>,
    started_unix: u64,
) -> Result<(), ServeLoadError> {
    let begun = Instant::now();
    let dir = args.model.as_path();
    if !dir.is_dir() {
        return Err(ServeLoadError::NoDirectory(dir.to_owned()));
    }
    app.progress("tokenizer", 0.0);
    let text = CheckpointText::read(dir)?;
    let tokenizer = TextTokenizer::load(dir, &text)?;
    let template = ChatTemplate::new(&text, unix_now)?;
    if template.is_plain() {
        tracing::warn!("the checkpoint has no chat template: a plain one stands in");
    }
    let engine = start_engine(args, app)?;
    let info = engine.info();
    let card = Card {
        id: app.name.clone(),
        created: started_unix,
        owned_by: "sanctum".to_owned(),
        context_length: Some(info.context_length),
    };
    let fingerprint = fingerprint(args, info);
    let seconds = begun.elapsed().as_secs_f64();
    tracing::info!(
        model = app.name,
        model_type = info.model_type,
        quantization = info.quantization,
        context = info.context_length,
        seconds,
        "model loaded"
    );
    app.serve(Served { engine, tokenizer, template, sampling: text.sampling, fingerprint, card });
    metrics::startup_seconds("model_load", seconds);
    metrics::model_loaded(true);
    Ok(())
}

fn start_engine(args: &ServeArgs, app: &Arc<App>) -> Result<engine::EngineHandle, StartError> {
    let options = EngineOptions {
        slots: args.slots,
        queue: args.queue,
        prefill_rows: args.prefill_chunk,
        shared_rows: args.shared_chunk,
        kv_limit_bytes: (args.kv_memory_mb * MIB) as u64,
    };
    let memory = MemoryLimits {
        memory_bytes: args.metal_memory_limit_mb.map(|mb| mb * MIB),
        cache_bytes: args.metal_cache_limit_mb.map(|mb| mb * MIB),
        wired_bytes: args.metal_wired_limit_mb.map(|mb| mb * MIB),
    };
    let backend = BackendOptions { form: args.form.into(), threads: threads(args) };
    let opened =
        OpenOptions { dir: args.model.clone(), id: Some(app.name.clone()), context: args.context };
    let watched = Arc::clone(app);
    let tell = move |progress: engine::Progress| {
        watched.progress(progress.phase.name(), progress.fraction);
        // Nobody waits for a model that would only be stopped.
        if watched.is_draining() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    engine::start(&options, tell, move |progress| {
        set_memory_limits(memory)?;
        let backend = Backend::new(backend)?;
        let loaded = open(&opened, &backend, progress)?;
        Ok((loaded.model, loaded.info))
    })
}

fn threads(args: &ServeArgs) -> usize {
    args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Hex digits of the fingerprint's digest.
const FINGERPRINT_BYTES: usize = 6;

/// Says what answers: this version, this form, these weights. The digest covers the configuration and the names and
/// lengths of the weight files, not the weights: it tells models apart, it does not prove one.
fn fingerprint(args: &ServeArgs, info: &ModelInfo) -> String {
    let mut digest = Sha256::new();
    for name in ["config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"] {
        // An absent file adds nothing.
        digest.update(fs::read(args.model.join(name)).unwrap_or_default());
    }
    for (name, bytes) in weight_files(&args.model) {
        digest.update(name);
        digest.update(bytes.to_le_bytes());
    }
    let hex: String =
        digest.finalize()[..FINGERPRINT_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    let form = match args.form {
        crate::cli::FormArg::Host => "host",
        crate::cli::FormArg::Graph => "graph",
        crate::cli::FormArg::Reference => "reference",
    };
    format!("sanctum-{}-{}-{form}-{hex}", env!("CARGO_PKG_VERSION"), info.model_type)
}

fn weight_files(dir: &Path) -> Vec<(String, u64)> {
    let mut files: Vec<(String, u64)> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|ext| ext == "safetensors"))
        .filter_map(|entry| {
            let bytes = fs::metadata(entry.path()).ok()?.len();
            Some((entry.file_name().to_string_lossy().into_owned(), bytes))
        })
        .collect();
    files.sort();
    files
}
