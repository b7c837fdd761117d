//! The router's program: reads the instance, says what is wrong with it, or serves it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use sanctum_shared::instance::Instance;
use sanctum_shared::{exit, log};

/// Routes requests to seats, and keeps their workers running.
#[derive(Debug, Parser)]
#[command(name = "sanctum-router", version)]
struct Args {
    /// The instance to serve.
    #[arg(
        long,
        visible_alias = "config",
        env = "SANCTUM_INSTANCE",
        default_value = "instance.yaml"
    )]
    instance: PathBuf,
    /// How to log: `text` or `json`.
    #[arg(long, env = "SANCTUM_LOG_FORMAT", default_value = "text")]
    log_format: log::Format,
    /// What to log, such as `info` or `warn,sanctum_router=debug`.
    #[arg(long, env = log::LEVEL_VARIABLE, default_value = "info")]
    log: String,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let outcome = log::init(args.log_format, Some(&args.log))
        .map_err(|error| (exit::USAGE, error.into()))
        .and_then(|()| Instance::load(&args.instance).map_err(|e| (exit::CONFIG, e.into())))
        .and_then(|instance| sanctum_router::run::block_on(Arc::new(instance)));
    match outcome {
        Ok(()) => ExitCode::from(exit::OK),
        Err((code, error)) => {
            sanctum_router::run::complain(&*error);
            ExitCode::from(code)
        }
    }
}
