//! The worker's HTTP: routes, bodies, replies.
//!
//! Owns everything between a parsed HTTP request and the engine's handle, in the order of a request: [`layer`] around
//! it, [`body`], [`prompt`], [`submit`], [`generate`] with [`shape`]. Connections belong to the accept loop of
//! `sanctum-shared`. It refuses to run heavy work on the async threads.

pub mod body;
pub mod completions;
pub mod generate;
pub mod layer;
pub mod probes;
pub mod prompt;
pub mod shape;
pub mod state;
pub mod submit;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::middleware::from_fn;
use axum::response::Response;
use axum::routing::{get, post};
use sanctum_shared::openai::error::ApiError;

pub use state::{App, HttpLimits, Loading, Served};

/// Every route; the labels of the HTTP metrics.
pub const ROUTES: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/{*id}",
    "/tokenize",
    "/detokenize",
    "/livez",
    "/readyz",
    "/metrics",
];

/// The service of one worker.
pub fn router(app: Arc<App>) -> Router {
    let [chat, text, models, model, tokenize, detokenize, live, ready, metrics] = ROUTES;
    Router::new()
        .route(chat, post(completions::chat))
        .route(text, post(completions::completions))
        .route(models, get(probes::models))
        .route(model, get(probes::model))
        .route(tokenize, post(probes::tokenize))
        .route(detokenize, post(probes::detokenize))
        .route(live, get(probes::live))
        .route(ready, get(probes::ready))
        .route(metrics, get(probes::scrape))
        .fallback(probes::unknown)
        .method_not_allowed_fallback(probes::wrong_method)
        .layer(from_fn(layer::around))
        .with_state(app)
}

/// The reply, or the refusal as one.
fn answer(reply: Result<Response, ApiError>) -> Response {
    reply.unwrap_or_else(|error| error.into_response().map(Body::new))
}

#[cfg(test)]
mod tests;
