//! The last check before the service: what hyper lets pass and HTTP forbids.
//!
//! Owns the refusals of ambiguous framing, of a missing, doubled or empty `Host` and of an overlong target. Each
//! ends the connection: after such a head nobody knows where the next one starts.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, HOST, TRANSFER_ENCODING};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body;
use hyper::body::Incoming;
use tower::{Service, ServiceExt as _};

use super::body::{Flight, RequestBody, ServedBody};
use super::{AcceptLimits, Peer};
use crate::openai::error::{ApiError, INVALID_REQUEST};

/// Passes a request to `service` if its head is beyond doubt.
pub(super) async fn call<S, B>(
    request: Request<Incoming>,
    ambiguous: bool,
    service: S,
    flight: Flight,
    limits: Arc<AcceptLimits>,
    peer: SocketAddr,
) -> Result<Response<ServedBody<B>>, S::Error>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    B: Body<Data = Bytes>,
{
    if let Some(error) = fault(&request, ambiguous, &limits) {
        let mut response = error.into_response().map(|body| ServedBody::refused(body, flight));
        close_after(&mut response);
        return Ok(response);
    }
    let chunked = request.headers().contains_key(TRANSFER_ENCODING);
    let mut request = request.map(|body| RequestBody::new(body, &limits));
    request.extensions_mut().insert(Peer(peer));
    let response = service.oneshot(request).await?;
    let mut response = response.map(|body| ServedBody::served(body, flight));
    if chunked {
        // The wire lost count of the framing (see `Expect::Chunks`).
        close_after(&mut response);
    }
    Ok(response)
}

fn fault(request: &Request<Incoming>, ambiguous: bool, limits: &AcceptLimits) -> Option<ApiError> {
    if ambiguous {
        return Some(ApiError::bad_request(
            "The length of the request body is ambiguous: send one Content-Length or Transfer-Encoding, not both.",
        ));
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => {
            return Some(ApiError::bad_request("The request has more than one Host header."));
        }
        (Some(host), None) if host.is_empty() => {
            return Some(ApiError::bad_request("The Host header is empty."));
        }
        (None, _) if request.version() >= Version::HTTP_11 => {
            return Some(ApiError::bad_request("The request has no Host header."));
        }
        _ => {}
    }
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    (target > limits.target_bytes).then(|| {
        let message = format!("The request target is longer than {} bytes.", limits.target_bytes);
        ApiError::new(StatusCode::URI_TOO_LONG, INVALID_REQUEST, message).with_code("uri_too_long")
    })
}

fn close_after<B>(response: &mut Response<B>) {
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
}
