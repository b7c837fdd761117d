//! The command line of the benchmark.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Args;
use sanctum_kernels::BackendOptions;

use super::measure::SHORT_PROMPT_TOKENS;
use super::{BenchError, BenchOptions, measure};
use crate::cli::FormArg;
use crate::engine::{EngineOptions, start_model};
use crate::model::OpenOptions;

/// What `bench` can be told.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Model directory.
    #[arg(long, env = "SANCTUM_MLX_MODEL", value_name = "DIR")]
    model: PathBuf,
    /// How the blocks compute.
    #[arg(long, env = "SANCTUM_MLX_FORM", default_value = "host")]
    form: FormArg,
    /// Threads that compute [default: all cores].
    #[arg(long, env = "SANCTUM_MLX_THREADS")]
    threads: Option<usize>,
    /// Tokens of the prompt whose prefill is measured.
    #[arg(long, default_value_t = 512)]
    prompt_tokens: usize,
    /// Tokens that a decoding request generates.
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// Requests at once.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    batch: Vec<usize>,
    /// Times that everything is measured.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark and prints its report.
///
/// # Errors
/// If the model cannot be started or a request fails.
pub fn run(args: &BenchArgs) -> Result<(), BenchError> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or_else(cores);
    let slots = args.batch.iter().copied().max().unwrap_or(1).max(1);
    let options = EngineOptions { slots, queue: slots, ..EngineOptions::default() };
    let open = OpenOptions { dir: args.model.clone(), id: None, context: None };
    let backend = BackendOptions { form: args.form.into(), threads };
    let engine = start_model(&options, backend, open, |_| {})?;
    let context = engine.info().context_length;
    let fits =
        |tokens: usize, beside: usize| tokens.clamp(1, context.saturating_sub(beside).max(1));
    let measured = BenchOptions {
        prompt_tokens: fits(args.prompt_tokens, 1),
        tokens: fits(args.tokens, SHORT_PROMPT_TOKENS),
        batches: args.batch.clone(),
        rounds: args.rounds.max(1),
    };
    let outcome = measure(&engine, &measured);
    engine.end();
    let mut report = outcome?;
    report.threads = threads;
    report.form = match args.form {
        FormArg::Host => "host",
        FormArg::Graph => "graph",
        FormArg::Reference => "reference",
    };
    let text = if args.json {
        format!("{}\n", serde_json::to_string(&report).map_err(io::Error::from)?)
    } else {
        report.to_string()
    };
    Ok(io::stdout().write_all(text.as_bytes())?)
}
