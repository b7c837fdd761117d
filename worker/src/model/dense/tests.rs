//! What the family reads from a configuration, and what it refuses.

use std::path::Path;

use serde_json::{Value, json};

use super::*;

fn read(change: &Value) -> Result<DenseConfig, LoadError> {
    read_with(change, None)
}

fn read_with(change: &Value, context: Option<usize>) -> Result<DenseConfig, LoadError> {
    let mut config = json!({
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 96,
        "num_attention_heads": 4, "vocab_size": 100, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512,
    });
    let map = config.as_object_mut().expect("an object");
    for (name, value) in change.as_object().expect("an object") {
        map.insert(name.clone(), value.clone());
    }
    DenseConfig::read(&Fields::new(Path::new("config.json"), map.clone()), context)
}

fn message(change: &Value) -> String {
    read(change).expect_err("refused").to_string()
}

#[test]
fn defaults_are_those_of_the_family() {
    let llama = read(&json!({})).expect("sound");
    assert_eq!((llama.kv_heads, llama.head_dim, llama.qkv_bias, llama.tied), (4, 16, false, None));
    let nemo = read(&json!({"model_type": "mistral", "head_dim": 32})).expect("sound");
    assert_eq!(nemo.head_dim, 32);
    let qwen = read(&json!({"model_type": "qwen2", "head_dim": 32, "attention_bias": false}));
    let qwen = qwen.expect("sound");
    assert_eq!((qwen.head_dim, qwen.qkv_bias, qwen.o_bias), (16, true, false));
    assert_ne!(qwen.rope, llama.rope);
    let biased = read(&json!({"attention_bias": true, "mlp_bias": true})).expect("sound");
    assert!(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
    // 2 layers · (keys + values) · 4 heads · 16 · 4 bytes
    assert_eq!(llama.kv_bytes_per_token(), 1024);
}

#[test]
fn a_sliding_window_limits_the_context() {
    let context = |change: &Value| read(change).expect("sound").context;
    assert_eq!(context(&json!({"sliding_window": 100})), 512);
    let windowed =
        json!({"sliding_window": 100, "layer_types": ["full_attention", "sliding_attention"]});
    assert_eq!(context(&windowed), 100);
}

#[test]
fn the_context_asked_for_must_fit() {
    assert_eq!(read_with(&json!({}), Some(300)).expect("sound").context, 300);
    let error = read_with(&json!({}), Some(513)).expect_err("too long").to_string();
    assert!(error.contains("`max_position_embeddings`") && error.contains("513"), "{error}");
    assert!(read_with(&json!({}), Some(1)).is_err());
}

#[test]
fn complaints_name_the_field() {
    assert!(message(&json!({"hidden_size": "64"})).contains("`hidden_size`: invalid type: string"));
    assert!(message(&json!({"hidden_size": null})).contains("`hidden_size`: missing"));
    assert!(message(&json!({"hidden_size": 0})).contains("`hidden_size`: 0 is not between"));
    assert!(message(&json!({"vocab_size": -5})).contains("`vocab_size`: invalid value"));
    assert!(message(&json!({"num_hidden_layers": 1e18})).contains("`num_hidden_layers`"));
    assert!(message(&json!({"num_key_value_heads": 3})).contains("`num_key_value_heads`"));
    assert!(message(&json!({"num_attention_heads": 100})).contains("100 heads"));
    assert!(message(&json!({"rms_norm_eps": 0})).contains("`rms_norm_eps`"));
    assert!(message(&json!({"hidden_act": "gelu"})).contains("only silu"));
    assert!(message(&json!({"layer_types": ["linear_attention"]})).contains("`linear_attention`"));
    assert!(message(&json!({"rope_scaling": {"type": "su"}})).contains("`rope_scaling.rope_type`"));
}
