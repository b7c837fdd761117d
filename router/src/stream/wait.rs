//! The reply's body as the client sees it, from a stream that has not begun to the last byte.
//!
//! Owns the patience of clients. A streamed request that waits long gets its head and comments, while attempts go on
//! behind them; what they end in, content or an error, follows in the same stream.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use sanctum_shared::sse;
use sanctum_shared::timer::MovingTimer;
use tokio::time::Instant;

use super::attempt::{Answer, Refusal};
use super::relay::Relay;

/// Silence before the first comment, and between two.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// An answer that is being looked for.
pub(crate) type Search = Pin<Box<dyn Future<Output = Result<Answer, Box<Refusal>>> + Send>>;

/// A reply's body.
pub(crate) enum ReplyBody {
    /// All of it.
    Whole(Full<Bytes>),
    /// Content flows.
    Relay(Box<Relay>),
    /// No content yet.
    Waiting {
        /// The attempts.
        search: Search,
        /// Wakes for the next comment.
        timer: MovingTimer,
        /// When the next comment is due.
        next: Instant,
    },
}

impl ReplyBody {
    pub(crate) fn whole(bytes: Bytes) -> Self {
        Self::Whole(Full::new(bytes))
    }

    /// A body that waits for `search`; its first comment goes out at once.
    pub(crate) fn waiting(search: Search) -> Self {
        Self::Waiting { search, timer: MovingTimer::default(), next: Instant::now() }
    }
}

impl fmt::Debug for ReplyBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole(_) => "Whole",
            Self::Relay(_) => "Relay",
            Self::Waiting { .. } => "Waiting",
        })
    }
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        loop {
            match &mut *self {
                Self::Whole(body) => return Pin::new(body).poll_frame(cx),
                Self::Relay(relay) => return Pin::new(&mut **relay).poll_frame(cx),
                Self::Waiting { search, timer, next } => match search.as_mut().poll(cx) {
                    Poll::Ready(found) => *self = late(found),
                    Poll::Pending => {
                        if timer.poll(*next, cx).is_pending() {
                            return Poll::Pending;
                        }
                        *next = Instant::now() + KEEP_ALIVE;
                        let comment = Bytes::from_static(sse::KEEP_ALIVE);
                        return Poll::Ready(Some(Ok(Frame::data(comment))));
                    }
                },
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(body) => body.is_end_stream(),
            Self::Relay(relay) => relay.is_end_stream(),
            Self::Waiting { .. } => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => body.size_hint(),
            _ => SizeHint::default(),
        }
    }
}

/// What follows the comments. The status has gone out: an error can only be an event now.
fn late(found: Result<Answer, Box<Refusal>>) -> ReplyBody {
    match found {
        Ok(Answer::Stream(response)) => ReplyBody::Relay(response.into_body()),
        Ok(Answer::Whole(response)) => {
            let text = String::from_utf8_lossy(response.body()).into_owned();
            ReplyBody::whole(sse::event(&text))
        }
        Err(refusal) => ReplyBody::whole(sse::event(&refusal.error.body())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderMap, Response};
    use http_body_util::BodyExt as _;
    use sanctum_shared::openai::error::ApiError;

    async fn text(body: ReplyBody) -> String {
        let bytes = body.collect().await.expect("infallible").to_bytes();
        String::from_utf8(bytes.to_vec()).expect("text")
    }

    #[tokio::test(start_paused = true)]
    async fn comments_come_every_ten_seconds_until_the_answer() {
        let search: Search = Box::pin(async {
            tokio::time::sleep(Duration::from_secs(25)).await;
            let error = ApiError::bad_request("no");
            Err(Box::new(Refusal { error, signature: HeaderMap::new() }))
        });
        let began = Instant::now();
        let comment = ": keep-alive\n\n";
        let error = "data: {\"error\":{\"message\":\"no\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":null}}\n\n";
        assert_eq!(text(ReplyBody::waiting(search)).await, comment.repeat(3) + error);
        assert_eq!(began.elapsed().as_secs(), 25);
    }

    #[tokio::test]
    async fn a_late_refusal_of_the_backend_becomes_an_event() {
        let body = Bytes::from_static(b"{\"error\":\n{}}");
        let search: Search = Box::pin(async { Ok(Answer::Whole(Response::new(body))) });
        assert_eq!(text(ReplyBody::waiting(search)).await, "data: {\"error\":\ndata: {}}\n\n");
    }
}
