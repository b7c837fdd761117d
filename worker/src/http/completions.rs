//! `/v1/chat/completions` and `/v1/completions`.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::{Request, State};
use axum::response::Response;
use http::HeaderValue;
use sanctum_shared::openai::error::ApiError;
use sanctum_shared::openai::reply::ReplyHead;
use sanctum_shared::request_id::RequestId;
use uuid::Uuid;

use super::answer;
use super::body::json_bytes;
use super::generate::{Tally, streamed, whole};
use super::prompt::{self, Prepared};
use super::shape::{Kind, Shape};
use super::state::{App, Served};
use super::submit::submit;
use crate::stream::Opening;

/// Says what of the request was left out.
const NOTICE: &str = "x-sanctum-notice";

/// `POST /v1/chat/completions`.
pub async fn chat(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(generate(&app, request, Opening::Fresh, prompt::chat).await)
}

/// `POST /v1/completions`.
pub async fn completions(State(app): State<Arc<App>>, request: Request) -> Response {
    answer(generate(&app, request, Opening::Continued, prompt::completion).await)
}

type Prepare = fn(&App, &Served, &[u8]) -> Result<Prepared, ApiError>;

async fn generate(
    app: &Arc<App>,
    request: Request,
    opening: Opening,
    prepare: Prepare,
) -> Result<Response, ApiError> {
    app.admit()?;
    let log_id =
        request.extensions().get::<RequestId>().map_or_else(String::new, ToString::to_string);
    let body = json_bytes(request, app.limits.body_bytes).await?;
    let mut prepared = app.prepare(move |app| prepare(app, app.admit()?, &body)).await?;
    let served = app.admit()?;
    let name = Uuid::new_v4();
    #[expect(clippy::cast_possible_truncation, reason = "half of a random number is random")]
    let seed = name.as_u128() as u64;
    let choices = submit(served, &prepared, &log_id, opening, seed)?;
    let shape = shape(app, served, &mut prepared, opening, name);
    let decoding = &prepared.decoding;
    let tally = Tally::new(prepared.prompts.iter().map(Vec::len).sum(), decoding.n);
    let mut response = if decoding.stream {
        streamed(choices, shape, tally, decoding.include_usage).await?
    } else {
        whole(choices, shape, tally).await?
    };
    if let Some(notice) = notice(&prepared.notices) {
        response.headers_mut().insert(NOTICE, notice);
    }
    Ok(response)
}

fn shape(
    app: &App,
    served: &Served,
    prepared: &mut Prepared,
    opening: Opening,
    name: Uuid,
) -> Shape {
    let n = prepared.decoding.n;
    let (prefix, kind) = match opening {
        Opening::Fresh => ("chatcmpl", Kind::Chat),
        Opening::Continued => {
            let echo: Vec<String> = std::mem::take(&mut prepared.echo)
                .into_iter()
                .flat_map(|text| std::iter::repeat_n(text, n))
                .collect();
            ("cmpl", Kind::Text { echo, written: vec![0; prepared.prompts.len() * n] })
        }
    };
    let head = ReplyHead {
        id: format!("{prefix}-{}", name.simple()),
        created: unix_now(),
        model: app.name.clone(),
        system_fingerprint: served.fingerprint.clone(),
    };
    Shape { head, kind, logprobs: prepared.top_logprobs.is_some() }
}

/// Seconds since 1970.
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Longest notice, in characters.
const NOTICE_CHARS: usize = 512;

fn notice(notices: &[String]) -> Option<HeaderValue> {
    if notices.is_empty() {
        return None;
    }
    // Part of it is the client's text: only what a header may hold.
    let text: String = notices
        .join("; ")
        .chars()
        .map(|c| if (' '..='~').contains(&c) { c } else { '?' })
        .take(NOTICE_CHARS)
        .collect();
    HeaderValue::from_str(&text).ok()
}
