//! One request, tried on one URL after another until content flows.
//!
//! Owns the time before the commit point: queue, choice, connection, first content. Up to there a failure costs the
//! client nothing but time; lifecycle events are held back so that it cannot notice. Dropping the future at any
//! point gives back slot and connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST, RETRY_AFTER};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::Full;
use sanctum_shared::limits::{ERROR_BODY_BYTES, HELD_BACK_BYTES, REPLY_BYTES};
use sanctum_shared::openai::error::ApiError;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tokio::time::{Instant, timeout_at};

use super::headers;
use super::inspect::Malformed;
use super::relay::{Held, HeldEvents, Relay};
use super::trail::{Trail, too_late};
use crate::admission::{Admitted, Slot};
use crate::backend::failure::Failure;
use crate::backend::{Reply, Upstream};
use crate::fleet::BackendView;
use crate::house::House;
use crate::metrics::{Outcome, Ticket};
use crate::route::Route;
use crate::route::plan::{Choice, plan};

/// Longest wait for a slot.
const QUEUE_WAIT: Duration = Duration::from_secs(30);
/// What a token of a reply that is not streamed may cost, beyond the time to the first: 10 tokens/s are slow.
const TOKEN_TIME: Duration = Duration::from_millis(100);

/// A request on its way.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) house: Arc<House>,
    pub(crate) route: Arc<Route>,
    pub(crate) admitted: Admitted,
    /// The client's headers that travel.
    pub(crate) headers: HeaderMap,
    pub(crate) query: Option<String>,
    pub(crate) ticket: Ticket,
    /// When the whole request must have ended.
    pub(crate) deadline: Instant,
}

/// What the client gets.
#[derive(Debug)]
pub(crate) enum Answer {
    /// Everything at once.
    Whole(Response<Bytes>),
    /// Content that has begun to flow.
    Stream(Response<Box<Relay>>),
}

/// What the client gets instead.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: ApiError,
    /// Who was asked, for the response's head.
    pub(crate) signature: HeaderMap,
}

impl Job {
    /// Finds somebody who answers.
    pub(crate) async fn answer(mut self) -> Result<Answer, Box<Refusal>> {
        let result = self.try_all().await;
        match result {
            Ok(Found::Whole(response)) => {
                let refused = response.status().is_client_error();
                let outcome = if refused { Outcome::Refused } else { Outcome::Answered };
                self.ticket.end(response.status().as_u16(), outcome);
                Ok(Answer::Whole(response))
            }
            Ok(Found::Stream(head, held)) => {
                self.ticket.relay();
                let choices = self.admitted.choices;
                let timeouts = &self.house.timeouts;
                let relay = Relay::new(*held, self.ticket, timeouts.stall, self.deadline, choices);
                Ok(Answer::Stream(head.map(|()| Box::new(relay))))
            }
            Err(error) => {
                let failed = error.status.is_server_error();
                let outcome = if failed { Outcome::Failed } else { Outcome::Refused };
                self.ticket.end(error.status.as_u16(), outcome);
                let mut signature = HeaderMap::new();
                headers::sign(&mut signature, &self.ticket);
                Err(Box::new(Refusal { error, signature }))
            }
        }
    }

    async fn try_all(&mut self) -> Result<Found, ApiError> {
        let house = self.house.clone();
        self.ticket.queue(self.route.seat.name.clone(), self.admitted.stream);
        let patience = self.deadline.min(Instant::now() + QUEUE_WAIT);
        let slot = self.route.gate.enter(patience).await;
        self.ticket.dequeue();
        let mut slot = Some(slot?);
        let views = house.fleet.now();
        let backends = &house.backends;
        let choices = plan(
            &self.route.candidates,
            &views,
            |backend| backends.load(backend),
            |view, url| backends.cooling(url, view.model.as_ref()),
        );
        let mut trail = Trail::default();
        for (n, choice) in choices.iter().enumerate() {
            if Instant::now() >= self.deadline {
                return Err(too_late());
            }
            let Some(view) = views.get(choice.backend) else { continue };
            let others = n + 1 < choices.len();
            self.ticket.attempt(view.name.clone());
            let upstream = backends.upstream(&choice.url, view.model.as_ref());
            match self.attempt(&house, choice, view, &upstream, others, &mut slot).await {
                Ok(found) => return Ok(found),
                Err(failure) => {
                    upstream.failed(&failure);
                    trail.add(&failure, upstream.pause());
                    let more = others && trail.may_go_on() && Instant::now() < self.deadline;
                    self.ticket.failed_over(&failure, more);
                    if !more {
                        break;
                    }
                }
            }
        }
        if Instant::now() >= self.deadline {
            return Err(too_late());
        }
        Err(trail.refusal(&self.route.seat.name))
    }

    async fn attempt(
        &mut self,
        house: &House,
        choice: &Choice,
        view: &BackendView,
        upstream: &Arc<Upstream>,
        others: bool,
        slot: &mut Option<Slot>,
    ) -> Result<Found, Failure> {
        let load = house.backends.begin(choice.backend);
        let began = Instant::now();
        let wait = first_wait(
            self.admitted.stream,
            house.timeouts.first_token,
            self.admitted.max_tokens,
            self.deadline.saturating_duration_since(began),
            others,
        );
        let first_by = began + wait;
        let request = self.request(view, upstream);
        let sent = timeout_at(first_by, self.send(house, upstream, request));
        let response = sent.await.map_err(|_| Failure::FirstToken(wait))??;
        let (parts, mut reply) = response.into_parts();
        let status = parts.status;
        let whole_by = self.deadline;
        if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
            let body =
                collect(&mut reply, ERROR_BODY_BYTES, house.timeouts.stall, whole_by).await?;
            self.ticket.attempt_outcome("client_error");
            return Ok(Found::Whole(self.head(status, parts.headers, body)));
        }
        if !status.is_success() {
            return Err(Failure::Status { status, retry_after_s: retry_after_s(&parts.headers) });
        }
        let streamed = parts.headers.get(CONTENT_TYPE).is_some_and(is_event_stream);
        if self.admitted.stream && streamed {
            let early = hold_back(&mut reply, first_by, wait).await?;
            let head = self.head(status, parts.headers, ());
            let (slot, upstream) = (slot.take(), upstream.clone());
            let held = Held { early, reply, upstream, slot, load };
            return Ok(Found::Stream(head, Box::new(held)));
        }
        let body = collect(&mut reply, REPLY_BYTES, house.timeouts.stall, whole_by).await?;
        usable(&body)?;
        upstream.succeeded();
        self.ticket.attempt_outcome("ok");
        Ok(Found::Whole(self.head(status, parts.headers, body)))
    }

    /// Sends on a kept connection if there is one. If that one turns out to be closed, once more on a new one.
    async fn send(
        &mut self,
        house: &House,
        upstream: &Arc<Upstream>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Reply>, Failure> {
        let link = house.backends.link(upstream, true).await?;
        self.ticket.sent();
        let spare = link.reused.then(|| request.clone());
        match (link.send(request).await, spare) {
            (Ok(response), _) => Ok(response),
            (Err(_), Some(request)) => {
                let link = house.backends.link(upstream, false).await?;
                link.send(request).await.map_err(|error| Failure::Cut(Some(error.into())))
            }
            (Err(error), None) => Err(Failure::Cut(Some(error.into()))),
        }
    }

    fn request(&self, view: &BackendView, upstream: &Upstream) -> Request<Full<Bytes>> {
        let body = self.admitted.body_for(view.model.as_deref());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = upstream.target(self.admitted.endpoint.path(), self.query.as_deref());
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(HOST, upstream.host());
        if let Some(key) = &view.authorization {
            request.headers_mut().insert(AUTHORIZATION, key.clone());
        }
        request
    }

    fn head<B>(&self, status: StatusCode, from: HeaderMap, body: B) -> Response<B> {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers::to_client(from);
        headers::sign(response.headers_mut(), &self.ticket);
        response
    }
}

enum Found {
    Whole(Response<Bytes>),
    Stream(Response<()>, Box<Held>),
}

/// How long an attempt may take until its first content. A reply that is not streamed comes as a whole, so its
/// length counts too; without a limit on it, half of the time left goes to this attempt if others could follow.
fn first_wait(
    stream: bool,
    first_token: Duration,
    max_tokens: Option<u64>,
    left: Duration,
    others: bool,
) -> Duration {
    let wait = match (stream, max_tokens) {
        (true, _) => first_token,
        (false, Some(tokens)) => {
            let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
            first_token.saturating_add(TOKEN_TIME.saturating_mul(tokens))
        }
        (false, None) => left,
    };
    let share = if others && !stream { left / 2 } else { left };
    wait.min(share)
}

/// Reads events until the first with content, and keeps them.
async fn hold_back(reply: &mut Reply, by: Instant, wait: Duration) -> Result<HeldEvents, Failure> {
    let mut held = HeldEvents::default();
    let mut bytes = 0;
    loop {
        let piece = timeout_at(by, reply.data()).await.map_err(|_| Failure::FirstToken(wait))?;
        let piece = match piece {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return Err(Failure::Cut(Some(error.into()))),
            None if bytes == 0 => return Err(Failure::Empty),
            None => return Err(Failure::Cut(None)),
        };
        let passed = held.inspector.push(&piece);
        let look = passed.look;
        bytes += passed.bytes.len();
        if !passed.bytes.is_empty() {
            held.events.push_back(passed.bytes);
        }
        if look.content || look.finished > 0 {
            held.look = look;
            held.fault = passed.fault;
            return Ok(held);
        }
        match passed.fault {
            Some(Malformed::Framing(error)) => return Err(Failure::Stream(error)),
            Some(Malformed::Data) => return Err(Failure::NotJson),
            None if look.error => return Err(Failure::InBand),
            None if look.done => return Err(Failure::Empty),
            None if bytes > HELD_BACK_BYTES => {
                return Err(Failure::TooLarge { limit_bytes: HELD_BACK_BYTES });
            }
            None => {}
        }
    }
}

/// Reads an answer as a whole.
async fn collect(
    reply: &mut Reply,
    limit_bytes: usize,
    stall: Duration,
    by: Instant,
) -> Result<Bytes, Failure> {
    let mut only = Bytes::new();
    let mut all = BytesMut::new();
    loop {
        let until = by.min(Instant::now() + stall);
        let piece = timeout_at(until, reply.data()).await.map_err(|_| Failure::Stall(stall))?;
        let piece = match piece {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return Err(Failure::Cut(Some(error.into()))),
            None => return Ok(if all.is_empty() { only } else { all.freeze() }),
        };
        if only.len() + all.len() + piece.len() > limit_bytes {
            return Err(Failure::TooLarge { limit_bytes });
        }
        if all.is_empty() && only.is_empty() {
            only = piece;
        } else {
            all.extend_from_slice(&std::mem::take(&mut only));
            all.extend_from_slice(&piece);
        }
    }
}

/// Whether a good status carries a good answer.
fn usable(body: &[u8]) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Reply {
        error: Option<IgnoredAny>,
    }
    if body.trim_ascii().is_empty() {
        return Err(Failure::Empty);
    }
    let reply: Reply = serde_json::from_slice(body).map_err(|_| Failure::NotJson)?;
    if reply.error.is_some() { Err(Failure::InBand) } else { Ok(()) }
}

fn is_event_stream(kind: &http::HeaderValue) -> bool {
    let kind = kind.as_bytes();
    let name = b"text/event-stream";
    kind.len() >= name.len() && kind[..name.len()].eq_ignore_ascii_case(name)
}

/// Seconds; dates are rare and need a clock that agrees.
fn retry_after_s(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_reply_gets_time_for_its_length() {
        let s = Duration::from_secs;
        for (stream, tokens, others, wait) in [
            (true, None, true, s(10)),
            (true, Some(1000), false, s(10)),
            (false, Some(20), true, s(12)),
            (false, Some(100_000), true, s(300)),
            (false, None, true, s(300)),
            (false, None, false, s(600)),
            (false, Some(u64::MAX), false, s(600)),
        ] {
            let got = first_wait(stream, s(10), tokens, s(600), others);
            assert_eq!(got, wait, "stream {stream}, {tokens:?} tokens, others {others}");
        }
        assert_eq!(first_wait(true, s(10), None, s(3), true), s(3));
    }

    #[test]
    fn a_good_status_is_not_enough() {
        assert!(usable(br#"{"choices":[],"error":null}"#).is_ok());
        assert!(matches!(usable(b" \n"), Err(Failure::Empty)));
        assert!(matches!(usable(b"<html>"), Err(Failure::NotJson)));
        assert!(matches!(usable(b"{\"choices\":["), Err(Failure::NotJson)));
        assert!(matches!(usable(br#"{"error":{"message":"x"}}"#), Err(Failure::InBand)));
    }

    #[test]
    fn event_streams_are_known_by_their_type() {
        for (kind, is) in [
            ("text/event-stream; charset=utf-8", true),
            ("Text/Event-Stream", true),
            ("text/html", false),
        ] {
            assert_eq!(is_event_stream(&http::HeaderValue::from_static(kind)), is);
        }
    }
}
