//! From a request's body to prompts of token ids. Runs off the async threads: it may take a while.
//!
//! Owns the checks that need the model: its name, its context, its vocabulary. What does not fit is refused here,
//! before the queue.

use sanctum_shared::openai::chat::ChatRequest;
use sanctum_shared::openai::completions::{CompletionRequest, Prompt};
use sanctum_shared::openai::decoding::Decoding;
use sanctum_shared::openai::error::ApiError;
use sanctum_shared::openai::json;
use sanctum_shared::openai::tokens::TokenizeRequest;

use super::state::{App, Served};
use crate::template::{Conversation, TemplateError};
use crate::tokenize::TokenizeError;

/// A request ready to be submitted.
#[derive(Debug)]
pub struct Prepared {
    /// Token ids, one list per prompt, none empty, each with room for an answer.
    pub prompts: Vec<Vec<u32>>,
    /// How to decode.
    pub decoding: Decoding,
    /// Log-probabilities, if asked for.
    pub top_logprobs: Option<usize>,
    /// What goes before each prompt's completion (`echo`).
    pub echo: Vec<String>,
    /// What was left out, for a response header.
    pub notices: Vec<String>,
}

/// Prepares a chat completion.
pub fn chat(app: &App, served: &Served, body: &[u8]) -> Result<Prepared, ApiError> {
    let request = ChatRequest::parse(json::checked(body, &app.limits.json)?)?;
    app.check_model(request.model.as_deref())?;
    check_ids(served, &request.decoding)?;
    let ids = conversation(served, &request)?;
    let mut notices: Vec<String> =
        request.dropped_tools.iter().map(|kind| format!("tool of type {kind} dropped")).collect();
    if !request.tools.is_empty() {
        notices.push("tool calls in replies are not parsed in this version".to_owned());
    }
    Ok(Prepared {
        prompts: vec![ids],
        decoding: request.decoding,
        top_logprobs: request.top_logprobs,
        echo: Vec::new(),
        notices,
    })
}

/// Prepares a text completion.
pub fn completion(app: &App, served: &Served, body: &[u8]) -> Result<Prepared, ApiError> {
    let request = CompletionRequest::parse(json::checked(body, &app.limits.json)?)?;
    app.check_model(request.model.as_deref())?;
    check_ids(served, &request.decoding)?;
    let mut prompts = Vec::with_capacity(request.prompts.len());
    let mut echo = Vec::new();
    for prompt in request.prompts {
        if request.echo {
            echo.push(match &prompt {
                Prompt::Text(text) => text.clone(),
                Prompt::Tokens(ids) => text_of(served, ids),
            });
        }
        prompts.push(match prompt {
            Prompt::Text(text) => encode(served, "prompt", &text, true)?,
            Prompt::Tokens(ids) => fitting(served, "prompt", ids)?,
        });
    }
    Ok(Prepared {
        prompts,
        decoding: request.decoding,
        top_logprobs: request.top_logprobs,
        echo,
        notices: Vec::new(),
    })
}

/// Token ids of a `/tokenize` request. They need not fit the context.
pub fn tokens(app: &App, served: &Served, body: &[u8]) -> Result<Vec<u32>, ApiError> {
    let request = TokenizeRequest::parse(json::checked(body, &app.limits.json)?)?;
    app.check_model(request.model())?;
    let (text, add_special) = match &request {
        TokenizeRequest::Text { text, add_special, .. } => (text.clone(), *add_special),
        TokenizeRequest::Chat(chat) => (render(served, chat)?, false),
    };
    served.tokenizer.encode(&text, add_special).map_err(|error| refused_text("content", &error))
}

/// The text of token ids, special ones left out.
pub fn text_of(served: &Served, ids: &[u32]) -> String {
    let table = served.tokenizer.bytes();
    let shown = ids.iter().filter(|id| !table.is_special(**id));
    let bytes: Vec<u8> = shown.flat_map(|id| table.get(*id)).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn conversation(served: &Served, request: &ChatRequest) -> Result<Vec<u32>, ApiError> {
    encode(served, "messages", &render(served, request)?, false)
}

fn render(served: &Served, request: &ChatRequest) -> Result<String, ApiError> {
    let conversation = Conversation {
        messages: &request.messages,
        tools: &request.tools,
        documents: request.documents.as_ref(),
        add_generation_prompt: request.add_generation_prompt,
        kwargs: Some(&request.template_kwargs),
    };
    served.template.render(&conversation).map_err(|error| {
        let param = match error {
            TemplateError::Reserved(_) => "chat_template_kwargs",
            _ => "messages",
        };
        ApiError::invalid(param, format!("The chat template refuses the request: {error}."))
            .with_code("invalid_value")
    })
}

fn encode(
    served: &Served,
    param: &str,
    text: &str,
    add_special: bool,
) -> Result<Vec<u32>, ApiError> {
    refuse_far_over(served, param, text)?;
    let mut ids =
        served.tokenizer.encode(text, add_special).map_err(|error| refused_text(param, &error))?;
    if ids.is_empty() {
        // An empty prompt means "begin a text", where the model has a mark for that.
        ids.extend(served.engine.info().bos_token_id);
    }
    fitting(served, param, ids)
}

/// Bytes of text per token of context that are looked at first. Three times what a token of prose has.
const HEAD_BYTES_PER_TOKEN: usize = 12;

/// Refuses a text that is far too long after a look at its beginning, so that this takes no longer than a prompt that
/// fits. What is near the limit is left to the exact count.
fn refuse_far_over(served: &Served, param: &str, text: &str) -> Result<(), ApiError> {
    let limit = served.engine.info().context_length;
    let fewest = served.tokenizer.fewest_tokens(text);
    if fewest >= limit {
        return Err(ApiError::context_length_far(param, limit, fewest));
    }
    let head = limit.saturating_mul(HEAD_BYTES_PER_TOKEN);
    if text.len() / 2 < head {
        return Ok(());
    }
    let head = &text[..text.floor_char_boundary(head)];
    let tokens =
        served.tokenizer.encode(head, false).map_err(|error| refused_text(param, &error))?;
    // The cut may have split a word, which a margin of an eighth outweighs.
    if tokens.len() > limit + limit / 8 {
        return Err(ApiError::context_length_far(param, limit, limit));
    }
    Ok(())
}

/// The prompt, if it leaves room for at least one token.
fn fitting(served: &Served, param: &str, ids: Vec<u32>) -> Result<Vec<u32>, ApiError> {
    let info = served.engine.info();
    if ids.is_empty() {
        return Err(ApiError::invalid(param, format!("'{param}' holds no token.")));
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= info.vocab_size) {
        let message = format!("'{param}' holds the token id {id}, which this model does not have.");
        return Err(ApiError::invalid(param, message).with_code("invalid_value"));
    }
    if ids.len() >= info.context_length {
        return Err(ApiError::context_length(param, info.context_length, ids.len()));
    }
    Ok(ids)
}

/// Refuses token ids that the model does not have.
fn check_ids(served: &Served, decoding: &Decoding) -> Result<(), ApiError> {
    let vocab_size = served.engine.info().vocab_size;
    let biased = decoding.logit_bias.iter().map(|(id, _)| ("logit_bias", *id));
    let stops = decoding.stop_token_ids.iter().map(|id| ("stop_token_ids", *id));
    match biased.chain(stops).find(|(_, id)| *id as usize >= vocab_size) {
        None => Ok(()),
        Some((param, id)) => {
            let message =
                format!("'{param}' names the token id {id}, which this model does not have.");
            Err(ApiError::invalid(param, message).with_code("invalid_value"))
        }
    }
}

fn refused_text(param: &str, error: &TokenizeError) -> ApiError {
    ApiError::invalid(param, format!("{error}."))
}
