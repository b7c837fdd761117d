//! Replies that come as server-sent events: read one by one, or to the end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use http_body_util::{BodyExt, Collected};
use hyper::body::Incoming;
use sanctum_shared::sse::Decoder;
use serde_json::Value;

use super::http::{Connection, causes, json_request};

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A chunk, or an error.
    Data(Value),
    /// `[DONE]`.
    Done,
}

/// A stream under way. Dropping it closes the connection.
#[derive(Debug)]
pub struct EventStream {
    /// Headers of the response.
    pub headers: HeaderMap,
    body: Incoming,
    decoder: Decoder,
    unread: Bytes,
    /// Why the stream ended, if it did not end well.
    pub broken: Option<String>,
    _connection: Connection,
}

impl EventStream {
    /// Asks for a stream; `stream: true` is set here.
    ///
    /// # Panics
    /// If the answer is anything but 200 with an event stream.
    pub async fn open(address: SocketAddr, path: &str, body: &Value) -> Self {
        let mut body = body.clone();
        body["stream"] = true.into();
        let mut connection =
            Connection::open(address).await.unwrap_or_else(|error| panic!("{error}"));
        let response = connection
            .send(json_request(path, &body))
            .await
            .unwrap_or_else(|error| panic!("POST {path}: {error}"));
        let (head, body) = response.into_parts();
        if head.status != 200 {
            let text = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
            panic!("POST {path}: {} {}", head.status, String::from_utf8_lossy(&text));
        }
        let kind = head.headers.get("content-type").and_then(|kind| kind.to_str().ok());
        assert!(
            kind.is_some_and(|kind| kind.starts_with("text/event-stream")),
            "content-type of a stream is {kind:?}"
        );
        Self {
            headers: head.headers,
            body,
            decoder: Decoder::default(),
            unread: Bytes::new(),
            broken: None,
            _connection: connection,
        }
    }

    /// The next event; `None` at the end. Comments are read over.
    ///
    /// # Panics
    /// If the events are not well-formed, UTF-8 or JSON.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            let mut rest: &[u8] = &self.unread;
            let block = self.decoder.next(&mut rest).expect("a well-formed event stream");
            let event = block.and_then(|block| block.data).map(|data| match data {
                "[DONE]" => Event::Done,
                data => Event::Data(
                    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}")),
                ),
            });
            let (more, used) = (!rest.is_empty(), self.unread.len() - rest.len());
            self.unread = self.unread.slice(used..);
            if event.is_some() {
                return event;
            }
            if !more && !self.read().await {
                return None;
            }
        }
    }

    async fn read(&mut self) -> bool {
        match self.body.frame().await {
            Some(Ok(frame)) => self.unread = frame.into_data().unwrap_or_default(),
            Some(Err(error)) => {
                self.broken = Some(causes(&error));
                return false;
            }
            None => return false,
        }
        true
    }

    /// Reads on until there is text of the first choice: from then on the reply is under way.
    ///
    /// # Panics
    /// If the stream ends before.
    pub async fn first_text(&mut self) -> String {
        while let Some(event) = self.next().await {
            if let Event::Data(chunk) = event
                && let Some(text) = text_of(&chunk["choices"][0]).filter(|text| !text.is_empty())
            {
                return text.to_owned();
            }
        }
        panic!("the stream ended without text: {:?}", self.broken)
    }

    /// Reads to the end.
    pub async fn finish(mut self) -> Transcript {
        let mut transcript = Transcript::default();
        while let Some(event) = self.next().await {
            transcript.add(event);
        }
        transcript.broken = self.broken.take();
        transcript
    }
}

/// The text of a choice of a chat or text chunk.
fn text_of(choice: &Value) -> Option<&str> {
    choice["delta"]["content"].as_str().or_else(|| choice["text"].as_str())
}

/// All that a stream said.
#[derive(Debug, Default)]
pub struct Transcript {
    /// Every chunk, errors too.
    pub chunks: Vec<Value>,
    /// When each chunk came.
    pub at: Vec<Instant>,
    /// Whether `[DONE]` was last.
    pub done: bool,
    /// How the connection broke, if it did.
    pub broken: Option<String>,
}

impl Transcript {
    fn add(&mut self, event: Event) {
        assert!(!self.done, "something follows [DONE]: {event:?}");
        match event {
            Event::Done => self.done = true,
            Event::Data(chunk) => {
                self.chunks.push(chunk);
                self.at.push(Instant::now());
            }
        }
    }

    fn choices(&self, index: usize) -> impl Iterator<Item = &Value> {
        let all = self.chunks.iter().filter_map(|chunk| chunk["choices"].as_array()).flatten();
        all.filter(move |choice| choice["index"] == index)
    }

    /// The text of choice `index`.
    pub fn text(&self, index: usize) -> String {
        self.choices(index).filter_map(text_of).collect()
    }

    /// The pieces of text of choice `index`, as they came.
    pub fn pieces(&self, index: usize) -> Vec<&str> {
        self.choices(index).filter_map(text_of).filter(|text| !text.is_empty()).collect()
    }

    /// Every `finish_reason` of choice `index` that was not null.
    pub fn finish_reasons(&self, index: usize) -> Vec<&str> {
        self.choices(index).filter_map(|choice| choice["finish_reason"].as_str()).collect()
    }

    /// Every usage.
    pub fn usages(&self) -> Vec<&Value> {
        self.chunks.iter().map(|chunk| &chunk["usage"]).filter(|usage| usage.is_object()).collect()
    }

    /// The error event, if there was one.
    pub fn error(&self) -> Option<&Value> {
        self.chunks.iter().map(|chunk| &chunk["error"]).find(|error| error.is_object())
    }

    /// Fails unless the stream ended as it should: no error, `[DONE]`, nothing cut.
    ///
    /// # Panics
    /// As said.
    #[must_use]
    pub fn well_ended(self) -> Self {
        assert_eq!(self.error(), None, "an error event");
        assert_eq!(self.broken, None, "the connection broke");
        assert!(self.done, "no [DONE]; last chunk: {:?}", self.chunks.last());
        self
    }
}

/// Time between the first and the last chunk.
pub fn span(transcript: &Transcript) -> Duration {
    match (transcript.at.first(), transcript.at.last()) {
        (Some(first), Some(last)) => last.duration_since(*first),
        _ => Duration::ZERO,
    }
}
