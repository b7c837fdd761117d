//! `sanctum`, the operator's command.
//!
//! Owns the command line and what it prints. It is thin: fleet work is asked of the router's admin listener, model
//! work is handed to `sanctum-mlx`. It changes no file.

mod answer;
mod call;
mod chat;
mod check;
mod doctor;
mod find;
mod model;
mod restart;
mod status;
mod table;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use sanctum_shared::exit;
use sanctum_shared::instance::InstanceError;

use call::CallError;
use find::FindError;

/// Operates a Sanctum instance: its router, its seats and its workers.
#[derive(Debug, Parser)]
#[command(
    name = "sanctum",
    version,
    after_help = "Most commands find the running router by the `router.json` in the state directory of ./instance.yaml; \
                  --instance names another file, --url and --admin the router itself.\n\n\
                  Exit codes: 0 done, 1 failed, 2 wrong usage, 69 not running or not reachable, 78 the configuration is wrong."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say whether an instance file is right, and if not, where and why.
    ///
    /// Every mistake is reported as FILE:LINE:COLUMN with the nearest right word. Nothing is started and no port is
    /// opened. Exit code 78 if the file is wrong.
    Check {
        /// The file to check.
        #[arg(value_name = "FILE", default_value = "instance.yaml")]
        file: PathBuf,
    },
    /// Show seats, backends and workers of the running router.
    Status {
        #[command(flatten)]
        router: Router,
        /// Print the whole status as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Replace a backend's worker: the new one is ready before the old one stops.
    ///
    /// Also starts a worker that is parked after a crash loop, or that waits for its next start. Returns when the new
    /// worker answers.
    Restart {
        /// The backend, as in the instance file.
        backend: String,
        #[command(flatten)]
        router: Router,
    },
    /// Talk to a seat: one message and its answer, or a conversation.
    ///
    /// Without MESSAGE it reads messages line by line and keeps the conversation; /reset forgets it, /exit or the end
    /// of input ends it, Ctrl-C stops an answer. MESSAGE - takes the whole of standard input as one message.
    Chat(chat::Options),
    /// Say what this host has and what is missing: programs, instance, router, MLX, CPU features.
    Doctor {
        /// The instance file to look at.
        #[arg(
            long,
            value_name = "FILE",
            default_value = "instance.yaml",
            env = "SANCTUM_INSTANCE"
        )]
        instance: PathBuf,
    },
    /// Work on models: import, parity and bench, each with its own --help.
    #[command(subcommand)]
    Model(model::Command),
}

/// Which router is meant.
#[derive(Debug, Args)]
struct Router {
    /// The instance file whose router is meant.
    #[arg(long, value_name = "FILE", default_value = "instance.yaml", env = "SANCTUM_INSTANCE")]
    instance: PathBuf,
    /// The router's admin address, such as http://127.0.0.1:8901; found through the instance file if left out.
    #[arg(long, value_name = "URL", env = "SANCTUM_ADMIN_URL")]
    admin: Option<String>,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Instance(#[from] InstanceError),
    #[error(transparent)]
    Find(#[from] FindError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("cannot run {}", program.display())]
    Program { program: PathBuf, source: io::Error },
    #[error("cannot read or write")]
    Terminal(#[from] io::Error),
    #[error("cannot start the runtime")]
    Runtime(#[source] io::Error),
    #[error("unexpected answer from {url}")]
    Nonsense { url: String, source: serde_json::Error },
    /// It has been said already.
    #[error("failed")]
    Told,
}

impl CliError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Instance(_) | Self::Find(FindError::Instance(_)) => exit::CONFIG,
            Self::Find(_) | Self::Program { .. } => exit::UNAVAILABLE,
            Self::Call(error) if error.is_unreachable() => exit::UNAVAILABLE,
            Self::Call(_) | Self::Terminal(_) | Self::Nonsense { .. } | Self::Told => exit::FAILURE,
            Self::Runtime(_) => exit::INTERNAL,
        }
    }
}

/// Runs the command line of this process.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(()) => ExitCode::from(exit::OK),
        // Whoever read our output has enough of it, such as `head`.
        Err(CliError::Terminal(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::from(exit::OK)
        }
        Err(error) => {
            let code = error.exit_code();
            if !matches!(error, CliError::Told) {
                // Standard error may be closed; then there is nobody to tell.
                let _ = writeln!(io::stderr(), "{}", with_causes(&error));
            }
            ExitCode::from(code)
        }
    }
}

fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Check { file } => check::run(&file),
        Command::Doctor { instance } => block_on(doctor::run(&instance)),
        Command::Model(command) => model::run(command),
        Command::Status { router, json } => block_on(status::run(&router, json)),
        Command::Restart { backend, router } => block_on(restart::run(&router, &backend)),
        Command::Chat(options) => block_on(chat::run(options)),
    }
}

fn block_on(work: impl Future<Output = Result<(), CliError>>) -> Result<(), CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(CliError::Runtime)?;
    let done = runtime.block_on(work);
    // A read of the terminal may still wait for a line that nobody wants any more.
    runtime.shutdown_background();
    done
}

/// An error and its causes on one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    line
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself() {
        for command in Cli::command().get_subcommands() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            assert!(about.len() > 20, "`{}` has no description", command.get_name());
        }
    }
}
