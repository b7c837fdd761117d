//! What a checkpoint's small files say beside the tokenizer: marks, end tokens, sampling defaults, chat templates.
//!
//! Reads `tokenizer_config.json`, `generation_config.json`, `config.json` and the template files; each may be absent.
//! A file that is present must be readable: half a configuration would be a different model.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::TokenizeError;

/// What the small files say.
#[derive(Debug, Default)]
pub struct CheckpointText {
    /// `bos_token`, `eos_token`, `pad_token`, `unk_token`: the names templates use, and their text.
    pub marks: BTreeMap<String, String>,
    /// Ids that end a reply by `generation_config.json`, or by `config.json` where that has none.
    pub eos_ids: Vec<u32>,
    /// Sampling as the checkpoint's authors recommend it.
    pub sampling: SamplingDefaults,
    /// Chat templates by name; `default` is the usual one.
    pub templates: BTreeMap<String, String>,
}

/// Sampling parameters of `generation_config.json`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct SamplingDefaults {
    /// `false` means that the authors decode greedily: the other values are then library leftovers.
    pub do_sample: Option<bool>,
    /// Temperature.
    pub temperature: Option<f32>,
    /// Nucleus mass.
    pub top_p: Option<f32>,
    /// Candidates kept.
    pub top_k: Option<usize>,
    /// Smallest probability relative to the best.
    pub min_p: Option<f32>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f32>,
}

impl CheckpointText {
    /// Reads the small files of the checkpoint in `dir`.
    pub fn read(dir: &Path) -> Result<Self, TokenizeError> {
        let tokenizer: TokenizerConfig = read_json(dir, "tokenizer_config.json")?;
        let generation: GenerationConfig = read_json(dir, "generation_config.json")?;
        let model: ModelConfig = read_json(dir, "config.json")?;
        let marks = [
            ("bos_token", tokenizer.bos_token),
            ("eos_token", tokenizer.eos_token),
            ("pad_token", tokenizer.pad_token),
            ("unk_token", tokenizer.unk_token),
        ];
        let eos = generation
            .eos_token_id
            .or(model.eos_token_id)
            .or_else(|| model.text_config.and_then(|text| text.eos_token_id));
        Ok(Self {
            marks: marks
                .into_iter()
                .filter_map(|(name, mark)| Some((name.to_owned(), mark?.text())))
                .collect(),
            eos_ids: eos.map(Ids::list).unwrap_or_default(),
            sampling: generation.sampling,
            templates: templates(dir, tokenizer.chat_template)?,
        })
    }
}

/// Templates, those in files of their own before the one in `tokenizer_config.json`.
fn templates(
    dir: &Path,
    configured: Option<ConfiguredTemplate>,
) -> Result<BTreeMap<String, String>, TokenizeError> {
    let mut templates: BTreeMap<String, String> = match configured {
        None => BTreeMap::new(),
        Some(ConfiguredTemplate::One(text)) => BTreeMap::from([("default".to_owned(), text)]),
        Some(ConfiguredTemplate::Named(list)) => {
            list.into_iter().map(|named| (named.name, named.template)).collect()
        }
    };
    let old: TemplateFile = read_json(dir, "chat_template.json")?;
    templates.extend(old.chat_template.map(|text| ("default".to_owned(), text)));
    if let Some(text) = read(dir, "chat_template.jinja")? {
        templates.insert("default".to_owned(), text);
    }
    Ok(templates)
}

fn read(dir: &Path, name: &str) -> Result<Option<String>, TokenizeError> {
    match fs::read_to_string(dir.join(name)) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TokenizeError::Read { file: dir.join(name), source }),
    }
}

fn read_json<T: DeserializeOwned + Default>(dir: &Path, name: &str) -> Result<T, TokenizeError> {
    let Some(text) = read(dir, name)? else { return Ok(T::default()) };
    serde_json::from_str(&text)
        .map_err(|source| TokenizeError::Parse { file: dir.join(name), source })
}

#[derive(Default, Deserialize)]
struct TokenizerConfig {
    bos_token: Option<Mark>,
    eos_token: Option<Mark>,
    pad_token: Option<Mark>,
    unk_token: Option<Mark>,
    chat_template: Option<ConfiguredTemplate>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Mark {
    Text(String),
    Added { content: String },
}

impl Mark {
    fn text(self) -> String {
        match self {
            Self::Text(text) | Self::Added { content: text } => text,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ConfiguredTemplate {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

#[derive(Default, Deserialize)]
struct TemplateFile {
    chat_template: Option<String>,
}

#[derive(Default, Deserialize)]
struct GenerationConfig {
    eos_token_id: Option<Ids>,
    #[serde(flatten)]
    sampling: SamplingDefaults,
}

#[derive(Default, Deserialize)]
struct ModelConfig {
    eos_token_id: Option<Ids>,
    text_config: Option<TextConfig>,
}

#[derive(Deserialize)]
struct TextConfig {
    eos_token_id: Option<Ids>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    fn list(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            fs::write(dir.path().join(name), text).expect("writable");
        }
        dir
    }

    #[test]
    fn the_small_files_may_all_be_absent() {
        let dir = checkpoint(&[]);
        let text = CheckpointText::read(dir.path()).expect("nothing to misread");
        assert!(text.marks.is_empty() && text.eos_ids.is_empty() && text.templates.is_empty());
    }

    #[test]
    fn marks_come_as_text_or_as_objects() {
        let dir = checkpoint(&[(
            "tokenizer_config.json",
            r#"{"bos_token":"<s>","eos_token":{"content":"</s>","special":true},"unk_token":null}"#,
        )]);
        let marks = CheckpointText::read(dir.path()).expect("readable").marks;
        assert_eq!(marks["bos_token"], "<s>");
        assert_eq!(marks["eos_token"], "</s>");
        assert!(!marks.contains_key("unk_token"));
    }

    #[test]
    fn generation_config_outranks_config() {
        let config = ("config.json", r#"{"eos_token_id":1}"#);
        let dir = checkpoint(&[
            config,
            ("generation_config.json", r#"{"eos_token_id":[7,8],"top_k":20}"#),
        ]);
        let text = CheckpointText::read(dir.path()).expect("readable");
        assert_eq!((text.eos_ids, text.sampling.top_k), (vec![7, 8], Some(20)));
        let dir = checkpoint(&[config]);
        assert_eq!(CheckpointText::read(dir.path()).expect("readable").eos_ids, [1]);
        let dir = checkpoint(&[("config.json", r#"{"text_config":{"eos_token_id":3}}"#)]);
        assert_eq!(CheckpointText::read(dir.path()).expect("readable").eos_ids, [3]);
    }

    #[test]
    fn the_template_file_outranks_the_configured_one() {
        let named = r#"{"chat_template":[{"name":"default","template":"a"},{"name":"tool_use","template":"b"}]}"#;
        let dir = checkpoint(&[("tokenizer_config.json", named)]);
        let templates = CheckpointText::read(dir.path()).expect("readable").templates;
        assert_eq!((&*templates["default"], &*templates["tool_use"]), ("a", "b"));
        let dir = checkpoint(&[("tokenizer_config.json", named), ("chat_template.jinja", "c")]);
        let templates = CheckpointText::read(dir.path()).expect("readable").templates;
        assert_eq!(templates["default"], "c");
    }

    #[test]
    fn a_broken_file_is_named() {
        let dir = checkpoint(&[("generation_config.json", "{")]);
        let error = CheckpointText::read(dir.path()).expect_err("broken");
        assert!(error.to_string().contains("generation_config.json"), "{error}");
    }
}
