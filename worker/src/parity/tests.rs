//! Every small checkpoint against what mlx-lm computed from it, in every form.

use std::path::PathBuf;

use sanctum_kernels::Form;

use super::*;

fn fixture(name: &str) -> PathBuf {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/checkpoints");
    PathBuf::from(tests).join(name)
}

fn options(name: &str, form: Form) -> ParityOptions {
    ParityOptions {
        model: fixture(name),
        backend: BackendOptions { form, threads: 2 },
        tolerance: DEFAULT_TOLERANCE,
    }
}

/// All prompts of the fixture's reference pass; those in float32 have 48 greedy tokens and every position's best.
fn agrees(name: &str, form: Form) {
    let reference = Reference::read(&fixture(name).join("reference.json")).expect("a reference");
    let report = check(&options(name, form), &reference).expect("a verdict");
    println!("{name} {form:?}\n{report}");
    assert_eq!(report.prompts.len(), 4);
    assert!(report.passes(), "{report}");
    if name.ends_with("-f32") {
        for prompt in &report.prompts {
            assert_eq!(prompt.greedy, Some((48, 48)), "{report}");
            assert_eq!(prompt.argmax, Some((prompt.tokens, prompt.tokens)), "{report}");
        }
    }
}

macro_rules! fixtures_agree {
    ($($test:ident: $form:ident, $name:literal;)*) => {$(
        #[test]
        fn $test() {
            agrees($name, Form::$form);
        }
    )*};
}

fixtures_agree! {
    llama_in_host_form: Host, "llama-4bit-g64-f32";
    llama_in_graph_form: Graph, "llama-4bit-g64-f32";
    llama_in_reference_form: Reference, "llama-4bit-g64-f32";
    mistral_in_host_form: Host, "mistral-4bit-g64-f32";
    mistral_in_graph_form: Graph, "mistral-4bit-g64-f32";
    mistral_in_reference_form: Reference, "mistral-4bit-g64-f32";
    qwen2_tied_in_host_form: Host, "qwen2-4bit-g64-tied-f32";
    qwen2_tied_in_graph_form: Graph, "qwen2-4bit-g64-tied-f32";
    qwen2_tied_in_reference_form: Reference, "qwen2-4bit-g64-tied-f32";
    qwen2_yarn_in_host_form: Host, "qwen2-yarn-4bit-g64-f32";
    qwen2_yarn_in_graph_form: Graph, "qwen2-yarn-4bit-g64-f32";
    qwen2_yarn_in_reference_form: Reference, "qwen2-yarn-4bit-g64-f32";
    qwen2_8bit_in_host_form: Host, "qwen2-8bit-f16";
    qwen2_8bit_in_graph_form: Graph, "qwen2-8bit-f16";
    qwen2_8bit_in_reference_form: Reference, "qwen2-8bit-f16";
}

/// The gate of an upgrade: what one build records at 512, 2,048 and 4,000 tokens, another repeats. The same build does
/// so to the bit; another form, here as the other build, within the tolerance and with every token equal.
#[test]
fn a_recorded_reference_is_repeated() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("ours.json");
    let name = "qwen2-4bit-g64-tied-f32";
    record(&options(name, Form::Host)).expect("recorded").write(&path).expect("written");
    let mut read = Reference::read(&path).expect("read back");
    let report = check(&options(name, Form::Host), &read).expect("a verdict");
    let lengths: Vec<usize> = report.prompts.iter().map(|p| p.tokens).collect();
    assert!([512, 2048, 4000].iter().all(|n| lengths.contains(n)), "{report}");
    assert!(report.passes() && report.prompts.iter().all(|p| p.error == 0.0), "{report}");
    read.prompts.retain(|prompt| prompt.ids.len() <= 512);
    let report = check(&options(name, Form::Reference), &read).expect("a verdict");
    assert!(report.passes(), "{report}");
}

#[test]
fn a_difference_fails() {
    let theirs = ReferencePrompt {
        name: "p".to_owned(),
        ids: vec![1, 2],
        logits: vec![-1.0, 1.0],
        greedy: Some(vec![1, 1, 0]),
        argmax: Some(vec![0, 1]),
    };
    let same = Run { logits: vec![-1.0, 1.0], argmax: vec![0, 1], greedy: vec![1, 1, 0] };
    let passes = |ours: &Run| compare(&theirs, ours).passes(DEFAULT_TOLERANCE);
    assert!(passes(&same));
    assert!(passes(&Run { logits: vec![-1.0, 1.00005], ..same.clone() }));
    assert!(!passes(&Run { logits: vec![-1.0, 1.0002], ..same.clone() }));
    assert!(!passes(&Run { logits: vec![f32::NAN, 1.0], ..same.clone() }));
    assert!(!passes(&Run { logits: vec![-1.0], ..same.clone() }));
    assert!(!passes(&Run { argmax: vec![1, 1], ..same.clone() }));
    let early = Run { greedy: vec![1, 0, 0], ..same };
    assert_eq!(compare(&theirs, &early).greedy, Some((1, 3)));
    assert!(!passes(&early));
}

#[test]
fn a_reference_of_another_model_is_refused() {
    let prompt = ReferencePrompt {
        name: "p".to_owned(),
        ids: vec![1],
        logits: vec![0.0; 7],
        greedy: None,
        argmax: None,
    };
    let reference = Reference { prompts: vec![prompt] };
    let error = check(&options("llama-4bit-g64-f32", Form::Reference), &reference);
    assert!(error.expect_err("refused").to_string().contains("reference"));
}
