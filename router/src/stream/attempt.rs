//! One request, tried on one URL after another until content flows.
//!
//! Owns the time before the commit point: queue, choice, connection, first content. Up to there a failure costs the
//! client nothing but time; lifecycle events are held back so that it cannot notice. Dropping the future at any
//! point gives back slot and connection.
//!
//! What counts as content is the backend's word: text, tool calls, or a `finish_reason` without either (a model may
//! say nothing). A stream that ends before any of these was empty, and somebody else is asked.

use std::error::Error as StdError;
use std::io;
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
use serde_json::error::Category;
use tokio::time::{Instant, timeout_at};

use super::headers;
use super::inspect::Malformed;
use super::relay::{Held, HeldEvents, Relay};
use super::trail::{Trail, too_late};
use crate::admission::{Admitted, Endpoint, Slot};
use crate::backend::failure::{Failure, is_callers_mistake};
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
/// A kept connection that ends within this time of a request was most likely closed before it arrived.
const NOT_YET_READ: Duration = Duration::from_secs(1);

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
    /// Requests of the running attempt that a backend may have seen beside its last one.
    pub(crate) resent: u32,
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
                    trail.resent(std::mem::take(&mut self.resent));
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
        let stall = house.timeouts.stall;
        let patience = Patience { first_by, wait, stall, deadline: self.deadline };
        let sent = timeout_at(first_by, self.send(house, upstream, request));
        let response = sent.await.map_err(|_| patience.no_content())??;
        let (parts, mut reply) = response.into_parts();
        let status = parts.status;
        if is_callers_mistake(status) {
            let body = collect(&mut reply, ERROR_BODY_BYTES, &patience).await?;
            self.ticket.attempt_outcome("client_error");
            return Ok(Found::Whole(self.head(status, parts.headers, body)));
        }
        if lacks_endpoint(self.admitted.endpoint, status) {
            return Err(Failure::NoEndpoint { status });
        }
        if !status.is_success() {
            return Err(Failure::Status { status, retry_after_s: retry_after_s(&parts.headers) });
        }
        let streamed = parts.headers.get(CONTENT_TYPE).is_some_and(is_event_stream);
        if self.admitted.stream && streamed {
            let early = hold_back(&mut reply, &patience).await?;
            let head = self.head(status, parts.headers, ());
            let (slot, upstream) = (slot.take(), upstream.clone());
            let held = Held { early, reply, upstream, slot, load };
            return Ok(Found::Stream(head, Box::new(held)));
        }
        let body = collect(&mut reply, REPLY_BYTES, &patience).await?;
        usable(self.admitted.endpoint, &body)?;
        upstream.succeeded();
        self.ticket.attempt_outcome("ok");
        Ok(Found::Whole(self.head(status, parts.headers, body)))
    }

    /// Sends on a kept connection if there is one. If that one turns out to be closed, once more on a new one; but not
    /// where the backend may have worked on the request.
    async fn send(
        &mut self,
        house: &House,
        upstream: &Arc<Upstream>,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Reply>, Failure> {
        let link = house.backends.link(upstream, true).await?;
        self.ticket.sent();
        let spare = link.reused.then(|| request.clone());
        let asked = Instant::now();
        let error = match link.send(request).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let early = asked.elapsed() < NOT_YET_READ && is_closed(&error);
        let Some(request) = spare.filter(|_| early || error.is_canceled()) else {
            return Err(Failure::Cut(Some(error.into())));
        };
        self.resent += u32::from(!error.is_canceled());
        let link = house.backends.link(upstream, false).await?;
        link.send(request).await.map_err(|error| Failure::Cut(Some(error.into())))
    }

    /// The request for one URL. The backend's key goes to the backend's own server only: a fallback URL elsewhere may
    /// belong to somebody else.
    fn request(&self, view: &BackendView, upstream: &Upstream) -> Request<Full<Bytes>> {
        let body = self.admitted.body_for(view.model.as_deref());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = upstream.target(self.admitted.endpoint.path(), self.query.as_deref());
        *request.headers_mut() = self.headers.clone();
        request.headers_mut().insert(HOST, upstream.host());
        let own = view.primary.as_ref().is_some_and(|url| upstream.is_server_of(url));
        if let Some(key) = view.authorization.as_ref().filter(|_| own) {
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

/// For how long an attempt is waited for.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// First byte of content.
    first_by: Instant,
    /// What `first_by` is in time from the attempt's beginning.
    wait: Duration,
    /// Silence after that.
    stall: Duration,
    /// The caller's own limit.
    deadline: Instant,
}

impl Patience {
    /// Nothing came by `first_by`.
    fn no_content(&self) -> Failure {
        self.late(Failure::FirstToken(self.wait))
    }

    /// The backend is not to blame for a limit that it does not know.
    fn late(&self, failure: Failure) -> Failure {
        if Instant::now() >= self.deadline { Failure::Deadline } else { failure }
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
async fn hold_back(reply: &mut Reply, patience: &Patience) -> Result<HeldEvents, Failure> {
    let mut held = HeldEvents::default();
    let mut bytes = 0;
    loop {
        let piece = timeout_at(patience.first_by, reply.data()).await;
        let piece = match piece.map_err(|_| patience.no_content())? {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => return Err(Failure::Cut(Some(error.into()))),
            None => return Err(Failure::Empty),
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
    patience: &Patience,
) -> Result<Bytes, Failure> {
    let mut only = Bytes::new();
    let mut all = BytesMut::new();
    loop {
        // A head may come at once and the body once the reply is complete: its wait is the first token's.
        let waiting = only.is_empty() && all.is_empty();
        let until = if waiting { patience.first_by } else { Instant::now() + patience.stall };
        let piece = timeout_at(until.min(patience.deadline), reply.data()).await;
        let late = || match waiting {
            true => patience.no_content(),
            false => patience.late(Failure::Stall(patience.stall)),
        };
        let piece = match piece.map_err(|_| late())? {
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

/// Whether a good status carries a good answer: at least one choice (or embedding), whatever is in it.
fn usable(endpoint: Endpoint, body: &[u8]) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Item {}
    #[derive(Deserialize)]
    struct Reply {
        error: Option<IgnoredAny>,
        choices: Option<Vec<Item>>,
        data: Option<Vec<Item>>,
    }
    if body.trim_ascii().is_empty() {
        return Err(Failure::Empty);
    }
    let reply: Reply = serde_json::from_slice(body).map_err(|error| match error.classify() {
        Category::Data => Failure::Empty,
        _ => Failure::NotJson,
    })?;
    if reply.error.is_some() {
        return Err(Failure::InBand);
    }
    let items = if endpoint == Endpoint::Embeddings { reply.data } else { reply.choices };
    if items.is_none_or(|items| items.is_empty()) { Err(Failure::Empty) } else { Ok(()) }
}

/// Whether a status means that the server has no such path, which says nothing about its chats. A path that every
/// server has is not meant: there the model is unknown.
fn lacks_endpoint(endpoint: Endpoint, status: StatusCode) -> bool {
    let absent = matches!(
        status,
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
    );
    absent && endpoint != Endpoint::Chat
}

/// Whether the backend closed the connection instead of answering.
fn is_closed(error: &hyper::Error) -> bool {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<io::Error>() {
            return matches!(
                io.kind(),
                io::ErrorKind::ConnectionReset
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::UnexpectedEof
            );
        }
        cause = inner.source();
    }
    error.is_incomplete_message()
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
mod tests;
