//! One chat message, in the form a chat template reads.
//!
//! Owns what clients spell differently: `developer` is `system`, array content is joined to text, the arguments of a
//! tool call become an object. Fields it does not know stay: templates may read them.

use serde::Serialize;
use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{Fields, missing};

/// A message whose `role` is known and whose `content` is text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Message(Map<String, Value>);

impl Message {
    /// A message of plain text.
    pub fn text(role: &str, content: impl Into<String>) -> Self {
        let mut map = Map::new();
        map.insert("role".to_owned(), Value::from(role));
        map.insert("content".to_owned(), Value::from(content.into()));
        Self(map)
    }

    /// `system`, `user`, `assistant` or `tool`.
    pub fn role(&self) -> &str {
        self.0.get("role").and_then(Value::as_str).unwrap_or_default()
    }

    /// The text, empty where the client sent none.
    pub fn content(&self) -> &str {
        self.0.get("content").and_then(Value::as_str).unwrap_or_default()
    }

    /// Reads the message at `path` (`messages[3]`).
    pub(super) fn parse(text: &str, path: &str) -> Result<Self, ApiError> {
        let fields = Fields::parse(text, path)?;
        let param = |name: &str| format!("{path}.{name}");
        let role = fields.string("role")?.ok_or_else(|| missing(&param("role")))?;
        let role = match role.as_str() {
            "system" | "developer" => "system",
            "user" => "user",
            "assistant" => "assistant",
            "tool" | "function" => "tool",
            _ => {
                let message = format!(
                    "Invalid value for '{path}.role': it must be 'system', 'developer', 'user', 'assistant' or 'tool'."
                );
                return Err(ApiError::invalid(param("role"), message).with_code("invalid_value"));
            }
        };
        let content = match content(&fields, &param("content"))? {
            Some(content) => content,
            // A reply that was only tool calls, or a tool that said nothing.
            None if matches!(role, "assistant" | "tool") => String::new(),
            None => return Err(missing(&param("content"))),
        };
        let mut map: Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| ApiError::invalid(path, error.to_string()))?;
        map.insert("role".to_owned(), Value::from(role));
        map.insert("content".to_owned(), Value::from(content));
        if let Some(calls) = map.get_mut("tool_calls") {
            read_arguments(calls);
        }
        Ok(Self(map))
    }
}

/// What stands between the parts of array content. Parts are blocks: run together they would make new words.
const BETWEEN_PARTS: &str = "\n";

fn content(fields: &Fields<'_>, param: &str) -> Result<Option<String>, ApiError> {
    if !fields.raw("content").is_some_and(|text| text.starts_with('[')) {
        return fields.get("content", "a string or an array of content parts");
    }
    let parts = fields.array("content")?.unwrap_or_default();
    let mut texts = Vec::with_capacity(parts.len());
    for (index, part) in parts.into_iter().enumerate() {
        texts.push(part_text(part, &format!("{param}[{index}]"))?);
    }
    Ok(Some(texts.join(BETWEEN_PARTS)))
}

fn part_text(part: &str, path: &str) -> Result<String, ApiError> {
    if part.starts_with('"') {
        return serde_json::from_str(part)
            .map_err(|error| ApiError::invalid(path, error.to_string()));
    }
    let fields = Fields::parse(part, path)?;
    let kind = fields.string("type")?.ok_or_else(|| missing(&format!("{path}.type")))?;
    let name = match kind.as_str() {
        "text" | "input_text" | "output_text" => "text",
        "refusal" => "refusal",
        "image_url" | "input_image" | "input_audio" | "file" | "video_url" => {
            let message = format!(
                "Content parts of type '{kind}' are not available with this model: only text is."
            );
            return Err(ApiError::unsupported(format!("{path}.type"), message));
        }
        _ => {
            let message = format!("Invalid value for '{path}.type': it must be 'text'.");
            return Err(
                ApiError::invalid(format!("{path}.type"), message).with_code("invalid_value")
            );
        }
    };
    fields.string(name)?.ok_or_else(|| missing(&format!("{path}.{name}")))
}

/// OpenAI carries a call's arguments as a string of JSON; templates of HF checkpoints expect the object.
/// Text that is no object stays text: some templates print it as it is.
fn read_arguments(calls: &mut Value) {
    for call in calls.as_array_mut().into_iter().flatten() {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        let Some(text) = arguments.as_str() else { continue };
        if let Ok(object) = serde_json::from_str::<Map<String, Value>>(text) {
            *arguments = Value::Object(object);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Message, ApiError> {
        Message::parse(text, "messages[0]")
    }

    #[test]
    fn developer_is_system() {
        let message = parse(r#"{"role":"developer","content":"be brief"}"#).expect("valid");
        assert_eq!((message.role(), message.content()), ("system", "be brief"));
    }

    #[test]
    fn parts_become_lines_of_text() {
        let message = parse(
            r#"{"role":"user","content":[{"type":"text","text":"a"},"b",{"type":"input_text","text":"c"}]}"#,
        )
        .expect("valid");
        assert_eq!(message.content(), "a\nb\nc");
    }

    #[test]
    fn a_reply_of_tool_calls_keeps_them_with_arguments_as_an_object() {
        let message = parse(
            r#"{"role":"assistant","content":null,"tool_calls":[{"id":"x","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}},{"function":{"name":"g","arguments":"{bad"}}]}"#,
        )
        .expect("valid");
        assert_eq!(message.content(), "");
        let json = serde_json::to_value(&message).expect("serialises");
        assert_eq!(json["tool_calls"][0]["function"]["arguments"]["a"], 1);
        assert_eq!(json["tool_calls"][1]["function"]["arguments"], "{bad");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("3", "messages[0]"),
            (r#"{"content":"x"}"#, "messages[0].role"),
            (r#"{"role":"wizard","content":"x"}"#, "messages[0].role"),
            (r#"{"role":"user"}"#, "messages[0].content"),
            (r#"{"role":"user","content":5}"#, "messages[0].content"),
            (r#"{"role":"user","content":[5]}"#, "messages[0].content[0]"),
            (r#"{"role":"user","content":[{"text":"x"}]}"#, "messages[0].content[0].type"),
            (r#"{"role":"user","content":[{"type":"text"}]}"#, "messages[0].content[0].text"),
            (
                r#"{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://10.0.0.1/"}}]}"#,
                "messages[0].content[0].type",
            ),
        ];
        for (text, param) in cases {
            let error = parse(text).expect_err(text);
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (400, Some(param)),
                "{text}"
            );
        }
    }
}
