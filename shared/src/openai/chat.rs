//! The body of `/v1/chat/completions`.
//!
//! Unknown fields are accepted. What would change the reply and cannot be honoured is refused by name; tools of a type
//! we cannot run are dropped and named ([`ChatRequest::dropped_tools`]), because clients send them unasked.

use serde_json::{Map, Value};

use super::decoding::{Decoding, MAX_TOP_LOGPROBS};
use super::error::ApiError;
use super::fields::{Fields, missing, wrong_type};
use super::message::Message;

/// A chat request, read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// As sent; absent means the one model that is served.
    pub model: Option<String>,
    /// At least one.
    pub messages: Vec<Message>,
    /// Function tools for the template, in the order sent.
    pub tools: Vec<Value>,
    /// Types of the tools that were left out.
    pub dropped_tools: Vec<String>,
    /// Documents for templates that take them.
    pub documents: Option<Value>,
    /// `chat_template_kwargs`, such as `enable_thinking`.
    pub template_kwargs: Map<String, Value>,
    /// Whether the template opens the assistant's turn.
    pub add_generation_prompt: bool,
    /// Alternatives per token; `Some(0)` for the chosen token's log-probability only.
    pub top_logprobs: Option<usize>,
    /// Everything chat shares with text completions.
    pub decoding: Decoding,
}

impl ChatRequest {
    /// Reads a body that [`super::json::checked`] has passed.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let fields = Fields::parse(text, "")?;
        refuse(&fields)?;
        let messages = fields.array("messages")?.ok_or_else(|| missing("messages"))?;
        if messages.is_empty() {
            return Err(ApiError::invalid(
                "messages",
                "Invalid value for 'messages': it must hold at least one message.",
            )
            .with_code("invalid_value"));
        }
        let messages = messages
            .into_iter()
            .enumerate()
            .map(|(index, message)| Message::parse(message, &format!("messages[{index}]")))
            .collect::<Result<_, _>>()?;
        let (mut tools, dropped_tools) = tools(&fields)?;
        match fields.raw("tool_choice") {
            None | Some("\"auto\"") => {}
            Some("\"none\"") => tools.clear(),
            Some(_) => {
                return Err(ApiError::unsupported(
                    "tool_choice",
                    "A call cannot be forced in this version: 'tool_choice' must be 'auto' or 'none'.",
                ));
            }
        }
        Ok(Self {
            model: fields.string("model")?,
            messages,
            tools,
            dropped_tools,
            documents: fields
                .get::<Vec<Value>>("documents", "an array of documents")?
                .map(Value::Array),
            template_kwargs: fields.get("chat_template_kwargs", "an object")?.unwrap_or_default(),
            add_generation_prompt: fields.flag("add_generation_prompt")?.unwrap_or(true),
            top_logprobs: top_logprobs(&fields)?,
            decoding: Decoding::parse(&fields)?,
        })
    }
}

/// Fields that would have to change the reply, and cannot.
fn refuse(fields: &Fields<'_>) -> Result<(), ApiError> {
    if fields.raw("chat_template").is_some() {
        return Err(ApiError::unsupported(
            "chat_template",
            "A template in a request is refused: chat templates come from the checkpoint only.",
        ));
    }
    for name in ["functions", "function_call"] {
        if fields.raw(name).is_some() {
            return Err(ApiError::unsupported(
                name,
                format!("'{name}' is not available: use 'tools' and 'tool_choice'."),
            ));
        }
    }
    if fields.flag("continue_final_message")? == Some(true) {
        return Err(ApiError::unsupported(
            "continue_final_message",
            "'continue_final_message' is not available in this version.",
        ));
    }
    if let Some(modalities) = fields.get::<Vec<String>>("modalities", "an array of strings")?
        && modalities.iter().any(|name| name != "text")
    {
        return Err(ApiError::unsupported("modalities", "Only the modality 'text' is available."));
    }
    Ok(())
}

/// The function tools, and the types of the others.
fn tools(fields: &Fields<'_>) -> Result<(Vec<Value>, Vec<String>), ApiError> {
    let (mut kept, mut dropped) = (Vec::new(), Vec::new());
    for (index, text) in fields.array("tools")?.unwrap_or_default().into_iter().enumerate() {
        let path = format!("tools[{index}]");
        let tool = Fields::parse(text, &path)?;
        let kind = tool.string("type")?.ok_or_else(|| missing(&format!("{path}.type")))?;
        if kind != "function" {
            dropped.push(kind);
            continue;
        }
        let path = format!("{path}.function");
        let function = tool.raw("function").ok_or_else(|| missing(&path))?;
        Fields::parse(function, &path)?
            .string("name")?
            .ok_or_else(|| missing(&format!("{path}.name")))?;
        kept.push(serde_json::from_str(text).map_err(|_| wrong_type(&path, "an object", text))?);
    }
    Ok((kept, dropped))
}

fn top_logprobs(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs", 0..=MAX_TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => {
            Err(ApiError::invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
                .with_code("invalid_value"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

    fn parse(rest: &str) -> Result<ChatRequest, ApiError> {
        ChatRequest::parse(&format!("{{{HELLO}{rest}}}"))
    }

    #[test]
    fn unknown_fields_and_a_missing_model_are_fine() {
        let request = parse(r#","store":false,"metadata":{"x":[1]},"user":"me""#).expect("valid");
        assert_eq!(request.model, None);
        assert_eq!(request.messages, [Message::text("user", "hi")]);
        assert!(request.add_generation_prompt);
    }

    #[test]
    fn tools_of_other_types_are_dropped_and_named() {
        let request = parse(
            r#","tools":[{"type":"web_search"},{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}]"#,
        )
        .expect("valid");
        assert_eq!(request.dropped_tools, ["web_search"]);
        // The order of keys is the client's: a template prints it.
        assert_eq!(
            request.tools[0].to_string(),
            r#"{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}"#
        );
    }

    #[test]
    fn no_tools_reach_the_template_when_none_may_be_called() {
        let tools =
            r#","tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none""#;
        assert!(parse(tools).expect("valid").tools.is_empty());
    }

    #[test]
    fn logprobs_come_with_or_without_alternatives() {
        let top = |rest: &str| parse(rest).map(|request| request.top_logprobs);
        assert_eq!(top(r#","logprobs":true"#), Ok(Some(0)));
        assert_eq!(top(r#","logprobs":true,"top_logprobs":3"#), Ok(Some(3)));
        assert_eq!(top(r#","logprobs":false"#), Ok(None));
        assert!(top(r#","top_logprobs":3"#).is_err());
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            ("{}", "messages"),
            (r#"{"messages":[]}"#, "messages"),
            (r#"{"messages":"hi"}"#, "messages"),
            (&format!("{{{HELLO},\"model\":7}}"), "model"),
            (&format!("{{{HELLO},\"chat_template\":\"x\"}}"), "chat_template"),
            (&format!("{{{HELLO},\"tools\":[1]}}"), "tools[0]"),
            (&format!("{{{HELLO},\"tools\":[{{\"type\":\"function\"}}]}}"), "tools[0].function"),
            (&format!("{{{HELLO},\"chat_template_kwargs\":[]}}"), "chat_template_kwargs"),
            (&format!("{{{HELLO},\"functions\":[]}}"), "functions"),
            (&format!("{{{HELLO},\"tool_choice\":\"required\"}}"), "tool_choice"),
            (&format!("{{{HELLO},\"tool_choice\":{{\"type\":\"function\"}}}}"), "tool_choice"),
            (&format!("{{{HELLO},\"top_logprobs\":21,\"logprobs\":true}}"), "top_logprobs"),
        ];
        for (text, param) in cases {
            let error = ChatRequest::parse(text).expect_err(text);
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (400, Some(param)),
                "{text}"
            );
        }
    }
}
