//! Checks a whole JSON body before anything reads it: one pass, no tree.
//!
//! Refuses what JSON readers disagree about or choke on: duplicate keys, deep nesting, numbers without a finite value,
//! invalid UTF-8, and so many values that a tree of them would be the attack. The refusal names the field.
//! What passes may be forwarded as it is: two readers will see the same thing in it.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::error::ApiError;

/// What a body may hold.
#[derive(Debug, Clone, Copy)]
pub struct JsonLimits {
    /// Deepest nesting of arrays and objects, in levels. At most 127: serde_json stops there itself.
    pub depth: usize,
    /// Most values (scalars, arrays and objects together).
    pub values: usize,
}

/// Most values in a body by default: a tree of so many takes some tens of megabytes.
const MAX_VALUES: usize = 524_288;

impl Default for JsonLimits {
    fn default() -> Self {
        Self { depth: crate::limits::JSON_DEPTH, values: MAX_VALUES }
    }
}

/// The body as text, if it is one JSON object within `limits` that every reader reads alike.
pub fn checked<'a>(body: &'a [u8], limits: &JsonLimits) -> Result<&'a str, ApiError> {
    let text = std::str::from_utf8(body).map_err(|error| {
        ApiError::bad_request(format!(
            "The request body is not valid UTF-8 (at byte {}).",
            error.valid_up_to()
        ))
        .with_code("invalid_utf8")
    })?;
    if !text.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
        return Err(invalid("The request body must be a JSON object."));
    }
    let walk = Walk { limits, path: RefCell::default(), depth: Cell::new(0), values: Cell::new(0) };
    let mut reader = serde_json::Deserializer::from_str(text);
    match (&walk).deserialize(&mut reader).and_then(|()| reader.end()) {
        Ok(()) => Ok(text),
        Err(error) => {
            let refusal = invalid(format!("The request body is not acceptable JSON: {error}."));
            let path = shown(&walk.path.take());
            Err(if path.is_empty() { refusal } else { refusal.with_param(path) })
        }
    }
}

fn invalid(message: impl Into<String>) -> ApiError {
    ApiError::bad_request(message).with_code("invalid_json")
}

/// Steps of a path that are shown: deeper ones say nothing more.
const PATH_STEPS: usize = 8;

fn shown(steps: &[String]) -> String {
    let more = if steps.len() > PATH_STEPS { "…" } else { "" };
    steps.iter().take(PATH_STEPS).map(String::as_str).chain([more]).collect()
}

/// Longest key repeated in a path, in characters.
const PATH_KEY_CHARS: usize = 64;

/// The state of the walk. A step of the path is taken back only after success, so that on failure it leads to the fault.
struct Walk<'l> {
    limits: &'l JsonLimits,
    path: RefCell<Vec<String>>,
    depth: Cell<usize>,
    values: Cell<usize>,
}

impl Walk<'_> {
    fn count<E: Error>(&self) -> Result<(), E> {
        self.values.set(self.values.get() + 1);
        if self.values.get() > self.limits.values {
            return Err(E::custom(format_args!("more than {} values", self.limits.values)));
        }
        Ok(())
    }

    fn descend<E: Error>(&self) -> Result<(), E> {
        self.count()?;
        self.depth.set(self.depth.get() + 1);
        if self.depth.get() > self.limits.depth {
            return Err(E::custom(format_args!("nested deeper than {} levels", self.limits.depth)));
        }
        Ok(())
    }

    fn ascend(&self) {
        self.depth.set(self.depth.get() - 1);
    }

    fn step_in(&self, step: String) {
        self.path.borrow_mut().push(step);
    }

    fn step_out(&self) {
        self.path.borrow_mut().pop();
    }
}

impl<'de> DeserializeSeed<'de> for &Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        self.count()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        self.count()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        self.count()
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        if !number.is_finite() {
            return Err(E::custom("number out of range"));
        }
        self.count()
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        self.count()
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.count()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.descend()?;
        let mut index = 0_usize;
        loop {
            self.step_in(format!("[{index}]"));
            let more = items.next_element_seed(self)?.is_some();
            self.step_out();
            if !more {
                break;
            }
            index += 1;
        }
        self.ascend();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.descend()?;
        let mut seen: HashSet<Cow<'de, str>> = HashSet::new();
        while let Some(key) = entries.next_key_seed(Key)? {
            self.step_in(self.name(&key));
            if seen.contains(&key) {
                return Err(A::Error::custom("the key appears twice"));
            }
            entries.next_value_seed(self)?;
            self.step_out();
            seen.insert(key);
        }
        self.ascend();
        Ok(())
    }
}

impl Walk<'_> {
    fn name(&self, key: &str) -> String {
        let shown: String = key.chars().take(PATH_KEY_CHARS).collect();
        if self.path.borrow().is_empty() { shown } else { format!(".{shown}") }
    }
}

/// Reads a key without copying it where the body holds it unescaped.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E: Error>(self, key: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(key))
    }

    fn visit_str<E: Error>(self, key: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(key.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(body: &[u8]) -> ApiError {
        checked(body, &JsonLimits::default()).expect_err("must be refused")
    }

    #[test]
    fn an_ordinary_body_passes_unchanged() {
        let body = br#"{"a":[1,-2,3.5e2,null,true,"\u00e9"],"b":{"a":{}}}"#;
        assert_eq!(checked(body, &JsonLimits::default()).map(str::as_bytes), Ok(&body[..]));
    }

    #[test]
    fn faults_are_refused_where_they_are() {
        let cases: [(&[u8], Option<&str>, &str); 9] = [
            (br#"{"a":1,"a":2}"#, Some("a"), "twice"),
            (br#"{"m":[{"x":{"k":1,"\u006b":2}}]}"#, Some("m[0].x.k"), "twice"),
            (br#"{"temperature":1e999}"#, Some("temperature"), "out of range"),
            (br#"{"n":1,"temperature":NaN}"#, Some("temperature"), "expected value"),
            (br#"{"temperature":-Infinity}"#, Some("temperature"), "invalid number"),
            (br#"{"a":[1,2"#, Some("a[2]"), "EOF"),
            (br#"{"a":1} x"#, None, "trailing"),
            (b"[1]", None, "must be a JSON object"),
            (b"", None, "must be a JSON object"),
        ];
        for (body, param, wording) in cases {
            let error = refusal(body);
            let shown = String::from_utf8_lossy(body);
            assert_eq!(error.status, 400, "{shown}");
            assert_eq!(error.param.as_deref(), param, "{shown}: {error}");
            assert!(error.message.contains(wording), "{shown}: {error}");
        }
    }

    #[test]
    fn invalid_utf8_and_lone_surrogates_are_refused() {
        assert_eq!(refusal(b"{\"a\":\"\xff\"}").code, Some("invalid_utf8"));
        assert_eq!(refusal(br#"{"a":"\ud800"}"#).param.as_deref(), Some("a"));
    }

    #[test]
    fn nesting_and_size_are_bounded() {
        let deep = |levels: usize| {
            format!("{{\"a\":{}{}}}", "[".repeat(levels - 1), "]".repeat(levels - 1))
        };
        let limits = JsonLimits { depth: 64, values: 100 };
        assert!(checked(deep(64).as_bytes(), &limits).is_ok());
        let error = checked(deep(65).as_bytes(), &limits).expect_err("too deep");
        assert!(error.message.contains("deeper than 64"), "{error}");
        assert!(checked(deep(100_000).as_bytes(), &limits).is_err());
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(100));
        let error = checked(many.as_bytes(), &limits).expect_err("too many");
        assert!(error.message.contains("more than 100 values"), "{error}");
    }
}
