//! The small files beside the weights: config.json and its companions, and where the model came from.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::ImportError;
use super::architecture::Architecture;
use super::tokenizer::SpecialTokens;

/// How one module is quantised, in groups of 32.
pub(super) type ModuleBits<'a> = (&'a str, usize);

/// Writes `value`, indented, with a newline at the end.
pub(super) fn write_json(path: &Path, value: &Value) -> Result<(), ImportError> {
    write(path, &format!("{value:#}\n"))
}

fn write(path: &Path, text: &str) -> Result<(), ImportError> {
    fs::write(path, text).map_err(ImportError::io("write", path))
}

/// The commonest width is the default; every module that differs gets an entry of its own.
fn quantisation(modules: &[ModuleBits<'_>]) -> Option<Value> {
    let four = modules.iter().filter(|(_, bits)| *bits == 4).count();
    let default = if 2 * four >= modules.len() { 4 } else { 8 };
    let mut map = Map::new();
    map.insert("group_size".to_owned(), 32.into());
    map.insert("bits".to_owned(), default.into());
    map.insert("mode".to_owned(), "affine".into());
    for (module, bits) in modules.iter().filter(|(_, bits)| *bits != default) {
        map.insert((*module).to_owned(), json!({ "group_size": 32, "bits": bits }));
    }
    (!modules.is_empty()).then_some(Value::Object(map))
}

/// Writes config.json.
pub(super) fn write_config(
    dir: &Path,
    architecture: &Architecture,
    special: &SpecialTokens,
    dtype: &str,
    modules: &[ModuleBits<'_>],
) -> Result<(), ImportError> {
    let mut config = architecture.config();
    config["torch_dtype"] = dtype.into();
    token_ids(special, &mut config);
    if let Some(quantisation) = quantisation(modules) {
        config["quantization"] = quantisation.clone();
        config["quantization_config"] = quantisation;
    }
    write_json(&dir.join("config.json"), &config)
}

fn token_ids(special: &SpecialTokens, into: &mut Value) {
    if let Some((id, _)) = special.bos {
        into["bos_token_id"] = id.into();
    }
    if let Some((eos, _)) = special.eos {
        into["eos_token_id"] = match special.eot {
            Some((eot, _)) if eot != eos => json!([eos, eot]),
            _ => eos.into(),
        };
    }
    if let Some((id, _)) = special.pad {
        into["pad_token_id"] = id.into();
    }
}

/// Writes tokenizer.json, tokenizer_config.json, special_tokens_map.json, generation_config.json and the template.
pub(super) fn write_tokenizer(
    dir: &Path,
    tokenizer: &Value,
    special: &SpecialTokens,
    context: usize,
    chat_template: Option<&str>,
) -> Result<(), ImportError> {
    let text = tokenizer.to_string();
    // What cannot be loaded is not worth keeping: the library's own word decides.
    if let Err(error) = tokenizers::Tokenizer::from_bytes(text.as_bytes()) {
        return Err(ImportError::Tokenizer(format!(
            "the rebuilt tokenizer does not load: {error}"
        )));
    }
    write(&dir.join("tokenizer.json"), &text)?;

    let mut names = Map::new();
    let roles = [
        ("bos_token", &special.bos),
        ("eos_token", &special.eos),
        ("pad_token", &special.pad),
        ("unk_token", &special.unk),
    ];
    for (role, token) in roles {
        if let Some((_, name)) = token {
            names.insert(role.to_owned(), name.clone().into());
        }
    }
    write_json(&dir.join("special_tokens_map.json"), &Value::Object(names.clone()))?;

    let mut config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_prefix_space": false,
        "clean_up_tokenization_spaces": false,
        "model_max_length": context,
    });
    for (role, name) in names {
        config[role] = name;
    }
    if let Some(template) = chat_template {
        config["chat_template"] = template.into();
        write(&dir.join("chat_template.jinja"), template)?;
    }
    write_json(&dir.join("tokenizer_config.json"), &config)?;

    let mut generation = json!({});
    token_ids(special, &mut generation);
    write_json(&dir.join("generation_config.json"), &generation)
}
