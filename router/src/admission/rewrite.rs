//! What a seat changes in a request: by cutting and joining its text, never by writing it anew.
//!
//! Owns three changes. The seat's default parameters are added where the caller gave none (or `null`). The seat's
//! preamble goes before the caller's own system text, or becomes the first message. The model's name becomes the
//! backend's. Every other byte, unknown fields and formatting included, stays as it came.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use sanctum_shared::instance::Defaults;
use sanctum_shared::openai::error::ApiError;
use serde_json::Value;

use super::Endpoint;
use super::members::{Members, Piece, first_element};

/// Replaces `span` (empty: inserts there).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Edit {
    pub(crate) span: Range<usize>,
    pub(crate) with: Arc<str>,
}

/// What a seat adds to requests, as JSON text.
#[derive(Debug, Default)]
pub(crate) struct SeatText {
    /// Keys and values.
    defaults: Vec<(String, String)>,
    /// The preamble as the inside of a JSON string.
    system: Option<String>,
}

impl SeatText {
    pub(crate) fn new(defaults: &Defaults, system: Option<&str>) -> Self {
        let pairs = match serde_json::to_value(defaults) {
            Ok(Value::Object(map)) => map,
            _ => serde_json::Map::new(),
        };
        let defaults = pairs.into_iter().map(|(key, value)| (key, value.to_string())).collect();
        let system = system.map(|text| {
            let quoted = Value::from(text).to_string();
            quoted[1..quoted.len() - 1].to_owned()
        });
        Self { defaults, system }
    }

    /// Whether a seat changes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.defaults.is_empty() && self.system.is_none()
    }

    /// The seat's default for the length of a reply, in tokens.
    pub(crate) fn max_tokens(&self) -> Option<u64> {
        let (_, value) = self.defaults.iter().find(|(key, _)| key == "max_tokens")?;
        value.parse().ok()
    }

    /// The edits for one request, ordered and disjoint.
    pub(crate) fn edits(
        &self,
        endpoint: Endpoint,
        text: &str,
        members: &Members<'_>,
    ) -> Result<Vec<Edit>, ApiError> {
        let mut edits = Vec::new();
        if endpoint != Endpoint::Embeddings {
            self.add_defaults(members, &mut edits);
        }
        if endpoint == Endpoint::Chat
            && let Some(system) = &self.system
        {
            edits.push(preamble(system, text, members)?);
        }
        edits.sort_by_key(|edit| edit.span.start);
        Ok(edits)
    }

    fn add_defaults(&self, members: &Members<'_>, edits: &mut Vec<Edit>) {
        let mut added = String::new();
        for (key, value) in &self.defaults {
            // Two names for one thing: the caller's choice under either is the caller's choice.
            let twin = (key == "max_tokens").then(|| members.get("max_completion_tokens"));
            if twin.flatten().is_some_and(|piece| !piece.is_null()) {
                continue;
            }
            match members.get(key) {
                Some(piece) if piece.is_null() => {
                    edits.push(Edit { span: piece.span.clone(), with: value.as_str().into() });
                }
                Some(_) => {}
                None => {
                    added.push_str(&format!("\"{key}\":{value},"));
                }
            }
        }
        if !added.is_empty() {
            if members.is_empty() {
                added.pop();
            }
            edits.push(Edit { span: members.open..members.open, with: added.into() });
        }
    }
}

/// The edit that puts `system` (the inside of a JSON string) before everything the caller says.
fn preamble(system: &str, text: &str, members: &Members<'_>) -> Result<Edit, ApiError> {
    let not_an_array = || ApiError::invalid("messages", "`messages` must be an array of messages.");
    let messages = members.get("messages").ok_or_else(|| {
        ApiError::invalid("messages", "`messages` is required.").with_code("missing_required_field")
    })?;
    let (first, behind_bracket) = first_element(text, messages).ok_or_else(not_an_array)?;
    // With the preamble in it, an empty list would pass for a conversation.
    let first = first.ok_or_else(|| {
        ApiError::invalid("messages", "`messages` must hold at least one message.")
            .with_code("invalid_value")
    })?;
    let insert = |at: usize, with: String| Edit { span: at..at, with: with.into() };
    if let Some(content) = system_content(text, &first) {
        if content.text.starts_with('"') {
            return Ok(insert(content.span.start + 1, format!("{system}\\n\\n")));
        }
        if let Some((part, behind)) = first_element(text, &content) {
            let comma = if part.is_some() { "," } else { "" };
            let with = format!("{{\"type\":\"text\",\"text\":\"{system}\\n\\n\"}}{comma}");
            return Ok(insert(behind, with));
        }
    }
    let with = format!("{{\"role\":\"system\",\"content\":\"{system}\"}},");
    Ok(insert(behind_bracket, with))
}

/// The content of a message that is a system message.
fn system_content<'a>(text: &'a str, message: &Piece<'a>) -> Option<Piece<'a>> {
    let members = Members::of(text, message)?;
    let role: String = members.get("role")?.read()?;
    let is_system = role == "system" || role == "developer";
    is_system.then(|| members.get("content").cloned()).flatten()
}

/// `text` with `edits` (ordered, disjoint) applied, and `last` merged among them.
pub(crate) fn apply(text: &Bytes, edits: &[Edit], last: Option<(&Range<usize>, &str)>) -> Bytes {
    if edits.is_empty() && last.is_none() {
        return text.clone();
    }
    let grown: usize = edits.iter().map(|edit| edit.with.len()).sum();
    let mut out = Vec::with_capacity(text.len() + grown + last.map_or(0, |(_, with)| with.len()));
    let mut done = 0;
    let mut put = |span: &Range<usize>, with: &str| {
        out.extend_from_slice(&text[done..span.start]);
        out.extend_from_slice(with.as_bytes());
        done = span.end;
    };
    let mut last = last;
    for edit in edits {
        if let Some((span, with)) = last.take_if(|(span, _)| span.start < edit.span.start) {
            put(span, with);
        }
        put(&edit.span, &edit.with);
    }
    if let Some((span, with)) = last {
        put(span, with);
    }
    out.extend_from_slice(&text[done..]);
    Bytes::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn rewritten(seat: &SeatText, endpoint: Endpoint, text: &str) -> Value {
        let members = Members::of_text(text).expect("an object");
        let edits = seat.edits(endpoint, text, &members).expect("edits");
        let bytes = apply(&Bytes::from(text.to_owned()), &edits, None);
        serde_json::from_slice(&bytes).expect("still JSON")
    }

    fn seat(system: Option<&str>) -> SeatText {
        let defaults =
            Defaults { max_tokens: Some(9), temperature: Some(0.5), ..Defaults::default() };
        SeatText::new(&defaults, system)
    }

    #[test]
    fn defaults_fill_gaps_only() {
        let seat = seat(None);
        assert_eq!(
            rewritten(&seat, Endpoint::Chat, "{}"),
            json!({"max_tokens": 9, "temperature": 0.5})
        );
        assert_eq!(
            rewritten(&seat, Endpoint::Chat, r#"{"temperature":1,"max_completion_tokens":3}"#),
            json!({"temperature": 1, "max_completion_tokens": 3})
        );
        assert_eq!(
            rewritten(&seat, Endpoint::Completions, r#"{"temperature":null,"max_tokens":2}"#),
            json!({"temperature": 0.5, "max_tokens": 2})
        );
        assert_eq!(rewritten(&seat, Endpoint::Embeddings, "{}"), json!({}));
    }

    #[test]
    fn the_preamble_goes_before_the_callers_system_text() {
        let seat = SeatText::new(&Defaults::default(), Some("Be \"kind\".\n"));
        let system = "Be \"kind\".\n";
        for (messages, expected) in [
            (
                json!([{"role": "user", "content": "hi"}]),
                json!([{"role": "system", "content": system}, {"role": "user", "content": "hi"}]),
            ),
            (
                json!([{"role": "developer", "content": "Ä"}]),
                json!([{"role": "developer", "content": format!("{system}\n\nÄ")}]),
            ),
            (
                json!([{"role": "system", "content": [{"type": "text", "text": "a"}]}]),
                json!([{"role": "system", "content": [
                    {"type": "text", "text": format!("{system}\n\n")}, {"type": "text", "text": "a"}
                ]}]),
            ),
            (
                json!([{"role": "system", "content": null}]),
                json!([{"role": "system", "content": system}, {"role": "system", "content": null}]),
            ),
        ] {
            let text = json!({"messages": messages}).to_string();
            let out = rewritten(&seat, Endpoint::Chat, &text);
            assert_eq!(out["messages"], expected, "{text}");
        }
    }

    #[test]
    fn a_preamble_needs_messages() {
        let seat = seat(Some("x"));
        for text in [r#"{"a":1}"#, r#"{"messages":"hi"}"#, r#"{"messages":[ ]}"#] {
            let members = Members::of_text(text).expect("an object");
            let refused = seat.edits(Endpoint::Chat, text, &members).expect_err("refused");
            assert_eq!(
                (refused.status.as_u16(), refused.param.as_deref()),
                (400, Some("messages"))
            );
        }
    }

    proptest! {
        /// Whatever the caller sends and in whatever order: the model is the backend's, the rest is the caller's.
        #[test]
        fn only_the_model_changes(
            before in "[ \n]{0,3}", key in "[a-z]{1,6}", value in "[a-zäö\\\\\" ]{0,10}",
            first in any::<bool>(), system in proptest::option::of("[a-z\"]{0,6}"), to in "[a-z\"/]{1,8}",
        ) {
            prop_assume!(!["model", "messages", "temperature"].contains(&key.as_str()));
            let other = format!("{}:{before}{}", json!(key), json!({"deep": value}));
            let model = format!("\"model\":{before}\"seat\"");
            let (a, b) = if first { (&model, &other) } else { (&other, &model) };
            let text = format!("{before}{{{a},{before}{b},\"messages\":[{{}}]}}");
            let members = Members::of_text(&text).expect("an object");
            let seat = SeatText::new(
                &Defaults { temperature: Some(0.1), ..Defaults::default() }, system.as_deref(),
            );
            let edits = seat.edits(Endpoint::Chat, &text, &members).expect("edits");
            let span = members.get("model").expect("model").span.clone();
            let out = apply(&Bytes::from(text.clone()), &edits, Some((&span, &json!(to).to_string())));
            let out: Value = serde_json::from_slice(&out).expect("still JSON");
            prop_assert_eq!(&out["model"], &json!(to));
            prop_assert_eq!(&out[&key], &json!({"deep": value}));
            prop_assert_eq!(&out["temperature"], &json!(0.1));
            prop_assert_eq!(out["messages"].as_array().expect("array").len(), 1 + usize::from(system.is_some()));
        }
    }
}
