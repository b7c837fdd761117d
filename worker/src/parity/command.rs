//! `sanctum-mlx parity`: compare with a reference, or record one.

use std::io::{self, Write as _};
use std::path::PathBuf;

use clap::Args;
use sanctum_kernels::BackendOptions;

use super::{DEFAULT_TOLERANCE, ParityError, ParityOptions, Reference, check, record};
use crate::cli::FormArg;

/// What `parity` can be told.
#[derive(Debug, Args)]
pub struct ParityArgs {
    /// Model directory.
    #[arg(long, env = "SANCTUM_MLX_MODEL", value_name = "DIR")]
    model: PathBuf,
    /// Reference to compare with: FILE.json, with FILE.safetensors beside it.
    #[arg(long, value_name = "FILE", required_unless_present = "dump")]
    reference: Option<PathBuf>,
    /// Record what this build computes for generated prompts of up to 4000 tokens.
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Largest logit error that passes, as a share of the logits' standard deviation.
    #[arg(long, default_value_t = DEFAULT_TOLERANCE)]
    tolerance: f32,
    /// How the blocks compute.
    #[arg(long, env = "SANCTUM_MLX_FORM", default_value = "host")]
    form: FormArg,
    /// Threads that compute [default: all cores].
    #[arg(long, env = "SANCTUM_MLX_THREADS")]
    threads: Option<usize>,
}

/// Runs the command. The report goes to standard output.
///
/// # Errors
/// If a file cannot be used, and `Differs` if the model does not compute what the reference says.
pub fn run(args: &ParityArgs) -> Result<(), ParityError> {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let options = ParityOptions {
        model: args.model.clone(),
        backend: BackendOptions {
            form: args.form.into(),
            threads: args.threads.unwrap_or_else(cores),
        },
        tolerance: args.tolerance,
    };
    if let Some(path) = &args.dump {
        let recorded = record(&options)?;
        recorded.write(path)?;
        say(format_args!("recorded {} prompts in {}\n", recorded.prompts.len(), path.display()))?;
    }
    let Some(path) = &args.reference else { return Ok(()) };
    let report = check(&options, &Reference::read(path)?)?;
    say(format_args!("{report}"))?;
    if report.passes() { Ok(()) } else { Err(ParityError::Differs) }
}

fn say(text: std::fmt::Arguments<'_>) -> Result<(), ParityError> {
    io::stdout().lock().write_fmt(text).map_err(ParityError::Write)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ParityArgs,
    }

    #[test]
    fn there_must_be_something_to_do() {
        let parse =
            |args: &[&str]| Line::try_parse_from([&["parity", "--model", "m"], args].concat());
        assert!(parse(&[]).is_err());
        assert!(parse(&["--dump", "d.json"]).is_ok());
        let line = parse(&["--reference", "r.json", "--dump", "d.json"]).expect("both");
        assert_eq!(line.args.tolerance, DEFAULT_TOLERANCE);
    }
}
