//! Rebuilds tokenizer.json from GGUF's vocabulary, merges and the name of its pre-tokenizer.
//!
//! GGUF names the pre-tokenizer instead of describing it, so each name is translated to the rule of the tokenizer it
//! was made from. An unknown name is refused: a near miss would change token boundaries quietly.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::ImportError;
use super::gguf::Metadata;

/// ggml's token types that matter here.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Names of tokens by role, for the files beside tokenizer.json.
#[derive(Debug)]
pub(super) struct SpecialTokens {
    pub(super) bos: Option<(u64, String)>,
    pub(super) eos: Option<(u64, String)>,
    /// Ends a turn, where that differs from `eos`.
    pub(super) eot: Option<(u64, String)>,
    pub(super) pad: Option<(u64, String)>,
    pub(super) unk: Option<(u64, String)>,
}

/// A pre-tokenizer's rule.
struct Rule {
    pre_tokenizer: Value,
    normalizer: Value,
    ignore_merges: bool,
    /// Whether BOS is added when the metadata do not say.
    adds_bos: bool,
}

/// Splits as Llama 3 does; `DIGITS` stands for its way with numbers.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Splits as Mistral's Tekken does.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn byte_level(use_regex: bool) -> Value {
    json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex })
}

fn sequence(first: &Value, use_regex: bool) -> Value {
    json!({ "type": "Sequence", "pretokenizers": [first, byte_level(use_regex)] })
}

fn split(pattern: &str) -> Value {
    let first = json!({
        "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false,
    });
    sequence(&first, false)
}

fn rule(name: &str) -> Option<Rule> {
    let plain = |pre_tokenizer| Rule {
        pre_tokenizer,
        normalizer: Value::Null,
        ignore_merges: false,
        adds_bos: false,
    };
    Some(match name {
        "gpt-2" => plain(byte_level(true)),
        "smollm" | "starcoder" | "refact" => {
            plain(sequence(&json!({ "type": "Digits", "individual_digits": true }), true))
        }
        "qwen2" => Rule {
            normalizer: json!({ "type": "NFC" }),
            ..plain(split(&WORDS.replace("DIGITS", r"\p{N}")))
        },
        "llama-bpe" | "llama3" => Rule {
            ignore_merges: true,
            adds_bos: true,
            ..plain(split(&WORDS.replace("DIGITS", r"\p{N}{1,3}")))
        },
        "tekken" => Rule { ignore_merges: true, adds_bos: true, ..plain(split(TEKKEN)) },
        _ => return None,
    })
}

/// Builds tokenizer.json and the roles of its special tokens.
pub(super) fn rebuild(metadata: &Metadata) -> Result<(Value, SpecialTokens), ImportError> {
    let refuse = |why: String| ImportError::Tokenizer(why);
    let model = metadata.text("tokenizer.ggml.model")?;
    if model != "gpt2" {
        return Err(refuse(format!(
            "its model is `{model}`, only `gpt2` (byte-level BPE) is imported"
        )));
    }
    let pre = metadata.text("tokenizer.ggml.pre")?;
    let rule = rule(pre)
        .ok_or_else(|| refuse(format!("its pre-tokenizer is `{pre}`, which is not known")))?;

    let tokens = metadata.texts("tokenizer.ggml.tokens")?;
    let types = metadata.integers("tokenizer.ggml.token_type")?;
    if types.len() != tokens.len() {
        return Err(refuse(format!("{} tokens but {} token types", tokens.len(), types.len())));
    }
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if let Some(first) = ids.insert(token.as_str(), id) {
            return Err(refuse(format!("token {token:?} has the ids {first} and {id}")));
        }
    }
    let merges = merges(metadata.texts("tokenizer.ggml.merges")?, &ids)?;
    let special = special_tokens(metadata, tokens)?;
    let adds_bos = metadata.flag_opt("tokenizer.ggml.add_bos_token")?.unwrap_or(rule.adds_bos);
    let vocabulary: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    let json = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(tokens, types),
        "normalizer": rule.normalizer,
        "pre_tokenizer": rule.pre_tokenizer,
        "post_processor": special.bos.as_ref().filter(|_| adds_bos).map(|(id, bos)| begin_with(bos, *id)),
        "decoder": byte_level(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": rule.ignore_merges,
            "vocab": vocabulary,
            "merges": merges,
        },
    });
    Ok((json, special))
}

fn merges(lines: &[String], ids: &HashMap<&str, usize>) -> Result<Vec<Value>, ImportError> {
    let pair = |line: &String| {
        // A space never occurs inside a byte-level token, so the only one separates the two.
        let (left, right) = line.split_once(' ')?;
        let known = ids.contains_key(left) && ids.contains_key(right);
        known.then(|| json!([left, right]))
    };
    let refuse =
        |line: &String| ImportError::Tokenizer(format!("merge {line:?} is not two tokens"));
    lines.iter().map(|line| pair(line).ok_or_else(|| refuse(line))).collect()
}

fn added_tokens(tokens: &[String], types: &[i64]) -> Vec<Value> {
    let added = tokens
        .iter()
        .zip(types)
        .enumerate()
        .filter(|(_, (_, kind))| matches!(**kind, CONTROL | USER_DEFINED));
    added
        .map(|(id, (token, &kind))| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": kind == CONTROL,
            })
        })
        .collect()
}

fn begin_with(bos: &str, id: u64) -> Value {
    let token = json!({ "SpecialToken": { "id": bos, "type_id": 0 } });
    let sequence =
        |name: &str, type_id: u8| json!({ "Sequence": { "id": name, "type_id": type_id } });
    json!({
        "type": "TemplateProcessing",
        "single": [token, sequence("A", 0)],
        "pair": [token, sequence("A", 0), sequence("B", 1)],
        "special_tokens": { bos: { "id": bos, "ids": [id], "tokens": [bos] } },
    })
}

fn special_tokens(metadata: &Metadata, tokens: &[String]) -> Result<SpecialTokens, ImportError> {
    let role = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let Some(id) = metadata.unsigned_opt(&key)? else { return Ok(None) };
        match usize::try_from(id).ok().and_then(|index| tokens.get(index)) {
            Some(token) => Ok(Some((id, token.clone()))),
            None => {
                let why = format!("`{key}` is {id}, beyond the {} tokens", tokens.len());
                Err(ImportError::Tokenizer(why))
            }
        }
    };
    Ok(SpecialTokens {
        bos: role("bos")?,
        eos: role("eos")?,
        eot: role("eot")?,
        pad: role("padding")?,
        unk: role("unknown")?,
    })
}
