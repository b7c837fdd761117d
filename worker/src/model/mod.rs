//! The models: short lists of kernel blocks over a configuration. No arithmetic happens here.
//!
//! `open` turns a directory into a `LoadedModel`; `Model::step` runs rows of several sequences through it at once.
//! A family reads its own configuration and lists its layers; a new one is a module and a row in `FAMILIES`.
//! Refused: model types that no family claims, with the list of those that are.

mod dense;
mod eos;
mod open;
mod rope;

use std::ops::Range;

use mlx_rs::Array;
use sanctum_kernels::{
    Attention, Backend, Embed, Head, KernelError, KvCache, Mlp, Segment, read_f32,
};

pub use open::{LoadedModel, OpenOptions, open};

use crate::load::{Fields, LoadError, Weights};

/// Builds a model of one family. `context` is the most positions a sequence may have, or the family's own number.
type Build = fn(&Fields, &mut Weights<'_>, &Backend, Option<usize>) -> Result<Model, LoadError>;

/// `model_type` and who builds it.
const FAMILIES: &[(&str, Build)] =
    &[("llama", dense::build), ("mistral", dense::build), ("qwen2", dense::build)];

/// A model ready to run.
pub struct Model {
    embed: Embed,
    layers: Vec<Layer>,
    head: Head,
    sizes: Sizes,
}

/// One decoder layer: what mixes positions, then what mixes features.
struct Layer {
    attention: Attention,
    mlp: Mlp,
}

/// What the rest of the worker must know of a model's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Rows of the output matrix.
    pub vocab: usize,
    /// Most positions of a sequence.
    pub context: usize,
    /// Bytes of KV cache for one position, all layers together.
    pub kv_bytes_per_token: u64,
    /// Bytes of the prepared weights.
    pub weight_bytes: u64,
}

/// The state of one sequence: a cache per layer.
#[derive(Debug)]
pub struct SequenceCache {
    layers: Vec<KvCache>,
}

impl SequenceCache {
    /// Positions held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, KvCache::len)
    }

    /// Whether no position is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes held.
    #[must_use]
    pub fn nbytes(&self) -> u64 {
        self.layers.iter().map(|cache| cache.nbytes() as u64).sum()
    }
}

/// The rows of one sequence in a step: its next tokens, at consecutive positions from `cache.len()` on.
#[derive(Debug)]
pub struct SequenceRows<'a> {
    /// Where its tokens lie in the step's list.
    pub rows: Range<usize>,
    /// Its state.
    pub cache: &'a mut SequenceCache,
}

impl Model {
    /// Vocabulary, context and memory.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// The state of a sequence that has no token yet.
    #[must_use]
    pub fn new_cache(&self) -> SequenceCache {
        SequenceCache {
            layers: self.layers.iter().map(|layer| layer.attention.new_cache()).collect(),
        }
    }

    /// Runs the rows of all sequences, which must tile `ids` in order, and gives the logits of the rows `wanted`,
    /// `[wanted.len(), vocab]` row by row. Computed on return, caches included.
    ///
    /// # Errors
    /// If the kernels refuse or fail. The caches of this step are useless then.
    pub fn step(
        &self,
        ids: &[u32],
        sequences: &mut [SequenceRows<'_>],
        wanted: &[u32],
    ) -> Result<Vec<f32>, KernelError> {
        let hidden = self.hidden(ids, sequences)?;
        if wanted.is_empty() {
            hidden.eval()?;
            return Ok(Vec::new());
        }
        read_f32(&self.head.forward(&hidden, wanted)?)
    }

    fn hidden(
        &self,
        ids: &[u32],
        sequences: &mut [SequenceRows<'_>],
    ) -> Result<Array, KernelError> {
        let mut x = self.embed.forward(ids)?;
        for (index, layer) in self.layers.iter().enumerate() {
            let mut segments: Vec<Segment<'_>> = sequences
                .iter_mut()
                .map(|sequence| Segment {
                    rows: sequence.rows.clone(),
                    cache: &mut sequence.cache.layers[index],
                })
                .collect();
            x = layer.attention.forward(&x, &mut segments)?;
            x = layer.mlp.forward(&x)?;
        }
        Ok(x)
    }
}

/// Builds the model that `config` describes from `weights`.
fn build(
    config: &Fields,
    weights: &mut Weights<'_>,
    backend: &Backend,
    context: Option<usize>,
) -> Result<Model, LoadError> {
    let model_type: String = config.required("model_type")?;
    let Some((_, build)) = FAMILIES.iter().find(|(name, _)| *name == model_type) else {
        let known: Vec<&str> = FAMILIES.iter().map(|(name, _)| *name).collect();
        return Err(config.wrong(
            "model_type",
            format!("`{model_type}` is not supported, only {}", known.join(", ")),
        ));
    };
    build(config, weights, backend, context)
}

#[cfg(test)]
mod tests;
