//! Replies that are generated: whole, or as server-sent events.
//!
//! Nothing here runs in a task of its own: the reply's future (or body) holds the choices, so whoever drops it — hyper,
//! when the client leaves — cancels the work. The head of a stream waits for the first piece, so that a request that
//! fails at once fails with a status.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream::{BoxStream, SelectAll, select_all, unfold};
use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use sanctum_shared::openai::error::ApiError;
use sanctum_shared::openai::reply::Usage;
use sanctum_shared::sse;
use tokio::time::timeout;

use super::shape::{Gathered, Shape};
use super::submit::failed;
use crate::stream::{Choice, End, Piece};

/// Silence before the first keep-alive: until then, a failure can still be a status.
const FIRST_KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Silence before the next ones.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Counts what all choices of a request used.
#[derive(Debug)]
pub struct Tally {
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
    choices_per_prompt: usize,
}

impl Tally {
    /// A tally for prompts of `prompt_tokens` in all, each with `choices_per_prompt` choices.
    pub fn new(prompt_tokens: usize, choices_per_prompt: usize) -> Self {
        Self { prompt_tokens, cached_tokens: 0, completion_tokens: 0, choices_per_prompt }
    }

    fn add(&mut self, index: usize, end: &End) {
        self.completion_tokens += end.completion_tokens;
        // A prompt is counted once, so what was known of it is too: by its first choice.
        if index.is_multiple_of(self.choices_per_prompt) {
            self.cached_tokens += end.cached_tokens;
        }
    }

    fn usage(&self) -> Usage {
        Usage::new(self.prompt_tokens, self.cached_tokens, self.completion_tokens)
    }
}

/// The whole reply, when all choices have ended.
pub async fn whole(
    choices: Vec<Choice>,
    mut shape: Shape,
    mut tally: Tally,
) -> Result<Response, ApiError> {
    let ended = try_join_all(choices.into_iter().map(gather)).await?;
    let mut gathered = Vec::with_capacity(ended.len());
    for (index, (choice, end)) in ended.into_iter().enumerate() {
        tally.add(index, &end);
        gathered.push(choice);
    }
    let mut response = Response::new(Body::from(shape.whole(gathered, &tally.usage())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

async fn gather(mut choice: Choice) -> Result<(Gathered, End), ApiError> {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    while let Some(piece) = choice.next().await {
        match piece {
            Piece::Delta { text: more, tokens: behind } => {
                text.push_str(&more);
                tokens.extend(behind);
            }
            Piece::End(end) => return Ok((Gathered { text, tokens, reason: end.reason }, end)),
            Piece::Failed(error) => return Err(failed(&error)),
        }
    }
    Err(ApiError::internal("The reply has no end."))
}

/// A stream of events, as the pieces come.
pub async fn streamed(
    choices: Vec<Choice>,
    shape: Shape,
    tally: Tally,
    include_usage: bool,
) -> Result<Response, ApiError> {
    let mut events = Events {
        opened: vec![false; choices.len()],
        running: choices.len(),
        pieces: select_all(choices.into_iter().enumerate().map(pieces_of)),
        shape,
        tally,
        include_usage,
    };
    let first = match timeout(FIRST_KEEP_ALIVE, events.pieces.next()).await {
        Ok(Some((_, Piece::Failed(error)))) => return Err(failed(&error)),
        Ok(Some((index, piece))) => events.write(index, piece),
        Ok(None) => return Err(ApiError::internal("The reply has no beginning.")),
        Err(_) => Bytes::from_static(sse::KEEP_ALIVE),
    };
    let start = (Some(first), events);
    let body = unfold(start, |(first, mut events)| async move {
        let bytes = match first {
            Some(bytes) => bytes,
            None => events.next().await?,
        };
        Some((Ok::<_, Infallible>(bytes), (None, events)))
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would undo the streaming.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}

type Indexed = (usize, Piece);

fn pieces_of((index, choice): (usize, Choice)) -> BoxStream<'static, Indexed> {
    unfold(choice, move |mut choice| async move {
        let piece = choice.next().await?;
        Some(((index, piece), choice))
    })
    .boxed()
}

/// A stream under way.
struct Events {
    pieces: SelectAll<BoxStream<'static, Indexed>>,
    shape: Shape,
    tally: Tally,
    include_usage: bool,
    opened: Vec<bool>,
    running: usize,
}

impl Events {
    /// The next bytes; `None` when all is said.
    async fn next(&mut self) -> Option<Bytes> {
        if self.running == 0 {
            return None;
        }
        match timeout(KEEP_ALIVE, self.pieces.next()).await {
            Ok(Some((index, piece))) => Some(self.write(index, piece)),
            Ok(None) => None,
            Err(_) => Some(Bytes::from_static(sse::KEEP_ALIVE)),
        }
    }

    fn write(&mut self, index: usize, piece: Piece) -> Bytes {
        let mut out = BytesMut::new();
        if !std::mem::replace(&mut self.opened[index], true)
            && let Some(opening) = self.shape.opening(index)
        {
            out.extend_from_slice(&sse::event(&opening));
        }
        match piece {
            Piece::Delta { text, tokens } => {
                out.extend_from_slice(&sse::event(&self.shape.delta(index, text, &tokens)));
            }
            Piece::End(end) => {
                self.tally.add(index, &end);
                out.extend_from_slice(&sse::event(&self.shape.end(index, end.reason)));
                self.running -= 1;
                if self.running == 0 {
                    self.finish(&mut out);
                }
            }
            Piece::Failed(error) => {
                // The other choices go with it. Without `[DONE]`, nobody takes this for an end.
                self.running = 0;
                self.pieces.clear();
                out.extend_from_slice(&sse::event(&failed(&error).body()));
            }
        }
        out.freeze()
    }

    fn finish(&self, out: &mut BytesMut) {
        if self.include_usage {
            out.extend_from_slice(&sse::event(&self.shape.usage(&self.tally.usage())));
        }
        out.extend_from_slice(sse::DONE);
    }
}
