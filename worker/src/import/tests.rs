//! Whole imports of small synthetic models, read back by independent means.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::path::Path;

use half::f16;
use serde_json::Value;

use super::gguf::writer::Writer;
use super::*;

const F32: u32 = 0;
const F16: u32 = 1;
const Q4_0: u32 = 2;
const Q4_1: u32 = 3;
const Q8_0: u32 = 8;

const HIDDEN: u64 = 64;
const INNER: u64 = 96;
const HEADS: u64 = 4;
const KV_HEADS: u64 = 2;
const HEAD_DIM: u64 = HIDDEN / HEADS;
const TOKENS: [&str; 8] = ["<|end|>", "a", "b", "ab", "Ġ", "c", "<tool>", "d"];

/// Bytes that differ from place to place, with small finite scales at the head of each block.
fn quantised(kind: u32, columns: u64, rows: u64, seed: u64) -> Vec<u8> {
    let (halves, body) = match kind {
        Q4_0 => (1, 16),
        Q4_1 => (2, 16),
        _ => (1, 32),
    };
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut out = Vec::new();
    for _ in 0..columns / 32 * rows {
        for _ in 0..halves {
            out.extend(f16::from_f32(((next() % 2000) as f32 - 1000.0) / 512.0).to_le_bytes());
        }
        out.extend((0..body).map(|_| next() as u8));
    }
    out
}

fn floats(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(f32::to_le_bytes).collect()
}

fn model(architecture: &str) -> Writer {
    let key = |suffix: &str| format!("{architecture}.{suffix}");
    let mut writer = Writer::default()
        .text("general.architecture", architecture)
        .u32(&key("block_count"), 1)
        .u32(&key("context_length"), 128)
        .u32(&key("embedding_length"), HIDDEN as u32)
        .u32(&key("feed_forward_length"), INNER as u32)
        .u32(&key("attention.head_count"), HEADS as u32)
        .u32(&key("attention.head_count_kv"), KV_HEADS as u32)
        .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
        .f32(&key("rope.freq_base"), 100_000.0)
        .text("tokenizer.ggml.model", "gpt2")
        .text("tokenizer.ggml.pre", "smollm")
        .texts("tokenizer.ggml.tokens", &TOKENS)
        .i32s("tokenizer.ggml.token_type", &[3, 1, 1, 1, 1, 1, 4, 1])
        .texts("tokenizer.ggml.merges", &["a b"])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 0)
        .text("tokenizer.chat_template", "{{ messages }}");
    let vocabulary = TOKENS.len() as u64;
    let norm = floats((0..HIDDEN).map(|i| 1.0 + i as f32 / 64.0));
    let matrices = [
        ("token_embd", HIDDEN, vocabulary, Q8_0),
        ("blk.0.attn_q", HIDDEN, HIDDEN, Q4_1),
        ("blk.0.attn_k", HIDDEN, KV_HEADS * HEAD_DIM, Q4_0),
        ("blk.0.attn_v", HIDDEN, KV_HEADS * HEAD_DIM, Q4_1),
        ("blk.0.attn_output", HIDDEN, HIDDEN, Q4_1),
        ("blk.0.ffn_gate", HIDDEN, INNER, Q4_1),
        ("blk.0.ffn_up", HIDDEN, INNER, Q4_1),
        ("blk.0.ffn_down", INNER, HIDDEN, Q4_1),
    ];
    for (seed, (name, columns, rows, kind)) in matrices.into_iter().enumerate() {
        let bytes = quantised(kind, columns, rows, seed as u64 + 1);
        writer = writer.tensor(&format!("{name}.weight"), &[columns, rows], kind, &bytes);
    }
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        writer = writer.tensor(&format!("{name}.weight"), &[HIDDEN], F32, &norm);
    }
    if architecture == "qwen2" {
        for (name, rows) in [("q", HIDDEN), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)]
        {
            let bias = floats((0..rows).map(|i| i as f32));
            writer = writer.tensor(&format!("blk.0.attn_{name}.bias"), &[rows], F32, &bias);
        }
    }
    writer
}

struct Room {
    dir: tempfile::TempDir,
}

impl Room {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temporary directory") }
    }

    fn options(&self, source: &[u8]) -> Options {
        let path = self.dir.path().join("model.gguf");
        fs::write(&path, source).expect("writable");
        Options {
            source: path,
            target: self.dir.path().join("out"),
            width: Width::Exact,
            sha256: None,
            force: false,
            shard_bytes: SHARD_BYTES,
        }
    }

    fn import(&self, writer: &Writer) -> Result<Report, ImportError> {
        import(&self.options(&writer.bytes()), &|_, _, _| {})
    }

    fn json(&self, name: &str) -> Value {
        let text = fs::read_to_string(self.dir.path().join("out").join(name)).expect(name);
        serde_json::from_str(&text).expect("valid JSON")
    }
}

/// Every tensor of a directory by name: type, shape, bytes.
fn tensors(dir: &Path) -> HashMap<String, (::safetensors::Dtype, Vec<usize>, Vec<u8>)> {
    let mut all = HashMap::new();
    for entry in fs::read_dir(dir).expect("readable") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let bytes = fs::read(path).expect("readable");
            let file = ::safetensors::SafeTensors::deserialize(&bytes).expect("valid");
            for (name, view) in file.tensors() {
                let value = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                assert!(all.insert(name, value).is_none(), "each name once");
            }
        }
    }
    all
}

#[test]
fn a_llama_becomes_an_mlx_directory() {
    let room = Room::new();
    let report = room.import(&model("llama")).expect("imported");
    assert_eq!(report.tensors[0], ("Q8_0 as 8-bit groups of 32, f16 scales".to_owned(), 1));

    let config = room.json("config.json");
    assert_eq!(config["model_type"], "llama");
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!(config["tie_word_embeddings"], true);
    assert_eq!(config["quantization"]["bits"], 4);
    assert_eq!(config["quantization"]["model.embed_tokens"]["bits"], 8);
    assert_eq!(config["quantization"], config["quantization_config"]);
    assert_eq!(room.json("generation_config.json")["eos_token_id"], 0);
    assert_eq!(room.json("special_tokens_map.json")["eos_token"], "<|end|>");

    let all = tensors(&room.dir.path().join("out"));
    let shape = |name: &str| all[name].1.clone();
    assert_eq!(shape("model.embed_tokens.weight"), [8, 16]);
    assert_eq!(shape("model.layers.0.self_attn.k_proj.weight"), [32, 8]);
    assert_eq!(shape("model.layers.0.mlp.down_proj.scales"), [64, 3]);
    assert_eq!(all["model.norm.weight"].0, ::safetensors::Dtype::F16, "exact in f16");
    assert_eq!(all.len(), 8 * 3 + 3);

    // Row 1 of a head is row 2 of llama.cpp's interleaved head: scales move with their rows.
    let raw = quantised(Q4_0, HIDDEN, KV_HEADS * HEAD_DIM, 3);
    let scales = &all["model.layers.0.self_attn.k_proj.scales"].2;
    let row_of_scales = |row: usize| &scales[row * 4..row * 4 + 4];
    let blocks_of_row =
        |row: usize| [&raw[row * 36..row * 36 + 2], &raw[row * 36 + 18..row * 36 + 20]].concat();
    for (hf, ggml) in [(0, 0), (1, 2), (8, 1), (15, 15), (16, 16), (17, 18), (24, 17)] {
        assert_eq!(row_of_scales(hf), blocks_of_row(ggml), "row {hf}");
    }
    let raw = quantised(Q4_1, HIDDEN, KV_HEADS * HEAD_DIM, 4);
    assert_eq!(
        all["model.layers.0.self_attn.v_proj.scales"].2[4..6],
        raw[40..42],
        "v keeps its order"
    );

    let tokenizer = tokenizers::Tokenizer::from_file(room.dir.path().join("out/tokenizer.json"))
        .expect("loads");
    assert_eq!(
        tokenizer.encode("ab c<tool><|end|>", false).expect("encodes").get_ids(),
        [3, 4, 5, 6, 0]
    );
    let template =
        fs::read_to_string(room.dir.path().join("out/chat_template.jinja")).expect("there");
    assert_eq!(template, "{{ messages }}");
}

#[test]
fn a_qwen2_keeps_its_rows_and_biases() {
    let room = Room::new();
    room.import(&model("qwen2").text("tokenizer.ggml.pre", "qwen2")).expect("imported");
    assert_eq!(room.json("config.json")["model_type"], "qwen2");
    let all = tensors(&room.dir.path().join("out"));
    let raw = quantised(Q4_1, HIDDEN, HIDDEN, 2);
    assert_eq!(all["model.layers.0.self_attn.q_proj.scales"].2[4..6], raw[40..42]);
    let bias = &all["model.layers.0.self_attn.k_proj.bias"];
    assert_eq!(
        (bias.0, bias.2[2..4].to_vec()),
        (::safetensors::Dtype::F16, f16::ONE.to_le_bytes().to_vec())
    );
}

#[test]
fn f32_widens_every_float() {
    let room = Room::new();
    let options = Options { width: Width::F32, ..room.options(&model("llama").bytes()) };
    import(&options, &|_, _, _| {}).expect("imported");
    assert_eq!(room.json("config.json")["torch_dtype"], "float32");
    for (name, (dtype, ..)) in tensors(&options.target) {
        let packed = dtype == ::safetensors::Dtype::U32;
        assert!(packed || dtype == ::safetensors::Dtype::F32, "{name} is {dtype:?}");
    }
}

#[test]
fn a_head_of_its_own_is_not_tied() {
    let room = Room::new();
    let rows = TOKENS.len() as u64;
    let head: Vec<u8> =
        (0..HIDDEN * rows).flat_map(|i| f16::from_f32(i as f32).to_le_bytes()).collect();
    room.import(&model("llama").tensor("output.weight", &[HIDDEN, rows], F16, &head))
        .expect("imported");
    assert_eq!(room.json("config.json")["tie_word_embeddings"], false);
    let all = tensors(&room.dir.path().join("out"));
    assert_eq!(all["lm_head.weight"].2, head);
}

#[test]
fn shards_hold_the_same_tensors_and_an_index() {
    let (one, many) = (Room::new(), Room::new());
    one.import(&model("llama")).expect("imported");
    let options = Options { shard_bytes: 4096, ..many.options(&model("llama").bytes()) };
    import(&options, &|_, _, _| {}).expect("imported");
    let all = tensors(&options.target);
    assert_eq!(all, tensors(&one.dir.path().join("out")));
    let index = many.json("model.safetensors.index.json");
    let map = index["weight_map"].as_object().expect("a map");
    assert_eq!(map.len(), all.len());
    for file in map.values() {
        assert!(options.target.join(file.as_str().expect("a name")).is_file());
    }
}

#[test]
fn an_archive_must_hold_exactly_one_model() {
    let archive = |names: &[&str], compressed: bool| {
        let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        let method = if compressed {
            zip::CompressionMethod::Deflated
        } else {
            zip::CompressionMethod::Stored
        };
        for name in names {
            let options = zip::write::SimpleFileOptions::default().compression_method(method);
            zip.start_file(*name, options).expect("started");
            zip.write_all(&model("llama").bytes()).expect("written");
        }
        zip.finish().expect("finished").into_inner()
    };
    for compressed in [false, true] {
        let room = Room::new();
        let options = room.options(&archive(&["pkg/a.gguf", "pkg/readme.txt"], compressed));
        import(&options, &|_, _, _| {}).expect("imported");
        assert!(!options.target.join("source.gguf").exists());
    }
    let room = Room::new();
    let error = import(&room.options(&archive(&["a.gguf", "b.gguf"], true)), &|_, _, _| {});
    assert!(error.expect_err("refused").to_string().contains("holds 2 .gguf files"));
}

#[test]
fn another_file_than_the_pinned_one_is_refused() {
    let room = Room::new();
    let options =
        Options { sha256: Some("00".repeat(32)), ..room.options(&model("llama").bytes()) };
    let error = import(&options, &|_, _, _| {}).expect_err("refused");
    let ImportError::Sha256 { found, .. } = error else { panic!("{error}") };
    let again = Options { sha256: Some(found.to_uppercase()), ..options };
    assert_eq!(import(&again, &|_, _, _| {}).expect("imported").sha256, found);
}

#[test]
fn every_contradiction_is_refused_by_name() {
    let nan = floats((0..HIDDEN).map(|_| f32::NAN));
    let norm = floats((0..HIDDEN).map(|_| 1.0));
    let cases = [
        (
            model("llama").text("general.architecture", "gptj"),
            "architecture `gptj` is not imported",
        ),
        (model("llama").without("llama.block_count"), "metadata `llama.block_count` is missing"),
        (
            model("llama").u32("llama.block_count", u32::MAX),
            "llama.block_count is 4294967295: it is out of range",
        ),
        (
            model("llama").u32("llama.attention.head_count_kv", 3),
            "must divide the number of query heads",
        ),
        (model("llama").u32("llama.rope.dimension_count", 8), "llama.rope.dimension_count is 8"),
        (model("llama").u32("llama.expert_count", 8), "mixtures of experts are not imported"),
        (
            model("llama").text("llama.rope.scaling.type", "longrope"),
            "llama.rope.scaling.type is longrope",
        ),
        (model("llama").without("blk.0.ffn_up.weight"), "tensor `blk.0.ffn_up.weight` is missing"),
        (
            model("llama").tensor("blk.0.extra.weight", &[HIDDEN], F32, &norm),
            "`blk.0.extra.weight` has no place",
        ),
        (
            model("llama").tensor("rope_freqs.weight", &[HIDDEN], F32, &norm),
            "RoPE scaled per frequency",
        ),
        (
            model("llama").tensor("output_norm.weight", &[32], F32, &norm[..128]),
            "has the shape [32], the metadata ask for [64]",
        ),
        (
            model("llama").tensor("output_norm.weight", &[HIDDEN], F32, &nan),
            "`output_norm.weight` holds a value that is not finite",
        ),
        (model("llama").text("tokenizer.ggml.pre", "viking"), "its pre-tokenizer is `viking`"),
        (model("llama").text("tokenizer.ggml.model", "t5"), "its model is `t5`"),
        (
            model("llama").texts("tokenizer.ggml.merges", &["a z"]),
            "merge \"a z\" is not two tokens",
        ),
        (
            model("llama").u32("tokenizer.ggml.eos_token_id", 8),
            "`tokenizer.ggml.eos_token_id` is 8, beyond",
        ),
        (model("llama").i32s("tokenizer.ggml.token_type", &[1]), "8 tokens but 1 token types"),
    ];
    for (writer, expected) in cases {
        let room = Room::new();
        let message = room.import(&writer).expect_err(expected).to_string();
        assert!(message.contains(expected), "{message:?} should contain {expected:?}");
        let left = fs::read_dir(room.dir.path()).expect("readable").count();
        assert_eq!(left, 1, "only the source is left after: {message}");
    }
}

#[test]
fn the_original_tokenizers_split_the_same_way() {
    // Of the pre-tokenizers' rules only the words matter here: every character is a token, no merge applies.
    let cases = [
        ("smollm", "it's 123", &["it", "'s", "Ġ", "1", "2", "3"][..]),
        ("gpt-2", "it's 123", &["it", "'s", "Ġ123"]),
        ("qwen2", "it'S 123", &["it", "'S", "Ġ", "1", "2", "3"]),
        ("llama-bpe", "it'S 1234", &["it", "'S", "Ġ", "123", "4"]),
        ("tekken", "HeLLo 12", &["He", "LLo", "Ġ", "1", "2"]),
    ];
    for (pre, text, expected) in cases {
        let room = Room::new();
        room.import(&model("llama").text("tokenizer.ggml.pre", pre)).expect("imported");
        let path = room.dir.path().join("out/tokenizer.json");
        let tokenizer = tokenizers::Tokenizer::from_file(path).expect("loads");
        let mut words = tokenizers::PreTokenizedString::from(text);
        let rule = tokenizer.get_pre_tokenizer().expect("a pre-tokenizer");
        tokenizers::PreTokenizer::pre_tokenize(rule, &mut words).expect("splits");
        let bytes = tokenizers::OffsetType::Byte;
        let words: Vec<&str> = words
            .get_splits(tokenizers::OffsetReferential::Original, bytes)
            .iter()
            .map(|s| s.0)
            .collect();
        assert_eq!(words, expected, "{pre}");
    }
}
