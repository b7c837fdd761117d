//! What one event of an OpenAI stream means to the relay: a pure look at its data.
//!
//! Owns the line between lifecycle (roles, empty deltas, usage) and content, which decides when a stream is committed
//! and what counts as progress. It reads types that it does not know as content rather than as silence.

use std::borrow::Cow;
use std::fmt;

use sanctum_shared::sse::Block;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// What an event brings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Look {
    /// Something that a reader would see.
    pub(crate) content: bool,
    /// Choices that gave their `finish_reason`.
    pub(crate) finished: u64,
    /// An error in the place of content.
    pub(crate) error: bool,
    /// `[DONE]`.
    pub(crate) done: bool,
}

impl Look {
    /// Looks at a block; `None` if it is an event whose data is no chunk.
    pub(crate) fn at(block: &Block<'_>) -> Option<Self> {
        let Some(data) = block.data else { return Some(Self::default()) };
        if data == "[DONE]" {
            return Some(Self { done: true, ..Self::default() });
        }
        let chunk: Chunk<'_> = serde_json::from_str(data).ok()?;
        let choices = chunk.choices.unwrap_or_default();
        Some(Self {
            content: choices.iter().any(Choice::has_content),
            finished: choices.iter().filter(|choice| choice.is_finished()).count() as u64,
            error: chunk.error.is_some()
                || block.name == "error"
                || chunk.object.as_deref() == Some("error"),
            done: false,
        })
    }
}

#[derive(Deserialize)]
struct Chunk<'a> {
    error: Option<IgnoredAny>,
    #[serde(borrow)]
    object: Option<Cow<'a, str>>,
    choices: Option<Vec<Choice>>,
}

#[derive(Deserialize)]
struct Choice {
    delta: Option<Delta>,
    text: Option<Filled>,
    finish_reason: Option<Reason>,
}

impl Choice {
    fn is_finished(&self) -> bool {
        self.finish_reason.as_ref().is_some_and(|reason| reason.0)
    }

    fn has_content(&self) -> bool {
        self.delta.as_ref().is_some_and(|delta| delta.0)
            || self.text.as_ref().is_some_and(|text| text.0)
    }
}

/// Whether a delta holds more than a role.
struct Delta(bool);

impl<'de> Deserialize<'de> for Delta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Delta;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a delta")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Delta, A::Error> {
                let mut filled = false;
                while let Some((key, value)) = map.next_entry::<Key<'de>, Filled>()? {
                    filled |= value.0 && key.0 != "role";
                }
                Ok(Delta(filled))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

/// Whether a value is more than nothing.
struct Filled(bool);

impl<'de> Deserialize<'de> for Filled {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw: &RawValue = Deserialize::deserialize(deserializer)?;
        Ok(Self(!matches!(raw.get(), "null" | "\"\"" | "[]" | "{}")))
    }
}

/// Whether a value is a reason: some servers write `""` until there is one.
struct Reason(bool);

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw: &RawValue = Deserialize::deserialize(deserializer)?;
        Ok(Self(raw.get().starts_with('"') && raw.get() != "\"\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(data: &str) -> Option<Look> {
        Look::at(&Block { name: "", data: Some(data) })
    }

    #[test]
    fn content_is_what_a_reader_would_see() {
        for data in [
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":"a"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"{"choices":[{"delta":{"something_new":{"x":1}}}]}"#,
            r#"{"choices":[{"text":" "}]}"#,
            r#"{"choices":[{"delta":{}},{"delta":{"content":"\n"}}]}"#,
        ] {
            assert_eq!(look(data), Some(Look { content: true, ..Look::default() }), "{data}");
        }
    }

    #[test]
    fn lifecycle_is_not_content() {
        for data in [
            r#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":null,"tool_calls":[]}}]}"#,
            r#"{"choices":[{"delta":{"content":""},"finish_reason":""}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":false}]}"#,
            r#"{"choices":[],"usage":{"total_tokens":3}}"#,
            r#"{"choices":[{"text":"","delta":null}],"error":null}"#,
            "{}",
        ] {
            assert_eq!(look(data), Some(Look::default()), "{data}");
        }
        assert_eq!(Look::at(&Block { name: "ping", data: None }), Some(Look::default()));
    }

    #[test]
    fn ends_and_errors() {
        let finished =
            r#"{"choices":[{"delta":{},"finish_reason":"stop"},{"finish_reason":"length"}]}"#;
        assert_eq!(look(finished), Some(Look { finished: 2, ..Look::default() }));
        assert_eq!(look("[DONE]"), Some(Look { done: true, ..Look::default() }));
        for data in [r#"{"error":{"message":"x"}}"#, r#"{"object":"error","message":"x"}"#] {
            assert_eq!(look(data), Some(Look { error: true, ..Look::default() }), "{data}");
        }
        let named = Look::at(&Block { name: "error", data: Some("{}") });
        assert_eq!(named, Some(Look { error: true, ..Look::default() }));
    }

    #[test]
    fn what_is_no_chunk_is_malformed() {
        for data in ["", "hello", "7", "[1]", "{\"choices\":5}", "{\"choices\":[", "{} {}"] {
            assert_eq!(look(data), None, "{data:?}");
        }
    }
}
