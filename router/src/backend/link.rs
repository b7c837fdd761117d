//! One connection to a backend, polled by whoever waits for its bytes.
//!
//! Owns the exchange of one request and one answer, and the pool's rules: a connection is kept only after a complete
//! answer, is looked at before reuse, and is closed when it was unused for [`UPSTREAM_IDLE`]. hyper's connection
//! future would usually be a task of its own; here it runs inside of the request's, which saves two task switches
//! per chunk and makes cancelling a matter of dropping.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::rt::TokioIo;
use sanctum_shared::limits::{UPSTREAM_IDLE, UPSTREAM_IDLE_CONNECTIONS};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tower::ServiceExt as _;

use super::failure::{Failure, connect_failure};
use super::{Backends, Upstream, lock};

type Io = MaybeHttpsStream<TokioIo<TcpStream>>;
type Conn = Connection<Io, Full<Bytes>>;

/// A connection that waits for its next request. Nobody polls it; it is looked at before use.
#[derive(Debug)]
pub(super) struct Idle {
    sender: SendRequest<Full<Bytes>>,
    conn: Box<Conn>,
    since: Instant,
}

/// A connection in use.
#[derive(Debug)]
pub(crate) struct Link {
    sender: SendRequest<Full<Bytes>>,
    /// `None` once hyper is done with it.
    conn: Option<Box<Conn>>,
    upstream: Arc<Upstream>,
    /// It has served before: a failure may only mean that the backend closed it meanwhile.
    pub(crate) reused: bool,
}

impl Backends {
    /// A connection to `upstream`: a kept one if `reuse`, else a new one.
    pub(crate) async fn link(
        &self,
        upstream: &Arc<Upstream>,
        reuse: bool,
    ) -> Result<Link, Failure> {
        while let Some(idle) = reuse.then(|| upstream.take_idle()).flatten() {
            let mut link = Link {
                sender: idle.sender,
                conn: Some(idle.conn),
                upstream: upstream.clone(),
                reused: true,
            };
            if link.is_alive().await {
                return Ok(link);
            }
        }
        let connecting = self.connector.clone().oneshot(upstream.url.clone());
        let io = timeout(self.connect_timeout, connecting)
            .await
            .map_err(|_| Failure::ConnectTimeout(self.connect_timeout))?
            .map_err(connect_failure)?;
        let (sender, conn) =
            Builder::new().handshake(io).await.map_err(|error| Failure::Connect(error.into()))?;
        Ok(Link { sender, conn: Some(Box::new(conn)), upstream: upstream.clone(), reused: false })
    }
}

impl Upstream {
    fn take_idle(&self) -> Option<Idle> {
        let mut idle = lock(&self.idle);
        // The newest first: it is the least likely to be closed. If it is too old, all are.
        match idle.pop() {
            Some(newest) if newest.since.elapsed() < UPSTREAM_IDLE => Some(newest),
            _ => {
                idle.clear();
                None
            }
        }
    }

    pub(super) fn close_unused(&self) {
        lock(&self.idle).retain(|idle| idle.since.elapsed() < UPSTREAM_IDLE);
    }
}

impl Link {
    fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(conn) = &mut self.conn
            && Pin::new(conn).poll(cx).is_ready()
        {
            // Whatever it ended with, the request or the body will say so.
            self.conn = None;
        }
    }

    /// Whether a kept connection is still open and ready for a request.
    async fn is_alive(&mut self) -> bool {
        poll_fn(|cx| {
            self.drive(cx);
            Poll::Ready(self.conn.is_some() && self.sender.poll_ready(cx).is_ready())
        })
        .await
    }

    /// Sends a request and waits for the head of the answer. Dropping the future closes the connection.
    pub(crate) async fn send(
        mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Reply>, hyper::Error> {
        let mut answer = std::pin::pin!(self.sender.send_request(request));
        let response = poll_fn(|cx| {
            if let Some(conn) = &mut self.conn
                && Pin::new(conn).poll(cx).is_ready()
            {
                self.conn = None;
            }
            answer.as_mut().poll(cx)
        })
        .await?;
        Ok(response.map(|body| Reply { link: Some(self), body, wanted: false }))
    }
}

/// The body of an answer, with the connection that it comes from.
#[derive(Debug)]
pub(crate) struct Reply {
    /// `None` once the body has ended.
    link: Option<Link>,
    body: Incoming,
    wanted: bool,
}

impl Reply {
    /// The next bytes; `None` at the clean end.
    pub(crate) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, hyper::Error>>> {
        loop {
            if let Some(link) = &mut self.link {
                link.drive(cx);
            }
            match Pin::new(&mut self.body).poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Poll::Ready(Some(Err(error))) => {
                    self.link = None;
                    return Poll::Ready(Some(Err(error)));
                }
                Poll::Ready(None) => {
                    self.keep_connection(cx);
                    return Poll::Ready(None);
                }
                // hyper reads a body only once it is asked for: look again after the first question.
                Poll::Pending if !self.wanted => self.wanted = true,
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// The next bytes; `None` at the clean end.
    pub(crate) async fn data(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        poll_fn(|cx| self.poll_data(cx)).await
    }

    /// Closes the connection if the body has not ended.
    pub(crate) fn abandon(&mut self) {
        self.link = None;
    }

    fn keep_connection(&mut self, cx: &mut Context<'_>) {
        let Some(mut link) = self.link.take() else { return };
        link.drive(cx);
        if !link.sender.is_ready() {
            return;
        }
        let Link { sender, conn: Some(conn), upstream, .. } = link else { return };
        let mut idle = lock(&upstream.idle);
        if idle.len() < UPSTREAM_IDLE_CONNECTIONS {
            idle.push(Idle { sender, conn, since: Instant::now() });
        }
    }
}
