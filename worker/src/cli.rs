//! The command line of `sanctum-mlx`: names, defaults and environment variables of everything that can be set.
//!
//! Every flag has a variable `SANCTUM_MLX_…`; a flag outranks it. `serve` may be left out. What a command does is in
//! the room it belongs to; here is only which one, and its exit code.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sanctum_kernels::Form;
use sanctum_shared::{exit, limits};

use crate::{bench, doctor, import, parity, serve};

/// One process, one model, one device: a worker of the Sanctum fleet.
#[derive(Debug, Parser)]
#[command(name = "sanctum-mlx", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve one model over HTTP (the default).
    Serve(Box<ServeArgs>),
    /// Turn a GGUF file into a model directory.
    Import(import::ImportArgs),
    /// Compare logits and greedy tokens with a stored reference.
    Parity(parity::ParityArgs),
    /// Measure how fast this host runs a model.
    Bench(bench::BenchArgs),
    /// Say what this host computes on.
    Doctor(DoctorArgs),
}

/// What `serve` can be told.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Model directory: config.json, safetensors, tokenizer.json.
    #[arg(long, env = "SANCTUM_MLX_MODEL", value_name = "DIR")]
    pub model: PathBuf,
    /// Address to listen on; port 0 lets the system choose.
    #[arg(long, env = "SANCTUM_MLX_LISTEN", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Name that requests use [default: the directory's name].
    #[arg(long, env = "SANCTUM_MLX_NAME")]
    pub name: Option<String>,
    /// Threads that compute [default: all cores].
    #[arg(long, env = "SANCTUM_MLX_THREADS", value_parser = at_least_one)]
    pub threads: Option<usize>,
    /// How the blocks compute.
    #[arg(long, env = "SANCTUM_MLX_FORM", default_value = "host")]
    pub form: FormArg,
    /// Most tokens of prompt and completion together [default: the model's own limit].
    #[arg(long, env = "SANCTUM_MLX_CONTEXT", value_parser = at_least_one)]
    pub context: Option<usize>,
    /// Requests that are decoded together.
    #[arg(long, env = "SANCTUM_MLX_SLOTS", default_value_t = 8, value_parser = at_least_one)]
    pub slots: usize,
    /// Requests that may wait for a slot; one more is refused with 429.
    #[arg(long, env = "SANCTUM_MLX_QUEUE", default_value_t = 32, value_parser = at_least_one)]
    pub queue: usize,
    /// Most prompt tokens computed in one step while nobody decodes.
    #[arg(long, env = "SANCTUM_MLX_PREFILL_CHUNK", default_value_t = 256, value_parser = at_least_one)]
    pub prefill_chunk: usize,
    /// Most rows of a step while somebody decodes: smaller is smoother for them, slower for new prompts.
    #[arg(long, env = "SANCTUM_MLX_SHARED_CHUNK", default_value_t = 64, value_parser = at_least_one)]
    pub shared_chunk: usize,
    /// Most memory for the KV caches of running requests, in MiB.
    #[arg(long, env = "SANCTUM_MLX_KV_MEMORY_MB", default_value_t = 4096, value_parser = mebibytes)]
    pub kv_memory_mb: usize,
    /// Memory MLX may use before it waits for running work, in MiB [default: MLX's own].
    #[arg(long, env = "SANCTUM_MLX_METAL_MEMORY_LIMIT_MB", value_parser = mebibytes)]
    pub metal_memory_limit_mb: Option<usize>,
    /// Freed memory MLX keeps for reuse, in MiB [default: MLX's own].
    #[arg(long, env = "SANCTUM_MLX_METAL_CACHE_LIMIT_MB", value_parser = mebibytes_or_none)]
    pub metal_cache_limit_mb: Option<usize>,
    /// Memory kept resident on Metal, in MiB [default: MLX's own].
    #[arg(long, env = "SANCTUM_MLX_METAL_WIRED_LIMIT_MB", value_parser = mebibytes_or_none)]
    pub metal_wired_limit_mb: Option<usize>,
    /// Largest request body, in MiB; a larger one is refused with 413.
    #[arg(long, env = "SANCTUM_MLX_BODY_LIMIT_MB", default_value_t = limits::BODY_BYTES >> 20, value_parser = mebibytes)]
    pub body_limit_mb: usize,
    /// Most open connections.
    #[arg(long, env = "SANCTUM_MLX_CONNECTIONS", default_value_t = limits::CONNECTIONS, value_parser = at_least_one)]
    pub connections: usize,
    /// How long running replies may go on after SIGTERM, in seconds.
    #[arg(long, env = "SANCTUM_MLX_DRAIN_SECONDS", default_value_t = limits::DRAIN.as_secs(), value_parser = clap::value_parser!(u64).range(..=MOST_SECONDS))]
    pub drain_seconds: u64,
    /// File that says where this process listens, as JSON; removed at the end.
    #[arg(long, env = "SANCTUM_MLX_STATE_FILE", value_name = "FILE")]
    pub state_file: Option<PathBuf>,
    /// Stop when standard input ends: the supervisor holds its other end and takes us along.
    #[arg(long, env = "SANCTUM_MLX_EXIT_WITH_PARENT")]
    pub exit_with_parent: bool,
    /// Shape of log lines on standard error; what is logged is set by SANCTUM_LOG.
    #[arg(long, env = "SANCTUM_MLX_LOG_FORMAT", default_value = "text")]
    pub log_format: LogArg,
}

/// `--form`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormArg {
    /// Our own CPU kernels.
    Host,
    /// MLX ops on MLX's default device (GPU).
    Graph,
    /// Plain MLX ops in f32: slow and obvious.
    Reference,
}

impl From<FormArg> for Form {
    fn from(form: FormArg) -> Self {
        match form {
            FormArg::Host => Self::Host,
            FormArg::Graph => Self::Graph,
            FormArg::Reference => Self::Reference,
        }
    }
}

/// `--log-format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogArg {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// What `doctor` can be told.
#[derive(Debug, Args)]
struct DoctorArgs {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Longest time that can be set, in seconds: a year.
const MOST_SECONDS: u64 = 366 * 24 * 60 * 60;
/// Most memory that can be set, in MiB: its bytes must be a number.
const MOST_MEBIBYTES: usize = usize::MAX >> 20;

fn mebibytes(text: &str) -> Result<usize, String> {
    at_least_one(text).and_then(countable)
}

fn mebibytes_or_none(text: &str) -> Result<usize, String> {
    text.parse().map_err(|error| format!("{error}")).and_then(countable)
}

fn countable(mebibytes: usize) -> Result<usize, String> {
    if mebibytes > MOST_MEBIBYTES {
        return Err(format!("must be at most {MOST_MEBIBYTES}"));
    }
    Ok(mebibytes)
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// Runs the command that the process's arguments name.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse_from(with_default_command(std::env::args_os())) {
        Ok(cli) => cli,
        Err(error) => {
            // Nothing is left to do if standard error is closed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { exit::OK });
        }
    };
    match cli.command {
        Command::Serve(args) => ExitCode::from(serve::run(&args)),
        Command::Import(args) => ended(import::run(&args)),
        Command::Parity(args) => ended(parity::run(&args)),
        Command::Bench(args) => ended(bench::run(&args)),
        Command::Doctor(args) => ended(doctor::run(args.json)),
    }
}

/// Puts `serve` where a command is missing.
fn with_default_command(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    let wants_help =
        |arg: &OsString| ["-h", "--help", "-V", "--version"].iter().any(|flag| arg == flag);
    let is_flag = |arg: &OsString| arg.to_string_lossy().starts_with('-');
    if args.get(1).is_none_or(|first| is_flag(first) && !wants_help(first)) {
        args.insert(1.min(args.len()), "serve".into());
    }
    args
}

fn ended<E: Error>(result: Result<(), E>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::from(exit::OK),
        Err(error) => {
            complain(&error);
            ExitCode::from(exit::FAILURE)
        }
    }
}

/// One line on standard error: the error and what caused it.
pub fn complain(error: &dyn Error) {
    let mut line = format!("sanctum-mlx: {error}");
    let mut cause = error.source();
    while let Some(inner) = cause {
        // Writing to a string does not fail.
        let _ = write!(line, ": {inner}");
        cause = inner.source();
    }
    // Nothing is left to do if standard error is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
        let args = ["sanctum-mlx"].iter().chain(args).map(OsString::from);
        Cli::try_parse_from(with_default_command(args))
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn serve_may_be_left_out() {
        for args in
            [&["--model", "m", "--slots", "3"][..], &["serve", "--model", "m", "--slots", "3"]]
        {
            let Command::Serve(serve) = parse(args).expect("valid").command else {
                panic!("{args:?} is serve")
            };
            assert_eq!((serve.model, serve.slots), (PathBuf::from("m"), 3));
        }
        assert!(matches!(parse(&["doctor"]).expect("valid").command, Command::Doctor(_)));
        let help = parse(&["--help"]).expect_err("help");
        assert!(help.to_string().contains("parity"), "{help}");
    }

    #[test]
    fn every_flag_of_serve_has_a_variable_named_after_it() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").expect("a command");
        for arg in serve.get_arguments().filter(|arg| arg.get_id() != "help") {
            let flag = arg.get_long().expect("a long name");
            let variable = format!("SANCTUM_MLX_{}", flag.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().map(|name| name.to_string_lossy()), Some(variable.into()));
        }
    }

    #[test]
    fn zero_is_refused_where_it_means_nothing() {
        for flag in ["--slots", "--threads", "--context", "--queue", "--kv-memory-mb"] {
            let error = parse(&["--model", "m", flag, "0"]).expect_err(flag);
            assert!(error.to_string().contains("at least 1"), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let most = usize::MAX.to_string();
        for flag in [
            "--kv-memory-mb",
            "--metal-memory-limit-mb",
            "--metal-cache-limit-mb",
            "--metal-wired-limit-mb",
            "--body-limit-mb",
            "--drain-seconds",
        ] {
            parse(&["--model", "m", flag, &most]).expect_err(flag);
            parse(&["--model", "m", flag, "1"]).expect(flag);
        }
    }
}
