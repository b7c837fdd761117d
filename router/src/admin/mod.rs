//! The operators' door: what the fleet does, told and steered over loopback HTTP.
//!
//! Owns `/admin/*`, `/metrics` and `/livez` of the admin listener. It is bound to loopback by the instance file and
//! asks for no key; it refuses requests that a web page could send there from a browser on the same machine.
//!
//! - `GET /admin/status`: seats, backends, workers.
//! - `POST /admin/backends/{name}/restart`: replaces a worker and answers when the new one is ready.
//! - `GET /metrics`: the router's series, text format 0.0.4.

mod guard;
mod status;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, middleware};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use metrics_exporter_prometheus::PrometheusHandle;
use sanctum_shared::instance::Instance;
use sanctum_shared::openai::error::{ApiError, INVALID_REQUEST, SERVER_ERROR};
use serde::Serialize;

use crate::supervise::{Fleet, RestartError};

pub use status::{SeatState, SeatStatus, Status};

/// What the admin listener answers from.
#[derive(Clone)]
pub struct Admin {
    /// The instance that is served.
    pub instance: Arc<Instance>,
    /// Its fleet.
    pub fleet: Fleet,
    /// Renders the metrics; `None` where no recorder is installed.
    pub metrics: Option<PrometheusHandle>,
    /// Addresses that the router really serves, port 0 resolved.
    pub listen: Vec<std::net::SocketAddr>,
    /// When the router started, in Unix seconds.
    pub started_unix: u64,
}

/// The service of the admin listener.
pub fn service(admin: Admin) -> Router {
    crate::supervise::describe_metrics();
    Router::new()
        .route("/admin/status", get(show_status))
        .route("/admin/backends/{name}/restart", post(restart))
        .route("/metrics", get(show_metrics))
        .route("/livez", get(livez))
        .fallback(unknown)
        .with_state(Arc::new(admin))
        .layer(middleware::from_fn(guard::refuse_browsers))
}

async fn show_status(State(admin): State<Arc<Admin>>) -> Response {
    json_response(StatusCode::OK, &Status::of(&admin))
}

async fn restart(State(admin): State<Arc<Admin>>, Path(name): Path<String>) -> Response {
    tracing::info!(backend = name, "an operator asks for a restart");
    // In a task of its own: an operator who hangs up does not leave a restart half done.
    let fleet = admin.fleet.clone();
    let done = tokio::spawn(async move { fleet.restart(&name).await }).await;
    match done {
        Ok(Ok(restarted)) => json_response(StatusCode::OK, &restarted),
        Ok(Err(error)) => refuse(status_of(&error), &error.to_string()),
        Err(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "the restart was broken off"),
    }
}

fn status_of(error: &RestartError) -> StatusCode {
    match error {
        RestartError::Unknown(_) => StatusCode::NOT_FOUND,
        RestartError::NotOurs(_) => StatusCode::BAD_REQUEST,
        RestartError::Busy => StatusCode::CONFLICT,
        RestartError::Stopping => StatusCode::SERVICE_UNAVAILABLE,
        RestartError::Failed { .. } => StatusCode::BAD_GATEWAY,
        RestartError::TooSlow { .. } => StatusCode::GATEWAY_TIMEOUT,
    }
}

async fn show_metrics(State(admin): State<Arc<Admin>>) -> Response {
    let Some(metrics) = &admin.metrics else {
        return refuse(StatusCode::NOT_FOUND, "this router records no metrics");
    };
    let mut response = Response::new(Body::from(metrics.render()));
    let text = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

async fn livez() -> Response {
    json_response(StatusCode::OK, &serde_json::json!({"status": "ok"}))
}

async fn unknown(request: axum::extract::Request) -> Response {
    let error = ApiError::unknown_route(request.method().as_str(), request.uri().path());
    error.into_response().map(Body::new)
}

fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    let Ok(text) = serde_json::to_string(body) else {
        return refuse(StatusCode::INTERNAL_SERVER_ERROR, "the answer cannot be written as JSON");
    };
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn refuse(status: StatusCode, message: &str) -> Response {
    let kind = if status.is_server_error() { SERVER_ERROR } else { INVALID_REQUEST };
    ApiError::new(status, kind, message).into_response().map(Body::new)
}
