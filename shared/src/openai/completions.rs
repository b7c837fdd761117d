//! The body of `/v1/completions`.
//!
//! A prompt is text or token ids, one or several. Features of the old API that we do not have are refused by name.

use super::decoding::{Decoding, MAX_TOP_LOGPROBS};
use super::error::ApiError;
use super::fields::{Fields, missing, wrong_type};

/// Most prompts in one request.
pub const MAX_PROMPTS: usize = 16;

/// One prompt of a completion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// To be tokenised.
    Text(String),
    /// Token ids as they are.
    Tokens(Vec<u32>),
}

/// A text completion request, read and checked.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// As sent; absent means the one model that is served.
    pub model: Option<String>,
    /// At least one, at most [`MAX_PROMPTS`], none of them empty.
    pub prompts: Vec<Prompt>,
    /// Send the prompt's text before its completion.
    pub echo: bool,
    /// Alternatives per token; `Some(0)` for the chosen token's log-probability only.
    pub top_logprobs: Option<usize>,
    /// Everything text completions share with chat.
    pub decoding: Decoding,
}

impl CompletionRequest {
    /// Reads a body that [`super::json::checked`] has passed.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        let fields = Fields::parse(text, "")?;
        let decoding = Decoding::parse(&fields)?;
        if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
            return Err(ApiError::unsupported(
                "suffix",
                "'suffix' is not available in this version.",
            ));
        }
        let best_of = fields.count("best_of", 1..=20)?;
        if best_of.is_some_and(|best_of| best_of != decoding.n) {
            return Err(ApiError::unsupported(
                "best_of",
                "'best_of' must equal 'n' in this version.",
            ));
        }
        let top_logprobs = fields.count("logprobs", 0..=MAX_TOP_LOGPROBS)?;
        let echo = fields.flag("echo")?.unwrap_or(false);
        if echo && top_logprobs.is_some() {
            return Err(ApiError::unsupported(
                "logprobs",
                "'logprobs' of an echoed prompt are not available in this version.",
            ));
        }
        Ok(Self {
            model: fields.string("model")?,
            prompts: prompts(&fields)?,
            echo,
            top_logprobs,
            decoding,
        })
    }
}

fn prompts(fields: &Fields<'_>) -> Result<Vec<Prompt>, ApiError> {
    const NAME: &str = "prompt";
    const EXPECTED: &str = "a string, an array of strings, or arrays of token ids";
    let text = fields.raw(NAME).ok_or_else(|| missing(NAME))?;
    let prompts = if text.starts_with('[') {
        let items = fields.array(NAME)?.unwrap_or_default();
        match items.first().map(|item| item.as_bytes()[0]) {
            Some(b'"') => several(&items, Prompt::Text)?,
            Some(b'[') => several(&items, Prompt::Tokens)?,
            Some(_) => vec![Prompt::Tokens(fields.get(NAME, EXPECTED)?.unwrap_or_default())],
            None => Vec::new(),
        }
    } else {
        fields.get(NAME, EXPECTED)?.map(Prompt::Text).into_iter().collect()
    };
    let refuse = |message: String| Err(ApiError::invalid(NAME, message).with_code("invalid_value"));
    if prompts.is_empty() || prompts.len() > MAX_PROMPTS {
        return refuse(format!("Invalid value for '{NAME}': between 1 and {MAX_PROMPTS} prompts."));
    }
    if prompts.iter().any(|prompt| matches!(prompt, Prompt::Tokens(ids) if ids.is_empty())) {
        return refuse(format!(
            "Invalid value for '{NAME}': an array of token ids must not be empty."
        ));
    }
    Ok(prompts)
}

fn several<'a, T: serde::Deserialize<'a>>(
    items: &[&'a str],
    make: impl Fn(T) -> Prompt,
) -> Result<Vec<Prompt>, ApiError> {
    items
        .iter()
        .enumerate()
        .map(|(index, item)| {
            serde_json::from_str(item).map(&make).map_err(|_| {
                wrong_type(&format!("prompt[{index}]"), "a prompt like the first", item)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts_of(prompt: &str) -> Result<Vec<Prompt>, ApiError> {
        CompletionRequest::parse(&format!("{{\"prompt\":{prompt}}}")).map(|request| request.prompts)
    }

    #[test]
    fn all_four_forms_of_a_prompt() {
        let text = |text: &str| Prompt::Text(text.to_owned());
        assert_eq!(prompts_of("\"a\""), Ok(vec![text("a")]));
        assert_eq!(prompts_of(r#"["a","b"]"#), Ok(vec![text("a"), text("b")]));
        assert_eq!(prompts_of("[1, 2]"), Ok(vec![Prompt::Tokens(vec![1, 2])]));
        assert_eq!(
            prompts_of("[[1],[2,3]]"),
            Ok(vec![Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])])
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let seventeen = format!("{{\"prompt\":{:?}}}", vec!["x"; 17]);
        let cases = [
            ("{}", "prompt"),
            (r#"{"prompt":[]}"#, "prompt"),
            (r#"{"prompt":[[]]}"#, "prompt"),
            (r#"{"prompt":{}}"#, "prompt"),
            (r#"{"prompt":[1,-2]}"#, "prompt"),
            (r#"{"prompt":["a",1]}"#, "prompt[1]"),
            (&seventeen, "prompt"),
            (r#"{"prompt":"a","suffix":"b"}"#, "suffix"),
            (r#"{"prompt":"a","best_of":3}"#, "best_of"),
            (r#"{"prompt":"a","echo":true,"logprobs":1}"#, "logprobs"),
            (r#"{"prompt":"a","logprobs":true}"#, "logprobs"),
        ];
        for (text, param) in cases {
            let error = CompletionRequest::parse(text).expect_err(text);
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (400, Some(param)),
                "{text}"
            );
        }
    }
}
