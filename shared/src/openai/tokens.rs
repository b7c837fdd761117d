//! The bodies of `/tokenize` and `/detokenize`, in the spellings of llama.cpp and vLLM.
//!
//! llama.cpp sends `content` and `add_special`, vLLM `prompt` or `messages` and `add_special_tokens`: both work.

use super::chat::ChatRequest;
use super::error::ApiError;
use super::fields::{Fields, missing};

/// What to tokenise.
#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeRequest {
    /// Plain text.
    Text {
        /// The text.
        text: String,
        /// Whether to add what the tokenizer puts around a text of its own accord.
        add_special: bool,
        /// As sent.
        model: Option<String>,
    },
    /// A conversation, through the chat template.
    Chat(Box<ChatRequest>),
}

impl TokenizeRequest {
    /// Reads a body that [`super::json::checked`] has passed.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let fields = Fields::parse(text, "")?;
        if fields.raw("messages").is_some() {
            return ChatRequest::parse(text).map(|chat| Self::Chat(Box::new(chat)));
        }
        let asked = match fields.flag("add_special")? {
            Some(asked) => Some(asked),
            None => fields.flag("add_special_tokens")?,
        };
        let model = fields.string("model")?;
        // The defaults are those of the two servers.
        for (name, add_special) in [("content", false), ("prompt", true)] {
            if let Some(text) = fields.string(name)? {
                return Ok(Self::Text { text, add_special: asked.unwrap_or(add_special), model });
            }
        }
        Err(missing("content"))
    }

    /// As sent.
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::Text { model, .. } => model.as_deref(),
            Self::Chat(chat) => chat.model.as_deref(),
        }
    }
}

/// What to turn back into text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DetokenizeRequest {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// As sent.
    pub model: Option<String>,
}

impl DetokenizeRequest {
    /// Reads a body that [`super::json::checked`] has passed.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let fields = Fields::parse(text, "")?;
        let tokens = fields.get("tokens", "an array of token ids")?;
        Ok(Self {
            tokens: tokens.ok_or_else(|| missing("tokens"))?,
            model: fields.string("model")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(body: &str) -> Result<(String, bool), Option<String>> {
        match TokenizeRequest::parse(body) {
            Ok(TokenizeRequest::Text { text, add_special, .. }) => Ok((text, add_special)),
            Ok(TokenizeRequest::Chat(chat)) => Ok((chat.messages[0].content().to_owned(), false)),
            Err(error) => Err(error.param),
        }
    }

    #[test]
    fn both_spellings_work() {
        assert_eq!(text(r#"{"content":"a"}"#), Ok(("a".into(), false)));
        assert_eq!(text(r#"{"content":"a","add_special":true}"#), Ok(("a".into(), true)));
        assert_eq!(text(r#"{"prompt":"a"}"#), Ok(("a".into(), true)));
        assert_eq!(text(r#"{"prompt":"a","add_special_tokens":false}"#), Ok(("a".into(), false)));
        assert_eq!(
            text(r#"{"messages":[{"role":"user","content":"a"}]}"#),
            Ok(("a".into(), false))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert_eq!(text("{}"), Err(Some("content".into())));
        assert_eq!(text(r#"{"content":5}"#), Err(Some("content".into())));
        for body in ["{}", r#"{"tokens":["a"]}"#, r#"{"tokens":[-1]}"#] {
            let error = DetokenizeRequest::parse(body).expect_err(body);
            assert_eq!(error.param.as_deref(), Some("tokens"), "{body}");
        }
    }
}
