//! HTTP requests of the command line: plain or TLS, with errors in words that an operator can act on.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(3);
/// How long a router that is well may take to answer a question about itself.
const ANSWER: Duration = Duration::from_secs(5);
/// Most bytes of a reply that is not streamed.
const REPLY_BYTES: usize = 16 * 1024 * 1024;
/// Characters of an unexpected reply that are shown.
const SHOWN_CHARS: usize = 300;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The URL is none.
    #[error("`{url}` is not a URL that can be asked")]
    Url { url: String, source: http::Error },
    /// The key cannot be sent.
    #[error("the API key holds characters that no header can carry")]
    Key,
    /// No connection, or no answer.
    #[error("cannot reach {url}")]
    Unreachable { url: String, source: hyper_util::client::legacy::Error },
    /// A connection, but no whole answer in time.
    #[error("{url} did not answer within {} s", limit.as_secs())]
    Slow { url: String, limit: Duration },
    /// The system's certificates cannot be used.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// The answer broke off.
    #[error("the answer of {url} broke off")]
    Broken { url: String, source: Box<dyn std::error::Error + Send + Sync> },
    /// It answered, with a refusal.
    #[error("{message} ({status}{})", retry(*retry_after_s))]
    Refused { status: StatusCode, message: String, retry_after_s: Option<u32> },
}

fn retry(after_s: Option<u32>) -> String {
    after_s.map_or_else(String::new, |seconds| format!(", try again in {seconds} s"))
}

impl CallError {
    /// Whether nobody answered at all.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Slow { .. })
    }
}

/// A client with its connections.
pub(super) struct Caller {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    key: Option<HeaderValue>,
}

impl Caller {
    /// `key` is sent as a bearer token if there is one.
    pub(super) fn new(key: Option<&str>) -> Result<Self, CallError> {
        let key = key.map(|key| {
            let mut value =
                HeaderValue::try_from(format!("Bearer {key}")).map_err(|_| CallError::Key)?;
            value.set_sensitive(true);
            Ok(value)
        });
        let mut http = HttpConnector::new();
        http.set_connect_timeout(Some(CONNECT));
        http.set_nodelay(true);
        http.enforce_http(false);
        let connector = HttpsConnectorBuilder::new()
            .with_provider_and_webpki_roots(rustls::crypto::ring::default_provider())
            .map_err(CallError::Tls)?
            .https_or_http()
            .enable_http1()
            .wrap_connector(http);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(Self { client, key: key.transpose()? })
    }

    /// Sends a request; a reply that is no success becomes [`CallError::Refused`] with its message.
    pub(super) async fn send(
        &self,
        method: Method,
        url: &str,
        body: Option<String>,
    ) -> Result<Response<Incoming>, CallError> {
        let mut request = Request::builder()
            .method(method)
            .uri(url)
            .header(ACCEPT, "application/json, text/event-stream");
        if let Some(key) = &self.key {
            request = request.header(AUTHORIZATION, key);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request
            .body(Full::new(Bytes::from(body.unwrap_or_default())))
            .map_err(|source| CallError::Url { url: url.to_owned(), source })?;
        let response = self
            .client
            .request(request)
            .await
            .map_err(|source| CallError::Unreachable { url: url.to_owned(), source })?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let retry_after_s = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| text.parse().ok());
        let message = message_of(&read(url, response).await?);
        Err(CallError::Refused { status, message, retry_after_s })
    }

    /// Sends a request and reads the whole reply, however long that takes.
    pub(super) async fn fetch(
        &self,
        method: Method,
        url: &str,
        body: Option<String>,
    ) -> Result<Bytes, CallError> {
        let response = self.send(method, url, body).await?;
        read(url, response).await
    }

    /// Asks the router about itself, which takes it no time when it is well.
    pub(super) async fn look(&self, url: &str) -> Result<Bytes, CallError> {
        self.look_within(url, ANSWER).await
    }

    async fn look_within(&self, url: &str, limit: Duration) -> Result<Bytes, CallError> {
        let answer = tokio::time::timeout(limit, self.fetch(Method::GET, url, None)).await;
        answer.unwrap_or_else(|_| Err(CallError::Slow { url: url.to_owned(), limit }))
    }
}

async fn read(url: &str, response: Response<Incoming>) -> Result<Bytes, CallError> {
    let body = Limited::new(response.into_body(), REPLY_BYTES).collect().await;
    body.map(http_body_util::Collected::to_bytes)
        .map_err(|source| CallError::Broken { url: url.to_owned(), source })
}

#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorMessage,
}

#[derive(Deserialize)]
struct ErrorMessage {
    message: String,
}

/// The message of an error body, or its beginning if it has another shape.
pub(super) fn message_of(body: &[u8]) -> String {
    if let Ok(body) = serde_json::from_slice::<ErrorBody>(body) {
        return body.error.message;
    }
    let text = String::from_utf8_lossy(body);
    let shown: String = text.trim().chars().take(SHOWN_CHARS).collect();
    if shown.is_empty() { "no reason was given".to_owned() } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_from_error_bodies() {
        assert_eq!(
            message_of(br#"{"error":{"message":"no such seat","code":null}}"#),
            "no such seat"
        );
        assert_eq!(message_of(b"<html>bad gateway</html>"), "<html>bad gateway</html>");
        assert_eq!(message_of(b""), "no reason was given");
    }

    #[tokio::test]
    async fn a_router_that_does_not_answer_is_not_waited_for() {
        // It takes connections into its backlog and never reads them.
        let deaf = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", deaf.local_addr().expect("bound"));
        let caller = Caller::new(None).expect("a client");
        let limit = Duration::from_millis(20);
        let error = caller.look_within(&url, limit).await.expect_err("nobody answers");
        assert!(matches!(error, CallError::Slow { .. }) && error.is_unreachable(), "{error}");
    }

    #[tokio::test]
    async fn a_closed_port_is_unreachable_and_named() {
        let caller = Caller::new(None).expect("a client");
        // Port 1 on loopback is nobody's.
        let error =
            caller.fetch(Method::GET, "http://127.0.0.1:1/", None).await.expect_err("closed");
        assert!(error.is_unreachable());
        assert_eq!(error.to_string(), "cannot reach http://127.0.0.1:1/");
    }
}
