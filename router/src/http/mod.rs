//! The router's HTTP face: paths, methods, and what answers at each.
//!
//! Owns the route table and what every response carries (a request id, permission for browsers). Health and models
//! answer from memory and wait for nothing. Refusals of unknown paths have OpenAI's shape like all others.

mod generate;
mod health;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::{get, post};
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use sanctum_shared::openai::error::ApiError;
use sanctum_shared::request_id::{self, RequestId};

use crate::house::House;
use crate::metrics::{Outcome, Ticket};

/// The service of all listeners.
pub(crate) fn service(house: Arc<House>) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(generate::chat))
        .route("/v1/completions", post(generate::completions))
        .route("/v1/embeddings", post(generate::embeddings))
        .route("/v1/models", get(health::models))
        .route("/v1/models/{*id}", get(health::model))
        .route("/livez", get(health::livez))
        .route("/readyz", get(health::readyz))
        .fallback(unknown_route)
        .method_not_allowed_fallback(wrong_method)
        .with_state(house)
        .layer(middleware::from_fn(around))
}

async fn unknown_route(request: Request) -> Response {
    refuse(&request, ApiError::unknown_route(request.method().as_str(), request.uri().path()))
}

async fn wrong_method(request: Request) -> Response {
    refuse(&request, ApiError::method_not_allowed(request.method().as_str(), request.uri().path()))
}

fn refuse(request: &Request, error: ApiError) -> Response {
    Ticket::new(id_of(request), "unknown").end(error.status.as_u16(), Outcome::Refused);
    error.into_response().map(Body::new)
}

/// The id that [`around`] gave to the request.
fn id_of(request: &Request) -> RequestId {
    let given = request.extensions().get::<RequestId>().cloned();
    given.unwrap_or_else(|| RequestId::of(request.headers()))
}

/// Names the request, answers browsers that ask for permission, and marks the response.
async fn around(mut request: Request, next: Next) -> Response {
    let id = RequestId::of(request.headers());
    let asks = request.method() == Method::OPTIONS
        && request.headers().contains_key(ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if asks {
        preflight(request.headers())
    } else {
        request.extensions_mut().insert(id.clone());
        next.run(request).await
    };
    let headers = response.headers_mut();
    headers.insert(request_id::HEADER, id.header());
    // Callers are told apart by keys, not by origin; a key is never sent by a browser on its own.
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    response
}

/// Grants what a browser asks for; the key comes with the request proper.
fn preflight(asked: &HeaderMap) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, OPTIONS"));
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("86400"));
    if let Some(names) = asked.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    response
}
