//! The JSON of replies and chunks, for chat and for text completions.
//!
//! One [`Shape`] per request. It knows wire types and counts characters; it never waits for anything.

use sanctum_shared::openai::reply::{
    AssistantMessage, CHAT, CHAT_CHUNK, ChatChoice, ChatChunkChoice, ChatLogprobs,
    ChatTokenLogprob, Delta, FinishReason, Reply, ReplyHead, TEXT, TextChoice, TextLogprobs,
    TokenLogprob, Usage,
};
use serde::Serialize;

use crate::stream::{EndReason, ShownToken, TokenText};

/// A finished choice.
#[derive(Debug)]
pub struct Gathered {
    /// Its whole text.
    pub text: String,
    /// Its tokens, where log-probabilities were asked for.
    pub tokens: Vec<ShownToken>,
    /// Why it ended.
    pub reason: EndReason,
}

/// Chat or text.
#[derive(Debug)]
pub enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text {
        /// What goes before each choice's text.
        echo: Vec<String>,
        /// Characters each choice has so far, for `text_offset`.
        written: Vec<usize>,
    },
}

/// Makes the JSON of one request's reply.
#[derive(Debug)]
pub struct Shape {
    /// What all of it has in common.
    pub head: ReplyHead,
    /// Chat or text.
    pub kind: Kind,
    /// Whether log-probabilities were asked for.
    pub logprobs: bool,
}

impl Shape {
    /// What opens a choice of a stream: the role, or the echoed prompt.
    pub fn opening(&mut self, index: usize) -> Option<String> {
        match &mut self.kind {
            Kind::Chat => {
                let delta = Delta { role: Some("assistant"), content: Some(String::new()) };
                Some(self.chat_chunk(index, delta, None, None))
            }
            Kind::Text { echo, .. } => {
                let text =
                    echo.get_mut(index).map(std::mem::take).filter(|text| !text.is_empty())?;
                Some(self.delta(index, text, &[]))
            }
        }
    }

    /// New text of a choice.
    pub fn delta(&mut self, index: usize, text: String, tokens: &[ShownToken]) -> String {
        if matches!(self.kind, Kind::Chat) {
            let logprobs = self.logprobs.then(|| chat_logprobs(tokens));
            return self.chat_chunk(
                index,
                Delta { role: None, content: Some(text) },
                logprobs,
                None,
            );
        }
        let offset = self.advance(index, &text);
        let logprobs = self.logprobs.then(|| text_logprobs(tokens, offset));
        self.json(TEXT, &[TextChoice { index, text, logprobs, finish_reason: None }], None)
    }

    /// The end of a choice of a stream.
    pub fn end(&self, index: usize, reason: EndReason) -> String {
        let finish_reason = Some(finish(reason));
        match self.kind {
            Kind::Chat => self.chat_chunk(index, Delta::default(), None, finish_reason),
            Kind::Text { .. } => {
                let choice =
                    TextChoice { index, text: String::new(), logprobs: None, finish_reason };
                self.json(TEXT, &[choice], None)
            }
        }
    }

    /// The usage chunk of a stream.
    pub fn usage(&self, usage: &Usage) -> String {
        let object = match self.kind {
            Kind::Chat => CHAT_CHUNK,
            Kind::Text { .. } => TEXT,
        };
        self.json::<TextChoice>(object, &[], Some(usage))
    }

    /// The whole reply.
    pub fn whole(&mut self, choices: Vec<Gathered>, usage: &Usage) -> String {
        let logprobs = self.logprobs;
        if let Kind::Text { echo, .. } = &mut self.kind {
            let mut echo = std::mem::take(echo).into_iter();
            let choices: Vec<TextChoice> = choices
                .into_iter()
                .enumerate()
                .map(|(index, choice)| TextChoice {
                    index,
                    text: echo.next().unwrap_or_default() + &choice.text,
                    logprobs: logprobs.then(|| text_logprobs(&choice.tokens, 0)),
                    finish_reason: Some(finish(choice.reason)),
                })
                .collect();
            return self.json(TEXT, &choices, Some(usage));
        }
        let choices: Vec<ChatChoice> = choices
            .into_iter()
            .enumerate()
            .map(|(index, choice)| ChatChoice {
                index,
                message: AssistantMessage::new(choice.text),
                logprobs: logprobs.then(|| chat_logprobs(&choice.tokens)),
                finish_reason: finish(choice.reason),
            })
            .collect();
        self.json(CHAT, &choices, Some(usage))
    }

    fn chat_chunk(
        &self,
        index: usize,
        delta: Delta,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<FinishReason>,
    ) -> String {
        let choice = ChatChunkChoice { index, delta, logprobs, finish_reason };
        self.json(CHAT_CHUNK, &[choice], None)
    }

    fn json<C: Serialize>(
        &self,
        object: &'static str,
        choices: &[C],
        usage: Option<&Usage>,
    ) -> String {
        // Strings and finite numbers only: nothing here can fail to serialise.
        Reply::new(&self.head, object, choices, usage).to_json().unwrap_or_default()
    }

    /// Counts new text of a choice and says where it began.
    fn advance(&mut self, index: usize, text: &str) -> usize {
        let Kind::Text { written, .. } = &mut self.kind else { return 0 };
        let Some(written) = written.get_mut(index) else { return 0 };
        let begun = *written;
        *written += text.chars().count();
        begun
    }
}

fn finish(reason: EndReason) -> FinishReason {
    match reason {
        EndReason::Stop => FinishReason::Stop,
        EndReason::Length => FinishReason::Length,
    }
}

fn logprob(token: &TokenText, logprob: f32) -> TokenLogprob {
    TokenLogprob { token: token.text.clone(), logprob, bytes: token.bytes.clone() }
}

fn chat_logprobs(tokens: &[ShownToken]) -> ChatLogprobs {
    let one = |shown: &ShownToken| ChatTokenLogprob {
        token: logprob(&shown.token, shown.logprob),
        top_logprobs: shown.top.iter().map(|(token, value)| logprob(token, *value)).collect(),
    };
    ChatLogprobs { content: tokens.iter().map(one).collect(), refusal: None }
}

fn text_logprobs(tokens: &[ShownToken], mut offset: usize) -> TextLogprobs {
    let mut columns = TextLogprobs::default();
    for shown in tokens {
        columns.tokens.push(shown.token.text.clone());
        columns.token_logprobs.push(shown.logprob);
        let top = shown.top.iter().map(|(token, value)| (token.text.clone(), (*value).into()));
        columns.top_logprobs.push(top.collect());
        columns.text_offset.push(offset);
        offset += shown.token.text.chars().count();
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn shape(kind: Kind, logprobs: bool) -> Shape {
        let head = ReplyHead {
            id: "x".into(),
            created: 0,
            model: "m".into(),
            system_fingerprint: "f".into(),
        };
        Shape { head, kind, logprobs }
    }

    fn text_kind(echo: &[&str]) -> Kind {
        Kind::Text { echo: echo.iter().map(|text| (*text).to_owned()).collect(), written: vec![0] }
    }

    fn token(text: &str) -> ShownToken {
        let token = TokenText { text: text.into(), bytes: text.as_bytes().to_vec() };
        ShownToken { token: token.clone(), logprob: -0.5, top: vec![(token, -0.5)] }
    }

    fn choice(json: &str) -> Value {
        let value: Value = serde_json::from_str(json).expect("JSON");
        value["choices"][0].clone()
    }

    #[test]
    fn a_chat_stream_opens_with_the_role_and_ends_with_a_reason() {
        let mut shape = shape(Kind::Chat, false);
        let opening = choice(&shape.opening(0).expect("a role"));
        assert_eq!(opening["delta"], json!({"role": "assistant", "content": ""}));
        assert_eq!(choice(&shape.delta(0, "hi".into(), &[]))["delta"], json!({"content": "hi"}));
        let end = choice(&shape.end(0, EndReason::Length));
        assert_eq!((&end["delta"], &end["finish_reason"]), (&json!({}), &json!("length")));
    }

    #[test]
    fn an_echo_comes_first_and_once() {
        let mut streamed = shape(text_kind(&["Once"]), false);
        assert_eq!(choice(&streamed.opening(0).expect("the echo"))["text"], "Once");
        assert_eq!(streamed.opening(0), None);
        let mut whole = shape(text_kind(&["Once"]), false);
        let gathered = Gathered { text: " upon".into(), tokens: vec![], reason: EndReason::Stop };
        let json = whole.whole(vec![gathered], &Usage::new(1, 0, 1));
        assert_eq!(choice(&json)["text"], "Once upon");
    }

    #[test]
    fn offsets_go_on_from_chunk_to_chunk() {
        let mut shape = shape(text_kind(&[]), true);
        let first = choice(&shape.delta(0, "né".into(), &[token("n"), token("é")]));
        assert_eq!(first["logprobs"]["text_offset"], json!([0, 1]));
        let second = choice(&shape.delta(0, "!".into(), &[token("!")]));
        assert_eq!(second["logprobs"]["text_offset"], json!([2]));
        assert_eq!(second["logprobs"]["top_logprobs"], json!([{"!": -0.5}]));
    }

    #[test]
    fn chat_logprobs_carry_bytes_and_alternatives() {
        let mut shape = shape(Kind::Chat, true);
        let json = choice(&shape.delta(0, "é".into(), &[token("é")]));
        assert_eq!(
            json["logprobs"]["content"][0],
            json!({"token": "é", "logprob": -0.5, "bytes": [195, 169],
                   "top_logprobs": [{"token": "é", "logprob": -0.5, "bytes": [195, 169]}]})
        );
    }
}
