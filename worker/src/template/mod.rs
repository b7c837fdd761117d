//! From a conversation to a prompt: the checkpoint's own Jinja template.
//!
//! Owns choosing the template, its context, and what a failure means to the client. It refuses templates from
//! requests, names a template cannot have, and output beyond a limit. A checkpoint without a template gets a plain one
//! ([`PLAIN`]).

mod environment;
mod python_json;
mod python_text;
mod strftime;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::io;

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind};
use sanctum_shared::openai::message::Message;
use serde_json::Map;

use crate::tokenize::CheckpointText;
use environment::{Raised, environment, translate};

/// The template of a checkpoint that has none: `User: …`, `Assistant: …`, a line each.
pub const PLAIN: &str = "\
{%- for message in messages -%}
{{ message.role | capitalize }}: {{ message.content }}{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt %}Assistant:{% endif -%}";

/// Longest prompt a template may write, in bytes.
const MAX_PROMPT_BYTES: usize = 32 << 20;
/// Longest template, in bytes.
const MAX_TEMPLATE_BYTES: usize = 1 << 20;

const DEFAULT: &str = "default";
const TOOL_USE: &str = "tool_use";

/// Names in a template's context that `chat_template_kwargs` may not set.
const RESERVED: [&str; 6] =
    ["messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"];

/// Why there is no prompt.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template raised an exception of its own: the messages are not as it wants them.
    #[error("{0}")]
    Raised(String),
    /// The template failed on these messages.
    #[error("{0}")]
    Failed(String),
    /// A limit was met.
    #[error("{0}")]
    Limit(&'static str),
    /// `chat_template_kwargs` sets what it may not.
    #[error("'{0}' cannot be set by chat_template_kwargs")]
    Reserved(String),
    /// The checkpoint's template cannot be compiled.
    #[error("the chat template '{name}' cannot be used: {reason}")]
    Source {
        /// Which of the checkpoint's templates.
        name: String,
        /// Why.
        reason: String,
    },
}

/// What a template sees of a request.
#[derive(Debug, Default)]
pub struct Conversation<'a> {
    /// The messages.
    pub messages: &'a [Message],
    /// Tools, none for `None`.
    pub tools: &'a [serde_json::Value],
    /// Documents.
    pub documents: Option<&'a serde_json::Value>,
    /// Whether to open the assistant's turn.
    pub add_generation_prompt: bool,
    /// Further names, as the client sets them.
    pub kwargs: Option<&'a Map<String, serde_json::Value>>,
}

/// A checkpoint's chat templates, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    env: Environment<'static>,
    marks: BTreeMap<String, String>,
    plain: bool,
    tool_use: bool,
}

impl ChatTemplate {
    /// Compiles the templates of a checkpoint. `clock` gives Unix seconds to templates that print a date.
    pub fn new(text: &CheckpointText, clock: fn() -> u64) -> Result<Self, TemplateError> {
        let mut env = environment(clock);
        for (name, source) in &text.templates {
            let refuse = |reason: String| TemplateError::Source { name: name.clone(), reason };
            if source.len() > MAX_TEMPLATE_BYTES {
                return Err(refuse(format!("longer than {MAX_TEMPLATE_BYTES} bytes")));
            }
            env.add_template_owned(name.clone(), translate(source))
                .map_err(|error| refuse(describe(&error)))?;
        }
        let plain = !text.templates.contains_key(DEFAULT);
        if plain {
            env.add_template(DEFAULT, PLAIN).map_err(|error| TemplateError::Source {
                name: DEFAULT.into(),
                reason: describe(&error),
            })?;
        }
        let tool_use = text.templates.contains_key(TOOL_USE);
        Ok(Self { env, marks: text.marks.clone(), plain, tool_use })
    }

    /// Whether the checkpoint has no template and the plain one stands in.
    pub fn is_plain(&self) -> bool {
        self.plain
    }

    /// The prompt of `conversation`.
    pub fn render(&self, conversation: &Conversation<'_>) -> Result<String, TemplateError> {
        let mut context: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, value) in conversation.kwargs.into_iter().flatten() {
            if RESERVED.contains(&name.as_str()) || self.marks.contains_key(name) {
                return Err(TemplateError::Reserved(name.clone()));
            }
            context.insert(name, Value::from_serialize(value));
        }
        let tools = (!conversation.tools.is_empty()).then_some(conversation.tools);
        context.extend(self.marks.iter().map(|(name, mark)| (name.as_str(), Value::from(mark))));
        context.insert("messages", Value::from_serialize(conversation.messages));
        context.insert("tools", Value::from_serialize(tools));
        context.insert("documents", Value::from_serialize(conversation.documents));
        context.insert("add_generation_prompt", conversation.add_generation_prompt.into());
        let name = if tools.is_some() && self.tool_use { TOOL_USE } else { DEFAULT };
        let mut out = Bounded { bytes: Vec::new() };
        self.env
            .get_template(name)
            .and_then(|template| template.render_captured_to(&context, &mut out).map(drop))
            .map_err(|error| failure(&error))?;
        String::from_utf8(out.bytes).map_err(|error| TemplateError::Failed(error.to_string()))
    }
}

fn failure(error: &minijinja::Error) -> TemplateError {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(Raised(message)) = inner.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        cause = inner.source();
    }
    match error.kind() {
        ErrorKind::OutOfFuel => TemplateError::Limit("the chat template does not come to an end"),
        ErrorKind::WriteFailure => TemplateError::Limit("the prompt is too long"),
        _ => TemplateError::Failed(describe(error)),
    }
}

/// An error in one line, with the place in the template.
fn describe(error: &minijinja::Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{detail} (line {line} of the template)"),
        None => detail,
    }
}

/// A writer that ends at [`MAX_PROMPT_BYTES`].
struct Bounded {
    bytes: Vec<u8>,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_PROMPT_BYTES {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(templates: &[(&str, &str)]) -> Result<ChatTemplate, TemplateError> {
        let own = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
        };
        let text = CheckpointText {
            marks: own(&[("bos_token", "<s>"), ("eos_token", "</s>")]),
            templates: own(templates),
            ..CheckpointText::default()
        };
        ChatTemplate::new(&text, || 0)
    }

    fn render(source: &str, messages: &[Message]) -> Result<String, TemplateError> {
        let conversation =
            Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
        template(&[("default", source)])?.render(&conversation)
    }

    const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

    #[test]
    fn a_conversation_becomes_a_prompt() {
        let messages = [Message::text("system", "Be brief."), Message::text("user", "Hi")];
        assert_eq!(
            render(CHATML, &messages).as_deref(),
            Ok(
                "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            )
        );
    }

    #[test]
    fn marks_and_kwargs_are_names() {
        let template = template(&[(
            "default",
            "{{ bos_token }}{% if enable_thinking is defined and not enable_thinking %}quick{% endif %}{{ tools is none }}",
        )])
        .expect("compiles");
        let kwargs = json!({"enable_thinking": false});
        let conversation = Conversation { kwargs: kwargs.as_object(), ..Conversation::default() };
        assert_eq!(template.render(&conversation).as_deref(), Ok("<s>quickTrue"));
    }

    #[test]
    fn kwargs_cannot_replace_the_conversation_or_the_template() {
        let template = template(&[("default", "x")]).expect("compiles");
        for name in ["messages", "chat_template", "bos_token"] {
            let kwargs = json!({name: "evil"});
            let conversation =
                Conversation { kwargs: kwargs.as_object(), ..Conversation::default() };
            assert_eq!(template.render(&conversation), Err(TemplateError::Reserved(name.into())));
        }
    }

    #[test]
    fn tools_choose_their_own_template() {
        let template = template(&[("default", "plain"), ("tool_use", "{{ tools[0].name }}")])
            .expect("compiles");
        let tools = [json!({"name": "f"})];
        let with = Conversation { tools: &tools, ..Conversation::default() };
        assert_eq!(template.render(&with).as_deref(), Ok("f"));
        assert_eq!(template.render(&Conversation::default()).as_deref(), Ok("plain"));
    }

    #[test]
    fn what_a_template_raises_reaches_the_client() {
        let source = "{% if messages[0].role != 'user' %}{{ raise_exception('Roles must alternate') }}{% endif %}";
        assert_eq!(
            render(source, &[Message::text("tool", "x")]),
            Err(TemplateError::Raised("Roles must alternate".into()))
        );
    }

    #[test]
    fn bombs_are_refused() {
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% set x = a %}{% endfor %}{% endfor %}";
        assert!(matches!(render(endless, &[]), Err(TemplateError::Limit(_))));
        let long = "{% set x = 'x' * 1000000 %}{% for a in range(40) %}{{ x }}{% endfor %}";
        assert_eq!(render(long, &[]), Err(TemplateError::Limit("the prompt is too long")));
    }

    #[test]
    fn a_template_that_does_not_compile_is_refused_at_load() {
        let error = template(&[("default", "{% if %}")]).expect_err("broken");
        assert!(error.to_string().contains("'default'"), "{error}");
        assert!(error.to_string().contains("line 1"), "{error}");
    }

    #[test]
    fn a_checkpoint_without_a_template_gets_the_plain_one() {
        let template = template(&[]).expect("compiles");
        assert!(template.is_plain());
        let messages = [Message::text("system", "Be brief."), Message::text("user", "Hi")];
        let conversation = Conversation {
            messages: &messages,
            add_generation_prompt: true,
            ..Conversation::default()
        };
        assert_eq!(
            template.render(&conversation).as_deref(),
            Ok("System: Be brief.\nUser: Hi\nAssistant:")
        );
    }
}
