//! Why a model directory is not loaded: always the file, and the tensor or field where there is one.

use std::io;
use std::path::PathBuf;

use sanctum_kernels::KernelError;

use super::header::HeaderError;

/// Why a model directory is refused.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The directory or a file of it cannot be read, or changed while it was read.
    #[error("cannot read {path}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Whoever asked for the load does not want it any more.
    #[error("the load was given up")]
    GivenUp,
    /// A file is there but is not what it should be.
    #[error("{path}: {why}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A safetensors header that must not be trusted.
    #[error("{path} is damaged")]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with its header.
        source: HeaderError,
    },
    /// A configuration field is missing, of the wrong type, or asks for something that is not supported.
    #[error("{path}: `{field}`: {why}")]
    Config {
        /// The file.
        path: PathBuf,
        /// The field, with its parents.
        field: String,
        /// What was expected and what was found.
        why: String,
    },
    /// The model needs a tensor that no file holds.
    #[error("{path}: tensor `{tensor}` is missing, expected {expected}")]
    MissingTensor {
        /// The directory.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        expected: String,
    },
    /// A tensor is not of the shape or type that the configuration implies.
    #[error("{path}: tensor `{tensor}`: expected {expected}, found {found}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shape or types that would do.
        expected: String,
        /// What the file holds.
        found: String,
    },
    /// A weight is NaN or infinite.
    #[error("{path}: tensor `{tensor}`: element {index} is {value}")]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The first such element.
        index: usize,
        /// Its value.
        value: f32,
    },
    /// The kernels refuse weights that the loader accepted.
    #[error("{path}: the kernels refuse `{module}`")]
    Kernel {
        /// The directory.
        path: PathBuf,
        /// The module.
        module: String,
        /// Their reason.
        source: KernelError,
    },
}
