//! A client that does nothing by itself: one connection per request, no retries, no redirects.
//!
//! Dropping a request or an [`EventStream`](super::events::EventStream) closes its socket at once, as a client that
//! leaves does.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// An answer, read to its end.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: Bytes,
    /// From the first byte sent to the last byte read, without connecting.
    pub took: Duration,
}

impl Reply {
    /// The body as JSON.
    ///
    /// # Panics
    /// If it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {} {}", self.status, self.text()))
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The JSON of a 200.
    ///
    /// # Panics
    /// If it is another status.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.json()
    }

    /// A header's value; empty if it is not there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }
}

/// A connection whose socket is closed with it.
#[derive(Debug)]
pub(super) struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    pub(super) async fn open(address: SocketAddr) -> Result<Self, String> {
        let refused =
            |error: &dyn std::fmt::Display| format!("cannot connect to {address}: {error}");
        let socket = TcpStream::connect(address).await.map_err(|error| refused(&error))?;
        socket.set_nodelay(true).map_err(|error| refused(&error))?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(socket)).await.map_err(|error| refused(&error))?;
        // How the connection ends is seen by whoever reads the response.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, driver })
    }

    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, String> {
        self.sender.send_request(request).await.map_err(|error| causes(&error))
    }
}

/// An error with its causes, in one line.
pub(super) fn causes(error: &dyn std::error::Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        // Writing to a string does not fail.
        let _ = write!(line, ": {inner}");
        cause = inner.source();
    }
    line
}

/// A request without a body, or with one of any bytes.
///
/// # Panics
/// If path or headers are none.
pub fn request(
    method: &Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header("host", "sanctum.test");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::new(body)).expect("a well-formed request")
}

/// Sends a request and reads the answer to its end.
///
/// # Errors
/// In words, if there is no answer or it breaks off.
pub async fn try_send(address: SocketAddr, request: Request<Full<Bytes>>) -> Result<Reply, String> {
    let mut connection = Connection::open(address).await?;
    let begun = Instant::now();
    let (head, body) = connection.send(request).await?.into_parts();
    let body = body.collect().await.map_err(|error| causes(&error))?.to_bytes();
    Ok(Reply { status: head.status, headers: head.headers, body, took: begun.elapsed() })
}

/// [`try_send`] where there must be an answer.
///
/// # Panics
/// If there is none.
pub async fn send(address: SocketAddr, request: Request<Full<Bytes>>) -> Reply {
    let what = format!("{} {}", request.method(), request.uri());
    try_send(address, request).await.unwrap_or_else(|error| panic!("{what}: {error}"))
}

/// `GET`.
pub async fn get(address: SocketAddr, path: &str) -> Reply {
    send(address, request(&Method::GET, path, &[], Bytes::new())).await
}

/// `POST` of JSON.
pub async fn post(address: SocketAddr, path: &str, body: &Value) -> Reply {
    send(address, json_request(path, body)).await
}

/// The request that [`post`] sends.
pub fn json_request(path: &str, body: &Value) -> Request<Full<Bytes>> {
    let headers = [("content-type", "application/json")];
    request(&Method::POST, path, &headers, Bytes::from(body.to_string()))
}
