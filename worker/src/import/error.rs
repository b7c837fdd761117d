//! Everything an import can fail with, in words that name the file, the tensor or the key.

use std::io;
use std::path::{Path, PathBuf};

use super::gguf::GgufError;

/// Why an import stopped. The target directory is then as it was before.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The operating system refused.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// The GGUF header or data.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The source is neither GGUF nor an archive holding one.
    #[error("{}: {why}", path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The source is not the file that was asked for.
    #[error("{}: SHA-256 is {found}, expected {expected}", path.display())]
    Sha256 {
        /// The file.
        path: PathBuf,
        /// Lower-case hex.
        expected: String,
        /// Lower-case hex.
        found: String,
    },
    /// The target is there already.
    #[error("{} exists: give --force to replace it", .0.display())]
    Exists(PathBuf),
    /// The target is there and is no model: even `--force` leaves it alone.
    #[error("{} exists and holds no config.json: it is not a model directory, so it is not replaced", .0.display())]
    NotAModel(PathBuf),
    /// Another process imports to the same place.
    #[error("another import into {} is running", .0.display())]
    Busy(PathBuf),
    /// A model family that is not imported.
    #[error("architecture `{0}` is not imported: llama and qwen2 are")]
    Architecture(String),
    /// Metadata that asks for something config.json cannot say exactly.
    #[error("{key} is {found}: {why}")]
    Unsupported {
        /// The metadata key or tensor.
        key: String,
        /// What the file has.
        found: String,
        /// Why that is refused.
        why: &'static str,
    },
    /// A tensor the architecture needs.
    #[error("tensor `{0}` is missing")]
    MissingTensor(String),
    /// A tensor nothing would read: dropping it could change the model.
    #[error("tensor `{0}` has no place in this architecture")]
    UnexpectedTensor(String),
    /// A tensor whose shape contradicts the metadata.
    #[error("tensor `{tensor}` has the shape {found:?}, the metadata ask for {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Rows first.
        expected: Vec<usize>,
        /// Rows first.
        found: Vec<usize>,
    },
    /// NaN or infinity among the weights.
    #[error("tensor `{0}` holds a value that is not finite")]
    NotFinite(String),
    /// A tokenizer that cannot be rebuilt.
    #[error("the tokenizer cannot be rebuilt: {0}")]
    Tokenizer(String),
}

impl ImportError {
    /// For `map_err` on a file operation.
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}
