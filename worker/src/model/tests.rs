//! Directories that must not load, each with the file and the tensor or field in its refusal; and what loads.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use sanctum_kernels::{Backend, BackendOptions, Form};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::*;
use crate::load::{Checkpoint, Quantization};

fn fixture(name: &str) -> PathBuf {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/checkpoints");
    PathBuf::from(tests).join(name)
}

fn load(dir: &Path) -> Result<LoadedModel, LoadError> {
    let backend = Backend::new(BackendOptions { form: Form::Reference, threads: 1 });
    let options = OpenOptions { dir: dir.to_owned(), id: None, context: None };
    open(&options, &backend.expect("a backend"), &mut |_| ControlFlow::Continue(()))
}

/// A copy of the llama fixture that can be damaged.
struct Copy(TempDir);

impl Copy {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["config.json", "generation_config.json", "model.safetensors"] {
            fs::copy(fixture("llama-4bit-g64-f32").join(name), dir.path().join(name))
                .expect("copied");
        }
        Self(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self, field: &str, value: Value) -> &Self {
        let path = self.file("config.json");
        let text = fs::read(&path).expect("readable");
        let mut config: Map<String, Value> = serde_json::from_slice(&text).expect("JSON");
        config.insert(field.to_owned(), value);
        fs::write(path, serde_json::to_vec(&config).expect("JSON")).expect("written");
        self
    }

    /// Changes the header and the data behind it; the header's length follows.
    fn tensors(&self, change: impl FnOnce(&mut Map<String, Value>, &mut Vec<u8>)) -> &Self {
        let path = self.file("model.safetensors");
        let bytes = fs::read(&path).expect("readable");
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        let mut header = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
        let mut data = bytes[8 + length..].to_vec();
        change(&mut header, &mut data);
        let header = serde_json::to_vec(&header).expect("JSON");
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header);
        bytes.extend(data);
        fs::write(path, bytes).expect("written");
        self
    }

    /// The refusal with its causes, which must name all of `parts`.
    fn refused(&self, parts: &[&str]) {
        let error = load(self.0.path()).err().expect("it must not load");
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            text = format!("{text}: {inner}");
            cause = inner.source();
        }
        for part in parts {
            assert!(text.contains(part), "`{part}` is not in: {text}");
        }
    }
}

/// What a model says after five tokens.
fn logits(model: &Model) -> Vec<f32> {
    let cache = &mut model.new_cache();
    let ids = [3, 1, 4, 1, 5];
    model.step(&ids, &mut [SequenceRows { rows: 0..5, cache }], &[4]).expect("computes")
}

const Q: &str = "model.layers.1.self_attn.q_proj";

fn rename(header: &mut Map<String, Value>, from: &str, to: &str) {
    let entry = header.remove(from).expect("a tensor");
    header.insert(to.to_owned(), entry);
}

/// Where a tensor's data begins.
fn begin(header: &Map<String, Value>, name: &str) -> usize {
    header[name]["data_offsets"][0].as_u64().expect("an offset") as usize
}

#[test]
fn a_sound_directory_loads_and_says_what_it_is() {
    let LoadedModel { info, .. } = load(&fixture("llama-4bit-g64-f32")).expect("loads");
    assert_eq!((info.id.as_str(), info.model_type.as_str()), ("llama-4bit-g64-f32", "llama"));
    assert_eq!((info.vocab_size, info.context_length), (2048, 4096));
    assert_eq!((info.quantization.as_str(), info.eos_token_ids), ("4-bit group 64", vec![1999]));
    assert_eq!(info.kv_bytes_per_token, 3 * 2 * 2 * 32 * 4);
    assert_eq!(info.unused_tensors, [""; 0]);
    let tied = load(&fixture("qwen2-8bit-f16")).expect("loads").info;
    assert_eq!((tied.quantization.as_str(), tied.unused_tensors.len()), ("8-bit group 64", 0));
    assert_eq!(tied.eos_token_ids, [1986, 1984]);
}

#[test]
fn unknown_model_types_are_refused_with_the_known_ones() {
    let copy = Copy::new();
    copy.config("model_type", json!("gpt2"));
    copy.refused(&["config.json", "`model_type`", "`gpt2`", "llama, mistral, qwen2"]);
}

#[test]
fn other_quantisation_is_refused_by_name() {
    let error = load(&fixture("qwen2-mxfp4")).err().expect("not affine").to_string();
    assert!(
        error.contains("model.safetensors: `model.embed_tokens` is quantised as mxfp4"),
        "{error}"
    );
}

#[test]
fn missing_parts_are_named() {
    let copy = Copy::new();
    copy.tensors(|header, _| rename(header, &format!("{Q}.weight"), "elsewhere"));
    copy.refused(&[&format!("`{Q}.weight` is missing")]);

    let copy = Copy::new();
    copy.tensors(|header, _| rename(header, &format!("{Q}.biases"), "elsewhere"));
    copy.refused(&[&format!("`{Q}.biases` is missing"), "F32 [128, 2]"]);

    let copy = Copy::new();
    copy.config("num_hidden_layers", json!(4));
    copy.refused(&["`model.layers.3.input_layernorm.weight` is missing", "[128]"]);

    let copy = Copy::new();
    fs::remove_file(copy.file("model.safetensors")).expect("removed");
    copy.refused(&["no model*.safetensors"]);
    fs::remove_file(copy.file("config.json")).expect("removed");
    copy.refused(&["cannot read", "config.json"]);
}

#[test]
fn wrong_sizes_are_named_with_what_was_expected() {
    let copy = Copy::new();
    copy.config("vocab_size", json!(2050));
    copy.refused(&[
        "model.safetensors",
        "`model.embed_tokens.weight`",
        "U32 [2050, 16]",
        "[2048, 16]",
    ]);

    let copy = Copy::new();
    copy.tensors(|header, _| header["model.norm.weight"]["dtype"] = json!("I32"));
    copy.refused(&["`model.norm.weight`", "F32 or F16 or BF16 [128]", "found I32 [128]"]);

    let copy = Copy::new();
    copy.tensors(|header, _| header[&format!("{Q}.scales")]["shape"] = json!([64, 4]));
    copy.refused(&["model.safetensors", Q]);
}

#[test]
fn a_bias_that_nobody_announced_is_refused() {
    let copy = Copy::new();
    copy.tensors(|header, data| {
        let end = data.len();
        data.extend([0; 512]);
        let entry = json!({"dtype": "F32", "shape": [128], "data_offsets": [end, end + 512]});
        header.insert(format!("{Q}.bias"), entry);
    });
    copy.refused(&[&format!("`{Q}.bias`"), "no such tensor"]);
}

#[test]
fn tensors_without_use_are_reported() {
    let copy = Copy::new();
    copy.tensors(|header, data| {
        let end = data.len();
        data.extend([0; 8]);
        let entry = json!({"dtype": "I64", "shape": [1], "data_offsets": [end, end + 8]});
        header.insert("model.extra".to_owned(), entry);
    });
    assert_eq!(load(copy.0.path()).expect("loads").info.unused_tensors, ["model.extra"]);
}

#[test]
fn weights_that_are_not_numbers_are_refused() {
    let copy = Copy::new();
    copy.tensors(|header, data| {
        let at = begin(header, &format!("{Q}.scales")) + 4 * 5;
        data[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    copy.refused(&["model.safetensors", &format!("`{Q}.scales`"), "element 5 is NaN"]);
}

#[test]
fn files_cut_short_or_damaged_are_refused() {
    let copy = Copy::new();
    let path = copy.file("model.safetensors");
    let bytes = fs::read(&path).expect("readable");
    for length in [bytes.len() - 1, bytes.len() / 2, 5000, 9, 8, 3, 0] {
        fs::write(&path, &bytes[..length]).expect("written");
        copy.refused(&["model.safetensors is damaged"]);
    }
    let mut longer = bytes;
    longer.push(0);
    fs::write(&path, &longer).expect("written");
    copy.refused(&["is damaged", "1 bytes of data"]);
}

#[test]
fn a_missing_shard_is_named() {
    let copy = Copy::new();
    let shard = |n: usize| copy.file(&format!("model-0000{n}-of-00003.safetensors"));
    fs::rename(copy.file("model.safetensors"), shard(1)).expect("renamed");
    fs::copy(shard(1), shard(3)).expect("copied");
    copy.refused(&["model-00002-of-00003.safetensors", "missing"]);
    fs::copy(shard(1), shard(2)).expect("copied");
    copy.refused(&["model-00002-of-00003.safetensors", "is in", "too"]);
}

#[test]
fn a_directory_in_place_of_weights_is_refused() {
    let copy = Copy::new();
    fs::remove_file(copy.file("model.safetensors")).expect("removed");
    fs::create_dir(copy.file("model.safetensors")).expect("created");
    copy.refused(&["model.safetensors: not a file"]);
}

#[test]
fn shards_load_like_one_file() {
    let copy = Copy::new();
    let whole = load(copy.0.path()).expect("loads").model;
    // Splits the file by handing each tensor to one of two.
    let bytes = fs::read(copy.file("model.safetensors")).expect("readable");
    let all = safetensors::SafeTensors::deserialize(&bytes).expect("sound");
    for part in 0..2 {
        let views = all.tensors().into_iter().enumerate().filter(|(i, _)| i % 2 == part);
        let name = format!("model-0000{}-of-00002.safetensors", part + 1);
        let views = views.map(|(_, tensor)| tensor);
        safetensors::serialize_to_file(views, None, &copy.file(&name)).expect("written");
    }
    fs::remove_file(copy.file("model.safetensors")).expect("removed");
    let sharded = load(copy.0.path()).expect("loads").model;
    assert_eq!(logits(&whole), logits(&sharded));
}

/// Writes the checkpoint's quantised matrices as floats.
fn dequantise(copy: &Copy) {
    let path = copy.file("model.safetensors");
    let mut ignore = |_: f32| ControlFlow::Continue(());
    let checkpoint = Checkpoint::open(copy.0.path()).expect("opens");
    let mut weights = Weights::new(checkpoint, Quantization::default(), &mut ignore);
    let bytes = fs::read(&path).expect("readable");
    let all = safetensors::SafeTensors::deserialize(&bytes).expect("sound");
    let mut floats: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, tensor) in all.tensors() {
        if let Some(module) = name.strip_suffix(".scales") {
            // 4 bits in groups of 64: the scales have as many columns as there are groups.
            let (rows, cols) = (tensor.shape()[0], tensor.shape()[1] * 64);
            let matrix = weights.matrix(module, rows, cols).expect("quantised");
            let values = (0..rows).flat_map(|row| matrix.row(row).expect("a row"));
            let bytes = values.flat_map(f32::to_le_bytes).collect();
            floats.push((format!("{module}.weight"), vec![rows, cols], bytes));
        } else if name.ends_with("norm.weight") {
            floats.push((name, tensor.shape().to_vec(), tensor.data().to_vec()));
        }
    }
    let views = floats.iter().map(|(name, shape, bytes)| {
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes);
        (name.as_str(), view.expect("fits"))
    });
    safetensors::serialize_to_file(views, None, &path).expect("written");
}

#[test]
fn an_unquantised_checkpoint_is_the_same_model() {
    let copy = Copy::new();
    let quantised = load(copy.0.path()).expect("loads").model;
    dequantise(&copy);
    let LoadedModel { model, info } = load(copy.0.path()).expect("loads");
    assert_eq!((info.quantization.as_str(), info.unused_tensors.len()), ("f32", 0));
    let (quantised, float) = (logits(&quantised), logits(&model));
    let largest = quantised.iter().zip(&float).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // MLX rounds a dequantised weight twice, the importer once; the logits' deviation is about 6.
    assert!(largest < 6e-4, "off by {largest}");
}
