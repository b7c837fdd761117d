//! One safetensors file: opened once, its header checked, its tensors read through the same descriptor.
//!
//! Reads are positioned reads into our own memory, never a map: a file that is cut short while it is read gives an
//! error, not a signal.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use sanctum_kernels::tensor::{AlignedBytes, HostTensor};

use super::LoadError;
use super::finite::first_not_finite;
use super::header::{self, TensorEntry};

/// An open file of tensors.
#[derive(Debug)]
pub struct Shard {
    path: PathBuf,
    file: File,
    entries: Vec<TensorEntry>,
}

impl Shard {
    /// Opens a file and checks its header; reads no tensor.
    ///
    /// # Errors
    /// If it is no regular file, cannot be read or lies about its contents.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let read_error = |source| LoadError::Read { path: path.to_owned(), source };
        let header_error = |source| LoadError::Header { path: path.to_owned(), source };
        // Asked before opening: opening a pipe would wait for its writer.
        if !std::fs::metadata(path).map_err(read_error)?.is_file() {
            return Err(LoadError::File { path: path.to_owned(), why: "not a file".to_owned() });
        }
        let file = File::open(path).map_err(read_error)?;
        let file_bytes = file.metadata().map_err(read_error)?.len();
        if file_bytes < header::PREFIX_BYTES {
            return Err(header_error(header::HeaderError::TooShort(file_bytes)));
        }
        let mut prefix = [0; header::PREFIX_BYTES as usize];
        file.read_exact_at(&mut prefix, 0).map_err(read_error)?;
        let length = header::header_length(prefix, file_bytes).map_err(header_error)?;
        let mut json = vec![0; length];
        file.read_exact_at(&mut json, header::PREFIX_BYTES).map_err(read_error)?;
        let entries = header::parse_header(&json, file_bytes).map_err(header_error)?;
        Ok(Self { path: path.to_owned(), file, entries })
    }

    /// The file's tensors, in the order of their data.
    #[must_use]
    pub fn entries(&self) -> &[TensorEntry] {
        &self.entries
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads one tensor of this file.
    ///
    /// # Errors
    /// If the file has changed, the element type cannot be loaded, or a float is not finite.
    pub fn read(&self, entry: &TensorEntry) -> Result<HostTensor, LoadError> {
        let read_error = |source| LoadError::Read { path: self.path.clone(), source };
        let wrong = |found: String| LoadError::Tensor {
            path: self.path.clone(),
            tensor: entry.name.clone(),
            expected: "F32, F16, BF16, U32, I32 or U8".to_owned(),
            found,
        };
        let dtype = entry.dtype.dtype().ok_or_else(|| wrong(entry.dtype.to_string()))?;
        let mut bytes = AlignedBytes::zeroed(entry.nbytes);
        self.file.read_exact_at(&mut bytes, entry.offset).map_err(read_error)?;
        let tensor = HostTensor::new(dtype, entry.shape.clone(), bytes)
            .map_err(|error| wrong(error.to_string()))?;
        match first_not_finite(&tensor) {
            None => Ok(tensor),
            Some((index, value)) => Err(LoadError::NotFinite {
                path: self.path.clone(),
                tensor: entry.name.clone(),
                index,
                value,
            }),
        }
    }
}
