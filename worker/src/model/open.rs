//! From a directory to a model: configuration, weights, and the facts that requests need.

use std::path::{Path, PathBuf};

use sanctum_kernels::Backend;

use super::{Model, build, eos};
use crate::engine::ModelInfo;
use crate::load::{Checkpoint, Fields, LoadError, LoadProgress, Quantization, Weights};

/// What the operator says about a model.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Where it lies.
    pub dir: PathBuf,
    /// The name requests use; the directory's name if absent.
    pub id: Option<String>,
    /// Most positions of a sequence; the checkpoint's own number if absent.
    pub context: Option<usize>,
}

/// A model and the facts about it.
pub struct LoadedModel {
    /// What runs.
    pub model: Model,
    /// What is said about it.
    pub info: ModelInfo,
}

/// Opens a model directory. `progress` hears what fraction of the weights has been read, and may give up.
///
/// # Errors
/// If anything in the directory is not as it must be; see `LoadError`.
pub fn open(
    options: &OpenOptions,
    backend: &Backend,
    progress: &mut LoadProgress<'_>,
) -> Result<LoadedModel, LoadError> {
    let dir = &options.dir;
    let config = Fields::read(&dir.join("config.json"))?;
    let generation = generation_config(dir)?;
    let quantization = Quantization::parse(&config)?;
    let checkpoint = Checkpoint::open(dir)?;
    let mut weights = Weights::new(checkpoint, quantization, progress);
    let model = build(&config, &mut weights, backend, options.context)?;
    let unused_tensors = weights.unused();
    if !unused_tensors.is_empty() {
        tracing::warn!(tensors = ?unused_tensors, "the model does not use these tensors");
    }
    let sizes = model.sizes();
    let info = ModelInfo {
        id: options.id.clone().unwrap_or_else(|| name_of(dir)),
        model_type: config.required("model_type")?,
        vocab_size: sizes.vocab,
        context_length: sizes.context,
        quantization: weights.quantization(),
        eos_token_ids: eos::eos_token_ids(&config, generation.as_ref())?,
        bos_token_id: config.optional("bos_token_id")?,
        weight_bytes: sizes.weight_bytes,
        kv_bytes_per_token: sizes.kv_bytes_per_token,
        unused_tensors,
    };
    Ok(LoadedModel { model, info })
}

fn generation_config(dir: &Path) -> Result<Option<Fields>, LoadError> {
    let path = dir.join("generation_config.json");
    if path.exists() { Fields::read(&path).map(Some) } else { Ok(None) }
}

fn name_of(dir: &Path) -> String {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let name = absolute.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "model".to_owned())
}
