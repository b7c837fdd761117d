//! Whether this build computes what a reference says: the gate before a new engine serves.
//!
//! A reference is `NAME.json` with `NAME.safetensors` beside it, written by mlx-lm (the fixtures' `reference.py`) or by
//! `dump` from one of our own builds. Compared are
//! - the last logits of every prompt with the column `logits_f32`, as the largest difference over the reference's
//!   standard deviation. That column is a float32 run of the same stored weights, which is what our kernels compute
//!   whatever the checkpoint's type; a 16-bit run (`logits`) says what 16-bit arithmetic lost, so it is not compared;
//! - the greedy continuation, token by token, where the reference has one computed in float32;
//! - the most probable token after every prompt position, where the reference is in float32 throughout.
//!
//! What the reference does not have in float32 is shown as `-` and decides nothing.

mod command;
mod compare;
mod prompts;
mod reference;
mod run;

use std::fmt;
use std::ops::ControlFlow;
use std::path::PathBuf;

use sanctum_kernels::{Backend, BackendOptions, KernelError};

pub use command::{ParityArgs, run};
pub use compare::{PromptReport, compare};
pub use reference::{Reference, ReferenceError, ReferencePrompt};
pub use run::Run;

use crate::load::LoadError;
use crate::model::{self, LoadedModel, Model, OpenOptions};

/// Largest logit error that passes, as a share of the reference logits' standard deviation: what remains of two
/// float32 computations in different orders.
pub const DEFAULT_TOLERANCE: f32 = 1e-4;

/// Tokens of a greedy continuation in a dump.
const GREEDY_TOKENS: usize = 48;

/// What to compare, and how strictly.
#[derive(Clone, Debug)]
pub struct ParityOptions {
    /// The model directory.
    pub model: PathBuf,
    /// How it is computed.
    pub backend: BackendOptions,
    /// See `DEFAULT_TOLERANCE`.
    pub tolerance: f32,
}

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum ParityError {
    /// The model directory was refused.
    #[error("the model cannot be loaded")]
    Load(#[from] LoadError),
    /// The kernels refused or failed.
    #[error("the model cannot be computed")]
    Kernel(#[from] KernelError),
    /// The reference cannot be used.
    #[error("the reference cannot be used")]
    Reference(#[from] ReferenceError),
    /// The verdict is negative; the report says where.
    #[error("the model does not compute what the reference says")]
    Differs,
    /// The report cannot be printed.
    #[error("the report cannot be printed")]
    Write(#[source] std::io::Error),
}

/// The verdict on every prompt of a reference.
#[derive(Clone, Debug)]
pub struct Report {
    /// One line a prompt.
    pub prompts: Vec<PromptReport>,
    /// The tolerance that was asked for.
    pub tolerance: f32,
}

impl Report {
    /// Whether everything that the reference can decide agrees.
    #[must_use]
    pub fn passes(&self) -> bool {
        !self.prompts.is_empty() && self.prompts.iter().all(|p| p.passes(self.tolerance))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { prompts, tolerance } = self;
        writeln!(
            f,
            "{:<12} {:>6} {:>12} {:>9} {:>12}",
            "prompt", "tokens", "error/std", "greedy", "argmax"
        )?;
        prompts.iter().try_for_each(|prompt| writeln!(f, "{prompt}"))?;
        let verdict = if self.passes() { "pass" } else { "FAIL" };
        writeln!(f, "{verdict} (tolerance {tolerance:e} of the logits' standard deviation)")
    }
}

/// Compares a model with a reference. Must run on the thread that is to own MLX.
///
/// # Errors
/// If the model or the reference cannot be used; a difference is not an error but in the report.
pub fn check(options: &ParityOptions, reference: &Reference) -> Result<Report, ParityError> {
    let model = open(options)?;
    reference.check_vocabulary(model.sizes().vocab)?;
    let prompts = reference
        .prompts
        .iter()
        .map(|theirs| {
            let greedy = theirs.greedy.as_ref().map_or(0, Vec::len);
            let ours = Run::of(&model, &theirs.ids, greedy)?;
            Ok(compare(theirs, &ours))
        })
        .collect::<Result<_, ParityError>>()?;
    Ok(Report { prompts, tolerance: options.tolerance })
}

/// What this build computes for generated prompts of up to 4,000 tokens, as a reference for another build.
///
/// # Errors
/// If the model cannot be used.
pub fn record(options: &ParityOptions) -> Result<Reference, ParityError> {
    let model = open(options)?;
    let sizes = model.sizes();
    let prompts = prompts::generated(sizes.vocab, sizes.context.saturating_sub(GREEDY_TOKENS))
        .into_iter()
        .map(|(name, ids)| {
            let run = Run::of(&model, &ids, GREEDY_TOKENS)?;
            Ok(ReferencePrompt {
                name,
                ids,
                logits: run.logits,
                greedy: Some(run.greedy),
                argmax: Some(run.argmax),
            })
        })
        .collect::<Result<_, KernelError>>()?;
    Ok(Reference { prompts })
}

fn open(options: &ParityOptions) -> Result<Model, ParityError> {
    let backend = Backend::new(options.backend)?;
    let open = OpenOptions { dir: options.model.clone(), id: None, context: None };
    let LoadedModel { model, .. } =
        model::open(&open, &backend, &mut |_| ControlFlow::Continue(()))?;
    Ok(model)
}

#[cfg(test)]
mod tests;
