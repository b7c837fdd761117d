//! What goes back: chat and text completions, whole and in chunks, with usage and log-probabilities.
//!
//! Shapes only. Field order and the fields that are always present follow what OpenAI sends, because clients index
//! before they look.

use serde::Serialize;

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// The token limit.
    Length,
}

/// Token counts of a request, all choices together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the prompt, counted once however many choices.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
    /// Their sum.
    pub total_tokens: usize,
    /// Detail of `prompt_tokens`.
    pub prompt_tokens_details: PromptTokensDetails,
}

/// Detail of [`Usage::prompt_tokens`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Tokens whose state was already held.
    pub cached_tokens: usize,
}

impl Usage {
    /// Usage of `prompt` tokens (`cached` of them known) and `completion` tokens.
    pub fn new(prompt: usize, cached: usize, completion: usize) -> Self {
        Self {
            prompt_tokens: prompt,
            completion_tokens: completion,
            total_tokens: prompt + completion,
            prompt_tokens_details: PromptTokensDetails { cached_tokens: cached },
        }
    }
}

/// What every reply and chunk of one request has in common.
#[derive(Debug, Clone)]
pub struct ReplyHead {
    /// `chatcmpl-…` or `cmpl-…`.
    pub id: String,
    /// Unix seconds.
    pub created: u64,
    /// The served model's name.
    pub model: String,
    /// What produced it: version, weights, form of the kernels.
    pub system_fingerprint: String,
}

/// A reply or chunk: the head, the kind, and choices of that kind.
#[derive(Debug, Serialize)]
pub struct Reply<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    choices: &'a [C],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a Usage>,
}

impl<'a, C: Serialize> Reply<'a, C> {
    /// A reply of the kind that `C` belongs to.
    pub fn new(
        head: &'a ReplyHead,
        object: &'static str,
        choices: &'a [C],
        usage: Option<&'a Usage>,
    ) -> Self {
        Self {
            id: &head.id,
            object,
            created: head.created,
            model: &head.model,
            system_fingerprint: &head.system_fingerprint,
            choices,
            usage,
        }
    }

    /// The JSON text.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }
}

/// `object` of a whole chat completion.
pub const CHAT: &str = "chat.completion";
/// `object` of a chunk of one.
pub const CHAT_CHUNK: &str = "chat.completion.chunk";
/// `object` of a text completion, whole or chunk.
pub const TEXT: &str = "text_completion";

/// A choice of a whole chat completion.
#[derive(Debug, Serialize)]
pub struct ChatChoice {
    /// Which choice.
    pub index: usize,
    /// The assistant's message.
    pub message: AssistantMessage,
    /// Log-probabilities, if asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended.
    pub finish_reason: FinishReason,
}

/// The assistant's message.
#[derive(Debug, Serialize)]
pub struct AssistantMessage {
    /// Always `assistant`.
    pub role: &'static str,
    /// The text.
    pub content: String,
    /// Always null: models here do not refuse in a separate field.
    pub refusal: Option<String>,
}

impl AssistantMessage {
    /// A message of text.
    pub fn new(content: String) -> Self {
        Self { role: "assistant", content, refusal: None }
    }
}

/// A choice of a chunk.
#[derive(Debug, Serialize)]
pub struct ChatChunkChoice {
    /// Which choice.
    pub index: usize,
    /// What is new.
    pub delta: Delta,
    /// Log-probabilities of the tokens behind `delta`, if asked for.
    pub logprobs: Option<ChatLogprobs>,
    /// Why it ended, in the last chunk of a choice only.
    pub finish_reason: Option<FinishReason>,
}

/// What a chunk adds.
#[derive(Debug, Default, Serialize)]
pub struct Delta {
    /// In the first chunk of a choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// New text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

/// Log-probabilities in chat's form.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ChatLogprobs {
    /// One per token.
    pub content: Vec<ChatTokenLogprob>,
    /// Always null.
    pub refusal: Option<Vec<ChatTokenLogprob>>,
}

/// A token's log-probability with its alternatives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChatTokenLogprob {
    /// The token itself.
    #[serde(flatten)]
    pub token: TokenLogprob,
    /// The most probable tokens at its place, best first.
    pub top_logprobs: Vec<TokenLogprob>,
}

/// A token and its log-probability.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenLogprob {
    /// Its text; a lone piece of a character shows as U+FFFD here and truly in `bytes`.
    pub token: String,
    /// Natural logarithm; the least finite number stands for impossible.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A choice of a text completion, whole or chunk.
#[derive(Debug, Serialize)]
pub struct TextChoice {
    /// Which choice, over all prompts.
    pub index: usize,
    /// The text, or what is new of it.
    pub text: String,
    /// Log-probabilities, if asked for.
    pub logprobs: Option<TextLogprobs>,
    /// Why it ended; null in all chunks but the last.
    pub finish_reason: Option<FinishReason>,
}

/// Log-probabilities in the form of text completions: columns.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct TextLogprobs {
    /// The tokens' texts.
    pub tokens: Vec<String>,
    /// Their log-probabilities.
    pub token_logprobs: Vec<f32>,
    /// The alternatives of each, by text.
    pub top_logprobs: Vec<serde_json::Map<String, serde_json::Value>>,
    /// Where each begins in the choice's text, in characters.
    pub text_offset: Vec<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> ReplyHead {
        ReplyHead {
            id: "chatcmpl-1".into(),
            created: 7,
            model: "m".into(),
            system_fingerprint: "fp".into(),
        }
    }

    #[test]
    fn a_chunk_looks_as_clients_expect() {
        let choice = ChatChunkChoice {
            index: 0,
            delta: Delta { role: Some("assistant"), content: Some(String::new()) },
            logprobs: None,
            finish_reason: None,
        };
        let head = head();
        let json = Reply::new(&head, CHAT_CHUNK, &[choice], None).to_json().expect("serialises");
        assert_eq!(
            json,
            r#"{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","system_fingerprint":"fp","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}"#
        );
    }

    #[test]
    fn the_usage_chunk_has_no_choices() {
        let (head, usage) = (head(), Usage::new(5, 2, 3));
        let json = Reply::<ChatChunkChoice>::new(&head, CHAT_CHUNK, &[], Some(&usage))
            .to_json()
            .expect("serialises");
        assert!(json.ends_with(
            r#""choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":2}}}"#
        ), "{json}");
    }
}
