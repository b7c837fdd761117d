//! A request that holds a slot: how far its prompt is computed, what it has generated, when.

use std::time::Instant;

use super::{
    EngineError, Event, EventSink, Finish, FinishReason, GenerateRequest, Submission, Timings,
    TokenEvent,
};
use crate::sample::{self, History};

/// A request in a slot, with its state `C`.
pub(super) struct Running<C> {
    pub(super) cache: C,
    pub(super) arrival: u64,
    pub(super) kv_reserved: u64,
    request: GenerateRequest,
    events: EventSink,
    history: History,
    /// Prompt tokens computed.
    prompt_done: usize,
    /// The token to compute next, once the prompt is done.
    last: u32,
    submitted: Instant,
    admitted: Instant,
    first_token: Option<Instant>,
}

/// What became of a request after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It wants another token.
    Goes,
    /// It has reached its end.
    Ended,
    /// Its caller has left.
    Left,
    /// Its logits were not numbers.
    Failed,
}

impl<C> Running<C> {
    /// Takes the slot: frees the place in the queue and tells the caller.
    pub(super) fn admit(
        submission: Submission,
        cache: C,
        arrival: u64,
        kv_reserved: u64,
        now: Instant,
    ) -> Self {
        let Submission { request, events, submitted, place } = submission;
        drop(place);
        events.send(Event::Started { cached_tokens: 0 });
        Self {
            cache,
            arrival,
            kv_reserved,
            history: History::new(&request.prompt, &request.sampling),
            request,
            events,
            prompt_done: 0,
            last: 0,
            submitted,
            admitted: now,
            first_token: None,
        }
    }

    pub(super) fn prompt_left(&self) -> usize {
        self.request.prompt.len() - self.prompt_done
    }

    /// The next `rows` tokens to compute.
    pub(super) fn tokens(&self, rows: usize) -> &[u32] {
        if self.prompt_left() == 0 {
            return std::slice::from_ref(&self.last);
        }
        &self.request.prompt[self.prompt_done..][..rows]
    }

    /// Notes that `rows` rows were computed; how many of them were prompt.
    pub(super) fn computed(&mut self, rows: usize) -> usize {
        let prompt = rows.min(self.prompt_left());
        self.prompt_done += prompt;
        prompt
    }

    pub(super) fn is_left(&self) -> bool {
        self.events.is_closed()
    }

    /// Chooses the next token from its logits and tells the caller.
    pub(super) fn choose(&mut self, logits: &mut [f32], now: Instant) -> After {
        let GenerateRequest { sampling, seed, top_logprobs, .. } = &self.request;
        let sampled = sample::sample(logits, sampling, &self.history, *seed, *top_logprobs);
        let sampled = match sampled {
            Ok(sampled) => sampled,
            Err(sample::NotFinite(what)) => {
                self.events.send(Event::Failed(EngineError::NotANumber { what }));
                return After::Failed;
            }
        };
        self.first_token.get_or_insert(now);
        self.history.push(sampled.id);
        self.last = sampled.id;
        if !self.request.ignore_eos && self.request.stop_tokens.contains(&sampled.id) {
            return self.finish(FinishReason::StopToken, now);
        }
        let event = TokenEvent { id: sampled.id, logprob: sampled.logprob };
        if !self.events.send(Event::Token(event)) {
            return After::Left;
        }
        if self.history.generated() >= self.request.max_tokens as u64 {
            return self.finish(FinishReason::Length, now);
        }
        After::Goes
    }

    fn finish(&self, reason: FinishReason, now: Instant) -> After {
        let finish = Finish { reason, timings: self.timings(now) };
        if self.events.send(Event::Finished(finish)) { After::Ended } else { After::Left }
    }

    fn timings(&self, now: Instant) -> Timings {
        let first = self.first_token.unwrap_or(now);
        Timings {
            prompt_tokens: self.request.prompt.len(),
            cached_tokens: 0,
            completion_tokens: self.history.generated() as usize,
            queued: self.admitted - self.submitted,
            prefill: first - self.admitted,
            decode: now - first,
        }
    }

    /// Tells the caller that it failed.
    pub(super) fn fail(self, error: EngineError) {
        tracing::warn!(request = %self.request.id, %error, "request failed");
        self.events.send(Event::Failed(error));
    }

    /// Seconds since it was submitted.
    pub(super) fn age(&self, now: Instant) -> f32 {
        (now - self.submitted).as_secs_f32()
    }
}
