//! What a GGUF architecture is in HF's terms: its configuration, and the plan of which tensor becomes which.
//!
//! The plan comes from the metadata, and the file must match it tensor for tensor: a missing one, one of another shape
//! and one that nothing would read are all refused, since each would give a different model without saying so.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::ImportError;
use super::gguf::{Metadata, TensorInfo};

/// Families whose tensors have a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    /// Also Mistral: GGUF calls both `llama`.
    Llama,
    Qwen2,
}

/// The hyperparameters, checked for consistency.
#[derive(Debug)]
pub(super) struct Architecture {
    family: Family,
    layers: usize,
    hidden: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    context: usize,
    norm_eps: f64,
    rope_theta: f64,
    rope_scaling: Value,
    vocabulary: usize,
    tied: bool,
}

/// One tensor of the file and what it becomes.
#[derive(Debug, PartialEq)]
pub(super) struct Planned {
    pub(super) info: TensorInfo,
    /// HF's module path, such as `model.layers.0.mlp.up_proj`.
    pub(super) module: String,
    /// `weight` or `bias`.
    pub(super) parameter: &'static str,
    /// Set when llama.cpp interleaved the rows for its RoPE: how many heads they form.
    pub(super) interleaved_heads: Option<usize>,
}

impl Architecture {
    /// Reads the hyperparameters. `tensors` tells only whether the head is tied and how many layers there can be.
    pub(super) fn read(metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Self, ImportError> {
        let name = metadata.text("general.architecture")?;
        let family = match name {
            "llama" => Family::Llama,
            "qwen2" => Family::Qwen2,
            other => return Err(ImportError::Architecture(other.to_owned())),
        };
        let key = |suffix: &str| format!("{name}.{suffix}");
        // A layer has tensors, so their number bounds every count that is looped over.
        let count = |suffix: &str, limit: usize| positive(metadata, &key(suffix), limit);
        let layers = count("block_count", tensors.len())?;
        let hidden = count("embedding_length", MAX_WIDTH)?;
        let heads = count("attention.head_count", hidden)?;
        let kv_heads = match metadata.unsigned_opt(&key("attention.head_count_kv"))? {
            None => heads,
            Some(_) => count("attention.head_count_kv", heads)?,
        };
        if !heads.is_multiple_of(kv_heads) {
            let why = "it must divide the number of query heads";
            return Err(unsupported(key("attention.head_count_kv"), kv_heads, why));
        }
        let head_dim = match metadata.unsigned_opt(&key("attention.key_length"))? {
            Some(_) => count("attention.key_length", MAX_WIDTH)?,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let why = "it must divide the embedding length where no key length is given";
                return Err(unsupported(key("attention.head_count"), heads, why));
            }
        };
        let same = [
            ("attention.value_length", head_dim),
            ("rope.dimension_count", head_dim),
            ("expert_count", 0),
        ];
        for (suffix, expected) in same {
            let found = metadata.unsigned_or(&key(suffix), expected as u64)?;
            if found != expected as u64 {
                let why = match suffix {
                    "expert_count" => "mixtures of experts are not imported",
                    _ => "it must be the length of a head",
                };
                return Err(unsupported(key(suffix), found, why));
            }
        }
        let plain_head = head_dim * heads == hidden;
        if family == Family::Qwen2 && !plain_head {
            let why = "qwen2's heads must fill the embedding length";
            return Err(unsupported(key("attention.key_length"), head_dim, why));
        }
        let eps = key("attention.layer_norm_rms_epsilon");
        let norm_eps = metadata.float_opt(&eps)?.ok_or(super::gguf::GgufError::MissingKey(eps))?;
        Ok(Self {
            family,
            layers,
            hidden,
            intermediate: count("feed_forward_length", MAX_WIDTH)?,
            heads,
            kv_heads,
            head_dim,
            context: count("context_length", usize::MAX)?,
            norm_eps: shortest(norm_eps),
            rope_theta: shortest(metadata.float_opt(&key("rope.freq_base"))?.unwrap_or(10_000.0)),
            rope_scaling: rope_scaling(metadata, name)?,
            vocabulary: metadata.texts("tokenizer.ggml.tokens")?.len(),
            tied: !tensors.iter().any(|tensor| tensor.name == "output.weight"),
        })
    }

    /// Longest context in tokens.
    pub(super) fn context(&self) -> usize {
        self.context
    }

    /// Pairs every tensor of the file with its place.
    pub(super) fn plan(&self, tensors: Vec<TensorInfo>) -> Result<Vec<Planned>, ImportError> {
        let mut by_name: HashMap<String, TensorInfo> =
            tensors.into_iter().map(|tensor| (tensor.name.clone(), tensor)).collect();
        let mut plan = Vec::new();
        for slot in self.slots() {
            let name = format!("{}.{}", slot.source, slot.parameter);
            let info = by_name.remove(&name).ok_or(ImportError::MissingTensor(name))?;
            // Norms and biases are vectors and are never quantised.
            if info.shape != slot.shape || (slot.shape.len() == 1 && info.encoding.is_quantised()) {
                let (tensor, expected, found) = (info.name, slot.shape, info.shape);
                return Err(ImportError::Shape { tensor, expected, found });
            }
            let Slot { module, parameter, interleaved_heads, .. } = slot;
            plan.push(Planned { info, module, parameter, interleaved_heads });
        }
        match by_name.into_keys().min() {
            Some(name) if name == "rope_freqs.weight" => {
                let why = "RoPE scaled per frequency is not imported";
                Err(unsupported(name, "present", why))
            }
            Some(name) => Err(ImportError::UnexpectedTensor(name)),
            None => Ok(plan),
        }
    }

    fn slots(&self) -> Vec<Slot> {
        let (hidden, inner) = (self.hidden, self.intermediate);
        let (queries, keys) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let interleaved = |heads| (self.family == Family::Llama).then_some(heads);
        let matrix = |source: &str, module: &str, rows, columns| Slot {
            source: source.to_owned(),
            module: module.to_owned(),
            parameter: "weight",
            shape: vec![rows, columns],
            interleaved_heads: None,
        };
        let vector = |source: &str, module: &str, parameter, length| Slot {
            shape: vec![length],
            parameter,
            ..matrix(source, module, length, 1)
        };

        let mut slots = vec![
            matrix("token_embd", "model.embed_tokens", self.vocabulary, hidden),
            vector("output_norm", "model.norm", "weight", hidden),
        ];
        if !self.tied {
            slots.push(matrix("output", "lm_head", self.vocabulary, hidden));
        }
        for layer in 0..self.layers {
            let mut block = vec![
                vector("attn_norm", "input_layernorm", "weight", hidden),
                Slot {
                    interleaved_heads: interleaved(self.heads),
                    ..matrix("attn_q", "self_attn.q_proj", queries, hidden)
                },
                Slot {
                    interleaved_heads: interleaved(self.kv_heads),
                    ..matrix("attn_k", "self_attn.k_proj", keys, hidden)
                },
                matrix("attn_v", "self_attn.v_proj", keys, hidden),
                matrix("attn_output", "self_attn.o_proj", hidden, queries),
                vector("ffn_norm", "post_attention_layernorm", "weight", hidden),
                matrix("ffn_gate", "mlp.gate_proj", inner, hidden),
                matrix("ffn_up", "mlp.up_proj", inner, hidden),
                matrix("ffn_down", "mlp.down_proj", hidden, inner),
            ];
            if self.family == Family::Qwen2 {
                block.push(vector("attn_q", "self_attn.q_proj", "bias", queries));
                block.push(vector("attn_k", "self_attn.k_proj", "bias", keys));
                block.push(vector("attn_v", "self_attn.v_proj", "bias", keys));
            }
            slots.extend(block.into_iter().map(|slot| Slot {
                source: format!("blk.{layer}.{}", slot.source),
                module: format!("model.layers.{layer}.{}", slot.module),
                ..slot
            }));
        }
        slots
    }

    /// config.json without its quantisation and token ids.
    pub(super) fn config(&self) -> Value {
        let (class, model_type) = match self.family {
            Family::Llama => ("LlamaForCausalLM", "llama"),
            Family::Qwen2 => ("Qwen2ForCausalLM", "qwen2"),
        };
        json!({
            "architectures": [class],
            "model_type": model_type,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "rope_scaling": self.rope_scaling,
            "max_position_embeddings": self.context,
            "vocab_size": self.vocabulary,
            "tie_word_embeddings": self.tied,
        })
    }
}

/// A place in the architecture that one tensor fills.
#[derive(Clone)]
struct Slot {
    source: String,
    module: String,
    parameter: &'static str,
    shape: Vec<usize>,
    interleaved_heads: Option<usize>,
}

/// Widest hidden or intermediate size: keeps products of two sizes far from overflow.
const MAX_WIDTH: usize = 1 << 20;

fn unsupported(key: String, found: impl std::fmt::Display, why: &'static str) -> ImportError {
    ImportError::Unsupported { key, found: found.to_string(), why }
}

fn positive(metadata: &Metadata, key: &str, limit: usize) -> Result<usize, ImportError> {
    let found = metadata.unsigned(key)?;
    match usize::try_from(found) {
        Ok(n) if n > 0 && n <= limit => Ok(n),
        _ => Err(unsupported(key.to_owned(), found, "it is out of range")),
    }
}

/// The decimal a person wrote: 1e-5 rather than 9.999999747378752e-06, which is the same f32.
fn shortest(x: f32) -> f64 {
    x.to_string().parse().unwrap_or_else(|_| x.into())
}

fn rope_scaling(metadata: &Metadata, architecture: &str) -> Result<Value, ImportError> {
    let key = |suffix: &str| format!("{architecture}.rope.scaling.{suffix}");
    let kind = metadata.text_opt(&key("type"))?.unwrap_or("none");
    let factor = metadata.float_opt(&key("factor"))?;
    match (kind, factor) {
        ("none", _) => Ok(Value::Null),
        ("linear", Some(factor)) => Ok(json!({ "type": "linear", "factor": shortest(factor) })),
        ("yarn", Some(factor)) => {
            let original = positive(metadata, &key("original_context_length"), usize::MAX)?;
            Ok(json!({
                "type": "yarn", "factor": shortest(factor), "original_max_position_embeddings": original,
            }))
        }
        (other, _) => {
            let why = "RoPE scaling is imported as none, linear or yarn with a factor";
            Err(unsupported(key("type"), other, why))
        }
    }
}
