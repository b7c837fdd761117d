//! Model directories that cannot be loaded are refused with the file, the tensor or field, and what was expected.

use std::fs;
use std::path::Path;

use sanctum_tests::live::checkpoint::{Copy, LLAMA, fixture};
use sanctum_tests::live::poll::PATIENCE;
use sanctum_tests::live::process::Process;
use sanctum_tests::live::tensors::Tensor;
use sanctum_tests::live::worker::{CHAT, Worker, command};
use serde_json::json;

const GATE: &str = "model.layers.1.mlp.gate_proj.weight";
const NORM: &str = "model.norm.weight";

/// Fails unless a worker refuses `model` with all of `words` in its last line.
async fn refused(model: &Path, words: &[&str]) {
    let state = tempfile::tempdir().expect("a directory");
    let mut process = Process::start(&mut command(model, &state.path().join("worker.json"), &[]));
    let code = process.exit_code(PATIENCE).await;
    let said = process.err();
    let last = said.lines().last().unwrap_or_default();
    assert_eq!(code, 78, "{words:?}: {said}");
    for word in words {
        assert!(last.contains(word), "{word:?} is not in: {last}");
    }
    assert!(!state.path().join("worker.json").exists(), "a refused model leaves no state file");
}

#[tokio::test]
async fn configurations_that_do_not_fit_name_the_field() {
    let copy = Copy::of(LLAMA);
    copy.edit_json("config.json", |config| config["model_type"] = json!("mamba"));
    refused(&copy.path(), &["config.json", "model_type", "mamba", "llama", "qwen2", "mistral"])
        .await;

    let copy = Copy::of(LLAMA);
    copy.edit_json("config.json", |config| config["num_attention_heads"] = json!("four"));
    refused(&copy.path(), &["config.json", "num_attention_heads"]).await;

    let copy = Copy::of(LLAMA);
    let module = "model.layers.1.mlp.gate_proj";
    copy.edit_json("config.json", |config| {
        config["quantization"][module] = json!({"bits": 8, "group_size": 64});
    });
    refused(&copy.path(), &["model.safetensors", module, "4 bits", "config.json says otherwise"])
        .await;

    // Another width than the weights have.
    let copy = Copy::of(LLAMA);
    copy.edit_json("config.json", |config| config["intermediate_size"] = json!(512));
    refused(&copy.path(), &["model.safetensors", "mlp", "512", "256"]).await;

    refused(&fixture("qwen2-mxfp4"), &["qwen2-mxfp4", "mxfp4"]).await;
}

#[tokio::test]
async fn files_that_are_not_there_are_named() {
    refused(Path::new("/nowhere/at-all"), &["/nowhere/at-all"]).await;
    for file in ["config.json", "tokenizer.json"] {
        let copy = Copy::of(LLAMA);
        fs::remove_file(copy.path().join(file)).expect("it was there");
        refused(&copy.path(), &[file]).await;
    }
    let copy = Copy::of(LLAMA);
    fs::remove_file(copy.weights()).expect("it was there");
    refused(&copy.path(), &["model*.safetensors"]).await;

    let copy = Copy::of(LLAMA);
    fs::rename(copy.weights(), copy.path().join("model-00001-of-00002.safetensors"))
        .expect("renamed");
    refused(&copy.path(), &["model-00002-of-00002.safetensors", "missing"]).await;

    let copy = Copy::of(LLAMA);
    fs::write(copy.path().join("tokenizer.json"), "{").expect("written");
    refused(&copy.path(), &["tokenizer.json"]).await;
}

#[tokio::test]
async fn tensors_that_are_not_what_they_should_be_are_named() {
    let copy = Copy::of(LLAMA);
    copy.edit_tensors(|tensors| drop(tensors.remove(GATE)));
    refused(&copy.path(), &[GATE]).await;

    let copy = Copy::of(LLAMA);
    copy.edit_tensors(|tensors| drop(tensors.remove(NORM)));
    refused(&copy.path(), &[NORM, "missing", "[128]"]).await;

    let copy = Copy::of(LLAMA);
    copy.edit_tensors(|tensors| drop(tensors.insert(NORM.into(), Tensor::filled(&[64], 1.0))));
    refused(&copy.path(), &["model.safetensors", NORM, "expected", "[128]", "[64]"]).await;

    let copy = Copy::of(LLAMA);
    copy.edit_tensors(|tensors| tensors.get_mut(NORM).expect("there").dtype = "I32".into());
    refused(&copy.path(), &["model.safetensors", NORM, "F32", "I32"]).await;

    let copy = Copy::of(LLAMA);
    let poisoned = (0..128).map(|nth| if nth == 77 { f32::NAN } else { 1.0 });
    copy.edit_tensors(|tensors| {
        drop(tensors.insert(NORM.into(), Tensor::floats(&[128], poisoned)));
    });
    refused(&copy.path(), &["model.safetensors", NORM, "77", "NaN"]).await;

    // A bias that the configuration does not know would be left out, and every reply be wrong.
    let copy = Copy::of(LLAMA);
    let bias = "model.layers.0.self_attn.q_proj.bias";
    copy.edit_tensors(|tensors| drop(tensors.insert(bias.into(), Tensor::filled(&[128], 1.0))));
    refused(&copy.path(), &["model.safetensors", bias]).await;
}

#[tokio::test]
async fn files_that_lie_about_themselves_are_named() {
    let whole = fs::read(fixture(LLAMA).join("model.safetensors")).expect("weights");
    let damaged = [
        ("cut in the data", whole[..whole.len() - 1000].to_vec()),
        ("cut in the header", whole[..100].to_vec()),
        ("cut in the length", whole[..5].to_vec()),
        ("empty", Vec::new()),
        ("a header longer than any file", [&u64::MAX.to_le_bytes(), &whole[8..]].concat()),
        ("bytes that no tensor owns", [&whole[..], &[0; 64]].concat()),
    ];
    for (what, bytes) in damaged {
        let copy = Copy::of(LLAMA);
        fs::write(copy.weights(), bytes).expect(what);
        refused(&copy.path(), &["model.safetensors"]).await;
    }
}

#[tokio::test]
async fn a_tensor_that_nobody_needs_is_reported_and_served_without() {
    let copy = Copy::of(LLAMA);
    let extra = "model.layers.9.mlp.extra.weight";
    copy.edit_tensors(|tensors| drop(tensors.insert(extra.into(), Tensor::filled(&[4, 4], 1.0))));
    let worker = Worker::start(&copy.path(), &[]).await;
    let body = json!({"messages": [{"role": "user", "content": "go"}], "max_tokens": 2});
    assert_eq!(worker.post(CHAT, &body).await.status, 200);
    let log = worker.process.err();
    let line = log.lines().find(|line| line.contains(extra));
    assert!(line.is_some_and(|line| line.contains("WARN")), "{log}");
}
