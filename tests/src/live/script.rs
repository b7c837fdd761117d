//! Checkpoints that say what a test wants: a llama without attention whose next token depends on the last one only.
//!
//! Embeddings are ±1 vectors, nearly orthogonal to each other; the output row of a token is the embedding of the
//! token before it. So the right logit is the hidden size and all others are noise around zero, which holds at every
//! temperature a request may ask for. A script is said byte by byte, one token each: every character of more than one
//! byte is cut. The price: a byte must be followed by the same byte wherever it stands.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::checkpoint::{LLAMA, fixture};
use super::tensors::{self, Tensor, Tensors};

const HIDDEN: usize = 128;
const INTERMEDIATE: usize = 64;
const HEAD_DIM: usize = 64;
const VOCAB: usize = 2048;
const CONTEXT: usize = 65_536;
/// `[/INST]`: the last token of every chat prompt of the fixture whose tokenizer is used.
const OPENING: usize = 2001;
/// `</s>`.
const END: usize = 1999;
/// A token beyond the tokenizer's own, which has no text; what is computed from it overflows.
const POISON: usize = 2040;
/// The dimension that only the poisoned state uses.
const POISON_DIM: usize = 0;

/// What follows the script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    End,
    Again,
    Break,
    Anything,
}

/// A scripted checkpoint on disk.
#[derive(Debug)]
pub struct Script {
    dir: TempDir,
}

impl Script {
    /// Answers every chat with `text`, and ends.
    pub fn says(text: &str) -> Self {
        Self::write(text, Then::End)
    }

    /// Answers every chat with `text`, again and again, without an end.
    pub fn repeats(text: &str) -> Self {
        Self::write(text, Then::Again)
    }

    /// Answers every chat with `text`, and then computes what is not a number.
    pub fn breaks_after(text: &str) -> Self {
        Self::write(text, Then::Break)
    }

    /// Answers with any tokens: each is as likely as any other, so that a seed decides and nothing else. Few of the
    /// bytes are characters.
    pub fn mumbles() -> Self {
        Self::write("", Then::Anything)
    }

    /// The directory.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("scripted")
    }

    fn write(text: &str, then: Then) -> Self {
        let script = Self { dir: tempfile::tempdir().expect("a directory") };
        let path = script.path();
        fs::create_dir(&path).expect("a new directory");
        for file in [
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
            "chat_template.jinja",
        ] {
            fs::copy(fixture(LLAMA).join(file), path.join(file)).expect("copied");
        }
        fs::write(path.join("config.json"), config().to_string()).expect("written");
        tensors::write(&path.join("model.safetensors"), &weights(&follow(text, then), then));
        script
    }
}

fn config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": 1,
        "num_attention_heads": HIDDEN / HEAD_DIM, "num_key_value_heads": 1, "head_dim": HEAD_DIM,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT, "vocab_size": VOCAB, "tie_word_embeddings": false,
        "bos_token_id": 1998, "eos_token_id": END,
    })
}

/// Which token follows which.
fn follow(text: &str, then: Then) -> BTreeMap<usize, usize> {
    if then == Then::Anything {
        return BTreeMap::new();
    }
    let ids = byte_tokens();
    let script: Vec<usize> = text.bytes().map(|byte| ids[usize::from(byte)]).collect();
    let (first, last) = (script[0], script[script.len() - 1]);
    let after = match then {
        Then::End => END,
        Then::Again => first,
        Then::Break | Then::Anything => POISON,
    };
    let mut next = BTreeMap::from([(OPENING, first)]);
    let pairs = script.windows(2).map(|pair| (pair[0], pair[1])).chain([(last, after)]);
    for (token, follower) in pairs {
        let known = *next.entry(token).or_insert(follower);
        assert_eq!(known, follower, "{text:?} has a byte with two followers");
    }
    next
}

fn weights(next: &BTreeMap<usize, usize>, then: Then) -> Tensors {
    let mut embed: Vec<f32> = (0..VOCAB).flat_map(signs).collect();
    let mut head = vec![0.0; VOCAB * HIDDEN];
    for (token, follower) in next {
        for (out, sign) in head[follower * HIDDEN..][..HIDDEN].iter_mut().zip(signs(*token)) {
            *out += sign;
        }
    }
    if then == Then::Break {
        // Finite weights, whose product overflows for one state only.
        embed[POISON * HIDDEN..][..HIDDEN].fill(0.0);
        embed[POISON * HIDDEN + POISON_DIM] = 1.0;
        head[POISON_DIM] = f32::MAX;
    }
    let mut tensors = Tensors::from([
        ("model.embed_tokens.weight".into(), Tensor::floats(&[VOCAB, HIDDEN], embed)),
        ("lm_head.weight".into(), Tensor::floats(&[VOCAB, HIDDEN], head)),
        ("model.norm.weight".into(), Tensor::filled(&[HIDDEN], 1.0)),
    ]);
    let layer: [(&str, &[usize]); 7] = [
        ("self_attn.q_proj", &[HIDDEN, HIDDEN]),
        ("self_attn.k_proj", &[HEAD_DIM, HIDDEN]),
        ("self_attn.v_proj", &[HEAD_DIM, HIDDEN]),
        ("self_attn.o_proj", &[HIDDEN, HIDDEN]),
        ("mlp.gate_proj", &[INTERMEDIATE, HIDDEN]),
        ("mlp.up_proj", &[INTERMEDIATE, HIDDEN]),
        ("mlp.down_proj", &[HIDDEN, INTERMEDIATE]),
    ];
    for (module, shape) in layer {
        tensors.insert(format!("model.layers.0.{module}.weight"), Tensor::filled(shape, 0.0));
    }
    for norm in ["input_layernorm", "post_attention_layernorm"] {
        tensors.insert(format!("model.layers.0.{norm}.weight"), Tensor::filled(&[HIDDEN], 1.0));
    }
    tensors
}

/// The embedding of a token: ±1 from the bits of a hash, and nothing where poison would be.
fn signs(token: usize) -> impl Iterator<Item = f32> {
    let sign = move |dim: usize| {
        let bits = splitmix((token * (HIDDEN / 64) + dim / 64) as u64) >> (dim % 64);
        if bits & 1 == 0 { 1.0 } else { -1.0 }
    };
    (0..HIDDEN).map(move |dim| if dim == POISON_DIM { 0.0 } else { sign(dim) })
}

/// SplitMix64: neighbouring numbers give unrelated bits.
fn splitmix(number: u64) -> u64 {
    let mut z = number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The token of every byte, as byte-level BPE writes bytes: printable ones as themselves, the others from U+0100 on.
fn byte_tokens() -> Vec<usize> {
    let text = fs::read(fixture(LLAMA).join("tokenizer.json")).expect("a tokenizer");
    let tokenizer: Value = serde_json::from_slice(&text).expect("JSON");
    let vocab = &tokenizer["model"]["vocab"];
    let mut unprintable = 0x100_u32..;
    (0..=u8::MAX)
        .map(|byte| {
            let code = match byte {
                0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
                _ => unprintable.next().expect("without end"),
            };
            let token = char::from_u32(code).expect("below the surrogates").to_string();
            let id =
                vocab[&token].as_u64().unwrap_or_else(|| panic!("no token for byte {byte:#04x}"));
            usize::try_from(id).expect("it fits")
        })
        .collect()
}
