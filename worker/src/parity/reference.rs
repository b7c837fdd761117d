//! The two files of a reference: numbers in `NAME.safetensors`, what is said about them in `NAME.json`.
//!
//! The format is that of the fixtures' `reference.py`; unknown fields are passed over. Refused: a prompt without
//! ids or `logits_f32`, and references for another vocabulary.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{SafeTensorError, TensorView};
use sanctum_kernels::device;
use sanctum_kernels::tensor::{Element, HostTensor};
use serde::{Deserialize, Serialize};

use crate::load::{LoadError, Shard};

/// What another build or another engine computed.
#[derive(Clone, Debug, PartialEq)]
pub struct Reference {
    /// In the order of the JSON file.
    pub prompts: Vec<ReferencePrompt>,
}

/// One prompt of a reference; what was not computed in float32 is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct ReferencePrompt {
    /// Such as `short`.
    pub name: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The last position's logits, from float32 arithmetic.
    pub logits: Vec<f32>,
    /// The greedy continuation.
    pub greedy: Option<Vec<u32>>,
    /// The most probable token after every position.
    pub argmax: Option<Vec<u32>>,
}

/// Why a reference cannot be used or written.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// A file cannot be read or written.
    #[error("cannot read or write {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The JSON is not a reference.
    #[error("{path} is not a reference")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// The tensors cannot be read.
    #[error("the reference's tensors cannot be read")]
    Tensors(#[from] LoadError),
    /// The tensors cannot be written.
    #[error("the reference's tensors cannot be written")]
    Write(#[from] SafeTensorError),
    /// A tensor is missing or of another type.
    #[error("{path}: `{tensor}`: {why}")]
    Tensor {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        why: String,
    },
    /// It was made from another model.
    #[error("the reference is for a vocabulary of {found}, the model has {expected}")]
    Vocabulary {
        /// Of the model.
        expected: usize,
        /// Of the reference.
        found: usize,
    },
}

#[derive(Deserialize)]
struct ReferenceFile {
    prompts: serde_json::Map<String, serde_json::Value>,
}

#[derive(Deserialize)]
struct PromptFile {
    #[serde(default)]
    f32_greedy: Option<Vec<u32>>,
    /// 0 if the whole run was in float32.
    #[serde(default)]
    f32_max_abs_diff: Option<f64>,
}

#[derive(Serialize)]
struct WrittenFile<'a> {
    engine: &'a str,
    engine_version: &'a str,
    mlx: String,
    computed_in: &'a str,
    prompts: BTreeMap<&'a str, WrittenPrompt<'a>>,
}

#[derive(Serialize)]
struct WrittenPrompt<'a> {
    ids: &'a [u32],
    greedy: &'a [u32],
    f32_greedy: &'a [u32],
    f32_max_abs_diff: f64,
}

impl Reference {
    /// Reads `NAME.json` and `NAME.safetensors`; `path` names either.
    ///
    /// # Errors
    /// As the module's head says.
    pub fn read(path: &Path) -> Result<Self, ReferenceError> {
        let json_path = path.with_extension("json");
        let text = fs::read(&json_path)
            .map_err(|source| ReferenceError::File { path: json_path.clone(), source })?;
        let json_error = |source| ReferenceError::Json { path: json_path.clone(), source };
        let file: ReferenceFile = serde_json::from_slice(&text).map_err(json_error)?;
        let tensors = Tensors(Shard::open(&path.with_extension("safetensors"))?);
        let prompts = file.prompts.into_iter().map(|(name, value)| {
            let said = PromptFile::deserialize(value).map_err(json_error)?;
            tensors.prompt(name, said)
        });
        Ok(Self { prompts: prompts.collect::<Result<_, _>>()? })
    }

    /// Writes both files.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), ReferenceError> {
        let empty: &[u32] = &[];
        let prompts = self.prompts.iter().map(|prompt| {
            let greedy = prompt.greedy.as_deref().unwrap_or(empty);
            let written = WrittenPrompt {
                ids: &prompt.ids,
                greedy,
                f32_greedy: greedy,
                f32_max_abs_diff: 0.0,
            };
            (prompt.name.as_str(), written)
        });
        let file = WrittenFile {
            engine: env!("CARGO_PKG_NAME"),
            engine_version: env!("CARGO_PKG_VERSION"),
            mlx: device::mlx_version().unwrap_or_else(|_| "unknown".to_owned()),
            computed_in: "float32",
            prompts: prompts.collect(),
        };
        let json_path = path.with_extension("json");
        let json_error = |source| ReferenceError::Json { path: json_path.clone(), source };
        let text = serde_json::to_vec_pretty(&file).map_err(json_error)?;
        fs::write(&json_path, text)
            .map_err(|source| ReferenceError::File { path: json_path.clone(), source })?;
        self.write_tensors(&path.with_extension("safetensors"))
    }

    fn write_tensors(&self, path: &Path) -> Result<(), ReferenceError> {
        let mut columns: Vec<(String, Dtype, usize, Vec<u8>)> = Vec::new();
        for prompt in &self.prompts {
            let mut ids = |column: &str, ids: &[u32]| {
                let bytes = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
                columns.push((format!("{}.{column}", prompt.name), Dtype::I32, ids.len(), bytes));
            };
            ids("ids", &prompt.ids);
            ids("greedy", prompt.greedy.as_deref().unwrap_or_default());
            ids("argmax", prompt.argmax.as_deref().unwrap_or_default());
            for column in ["logits", "logits_f32"] {
                let bytes = prompt.logits.iter().flat_map(|x| x.to_le_bytes()).collect();
                let name = format!("{}.{column}", prompt.name);
                columns.push((name, Dtype::F32, prompt.logits.len(), bytes));
            }
        }
        let views = columns
            .iter()
            .map(|(name, dtype, len, bytes)| {
                Ok((name.as_str(), TensorView::new(*dtype, vec![*len], bytes)?))
            })
            .collect::<Result<HashMap<_, _>, SafeTensorError>>()?;
        Ok(safetensors::serialize_to_file(views, None, path)?)
    }

    /// Whether the prompts' logits are as many as the model's.
    ///
    /// # Errors
    /// If they are not.
    pub fn check_vocabulary(&self, expected: usize) -> Result<(), ReferenceError> {
        match self.prompts.iter().map(|prompt| prompt.logits.len()).find(|&n| n != expected) {
            Some(found) => Err(ReferenceError::Vocabulary { expected, found }),
            None => Ok(()),
        }
    }
}

/// The tensors' file of a reference.
struct Tensors(Shard);

impl Tensors {
    fn prompt(&self, name: String, said: PromptFile) -> Result<ReferencePrompt, ReferenceError> {
        let column = |column: &str| format!("{name}.{column}");
        let in_f32 = said.f32_max_abs_diff == Some(0.0);
        let if_f32 = |name: &str| if in_f32 { self.ids(&column(name)).map(Some) } else { Ok(None) };
        let greedy = match said.f32_greedy {
            Some(greedy) => Some(greedy),
            None => if_f32("greedy")?,
        };
        let ids = self.ids(&column("ids"))?;
        if ids.is_empty() {
            return Err(self.wrong(&column("ids"), "empty"));
        }
        Ok(ReferencePrompt {
            ids,
            logits: self.values(&column("logits_f32"))?,
            greedy,
            argmax: if_f32("argmax")?,
            name,
        })
    }

    fn ids(&self, name: &str) -> Result<Vec<u32>, ReferenceError> {
        self.values::<i32>(name)?
            .into_iter()
            .map(|id| u32::try_from(id).map_err(|_| self.wrong(name, "a negative token")))
            .collect()
    }

    fn values<T: Element>(&self, name: &str) -> Result<Vec<T>, ReferenceError> {
        let entry = self.0.entries().iter().find(|entry| entry.name == name);
        let entry = entry.ok_or_else(|| self.wrong(name, "missing"))?;
        let tensor: HostTensor = self.0.read(entry)?;
        let values = tensor.values::<T>().map_err(|error| self.wrong(name, &error.to_string()))?;
        Ok(values.to_vec())
    }

    fn wrong(&self, tensor: &str, why: &str) -> ReferenceError {
        ReferenceError::Tensor {
            path: self.0.path().to_owned(),
            tensor: tensor.to_owned(),
            why: why.to_owned(),
        }
    }
}
