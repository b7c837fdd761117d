//! One choice of a reply: the engine's events in, pieces of text out.
//!
//! Dropping a choice drops its event stream, which cancels the work within a step: that is the whole of cancellation,
//! for streams and for whole replies alike.

use std::collections::VecDeque;
use std::sync::Arc;

use super::text::{Added, ReplyText};
use crate::engine::{EngineError, Event, EventStream, FinishReason, TokenLogprob};
use crate::metrics::{Inference, StopReason};
use crate::tokenize::TokenBytes;

/// A step of a choice, for the outside.
#[derive(Debug, PartialEq)]
pub enum Piece {
    /// New text, and the tokens behind it where log-probabilities were asked for.
    Delta {
        /// Empty only at the end of a choice, for tokens that no text came of.
        text: String,
        /// Empty unless asked for.
        tokens: Vec<ShownToken>,
    },
    /// The end, as asked for. Nothing follows.
    End(End),
    /// The end, by a fault. Nothing follows.
    Failed(EngineError),
}

/// How a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// Why.
    pub reason: EndReason,
    /// Tokens generated, those of a stop included.
    pub completion_tokens: usize,
    /// Prompt tokens whose state was already held.
    pub cached_tokens: usize,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndReason {
    /// An end token or a stop string.
    Stop,
    /// The token limit.
    Length,
}

/// A token with its log-probability, readable.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownToken {
    /// The token.
    pub token: TokenText,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// The most probable tokens at its place.
    pub top: Vec<(TokenText, f32)>,
}

/// A token as text and as bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenText {
    /// Lossy where the token is part of a character.
    pub text: String,
    /// Exact.
    pub bytes: Vec<u8>,
}

impl TokenText {
    fn new(bytes: &[u8]) -> Self {
        Self { text: String::from_utf8_lossy(bytes).into_owned(), bytes: bytes.to_vec() }
    }
}

/// A choice under way.
#[derive(Debug)]
pub struct Choice {
    /// Gone once the choice has ended.
    events: Option<EventStream>,
    tokens: Arc<TokenBytes>,
    text: ReplyText,
    ready: VecDeque<Piece>,
    behind: Vec<ShownToken>,
    cached_tokens: usize,
    record: Inference,
}

impl Choice {
    /// A choice fed by `events`, whose text is made by `text` from the same `tokens`.
    pub fn new(
        events: EventStream,
        tokens: Arc<TokenBytes>,
        text: ReplyText,
        record: Inference,
    ) -> Self {
        Self {
            events: Some(events),
            tokens,
            text,
            ready: VecDeque::new(),
            behind: Vec::new(),
            cached_tokens: 0,
            record,
        }
    }

    /// The next piece; `None` after the last. Cancel-safe: a dropped call loses nothing.
    pub async fn next(&mut self) -> Option<Piece> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Some(piece);
            }
            let event = self.events.as_mut()?.next().await;
            self.take(event);
        }
    }

    fn take(&mut self, event: Option<Event>) {
        match event {
            Some(Event::Started { cached_tokens }) => self.cached_tokens = cached_tokens,
            Some(Event::Token(token)) => {
                self.record.token();
                self.behind.extend(token.logprob.map(|logprob| self.shown(token.id, &logprob)));
                match self.text.push(token.id) {
                    Added::Text(text) => self.show(text),
                    Added::Stopped(text) => {
                        self.show(text);
                        self.end(EndReason::Stop, self.record.tokens());
                    }
                }
            }
            Some(Event::Finished(finish)) => {
                let rest = self.text.finish();
                self.show(rest);
                let reason = match finish.reason {
                    FinishReason::StopToken => EndReason::Stop,
                    FinishReason::Length => EndReason::Length,
                };
                self.end(reason, finish.timings.completion_tokens);
            }
            Some(Event::Failed(error)) => self.fail(error),
            None => self.fail(EngineError::Step("the engine ended in mid-reply".into())),
        }
    }

    fn show(&mut self, text: String) {
        if !text.is_empty() {
            let tokens = std::mem::take(&mut self.behind);
            self.ready.push_back(Piece::Delta { text, tokens });
        }
    }

    fn end(&mut self, reason: EndReason, completion_tokens: usize) {
        self.events = None;
        if !self.behind.is_empty() {
            let tokens = std::mem::take(&mut self.behind);
            self.ready.push_back(Piece::Delta { text: String::new(), tokens });
        }
        let cached_tokens = self.cached_tokens;
        let recorded = match reason {
            EndReason::Stop => StopReason::Stop,
            EndReason::Length => StopReason::Length,
        };
        self.record.end(recorded, completion_tokens);
        self.ready.push_back(Piece::End(End { reason, completion_tokens, cached_tokens }));
    }

    fn fail(&mut self, error: EngineError) {
        self.events = None;
        self.record.end(StopReason::Error, self.record.tokens());
        self.ready.push_back(Piece::Failed(error));
    }

    fn shown(&self, id: u32, logprob: &TokenLogprob) -> ShownToken {
        let text = |id: u32| TokenText::new(self.tokens.get(id));
        ShownToken {
            token: text(id),
            logprob: finite(logprob.logprob),
            top: logprob.top.iter().map(|&(id, value)| (text(id), finite(value))).collect(),
        }
    }
}

/// JSON has no infinity: an impossible token gets the least finite number.
fn finite(logprob: f32) -> f32 {
    logprob.max(f32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        Command, EngineHandle, EngineSnapshot, Finish, GenerateRequest, Inbox, ModelInfo,
        SamplingParams, Timings, TokenEvent,
    };
    use crate::stream::text::Opening;
    use crate::tokenize::tests::fixture;

    fn engine() -> (EngineHandle, Inbox) {
        let info = ModelInfo {
            id: "m".into(),
            model_type: "llama".into(),
            vocab_size: 2048,
            context_length: 100,
            quantization: String::new(),
            eos_token_ids: vec![],
            bos_token_id: None,
            weight_bytes: 0,
            kv_bytes_per_token: 0,
            unused_tensors: vec![],
        };
        let snapshot =
            EngineSnapshot { healthy: true, queue_limit: 4, slots: 1, ..EngineSnapshot::default() };
        EngineHandle::from_parts(info, snapshot)
    }

    /// A choice whose engine has already said `events`, and whether the engine still has a listener.
    async fn pieces(events: Vec<Event>, stops: &[&str]) -> (Vec<Piece>, bool) {
        let (handle, mut inbox) = engine();
        let stream = handle
            .submit(GenerateRequest {
                id: String::new(),
                prompt: vec![1],
                max_tokens: 9,
                sampling: SamplingParams::greedy(),
                seed: 0,
                stop_tokens: Arc::new([]),
                ignore_eos: false,
                top_logprobs: None,
            })
            .expect("accepted");
        let Some(Command::Generate(submission)) = inbox.next().await else {
            panic!("a submission")
        };
        for event in events {
            submission.events.send(event);
        }
        let tokens = Arc::clone(fixture().bytes());
        let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
        let text = ReplyText::new(Arc::clone(&tokens), Opening::Fresh, stops);
        let mut choice = Choice::new(stream, tokens, text, Inference::begin(1));
        let mut pieces = Vec::new();
        while let Some(piece) = choice.next().await {
            pieces.push(piece);
        }
        (pieces, !submission.events.is_closed())
    }

    fn tokens(text: &str) -> Vec<Event> {
        let token = |id| Event::Token(TokenEvent { id, logprob: None });
        fixture().encode(text, false).expect("encodes").into_iter().map(token).collect()
    }

    fn finished(reason: FinishReason, completion_tokens: usize) -> Event {
        let timings = Timings { completion_tokens, ..Timings::default() };
        Event::Finished(Finish { reason, timings })
    }

    fn text_of(pieces: &[Piece]) -> String {
        let text = |piece: &Piece| match piece {
            Piece::Delta { text, .. } => text.clone(),
            Piece::End(_) | Piece::Failed(_) => String::new(),
        };
        pieces.iter().map(text).collect()
    }

    #[tokio::test]
    async fn a_stop_string_ends_the_choice_and_cancels_the_rest() {
        let mut events = tokens("1, 2, 3, 4, 5, 6, 7, 8");
        events.insert(0, Event::Started { cached_tokens: 7 });
        let (pieces, listening) = pieces(events, &[" 6"]).await;
        assert_eq!(text_of(&pieces), "1, 2, 3, 4, 5,");
        let Some(Piece::End(end)) = pieces.last() else { panic!("no end: {pieces:?}") };
        assert_eq!((end.reason, end.cached_tokens), (EndReason::Stop, 7));
        assert!(!listening, "the engine must see that nobody listens");
    }

    #[tokio::test]
    async fn text_held_for_a_stop_is_shown_at_the_end() {
        let mut events = tokens("a ST");
        events.push(finished(FinishReason::Length, 2));
        let (pieces, _) = pieces(events, &["STOP"]).await;
        assert_eq!(text_of(&pieces), "a ST");
        let end = End { reason: EndReason::Length, completion_tokens: 2, cached_tokens: 0 };
        assert_eq!(pieces.last(), Some(&Piece::End(end)));
    }

    #[tokio::test]
    async fn a_failure_is_the_last_piece() {
        let mut events = tokens("half");
        events.push(Event::Failed(EngineError::ShuttingDown));
        let (pieces, _) = pieces(events, &[]).await;
        assert_eq!(text_of(&pieces), "half");
        assert_eq!(pieces.last(), Some(&Piece::Failed(EngineError::ShuttingDown)));
    }

    #[tokio::test]
    async fn logprobs_travel_with_the_text_they_made() {
        let id = fixture().encode("a", false).expect("encodes")[0];
        let logprob = TokenLogprob { logprob: f32::NEG_INFINITY, top: vec![(id, -0.5)] };
        let token = Event::Token(TokenEvent { id, logprob: Some(logprob) });
        let (pieces, _) = pieces(vec![token, finished(FinishReason::StopToken, 2)], &[]).await;
        let Some(Piece::Delta { tokens, .. }) = pieces.first() else {
            panic!("no text: {pieces:?}")
        };
        assert_eq!(tokens[0].token.bytes, b"a");
        assert_eq!(tokens[0].logprob, f32::MIN, "JSON has no infinity");
        assert_eq!(tokens[0].top[0].1, -0.5);
    }

    #[tokio::test]
    async fn logprobs_without_text_come_before_the_end() {
        let id = fixture().encode("a", false).expect("encodes")[0];
        let logprob = Some(TokenLogprob { logprob: -0.5, top: vec![] });
        let token = Event::Token(TokenEvent { id, logprob });
        let (pieces, _) = pieces(vec![token], &["a"]).await;
        let [Piece::Delta { text, tokens }, Piece::End(_)] = &pieces[..] else {
            panic!("not a delta and an end: {pieces:?}")
        };
        assert_eq!((text.as_str(), tokens.len()), ("", 1));
    }
}
