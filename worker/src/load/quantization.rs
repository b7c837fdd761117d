//! How each module of a checkpoint is quantised.
//!
//! A module is quantised if it has a `.scales` tensor. Bits and group size follow from the shapes, because the
//! module's input width is known; a per-module entry of `config.json` must agree with them. The global entry is
//! a default that real checkpoints contradict, so it only names the mode. Refused, by module: modes other than
//! affine, 2, 3, 5 and 6 bits, and group sizes other than 32, 64 and 128.

use std::collections::HashMap;

use serde_json::Value;

use super::LoadError;
use super::fields::Fields;

/// Bits and group size of one affine-quantised module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Affine {
    /// Bits of one weight.
    pub bits: u8,
    /// Weights that share a scale and a bias.
    pub group: usize,
}

/// What `config.json` says about quantisation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantization {
    /// For modules without an entry of their own.
    global: Entry,
    modules: HashMap<String, Entry>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Entry {
    bits: Option<u64>,
    group: Option<u64>,
    mode: Option<String>,
}

impl Quantization {
    /// Reads `quantization`, or `quantization_config` where it is MLX's own copy.
    ///
    /// # Errors
    /// If it is malformed or of another tool.
    pub fn parse(config: &Fields) -> Result<Self, LoadError> {
        let Some(fields) = Self::section(config)? else { return Ok(Self::default()) };
        let mut modules = HashMap::new();
        for (name, value) in fields.iter() {
            match value {
                Value::Object(_) => {
                    if let Some(entry) = fields.object(name)? {
                        modules.insert(name.clone(), Entry::parse(&entry)?);
                    }
                }
                // `false` (not quantised) is what a missing `.scales` says anyway; `true` says nothing.
                Value::Bool(_) | Value::Null | Value::Number(_) | Value::String(_) => {}
                Value::Array(_) => {
                    return Err(fields.wrong(name, "expected an object, found an array"));
                }
            }
        }
        Ok(Self { global: Entry::parse(&fields)?, modules })
    }

    fn section(config: &Fields) -> Result<Option<Fields>, LoadError> {
        if let Some(fields) = config.object("quantization")? {
            return Ok(Some(fields));
        }
        let Some(fields) = config.object("quantization_config")? else { return Ok(None) };
        match fields.optional::<String>("quant_method")? {
            None => Ok(Some(fields)),
            Some(method) => Err(fields.wrong(
                "quant_method",
                format!("`{method}` is not supported, only MLX affine quantisation"),
            )),
        }
    }

    fn entry(&self, module: &str) -> Option<&Entry> {
        const WRAPPER: &str = "language_model.";
        let other = match module.strip_prefix(WRAPPER) {
            Some(bare) => bare.to_owned(),
            None => format!("{WRAPPER}{module}"),
        };
        self.modules.get(module).or_else(|| self.modules.get(&other))
    }

    /// Bits and group size of `module`, whose weight has `inputs` columns, from the widths of its packed weight
    /// and its scales; or why it cannot be used.
    ///
    /// # Errors
    /// A sentence for the person who reads the log.
    pub fn decide(
        &self,
        module: &str,
        inputs: usize,
        packed_words: usize,
        groups: usize,
    ) -> Result<Affine, String> {
        let entry = self.entry(module);
        let mode = entry.and_then(|e| e.mode.as_deref());
        // An entry without a mode is affine, whatever the global mode.
        let mode = if entry.is_some() { mode } else { self.global.mode.as_deref() };
        if let Some(mode) = mode.filter(|&mode| mode != "affine") {
            return Err(format!("is quantised as {mode}, only affine is supported"));
        }
        let bits = exact_ratio(packed_words.saturating_mul(32), inputs);
        let group = exact_ratio(inputs, groups);
        let (Some(bits), Some(group)) = (bits, group) else {
            return Err(format!(
                "has {packed_words} packed words and {groups} groups a row, \
                 which fit no quantisation of {inputs} inputs"
            ));
        };
        if !matches!(bits, 4 | 8) || !matches!(group, 32 | 64 | 128) {
            return Err(format!(
                "has {bits} bits in groups of {group}, only 4 and 8 bits in groups of 32, 64 and 128 \
                 are supported"
            ));
        }
        if let Some(entry) = entry {
            let says =
                |said: Option<u64>, found: usize| said.is_none_or(|said| said == found as u64);
            if !says(entry.bits, bits) || !says(entry.group, group) {
                return Err(format!(
                    "has {bits} bits in groups of {group}, its entry in config.json says otherwise"
                ));
            }
        }
        Ok(Affine { bits: if bits == 4 { 4 } else { 8 }, group })
    }
}

impl Entry {
    fn parse(fields: &Fields) -> Result<Self, LoadError> {
        Ok(Self {
            bits: fields.optional("bits")?,
            group: fields.optional("group_size")?,
            mode: fields.optional("mode")?,
        })
    }
}

fn exact_ratio(numerator: usize, denominator: usize) -> Option<usize> {
    (denominator > 0 && numerator.is_multiple_of(denominator)).then(|| numerator / denominator)
}

/// How a whole checkpoint is quantised, in a few words, from what its modules turned out to be.
#[must_use]
pub(super) fn describe(found: &[Affine], float: &str) -> String {
    match found {
        [] => float.to_owned(),
        [one, rest @ ..] if rest.iter().all(|other| other == one) => {
            format!("{}-bit group {}", one.bits, one.group)
        }
        _ => {
            let mut kinds: Vec<_> = found.to_vec();
            kinds.sort_unstable();
            kinds.dedup();
            let names: Vec<_> =
                kinds.iter().map(|k| format!("{}-bit group {}", k.bits, k.group)).collect();
            format!("mixed {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(json: &str) -> Result<Quantization, LoadError> {
        let map = serde_json::from_str(json).expect("test JSON");
        Quantization::parse(&Fields::new(Path::new("config.json"), map))
    }

    #[test]
    fn shapes_decide_and_entries_must_agree() {
        let q = parse(
            r#"{"quantization": {"group_size": 64, "bits": 4,
                "lm_head": {"group_size": 32, "bits": 8}, "skipped": false}}"#,
        )
        .expect("sound");
        assert_eq!(q.decide("a", 128, 16, 2), Ok(Affine { bits: 4, group: 64 }));
        // Contradicts the global entry: the shapes are right.
        assert_eq!(q.decide("a", 128, 32, 4), Ok(Affine { bits: 8, group: 32 }));
        assert_eq!(q.decide("lm_head", 128, 32, 4), Ok(Affine { bits: 8, group: 32 }));
        assert_eq!(
            q.decide("language_model.lm_head", 128, 32, 4),
            Ok(Affine { bits: 8, group: 32 })
        );
        assert!(q.decide("lm_head", 128, 16, 2).expect_err("contradiction").contains("otherwise"));
        assert!(q.decide("a", 128, 24, 2).expect_err("6 bits").contains("6 bits"));
        assert!(q.decide("a", 128, 16, 8).expect_err("group 16").contains("groups of 16"));
        assert!(q.decide("a", 128, 17, 3).expect_err("nonsense").contains("fit no"));
        assert!(q.decide("a", 128, 16, 0).is_err());
    }

    #[test]
    fn other_modes_are_refused_where_they_are_used() {
        let q = parse(
            r#"{"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4",
                "model.norm": {"group_size": 64, "bits": 4}}}"#,
        )
        .expect("sound");
        assert!(q.decide("a", 128, 16, 4).expect_err("mxfp4").contains("mxfp4"));
        assert!(q.decide("model.norm", 128, 16, 2).is_ok());
    }

    #[test]
    fn quantisation_of_other_tools_is_refused_by_name() {
        let error = parse(r#"{"quantization_config": {"quant_method": "awq", "bits": 4}}"#)
            .expect_err("foreign");
        let text = error.to_string();
        assert!(
            text.contains("quantization_config.quant_method") && text.contains("awq"),
            "{text}"
        );
        assert_eq!(parse("{}").expect("none"), Quantization::default());
    }

    #[test]
    fn a_description_names_every_kind_once() {
        let (four, eight) = (Affine { bits: 4, group: 32 }, Affine { bits: 8, group: 64 });
        assert_eq!(describe(&[], "bf16"), "bf16");
        assert_eq!(describe(&[four, four], "f32"), "4-bit group 32");
        assert_eq!(describe(&[eight, four, eight], "f32"), "mixed 4-bit group 32, 8-bit group 64");
    }
}
