//! Health and models: answered from memory, whatever the load.
//!
//! Liveness says that the process answers, readiness that somebody could be served now. One seat that is down does
//! not make the router unready: the others' callers would lose it too.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use sanctum_shared::openai::error::ApiError;
use serde_json::{Map, Value, json};

use crate::house::House;

pub(super) async fn livez() -> Response {
    json_response(StatusCode::OK, Bytes::from_static(b"{\"status\":\"ok\"}"))
}

pub(super) async fn readyz(State(house): State<Arc<House>>) -> Response {
    let seats = house.seats();
    let (status, word) = match seats.iter().any(|(_, served)| *served) {
        _ if house.is_draining() => (StatusCode::SERVICE_UNAVAILABLE, "draining"),
        true => (StatusCode::OK, "ready"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
    };
    let seats: Map<String, Value> = seats
        .into_iter()
        .map(|(name, served)| {
            (name.to_owned(), if served { "ready" } else { "unavailable" }.into())
        })
        .collect();
    let body = json!({"status": word, "seats": seats}).to_string();
    json_response(status, body.into())
}

pub(super) async fn models(State(house): State<Arc<House>>) -> Response {
    json_response(StatusCode::OK, house.models_list())
}

pub(super) async fn model(State(house): State<Arc<House>>, Path(id): Path<String>) -> Response {
    match house.model(&id) {
        Some(model) => json_response(StatusCode::OK, model),
        None => ApiError::model_not_found(&id).into_response().map(Body::new),
    }
}

fn json_response(status: StatusCode, body: Bytes) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
