//! Bodies on both sides of the service: requests that must arrive in time, replies whose end is noticed.
//!
//! Owns the body clock and its errors. It does not cap bytes: how much is too much depends on the route.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use super::AcceptLimits;
use super::wire::Talk;

/// A request body that did not come whole.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// It took longer than [`super::AcceptLimits::body_timeout`], or paused for [`super::AcceptLimits::body_stall`].
    #[error("the request body did not arrive in time")]
    Timeout,
    /// The client left or broke the framing.
    #[error("the request body is broken")]
    Broken(#[source] hyper::Error),
}

/// A request's body.
#[derive(Debug)]
pub struct RequestBody {
    inner: Incoming,
    stall: Duration,
    last_bytes: Instant,
    deadline: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    pub(super) fn new(inner: Incoming, limits: &AcceptLimits) -> Self {
        let now = Instant::now();
        let deadline = now + limits.body_timeout;
        Self { inner, stall: limits.body_stall, last_bytes: now, deadline, timer: None }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        if let Poll::Ready(frame) = Pin::new(&mut this.inner).poll_frame(cx) {
            if let Some(timer) = &mut this.timer {
                // Only a body that once made us wait needs the time of its last bytes.
                this.last_bytes = Instant::now();
                timer.as_mut().reset(this.deadline.min(this.last_bytes + this.stall));
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Broken)));
        }
        let deadline = this.deadline.min(this.last_bytes + this.stall);
        let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        timer.as_mut().poll(cx).map(|()| Some(Err(BodyError::Timeout)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// Marks a request as in flight until it is dropped.
#[derive(Debug)]
pub(super) struct Flight(Arc<Talk>);

impl Flight {
    pub(super) fn begin(talk: Arc<Talk>) -> Self {
        talk.begin_reply();
        Self(talk)
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.end_reply();
    }
}

/// A reply's body as it is sent: the service's own, or that of a refusal at the door.
#[derive(Debug)]
pub struct ServedBody<B> {
    content: Content<B>,
    _flight: Flight,
}

#[derive(Debug)]
enum Content<B> {
    Served(B),
    Refused(Full<Bytes>),
}

impl<B> ServedBody<B> {
    pub(super) fn served(body: B, flight: Flight) -> Self {
        Self { content: Content::Served(body), _flight: flight }
    }

    pub(super) fn refused(body: Full<Bytes>, flight: Flight) -> Self {
        Self { content: Content::Refused(body), _flight: flight }
    }
}

impl<B> Body for ServedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut self.content {
            Content::Served(body) => {
                Pin::new(body).poll_frame(cx).map(|f| f.map(|f| f.map_err(Into::into)))
            }
            Content::Refused(body) => {
                Pin::new(body).poll_frame(cx).map(|f| f.map(|f| f.map_err(|never| match never {})))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Served(body) => body.is_end_stream(),
            Content::Refused(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Served(body) => body.size_hint(),
            Content::Refused(body) => body.size_hint(),
        }
    }
}
