//! The reply after its commit point: bytes from a backend to a client, watched but not touched.
//!
//! Owns the end of every stream. Content that stalls, breaks or turns to garbage ends in one well-formed error event
//! and no `[DONE]`; nothing is ever asked for twice. A client that reads slowly slows the backend, since nothing is
//! read ahead of it. Only progress in content resets the stall timer: comments do not.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame};
use sanctum_shared::openai::error::{ApiError, SERVER_ERROR};
use sanctum_shared::sse;
use sanctum_shared::timer::MovingTimer;
use tokio::time::Instant;

use super::event::Look;
use super::inspect::{Inspector, Malformed};
use super::trail::too_late;
use crate::admission::Slot;
use crate::backend::failure::Failure;
use crate::backend::{Load, Reply, Upstream};
use crate::metrics::{Outcome, Ticket};

/// How long a finished reply may take to say `[DONE]` (or usage); some servers never do.
const FINISH_GRACE: Duration = Duration::from_secs(5);
/// How long a connection may take to end its body after `[DONE]`, so that it can be used again.
const DONE_GRACE: Duration = Duration::from_secs(1);

/// How much of a backend's error event is logged, in bytes.
const LOGGED_BYTES: usize = 512;

/// Events read before the commit point.
#[derive(Debug, Default)]
pub(crate) struct HeldEvents {
    pub(crate) inspector: Inspector,
    pub(crate) events: VecDeque<Bytes>,
    /// What the last of them brought.
    pub(crate) look: Look,
    pub(crate) fault: Option<Malformed>,
}

/// Everything that a stream holds at its commit point.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) early: HeldEvents,
    pub(crate) reply: Reply,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) slot: Option<Slot>,
    pub(crate) load: Option<Load>,
}

/// A stream to a client.
#[derive(Debug)]
pub(crate) struct Relay {
    reply: Reply,
    inspector: Inspector,
    queue: VecDeque<Bytes>,
    ticket: Ticket,
    upstream: Arc<Upstream>,
    /// Given back when the stream ends, not when the client has read it.
    held: Option<(Option<Slot>, Option<Load>)>,
    stall: Duration,
    deadline: Instant,
    timer: MovingTimer,
    last_content: Instant,
    /// Choices that are still to give their `finish_reason`.
    unfinished: u64,
    done: bool,
    over: bool,
}

impl Relay {
    /// A relay of `choices` replies that must make progress within each `stall` and end before `deadline`.
    pub(crate) fn new(
        held: Held,
        ticket: Ticket,
        stall: Duration,
        deadline: Instant,
        choices: u64,
    ) -> Self {
        let HeldEvents { inspector, events, look, fault } = held.early;
        let mut relay = Self {
            reply: held.reply,
            inspector,
            queue: events,
            ticket,
            upstream: held.upstream,
            held: Some((held.slot, held.load)),
            stall,
            deadline,
            timer: MovingTimer::default(),
            last_content: Instant::now(),
            unfinished: choices,
            done: false,
            over: false,
        };
        relay.judge(look, fault);
        relay
    }

    fn take(&mut self, piece: &Bytes) {
        if self.done {
            return;
        }
        let passed = self.inspector.push(piece);
        if !passed.bytes.is_empty() {
            self.queue.push_back(passed.bytes);
        }
        self.judge(passed.look, passed.fault);
    }

    fn judge(&mut self, look: Look, fault: Option<Malformed>) {
        if look.content || look.finished > 0 {
            self.last_content = Instant::now();
        }
        self.unfinished = self.unfinished.saturating_sub(look.finished);
        if look.error {
            let theirs = self.inspector.rest();
            let theirs = String::from_utf8_lossy(&theirs[..theirs.len().min(LOGGED_BYTES)]);
            tracing::warn!(request = %self.ticket.id(), %theirs, "the backend's error event");
            self.interrupt(&Failure::InBand);
        } else if look.done {
            self.done = true;
            self.last_content = Instant::now();
        } else if let Some(fault) = fault {
            self.interrupt(&match fault {
                Malformed::Framing(error) => Failure::Stream(error),
                Malformed::Data => Failure::NotJson,
            });
        }
    }

    /// The backend has ended its body, cleanly or not.
    fn ended(&mut self, error: Option<hyper::Error>) {
        if let Some(look) = self.inspector.rest_is_whole() {
            self.unfinished = self.unfinished.saturating_sub(look.finished);
            self.done |= look.done;
            if !look.error && (self.done || self.unfinished == 0) {
                self.queue.push_back(self.inspector.rest());
            }
        }
        if self.done || self.unfinished == 0 {
            self.succeed();
        } else {
            self.interrupt(&Failure::Cut(error.map(Into::into)));
        }
    }

    fn succeed(&mut self) {
        self.upstream.succeeded();
        self.ticket.attempt_outcome("ok");
        self.ticket.end(200, Outcome::Answered);
        self.close();
    }

    fn interrupt(&mut self, failure: &Failure) {
        let event = if matches!(failure, Failure::Deadline) {
            too_late()
        } else {
            let message = "The reply was interrupted: what came before is incomplete.";
            ApiError::new(StatusCode::BAD_GATEWAY, SERVER_ERROR, message)
                .with_code("upstream_stream_interrupted")
        };
        self.queue.push_back(sse::event(&event.body()));
        self.end(Outcome::Interrupted, failure);
    }

    fn end(&mut self, outcome: Outcome, failure: &Failure) {
        self.upstream.failed(failure);
        self.ticket.failed_over(failure, false);
        self.ticket.end(200, outcome);
        self.close();
    }

    fn close(&mut self) {
        self.over = true;
        self.held = None;
        self.reply.abandon();
    }

    /// Nothing came: is there still time?
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let patience = match (self.done, self.unfinished) {
            (true, _) => DONE_GRACE,
            (false, 0) => FINISH_GRACE.min(self.stall),
            (false, _) => self.stall,
        };
        let due = (self.last_content + patience).min(self.deadline);
        ready!(self.timer.poll(due, cx));
        self.expire();
        Poll::Ready(())
    }

    /// There is no time left.
    fn expire(&mut self) {
        if self.done || self.unfinished == 0 {
            self.succeed();
        } else if self.is_late() {
            self.interrupt(&Failure::Deadline);
        } else {
            self.interrupt(&Failure::Stall(self.last_content.elapsed()));
        }
    }

    fn is_late(&self) -> bool {
        Instant::now() >= self.deadline
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        loop {
            if let Some(bytes) = this.queue.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            if this.over {
                return Poll::Ready(None);
            }
            // Asked here too: with a backend that always has bytes ready, nobody would look at the clock.
            if this.is_late() {
                this.expire();
                continue;
            }
            match this.reply.poll_data(cx) {
                Poll::Ready(Some(Ok(piece))) => this.take(&piece),
                Poll::Ready(Some(Err(error))) => this.ended(Some(error)),
                Poll::Ready(None) => this.ended(None),
                Poll::Pending => ready!(this.poll_patience(cx)),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over && self.queue.is_empty()
    }
}
