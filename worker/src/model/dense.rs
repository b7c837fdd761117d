//! llama, mistral and qwen2: attention and a gated MLP in every layer.
//!
//! They differ in which biases there are and in a few defaults. Sliding windows are not computed; where the
//! configuration asks for one, the context is limited to it, within which it changes nothing.

use sanctum_kernels::rope::Rope;
use sanctum_kernels::{
    Attention, AttentionShape, AttentionWeights, Backend, Embed, Head, HeadShape, Mlp, MlpShape,
    MlpWeights, Prepared,
};

use super::{Layer, Model, Sizes, rope};
use crate::load::{Fields, LoadError, Weights};

/// What the family reads from `config.json`.
#[derive(Debug)]
struct DenseConfig {
    hidden: usize,
    layers: usize,
    intermediate: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    norm_eps: f32,
    rope: Rope,
    context: usize,
    qkv_bias: bool,
    o_bias: bool,
    mlp_bias: bool,
    /// `None`: tied if there is no output matrix.
    tied: Option<bool>,
}

/// Bytes of an element of the KV cache, f32.
const KV_ELEMENT_BYTES: u64 = 4;

impl DenseConfig {
    fn read(config: &Fields, context: Option<usize>) -> Result<Self, LoadError> {
        let qwen2 = config.required::<String>("model_type")? == "qwen2";
        let act: String = config.or("hidden_act", "silu".to_owned())?;
        if act != "silu" {
            return Err(config.wrong("hidden_act", format!("`{act}` is not supported, only silu")));
        }
        let (hidden, heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
        let head_dim =
            if qwen2 { hidden / heads } else { config.size_or("head_dim", hidden / heads)? };
        let kv_heads = config.size_or("num_key_value_heads", heads)?;
        if head_dim == 0 || !heads.is_multiple_of(kv_heads) {
            let why = format!("{heads} heads do not fit {kv_heads} and a width of {hidden}");
            return Err(config.wrong("num_key_value_heads", why));
        }
        let attention_bias = config.or("attention_bias", false)?;
        Ok(Self {
            hidden,
            layers: config.size("num_hidden_layers")?,
            intermediate: config.size("intermediate_size")?,
            heads,
            kv_heads,
            head_dim,
            vocab: config.size("vocab_size")?,
            norm_eps: config
                .positive("rms_norm_eps")?
                .ok_or_else(|| config.wrong("rms_norm_eps", "missing, expected a number"))?,
            rope: rope::rope(config, head_dim, if qwen2 { 1e6 } else { 1e4 })?,
            context: positions(config, if qwen2 { 32_768 } else { 2048 }, context)?,
            qkv_bias: qwen2 || attention_bias,
            o_bias: !qwen2 && attention_bias,
            mlp_bias: !qwen2 && config.or("mlp_bias", false)?,
            tied: config.optional("tie_word_embeddings")?,
        })
    }

    fn attention_shape(&self) -> AttentionShape {
        AttentionShape {
            hidden: self.hidden,
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            norm_eps: self.norm_eps,
            rope: self.rope.clone(),
            max_positions: self.context,
        }
    }

    fn kv_bytes_per_token(&self) -> u64 {
        let elements = 2 * self.layers * self.kv_heads * self.head_dim;
        elements as u64 * KV_ELEMENT_BYTES
    }
}

/// The most positions of a sequence: what is asked for, within what the checkpoint can do.
fn positions(config: &Fields, default: usize, asked: Option<usize>) -> Result<usize, LoadError> {
    const FIELD: &str = "max_position_embeddings";
    let mut most = config.size_or(FIELD, default)?;
    let layer_types: Vec<String> = config.or("layer_types", Vec::new())?;
    if let Some(other) =
        layer_types.iter().find(|t| *t != "full_attention" && *t != "sliding_attention")
    {
        return Err(config.wrong("layer_types", format!("`{other}` is not supported")));
    }
    if layer_types.iter().any(|t| t == "sliding_attention") {
        most = most.min(config.size("sliding_window")?);
    }
    match asked {
        Some(asked) if asked > most => {
            Err(config.wrong(FIELD, format!("a context of {asked} is asked for, {most} is most")))
        }
        asked => match asked.unwrap_or(most) {
            0 | 1 => Err(config.wrong(FIELD, "the context must hold a prompt and a reply")),
            context => Ok(context),
        },
    }
}

/// Builds a model of this family.
pub(super) fn build(
    config: &Fields,
    weights: &mut Weights<'_>,
    backend: &Backend,
    context: Option<usize>,
) -> Result<Model, LoadError> {
    let sizes = DenseConfig::read(config, context)?;
    let embed_path = "model.embed_tokens";
    let table = prepare(weights, backend, embed_path, sizes.vocab, sizes.hidden)?;
    let embed = Embed::new(backend, table.clone()).map_err(|e| weights.refused(embed_path, e))?;
    let layers = (0..sizes.layers)
        .map(|index| layer(&sizes, index, weights, backend))
        .collect::<Result<_, _>>()?;
    let norm = weights.vector("model.norm.weight", sizes.hidden)?;
    let tied = sizes.tied.unwrap_or_else(|| !weights.contains("lm_head.weight"));
    let matrix =
        if tied { table } else { prepare(weights, backend, "lm_head", sizes.vocab, sizes.hidden)? };
    let shape = HeadShape { hidden: sizes.hidden, norm_eps: sizes.norm_eps };
    let head =
        Head::new(backend, shape, norm, matrix).map_err(|e| weights.refused("lm_head", e))?;
    let sizes = Sizes {
        vocab: sizes.vocab,
        context: sizes.context,
        kv_bytes_per_token: sizes.kv_bytes_per_token(),
        weight_bytes: weights.bytes_read(),
    };
    Ok(Model { embed, layers, head, sizes })
}

fn layer(
    config: &DenseConfig,
    index: usize,
    weights: &mut Weights<'_>,
    backend: &Backend,
) -> Result<Layer, LoadError> {
    let path = |module: &str| format!("model.layers.{index}.{module}");
    let DenseConfig { hidden, intermediate, norm_eps, .. } = *config;
    let queries = config.heads * config.head_dim;
    let keys = config.kv_heads * config.head_dim;
    let qkv_bias = config.qkv_bias;
    let attention = AttentionWeights {
        norm: weights.vector(&path("input_layernorm.weight"), hidden)?,
        q: weights.linear(&path("self_attn.q_proj"), queries, hidden, qkv_bias)?,
        k: weights.linear(&path("self_attn.k_proj"), keys, hidden, qkv_bias)?,
        v: weights.linear(&path("self_attn.v_proj"), keys, hidden, qkv_bias)?,
        o: weights.linear(&path("self_attn.o_proj"), hidden, queries, config.o_bias)?,
    };
    let attention = Attention::new(backend, config.attention_shape(), attention)
        .map_err(|error| weights.refused(&path("self_attn"), error))?;
    let bias = config.mlp_bias;
    let mlp = MlpWeights {
        norm: weights.vector(&path("post_attention_layernorm.weight"), hidden)?,
        gate: weights.linear(&path("mlp.gate_proj"), intermediate, hidden, bias)?,
        up: weights.linear(&path("mlp.up_proj"), intermediate, hidden, bias)?,
        down: weights.linear(&path("mlp.down_proj"), hidden, intermediate, bias)?,
    };
    let mlp = Mlp::new(backend, MlpShape { hidden, intermediate, norm_eps }, mlp)
        .map_err(|error| weights.refused(&path("mlp"), error))?;
    Ok(Layer { attention, mlp })
}

fn prepare(
    weights: &mut Weights<'_>,
    backend: &Backend,
    module: &str,
    rows: usize,
    cols: usize,
) -> Result<Prepared, LoadError> {
    let matrix = weights.matrix(module, rows, cols)?;
    backend.prepare(matrix).map_err(|error| weights.refused(module, error))
}

#[cfg(test)]
mod tests;
