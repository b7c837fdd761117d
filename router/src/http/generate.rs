//! The three paths that ask a model: read, route, and answer.
//!
//! Owns the first ten seconds of a streamed request, in which nothing is written so that a real status is still
//! possible. After that the head goes out and comments follow until there is content.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use sanctum_shared::openai::error::ApiError;
use tokio::time::timeout_at;

use super::id_of;
use crate::admission::{Admitted, Endpoint, read_body};
use crate::house::House;
use crate::metrics::{Outcome, Ticket};
use crate::route::Route;
use crate::stream::{Answer, Job, KEEP_ALIVE, Refusal, ReplyBody, Search, headers};

pub(super) async fn chat(State(house): State<Arc<House>>, request: Request) -> Response {
    generate(house, Endpoint::Chat, request).await
}

pub(super) async fn completions(State(house): State<Arc<House>>, request: Request) -> Response {
    generate(house, Endpoint::Completions, request).await
}

pub(super) async fn embeddings(State(house): State<Arc<House>>, request: Request) -> Response {
    generate(house, Endpoint::Embeddings, request).await
}

async fn generate(house: Arc<House>, endpoint: Endpoint, request: Request) -> Response {
    let mut ticket = Ticket::new(id_of(&request), endpoint.name());
    let (parts, body) = request.into_parts();
    let (admitted, route) = match admit(&house, endpoint, &parts, body).await {
        Ok(admitted) => admitted,
        Err(error) => {
            ticket.end(error.status.as_u16(), Outcome::Refused);
            return error.into_response().map(Body::new);
        }
    };
    let stream = admitted.stream;
    let seat = route.seat.name.clone();
    let patience = ticket.began() + KEEP_ALIVE;
    let job = Job {
        headers: headers::to_backend(parts.headers, ticket.id().header()),
        query: parts.uri.query().map(str::to_owned),
        deadline: ticket.began() + house.timeouts.total,
        house,
        route,
        admitted,
        ticket,
        resent: 0,
    };
    if !stream {
        return respond(job.answer().await);
    }
    let mut search: Search = Box::pin(job.answer());
    match timeout_at(patience, &mut search).await {
        Ok(found) => respond(found),
        Err(_) => {
            let mut response = Response::new(Body::new(ReplyBody::waiting(search)));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            if let Ok(seat) = HeaderValue::from_str(&seat) {
                headers.insert(headers::SEAT, seat);
            }
            response
        }
    }
}

/// Reads the body and finds out whom it is for.
async fn admit(
    house: &House,
    endpoint: Endpoint,
    parts: &Parts,
    body: Body,
) -> Result<(Admitted, Arc<Route>), ApiError> {
    let text = read_body(&parts.headers, body, house.body.bytes).await?;
    let mut admitted = Admitted::parse(endpoint, text, &house.body.json)?;
    let route = house.routes.find(&admitted.model)?.clone();
    admitted.dress(&route.seat.text)?;
    Ok((admitted, route))
}

fn respond(found: Result<Answer, Box<Refusal>>) -> Response {
    match found {
        Ok(Answer::Whole(response)) => response.map(|body| Body::new(ReplyBody::whole(body))),
        Ok(Answer::Stream(mut response)) => {
            response
                .headers_mut()
                .entry(CACHE_CONTROL)
                .or_insert(HeaderValue::from_static("no-cache"));
            response.map(|relay| Body::new(ReplyBody::Relay(relay)))
        }
        Err(refusal) => {
            let mut response = refusal.error.into_response();
            response.headers_mut().extend(refusal.signature);
            response.map(Body::new)
        }
    }
}
