//! `sanctum-mlx import SRC DIR`: the command line of an import, its progress bar and its report.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::PathBuf;

use indicatif::{ProgressBar, ProgressStyle};

use super::{ImportError, Options, SHARD_BYTES, Step, Width, import};

/// Import a GGUF file into an MLX model directory, losslessly.
#[derive(Clone, Debug, clap::Args)]
pub struct ImportArgs {
    /// A .gguf file, or an archive (.whl, .zip) holding exactly one.
    #[arg(value_name = "SRC")]
    pub source: PathBuf,
    /// The model directory to make.
    #[arg(value_name = "DIR")]
    pub target: PathBuf,
    /// Types of scales, norms and unquantised weights.
    #[arg(long, value_enum, default_value_t)]
    pub dtype: Width,
    /// Refuse SRC unless it has this SHA-256 (hex).
    #[arg(long, value_name = "HEX")]
    pub sha256: Option<String>,
    /// Replace DIR if it is a model directory.
    #[arg(long)]
    pub force: bool,
    /// Print nothing but errors.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Runs the import and reports what was made; the bar shows on a terminal only.
///
/// # Errors
/// See [`ImportError`].
pub fn run(args: &ImportArgs) -> Result<(), ImportError> {
    let options = Options {
        source: args.source.clone(),
        target: args.target.clone(),
        width: args.dtype,
        sha256: args.sha256.clone(),
        force: args.force,
        shard_bytes: SHARD_BYTES,
    };
    let bar = Bar::new(args.quiet);
    let report = import(&options, &|step, done, total| bar.show(step, done, total))?;
    bar.clear();
    if args.quiet {
        return Ok(());
    }
    let mut text = format!("imported {} into {}\n", args.source.display(), args.target.display());
    for (what, count) in &report.tensors {
        text += &format!("  {count:4} x {what}\n");
    }
    text += &format!("  {:.1} MB of weights\n", report.bytes as f64 / 1e6);
    io::stdout().write_all(text.as_bytes()).map_err(ImportError::io("write", "stdout".as_ref()))
}

/// One bar that starts anew with each step.
struct Bar {
    bar: ProgressBar,
    step: RefCell<Option<Step>>,
}

impl Bar {
    fn new(quiet: bool) -> Self {
        let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
        let style = ProgressStyle::with_template("{msg:11} {wide_bar} {bytes}/{total_bytes} {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, step: RefCell::new(None) }
    }

    fn show(&self, step: Step, done: u64, total: u64) {
        if self.step.replace(Some(step)) != Some(step) {
            self.bar.reset();
            self.bar.set_length(total);
            self.bar.set_message(match step {
                Step::Checking => "checking",
                Step::Unpacking => "unpacking",
                Step::Surveying => "surveying",
                Step::Converting => "converting",
            });
        }
        self.bar.set_position(done);
    }

    fn clear(&self) {
        self.bar.finish_and_clear();
    }
}
