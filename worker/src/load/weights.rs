//! Weights by module path and expected size: where shapes of tensors meet what the configuration implies.
//!
//! A module `m` is a float matrix `m.weight`, or a quantised one of `m.weight`, `m.scales` and `m.biases`, and may
//! have a bias `m.bias`. Every size is checked before a tensor is read. A bias that the configuration does not
//! announce is refused: leaving it out would give wrong replies.

use std::ops::ControlFlow;

use sanctum_kernels::matrix::{AffineMatrix, Linear, Matrix};
use sanctum_kernels::tensor::{DType, HostTensor};

use super::LoadError;
use super::checkpoint::Checkpoint;
use super::header::TensorEntry;
use super::quantization::{self, Affine, Quantization};

/// Hears what fraction of the data has been read; breaks to give up the load.
pub type LoadProgress<'a> = dyn FnMut(f32) -> ControlFlow<()> + 'a;

/// The weights of a checkpoint while a model is built from them.
pub struct Weights<'a> {
    checkpoint: Checkpoint,
    quantization: Quantization,
    progress: &'a mut LoadProgress<'a>,
    found: Vec<Affine>,
    float: Option<DType>,
}

impl<'a> Weights<'a> {
    /// Over an open checkpoint; `progress` hears what fraction of the data has been read.
    pub fn new(
        checkpoint: Checkpoint,
        quantization: Quantization,
        progress: &'a mut LoadProgress<'a>,
    ) -> Self {
        Self { checkpoint, quantization, progress, found: Vec::new(), float: None }
    }

    /// Whether a tensor is there.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.checkpoint.contains(name)
    }

    /// A float vector such as a norm's weight.
    ///
    /// # Errors
    /// If it is missing, of another length or not of floats.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<HostTensor, LoadError> {
        let tensor = self.tensor(name, &[len], FLOATS)?;
        self.float.get_or_insert(tensor.dtype());
        Ok(tensor)
    }

    /// A linear layer of `rows` outputs and `cols` inputs, with a bias or without.
    ///
    /// # Errors
    /// If a tensor is missing, does not fit, or is there against the configuration.
    pub fn linear(
        &mut self,
        module: &str,
        rows: usize,
        cols: usize,
        bias: bool,
    ) -> Result<Linear, LoadError> {
        let bias_name = format!("{module}.bias");
        if let (false, Some((path, entry))) = (bias, self.checkpoint.find(&bias_name)) {
            return Err(LoadError::Tensor {
                path: path.to_owned(),
                tensor: bias_name,
                expected: "no such tensor, as config.json says".to_owned(),
                found: describe(entry),
            });
        }
        let matrix = self.matrix(module, rows, cols)?;
        let bias = if bias { Some(self.vector(&bias_name, rows)?) } else { None };
        Ok(Linear { matrix, bias })
    }

    /// A matrix `[rows, cols]`, quantised or not.
    ///
    /// # Errors
    /// If a tensor is missing, does not fit, or is quantised in a way that the kernels do not know.
    pub fn matrix(&mut self, module: &str, rows: usize, cols: usize) -> Result<Matrix, LoadError> {
        let weight = format!("{module}.weight");
        let scales = format!("{module}.scales");
        let matrix = match self.checkpoint.find(&scales) {
            None => Matrix::dense(self.tensor(&weight, &[rows, cols], FLOATS)?),
            Some((_, entry)) => {
                let groups = entry.shape.last().copied().unwrap_or(0);
                let Affine { bits, group } = self.affine(module, cols, groups)?;
                let words = cols * usize::from(bits) / 32;
                let packed = self.tensor(&weight, &[rows, words], &[DType::U32])?;
                let scales = self.tensor(&scales, &[rows, groups], FLOATS)?;
                let same = [scales.dtype()];
                let biases = self.tensor(&format!("{module}.biases"), &[rows, groups], &same)?;
                AffineMatrix::new(bits.into(), group, packed, scales, biases).map(Matrix::Affine)
            }
        };
        matrix.map_err(|source| self.refused(module, source.into()))
    }

    fn affine(&mut self, module: &str, cols: usize, groups: usize) -> Result<Affine, LoadError> {
        let weight = format!("{module}.weight");
        let Some((path, entry)) = self.checkpoint.find(&weight) else {
            return Err(self.missing(&weight, "a packed matrix, since there are scales"));
        };
        let words = entry.shape.last().copied().unwrap_or(0);
        let affine = self.quantization.decide(module, cols, words, groups).map_err(|why| {
            LoadError::File { path: path.to_owned(), why: format!("`{module}` {why}") }
        })?;
        self.found.push(affine);
        Ok(affine)
    }

    fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        dtypes: &[DType],
    ) -> Result<HostTensor, LoadError> {
        let expected = || {
            let names: Vec<String> =
                dtypes.iter().map(|d| format!("{d:?}").to_uppercase()).collect();
            format!("{} {shape:?}", names.join(" or "))
        };
        let Some((path, entry)) = self.checkpoint.find(name) else {
            return Err(self.missing(name, &expected()));
        };
        let fits = entry.dtype.dtype().is_some_and(|dtype| dtypes.contains(&dtype));
        if !fits || entry.shape != shape {
            return Err(LoadError::Tensor {
                path: path.to_owned(),
                tensor: name.to_owned(),
                expected: expected(),
                found: describe(entry),
            });
        }
        let read = self.checkpoint.read(name)?;
        if (self.progress)(self.checkpoint.fraction_read()).is_break() {
            return Err(LoadError::GivenUp);
        }
        read.ok_or_else(|| self.missing(name, &expected()))
    }

    fn missing(&self, tensor: &str, expected: &str) -> LoadError {
        LoadError::MissingTensor {
            path: self.checkpoint.dir().to_owned(),
            tensor: tensor.to_owned(),
            expected: expected.to_owned(),
        }
    }

    /// The kernels' refusal of a module, with its place.
    #[must_use]
    pub fn refused(&self, module: &str, source: sanctum_kernels::KernelError) -> LoadError {
        LoadError::Kernel {
            path: self.checkpoint.dir().to_owned(),
            module: module.to_owned(),
            source,
        }
    }

    /// How the weights read so far are quantised, in a few words.
    #[must_use]
    pub fn quantization(&self) -> String {
        let float = self.float.map_or_else(String::new, |d| format!("{d:?}").to_lowercase());
        quantization::describe(&self.found, &float)
    }

    /// Bytes of tensor data read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.checkpoint.bytes_read()
    }

    /// Tensors of the checkpoint that were not read, sorted.
    #[must_use]
    pub fn unused(&self) -> Vec<String> {
        self.checkpoint.unused()
    }
}

const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16];

fn describe(entry: &TensorEntry) -> String {
    format!("{} {:?}", entry.dtype, entry.shape)
}
