//! The one error shape that clients see, and the one function that makes its body.
//!
//! Owns status, type, code, wording and the retry headers of every refusal that router or worker utters itself.
//! It refuses to carry a cause: what goes out is what a client may know. Causes go to the log.
//! Wording is API here (clients match on it), so each wording lives in one constructor below.

use std::fmt;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

/// Shortest wait we ask for, in seconds: less makes clients hammer.
pub const RETRY_AFTER_MIN_S: u32 = 2;
/// Longest wait we ask for, in seconds: openai-python ignores anything longer.
pub const RETRY_AFTER_MAX_S: u32 = 120;

/// `x-should-retry`: what OpenAI's own clients read before they look at the status.
pub const SHOULD_RETRY: &str = "x-should-retry";

/// A refusal as it goes over the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// `error.type`: `invalid_request_error` for the client's mistakes, never a word that means "try again" on a 4xx.
    pub kind: &'static str,
    /// `error.code`, for programs.
    pub code: Option<&'static str>,
    /// `error.param`: the field at fault, as a path such as `messages[2].content`.
    pub param: Option<String>,
    /// `error.message`, for people.
    pub message: String,
    /// `Retry-After` in seconds, clamped to [`RETRY_AFTER_MIN_S`]..=[`RETRY_AFTER_MAX_S`] when sent.
    pub retry_after_s: Option<u32>,
    /// `x-should-retry`, where the status alone would mislead a client.
    pub should_retry: Option<bool>,
}

/// `type` of a mistake of the client.
pub const INVALID_REQUEST: &str = "invalid_request_error";
/// `type` of "too many at once".
pub const RATE_LIMIT: &str = "rate_limit_error";
/// `type` of a failure of ours.
pub const SERVER_ERROR: &str = "server_error";

impl ApiError {
    /// An error with no parameter, code or retry advice.
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code: None,
            param: None,
            message: message.into(),
            retry_after_s: None,
            should_retry: None,
        }
    }

    /// 400 that names the field at fault.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message).with_param(param)
    }

    /// 400 for a request that is wrong as a whole.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, INVALID_REQUEST, message)
    }

    /// 400 for a field that is right but that this version cannot honour.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(param, message).with_code("unsupported_value")
    }

    /// 400 for a prompt that leaves no room for an answer. Clients match on this wording.
    pub fn context_length(param: &str, limit: usize, prompt: usize) -> Self {
        Self::over_context(param, limit, &prompt.to_string())
    }

    /// As [`ApiError::context_length`], for a prompt so long that nobody counted to its end.
    pub fn context_length_far(param: &str, limit: usize, at_least: usize) -> Self {
        Self::over_context(param, limit, &format!("more than {at_least}"))
    }

    fn over_context(param: &str, limit: usize, prompt: &str) -> Self {
        Self::invalid(
            param,
            format!(
                "This model's maximum context length is {limit} tokens. However, your {param} resulted in {prompt} \
                 tokens. Please reduce the length of the {param}."
            ),
        )
        .with_code("context_length_exceeded")
    }

    /// 404 for a model (or seat) that is not served here.
    pub fn model_not_found(model: &str) -> Self {
        let shown = shorten(model);
        Self::new(
            StatusCode::NOT_FOUND,
            INVALID_REQUEST,
            format!("The model `{shown}` does not exist or you do not have access to it."),
        )
        .with_param("model")
        .with_code("model_not_found")
    }

    /// 404 for a path that means nothing here.
    pub fn unknown_route(method: &str, path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            INVALID_REQUEST,
            format!("Unknown request URL: {method} {}.", shorten(path)),
        )
        .with_code("unknown_url")
    }

    /// 405 for a known path asked in the wrong way.
    pub fn method_not_allowed(method: &str, path: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            INVALID_REQUEST,
            format!("Not allowed to {method} on {}.", shorten(path)),
        )
        .with_code("method_not_allowed")
    }

    /// 413 for a body over the cap.
    pub fn body_too_large(limit_bytes: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            INVALID_REQUEST,
            format!("The request body is larger than {limit_bytes} bytes."),
        )
        .with_code("request_too_large")
    }

    /// 415 for a content type or encoding that we do not read.
    pub fn unsupported_media(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID_REQUEST, message)
            .with_code("unsupported_media_type")
    }

    /// 408 for a body that does not arrive in time.
    pub fn request_timeout() -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            INVALID_REQUEST,
            "The request body did not arrive in time.",
        )
        .with_code("request_timeout")
    }

    /// 429 for a full queue.
    pub fn queue_full(retry_after_s: u32) -> Self {
        let mut error = Self::new(
            StatusCode::TOO_MANY_REQUESTS,
            RATE_LIMIT,
            "Too many requests are waiting. Please try again later.",
        )
        .with_code("queue_full");
        error.retry_after_s = Some(retry_after_s);
        error
    }

    /// 503 for a server that cannot serve now: loading, draining, unhealthy, no backend.
    pub fn unavailable(
        code: &'static str,
        message: impl Into<String>,
        retry_after_s: Option<u32>,
    ) -> Self {
        let mut error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, SERVER_ERROR, message).with_code(code);
        error.retry_after_s = retry_after_s;
        error
    }

    /// 500 for a failure of ours. The message must hold nothing a client should not know.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, SERVER_ERROR, message)
            .with_code("internal_error")
    }

    /// The same error with `error.param`.
    #[must_use]
    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// The same error with `error.code`.
    #[must_use]
    pub fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// The same error with `x-should-retry`.
    #[must_use]
    pub fn with_should_retry(mut self, retry: bool) -> Self {
        self.should_retry = Some(retry);
        self
    }

    /// The JSON body `{"error":{"message","type","param","code"}}`: also the payload of an SSE error event.
    pub fn body(&self) -> String {
        let envelope = Envelope {
            error: Inner {
                message: &self.message,
                kind: self.kind,
                param: self.param.as_deref(),
                code: self.code,
            },
        };
        serde_json::to_string(&envelope).unwrap_or_else(|_| FALLBACK_BODY.to_owned())
    }

    /// The response: the only place where an error becomes one.
    pub fn into_response(self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from(self.body())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            let seconds = seconds.clamp(RETRY_AFTER_MIN_S, RETRY_AFTER_MAX_S);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(retry) = self.should_retry {
            let value = HeaderValue::from_static(if retry { "true" } else { "false" });
            headers.insert(SHOULD_RETRY, value);
        }
        response
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.status.as_u16(), self.kind, self.message)
    }
}

impl std::error::Error for ApiError {}

/// Sent if serialising an error fails, which no input is known to cause.
const FALLBACK_BODY: &str = r#"{"error":{"message":"Internal error.","type":"server_error","param":null,"code":"internal_error"}}"#;

/// Longest piece of a client's own text that an error message repeats, in characters.
const ECHO_CHARS: usize = 120;

/// A client's text, short enough to be said back.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(ECHO_CHARS) {
        Some((cut, _)) => format!("{}…", &text[..cut]),
        None => text.to_owned(),
    }
}

#[derive(Serialize)]
struct Envelope<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_exactly_the_four_fields() {
        let error = ApiError::invalid("temperature", "must be between 0 and 2");
        assert_eq!(
            error.body(),
            r#"{"error":{"message":"must be between 0 and 2","type":"invalid_request_error","param":"temperature","code":null}}"#
        );
    }

    #[test]
    fn retry_after_is_clamped_to_what_clients_obey() {
        for (asked, sent) in [(0, "2"), (7, "7"), (4000, "120")] {
            let response = ApiError::queue_full(asked).into_response();
            assert_eq!(response.status(), 429);
            assert_eq!(response.headers()[RETRY_AFTER], sent);
        }
    }

    #[test]
    fn context_overflow_says_what_clients_match_on() {
        let error = ApiError::context_length("messages", 2048, 3000);
        assert_eq!(error.status, 400);
        assert_eq!(error.code, Some("context_length_exceeded"));
        assert!(error.message.starts_with("This model's maximum context length is 2048 tokens. "));
    }

    #[test]
    fn a_client_cannot_make_us_repeat_a_long_text() {
        let error = ApiError::model_not_found(&"ü".repeat(100_000));
        assert!(error.message.len() < 500, "{} bytes", error.message.len());
    }

    #[test]
    fn the_fallback_body_is_json_of_the_same_shape() {
        let value: serde_json::Value = serde_json::from_str(FALLBACK_BODY).expect("JSON");
        assert_eq!(value["error"]["type"], "server_error");
    }
}
