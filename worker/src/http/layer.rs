//! What surrounds every route: metrics, the request's name, CORS, and the answer to a preflight.
//!
//! The metric of a request is recorded with the last byte of its reply, so that a stream counts as long as it flows.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use sanctum_shared::request_id::{self, RequestId};

use super::ROUTES;
use crate::metrics::HttpRequest;

/// The label of requests that match no route.
const NO_ROUTE: &str = "other";

/// Wraps a route.
pub async fn around(request: Request, next: Next) -> Response {
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let route = matched.and_then(known_route).unwrap_or(NO_ROUTE);
    let mut record = HttpRequest::begin(route, method_label(request.method()));
    let id = RequestId::of(request.headers());
    let mut response = if request.method() == Method::OPTIONS {
        preflight(request.headers())
    } else {
        let mut request = request;
        request.extensions_mut().insert(id.clone());
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(request_id::HEADER, id.header());
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    record.answered(response.status());
    response.map(|inner| Body::new(Recorded { inner, _record: record }))
}

fn known_route(matched: &str) -> Option<&'static str> {
    ROUTES.into_iter().find(|route| *route == matched)
}

fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::HEAD => "HEAD",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// Answers a browser that asks whether it may: it needs no key and touches no route.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    let wanted = asked.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(
        ACCESS_CONTROL_ALLOW_HEADERS,
        wanted.unwrap_or_else(|| HeaderValue::from_static("*")),
    );
    headers
        .insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, HEAD, POST, OPTIONS"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    response
}

/// A body that is recorded when it ends or is dropped.
struct Recorded {
    inner: Body,
    _record: HttpRequest,
}

impl HttpBody for Recorded {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
