//! Imports a GGUF file into an MLX model directory without changing a single weight.
//!
//! In: a `.gguf`, or a zip archive (a wheel is one) holding exactly one. Out: safetensors in MLX's affine format and the
//! files a Hugging Face checkpoint has beside them, rebuilt from the GGUF's metadata; `mlx_lm` loads the result too.
//! Refused, each by name: encodings that MLX cannot hold exactly, architectures and pre-tokenizers that are not known,
//! and files that contradict themselves. The directory appears whole or not at all.

mod architecture;
mod blocks;
mod checkpoint;
mod command;
mod convert;
mod dense;
mod error;
mod gguf;
mod safetensors;
mod source;
mod staging;
#[cfg(test)]
mod tests;
mod tokenizer;

use std::path::PathBuf;

use serde_json::json;

use architecture::Architecture;
pub use command::{ImportArgs, run};
pub use error::ImportError;
pub use gguf::GgufError;
use gguf::Header;
use staging::Staging;

/// Largest safetensors file, in bytes; a model beyond it is written in several.
pub const SHARD_BYTES: u64 = 5 << 30;

/// The type of scales, biases, norms and unquantised weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Width {
    /// The narrowest type that is exact, tensor by tensor.
    #[default]
    Exact,
    /// f32 throughout: as exact, larger, and far faster in mlx_lm on a CPU.
    F32,
}

/// What to import, whence and whither.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `.gguf`, or an archive holding exactly one.
    pub source: PathBuf,
    /// The directory to make.
    pub target: PathBuf,
    /// Float types of the result.
    pub width: Width,
    /// Hex digest the source must have.
    pub sha256: Option<String>,
    /// Replace a model directory that is there already.
    pub force: bool,
    /// See [`SHARD_BYTES`].
    pub shard_bytes: u64,
}

/// The parts of an import, for whoever shows its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Hashing the source.
    Checking,
    /// Taking the GGUF out of its archive.
    Unpacking,
    /// Looking at every value to choose exact types.
    Surveying,
    /// Writing the weights.
    Converting,
}

/// Called with the step, the bytes done and the bytes there are.
pub type Progress<'a> = &'a dyn Fn(Step, u64, u64);

/// What was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Of the source; lower-case hex.
    pub sha256: String,
    /// Per encoding and what it became: how many tensors, in the order of first appearance.
    pub tensors: Vec<(String, usize)>,
    /// Of weights written.
    pub bytes: u64,
}

/// Imports one model.
///
/// # Errors
/// See [`ImportError`]; the target is then untouched.
pub fn import(options: &Options, progress: Progress<'_>) -> Result<Report, ImportError> {
    let staging = Staging::open(&options.target, options.force)?;
    let dir = staging.path();
    let source = source::open(&options.source, options.sha256.as_deref(), dir, progress)?;
    let Header { metadata, tensors } = Header::read(&source.file, source.length)?;
    let architecture = Architecture::read(&metadata, &tensors)?;
    let (tokenizer, special) = tokenizer::rebuild(&metadata)?;
    let chat_template = metadata.text_opt("tokenizer.chat_template")?;
    let plan = architecture.plan(tensors)?;

    let outputs = convert::survey(&source.file, plan, options.width, progress)?;
    let bytes = convert::write(&source.file, &outputs, dir, options.shard_bytes, progress)?;
    let modules = convert::module_bits(&outputs);
    checkpoint::write_config(
        dir,
        &architecture,
        &special,
        convert::dtype_name(&outputs),
        &modules,
    )?;
    checkpoint::write_tokenizer(dir, &tokenizer, &special, architecture.context(), chat_template)?;

    let tensors = convert::summary(&outputs);
    // `deploy/fetch-default-model.sh` compares the digest to see whether a directory is of the pinned file.
    let origin = json!({
        "source": options.source.file_name().map(|name| name.to_string_lossy()),
        "sha256": source.sha256,
        "importer": env!("CARGO_PKG_VERSION"),
        "tensors": tensors.iter().map(|(what, count)| format!("{count} x {what}")).collect::<Vec<_>>(),
    });
    checkpoint::write_json(&dir.join("import.json"), &origin)?;
    staging.commit()?;
    Ok(Report { sha256: source.sha256, tensors, bytes })
}
