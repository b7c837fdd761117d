//! Probes, metrics, the models list and the tokenizer's own routes: answered from memory.
//!
//! None of them asks the engine anything but its last snapshot, so they answer in milliseconds whatever the load.
//! Only tokenising does work, off the async threads like all of it.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use sanctum_shared::openai::error::ApiError;
use sanctum_shared::openai::json;
use sanctum_shared::openai::models::list_json;
use sanctum_shared::openai::tokens::DetokenizeRequest;
use serde_json::{Value, json};

use super::body::json_bytes;
use super::state::App;
use super::{answer, prompt};
use crate::metrics;

/// `GET /livez`: the process runs and takes requests.
pub async fn live() -> Response {
    json_reply(StatusCode::OK, &json!({"status": "ok"}))
}

/// `GET /readyz`: a request sent now would be served.
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    let not_ready = |body: &Value| json_reply(StatusCode::SERVICE_UNAVAILABLE, body);
    if app.is_draining() {
        return not_ready(&json!({"status": "draining"}));
    }
    let Some(served) = app.loaded() else {
        let loading = app.loading();
        return not_ready(&json!({
            "status": "loading", "phase": loading.phase, "progress": loading.progress,
        }));
    };
    let snapshot = served.engine.snapshot();
    if !snapshot.healthy {
        return not_ready(&json!({"status": "unhealthy"}));
    }
    let body = json!({
        "status": "ready", "model": app.name, "running": snapshot.running,
        "waiting": snapshot.waiting, "slots": snapshot.slots,
    });
    json_reply(StatusCode::OK, &body)
}

/// `GET /metrics`.
pub async fn scrape(State(app): State<Arc<App>>) -> Response {
    if let Some(served) = app.loaded() {
        metrics::engine(&served.engine.snapshot());
    }
    let mut response = Response::new(Body::from(app.metrics.render()));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    response
}

/// `GET /v1/models`. While the model loads the list is empty.
pub async fn models(State(app): State<Arc<App>>) -> Response {
    let cards = app.loaded().map(|served| std::slice::from_ref(&served.card));
    json_text(StatusCode::OK, list_json(cards.unwrap_or_default()))
}

/// `GET /v1/models/{id}`.
pub async fn model(State(app): State<Arc<App>>, Path(id): Path<String>) -> Response {
    answer(
        app.check_model(Some(&id))
            .and_then(|()| app.admit())
            .map(|served| json_text(StatusCode::OK, served.card.to_json())),
    )
}

/// `POST /tokenize`.
pub async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    let tokenized = async {
        app.admit()?;
        let body = json_bytes(request, app.limits.body_bytes).await?;
        app.tokenize(move |app| {
            let served = app.admit()?;
            let tokens = prompt::tokens(app, served, &body)?;
            let context = served.engine.info().context_length;
            let count = tokens.len();
            let reply = json!({"tokens": tokens, "count": count, "max_model_len": context});
            Ok(json_reply(StatusCode::OK, &reply))
        })
        .await
    };
    answer(tokenized.await)
}

/// `POST /detokenize`.
pub async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Response {
    let text = async {
        app.admit()?;
        let body = json_bytes(request, app.limits.body_bytes).await?;
        app.tokenize(move |app| {
            let request = DetokenizeRequest::parse(json::checked(&body, &app.limits.json)?)?;
            app.check_model(request.model.as_deref())?;
            let text = prompt::text_of(app.admit()?, &request.tokens);
            // llama.cpp reads `content`, vLLM `prompt`.
            Ok(json_reply(StatusCode::OK, &json!({"content": text, "prompt": text})))
        })
        .await
    };
    answer(text.await)
}

/// 404 for every other path.
pub async fn unknown(request: Request) -> Response {
    answer(Err(ApiError::unknown_route(request.method().as_str(), request.uri().path())))
}

/// 405 for a known path asked in another way.
pub async fn wrong_method(request: Request) -> Response {
    answer(Err(ApiError::method_not_allowed(request.method().as_str(), request.uri().path())))
}

fn json_reply(status: StatusCode, body: &Value) -> Response {
    json_text(status, body.to_string())
}

fn json_text(status: StatusCode, body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
