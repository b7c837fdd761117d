//! The worker's HTTP from outside, with an engine that a test plays.
//!
//! No model and no MLX: a task holds the engine's inbox and answers by a script. Connections are not involved either:
//! those are tested where the accept loop lives.

mod cancel;
mod refuse;
mod reply;
mod routes;

use std::sync::Arc;

use axum::body::Body;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use sanctum_shared::openai::json::JsonLimits;
use sanctum_shared::openai::models::Model;
use serde_json::Value;
use tower::ServiceExt;

use super::{App, HttpLimits, Served, router};
use crate::engine::{
    Command, EngineHandle, EngineSnapshot, Event, Finish, FinishReason, Inbox, ModelInfo,
    Submission, Timings, TokenEvent, TokenLogprob,
};
use crate::metrics;
use crate::template::ChatTemplate;
use crate::tokenize::tests::fixture_dir;
use crate::tokenize::{CheckpointText, SamplingDefaults, TextTokenizer};

/// Most tokens of prompt and completion together.
const CONTEXT: usize = 64;
/// Largest body, in bytes.
const BODY_BYTES: usize = 4096;

fn info() -> ModelInfo {
    ModelInfo {
        id: "tiny".into(),
        model_type: "llama".into(),
        vocab_size: 2048,
        context_length: CONTEXT,
        quantization: String::new(),
        eos_token_ids: vec![1999],
        bos_token_id: Some(1998),
        weight_bytes: 0,
        kv_bytes_per_token: 1,
        unused_tensors: vec![],
    }
}

/// An app without a model, as while it loads.
fn loading() -> Arc<App> {
    let limits = HttpLimits { body_bytes: BODY_BYTES, json: JsonLimits::default(), preparing: 2 };
    let registry = metrics::recorder().expect("buckets are not empty").handle();
    Arc::new(App::new("tiny".into(), &fixture_dir(), limits, registry))
}

/// An app that serves, and the engine's end of its queue, which holds `queue` requests.
fn served(queue: usize) -> (Arc<App>, Inbox) {
    let snapshot = EngineSnapshot {
        healthy: true,
        slots: 1,
        queue_limit: queue,
        kv_limit_bytes: 1 << 20,
        ..EngineSnapshot::default()
    };
    let (engine, inbox) = EngineHandle::from_parts(info(), snapshot);
    let app = loading();
    let text = CheckpointText::read(&fixture_dir()).expect("readable");
    app.serve(Served {
        engine,
        tokenizer: TextTokenizer::load(&fixture_dir(), &text).expect("loads"),
        template: ChatTemplate::new(&text, || 0).expect("compiles"),
        sampling: SamplingDefaults::default(),
        fingerprint: "fp".into(),
        card: Model {
            id: "tiny".into(),
            created: 0,
            owned_by: "sanctum".into(),
            context_length: Some(CONTEXT),
        },
    });
    (app, inbox)
}

/// An app whose engine answers every request by `script`, which gets the number of the request too.
fn scripted(script: impl Fn(usize, &Submission) + Send + 'static) -> Arc<App> {
    let (app, mut inbox) = served(64);
    tokio::spawn(async move {
        let mut nth = 0;
        while let Some(command) = inbox.next().await {
            if let Command::Generate(submission) = command {
                script(nth, &submission);
                nth += 1;
            }
        }
    });
    app
}

/// An app whose engine says `text` to every request and ends with `reason`.
fn saying(text: &'static str, reason: FinishReason) -> Arc<App> {
    let ids = ids_of(text);
    scripted(move |_, submission| say(submission, &ids, reason))
}

fn ids_of(text: &str) -> Vec<u32> {
    crate::tokenize::tests::fixture().encode(text, false).expect("encodes")
}

/// Plays a whole sequence.
fn say(submission: &Submission, ids: &[u32], reason: FinishReason) {
    let send = |event| submission.events.send(event);
    send(Event::Started { cached_tokens: 3 });
    for id in ids {
        let wanted = submission.request.top_logprobs;
        let logprob = wanted.map(|_| TokenLogprob { logprob: -0.25, top: vec![(*id, -0.25)] });
        send(Event::Token(TokenEvent { id: *id, logprob }));
    }
    let stop = usize::from(reason == FinishReason::StopToken);
    let timings = Timings { completion_tokens: ids.len() + stop, ..Timings::default() };
    send(Event::Finished(Finish { reason, timings }));
}

/// A reply, read to its end.
struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }

    /// The `data:` of every event.
    fn events(&self) -> Vec<&str> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }

    /// Everything a JSON pointer finds in the events, in order.
    fn found(&self, pointer: &str) -> Vec<Value> {
        let events = self.events();
        let parsed = events.iter().filter_map(|data| serde_json::from_str::<Value>(data).ok());
        parsed.filter_map(|event| event.pointer(pointer).cloned()).collect()
    }
}

fn request(method: Method, path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::builder().method(method).uri(path);
    request.header("content-type", "application/json").body(body.into()).expect("a request")
}

async fn send(app: &Arc<App>, request: Request<Body>) -> Reply {
    let response = router(Arc::clone(app)).oneshot(request).await.expect("infallible");
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.expect("a whole body").to_bytes();
    let body = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    Reply { status: head.status, headers: head.headers, body }
}

async fn post(app: &Arc<App>, path: &str, body: impl Into<Body>) -> Reply {
    send(app, request(Method::POST, path, body)).await
}

async fn get(app: &Arc<App>, path: &str) -> Reply {
    send(app, request(Method::GET, path, "")).await
}

/// Posts a chat request of one user message; `rest` goes on after it (`,"stream":true`).
async fn chat(app: &Arc<App>, rest: &str) -> Reply {
    post(app, "/v1/chat/completions", chat_body(rest)).await
}

fn chat_body(rest: &str) -> String {
    format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"hi\"}}]{rest}}}")
}
