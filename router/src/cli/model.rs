//! `sanctum model`: hands model work to `sanctum-mlx`, which is the program that knows models.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use clap::Subcommand;

use super::CliError;
use crate::supervise::worker_program;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Turn a GGUF file into an MLX model directory, losslessly where the formats allow it.
    #[command(disable_help_flag = true)]
    Import(Rest),
    /// Compare a model's logits and greedy tokens with a stored reference: the gate for every upgrade.
    #[command(disable_help_flag = true)]
    Parity(Rest),
    /// Measure decode, prefill and batch speed of a model on this host.
    #[command(disable_help_flag = true)]
    Bench(Rest),
}

/// Arguments that are passed on as they are; --help too.
#[derive(Debug, clap::Args)]
pub(super) struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    arguments: Vec<OsString>,
}

/// Becomes `sanctum-mlx`; returns only if that fails.
pub(super) fn run(command: Command) -> Result<(), CliError> {
    let (name, rest) = match command {
        Command::Import(rest) => ("import", rest),
        Command::Parity(rest) => ("parity", rest),
        Command::Bench(rest) => ("bench", rest),
    };
    let program = worker_program(None);
    let source = std::process::Command::new(&program).arg(name).args(rest.arguments).exec();
    Err(CliError::Program { program, source })
}
