//! Model directories for tests: small ones from the fixtures, copies to damage, and the real model.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::process::workspace;
use super::tensors::{self, Tensors};

/// A small llama with random weights: its replies are noise, but always the same noise.
pub const LLAMA: &str = "llama-4bit-g64-f32";

/// The directory of a fixture.
///
/// # Panics
/// If there is none of that name.
pub fn fixture(name: &str) -> PathBuf {
    let dir = workspace().join("tests/fixtures/checkpoints").join(name);
    assert!(dir.is_dir(), "no fixture {}", dir.display());
    dir
}

/// The directory of the embedded default model, SmolLM2-135M-Instruct.
///
/// # Panics
/// If it has not been set up.
pub fn smollm2() -> PathBuf {
    let dir = workspace().join("var/models/smollm2-135m-instruct");
    let weights = dir.join("model.safetensors");
    assert!(weights.is_file(), "{} is missing: `make test` sets it up", weights.display());
    dir
}

/// A copy of a fixture, to be damaged.
#[derive(Debug)]
pub struct Copy {
    parent: TempDir,
    name: String,
}

/// Files of a checkpoint that a worker reads.
const FILES: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    WEIGHTS,
];
const WEIGHTS: &str = "model.safetensors";

impl Copy {
    /// Copies the fixture `name`.
    ///
    /// # Panics
    /// If it cannot be copied.
    pub fn of(name: &str) -> Self {
        let copy =
            Self { parent: tempfile::tempdir().expect("a directory"), name: name.to_owned() };
        fs::create_dir(copy.path()).expect("a new directory");
        let source = fixture(name);
        for file in FILES.iter().filter(|file| source.join(file).exists()) {
            fs::copy(source.join(file), copy.path().join(file)).expect("copied");
        }
        copy
    }

    /// The directory.
    pub fn path(&self) -> PathBuf {
        self.parent.path().join(&self.name)
    }

    /// The weights' file.
    pub fn weights(&self) -> PathBuf {
        self.path().join(WEIGHTS)
    }

    /// Changes a JSON file.
    ///
    /// # Panics
    /// If it is not JSON.
    pub fn edit_json(&self, file: &str, edit: impl FnOnce(&mut Value)) -> &Self {
        edit_json(&self.path().join(file), edit);
        self
    }

    /// Changes the weights.
    pub fn edit_tensors(&self, edit: impl FnOnce(&mut Tensors)) -> &Self {
        let mut tensors = tensors::read(&self.weights());
        edit(&mut tensors);
        tensors::write(&self.weights(), &tensors);
        self
    }
}

fn edit_json(path: &Path, edit: impl FnOnce(&mut Value)) {
    let text = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut value = serde_json::from_slice(&text).expect("JSON");
    edit(&mut value);
    fs::write(path, value.to_string()).expect("written");
}
