//! Reading a request's body: what kind it must be, how long, how soon.
//!
//! Refuses compressed bodies (a bomb is small until it is opened), other types than JSON, and anything over the cap:
//! by `Content-Length` before the first byte, otherwise as soon as the cap is passed.

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use sanctum_shared::accept::BodyError;
use sanctum_shared::openai::error::ApiError;

/// The body of a request that must carry JSON of at most `cap` bytes.
pub async fn json_bytes(request: Request, cap: usize) -> Result<Bytes, ApiError> {
    let (head, body) = request.into_parts();
    check_head(&head.headers, cap)?;
    read(body, cap).await
}

fn check_head(headers: &HeaderMap, cap: usize) -> Result<(), ApiError> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim());
    if let Some(encoding) = text(CONTENT_ENCODING)
        && !encoding.eq_ignore_ascii_case("identity")
    {
        return Err(ApiError::unsupported_media(
            "Compressed request bodies are not accepted: send the JSON as it is.",
        ));
    }
    if let Some(kind) = text(CONTENT_TYPE)
        && !is_json(kind)
    {
        return Err(ApiError::unsupported_media("The content type must be application/json."));
    }
    let length = text(CONTENT_LENGTH).and_then(|length| length.parse::<u64>().ok());
    if length.is_some_and(|length| length > cap as u64) {
        return Err(ApiError::body_too_large(cap));
    }
    Ok(())
}

fn is_json(kind: &str) -> bool {
    let essence = kind.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/json")
        || essence.to_ascii_lowercase().ends_with("+json")
}

async fn read(body: Body, cap: usize) -> Result<Bytes, ApiError> {
    match Limited::new(body, cap).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(ApiError::body_too_large(cap)),
        Err(error) if timed_out(&*error) => Err(ApiError::request_timeout()),
        Err(_) => Err(ApiError::bad_request("The request body could not be read.")),
    }
}

fn timed_out(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(BodyError::Timeout)) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn status(headers: &[(&str, &str)], body: impl Into<Body>) -> Result<Bytes, u16> {
        let mut request = Request::new(body.into());
        for (name, value) in headers {
            let name: http::HeaderName = name.parse().expect("a name");
            request.headers_mut().insert(name, value.parse().expect("a value"));
        }
        json_bytes(request, 10).await.map_err(|error| error.status.as_u16())
    }

    #[tokio::test]
    async fn json_within_the_cap_is_read() {
        for kind in ["application/json", "Application/JSON; charset=utf-8", "application/x+json"] {
            assert_eq!(status(&[("content-type", kind)], "{}").await.as_deref(), Ok(&b"{}"[..]));
        }
        assert_eq!(status(&[], "0123456789").await.map(|body| body.len()), Ok(10));
        assert!(status(&[("content-encoding", "identity")], "{}").await.is_ok());
    }

    #[tokio::test]
    async fn other_kinds_are_refused() {
        assert_eq!(status(&[("content-encoding", "gzip")], "{}").await, Err(415));
        assert_eq!(status(&[("content-type", "text/plain")], "{}").await, Err(415));
        assert_eq!(status(&[("content-type", "multipart/form-data")], "{}").await, Err(415));
    }

    #[tokio::test]
    async fn too_long_is_refused_by_length_or_by_bytes() {
        assert_eq!(status(&[("content-length", "11")], "").await, Err(413));
        assert_eq!(status(&[], "0123456789a").await, Err(413));
    }
}
