//! A worker without a model: speaks the command line and the HTTP of `sanctum-mlx serve`, and misbehaves on demand.
//!
//! It stands in for a worker wherever a test is about the router. What it says is `t0 t1 t2 ...`, one word per token,
//! and every reply's `system_fingerprint` is `fake-<pid>`, so that a test can tell processes apart.
//!
//! Behaviours, by environment variable:
//! - `FAKE_EXIT_CODE=n` ends with that code at once; with `FAKE_EXIT_AFTER_MS=t`, that long after listening.
//! - `FAKE_READY_AFTER_MS=t` answers `/readyz` with 503 for so long.
//! - `FAKE_EXIT_ONCE=file` misbehaves as above only if the file exists, and removes it.
//! - `FAKE_HANG=listen` never listens; `=probes` answers no probe; `=replies` answers no request.
//! - `FAKE_TOKENS=n` (8) words per reply at most, `FAKE_TOKEN_MS=t` (1) between two of them.
//! - `FAKE_IGNORE_TERM=1` does not end on SIGTERM, `FAKE_ORPHAN=1` nor when its parent is gone.
//! - `FAKE_CHILD=file` starts a child of its own in its group and writes that one's id to the file.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::stream;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

struct Fake {
    /// Flags of the command line, without their dashes.
    flags: HashMap<String, String>,
    started: Instant,
    /// Not ready until then.
    ready_after: Option<Duration>,
    running: AtomicUsize,
    draining: AtomicBool,
}

/// Writes a line to the worker's log.
fn say(text: &str) {
    // A closed log is nobody's loss.
    let _ = writeln!(std::io::stderr(), "fake worker: {text}");
}

fn behaviour(name: &str) -> Option<String> {
    std::env::var(format!("FAKE_{name}")).ok()
}

fn number(name: &str) -> Option<u64> {
    behaviour(name)?.parse().ok()
}

fn millis(name: &str) -> Option<Duration> {
    number(name).map(Duration::from_millis)
}

/// Flags with a value, and those without, as the real worker has them.
fn flags() -> HashMap<String, String> {
    let mut words = std::env::args().skip(1).skip_while(|word| !word.starts_with("--")).peekable();
    let mut flags = HashMap::new();
    while let Some(word) = words.next() {
        let name = word.trim_start_matches("--").to_owned();
        let value = words.next_if(|next| !next.starts_with("--")).unwrap_or_default();
        flags.insert(name, value);
    }
    flags
}

/// Whether this start is one of those that should misbehave.
fn misbehaves() -> bool {
    behaviour("EXIT_ONCE").is_none_or(|file| fs::remove_file(file).is_ok())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let misbehaves = misbehaves();
    let code = number("EXIT_CODE").and_then(|code| u8::try_from(code).ok());
    let exit_after = millis("EXIT_AFTER_MS").filter(|_| misbehaves);
    if let (Some(code), None, true) = (code, exit_after, misbehaves) {
        say(&format!("exit code {code}, as asked"));
        return ExitCode::from(code);
    }
    if behaviour("HANG").as_deref() == Some("listen") {
        std::future::pending::<()>().await;
    }
    let fake = Arc::new(Fake {
        flags: flags(),
        started: Instant::now(),
        ready_after: millis("READY_AFTER_MS").filter(|_| misbehaves),
        running: AtomicUsize::new(0),
        draining: AtomicBool::new(false),
    });
    let address = fake.flags.get("listen").cloned().unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = match TcpListener::bind(&address).await {
        Ok(listener) => listener,
        Err(error) => {
            say(&format!("{address}: {error}"));
            return ExitCode::from(69);
        }
    };
    start_child();
    let state_file = fake.flags.get("state-file").map(PathBuf::from);
    if let Some(path) = &state_file {
        write_state(path, listener.local_addr().expect("a bound listener"), &fake);
    }
    let end = tokio::select! {
        code = serve(Arc::clone(&fake), listener) => code,
        code = told_to_stop(Arc::clone(&fake)) => code,
        () = parent_gone(fake.flags.contains_key("exit-with-parent")) => 0,
        () = sleep(exit_after.unwrap_or_default()), if exit_after.is_some() => code.unwrap_or(1),
    };
    if let Some(path) = state_file {
        let _ = fs::remove_file(path);
    }
    ExitCode::from(end)
}

fn write_state(path: &PathBuf, address: SocketAddr, fake: &Fake) {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let state = json!({
        "pid": std::process::id(),
        "address": address,
        "model": fake.flags.get("name"),
        "started_unix": started,
    });
    let fresh = path.with_extension("new");
    fs::write(&fresh, state.to_string()).expect("the state file can be written");
    fs::rename(&fresh, path).expect("the state file can be put in place");
}

/// A process that would outlive us if only we were killed.
#[expect(clippy::zombie_processes, reason = "being left behind is its purpose")]
fn start_child() {
    if let Some(file) = behaviour("CHILD") {
        let child = std::process::Command::new("sleep").arg("600").spawn().expect("sleep(1) runs");
        fs::write(file, child.id().to_string()).expect("the file can be written");
    }
}

/// SIGTERM: takes no more, finishes what runs up to the drain limit. A second one ends it at once.
async fn told_to_stop(fake: Arc<Fake>) -> u8 {
    let mut terms = signal(SignalKind::terminate()).expect("signals can be watched");
    loop {
        terms.recv().await;
        if behaviour("IGNORE_TERM").is_none() {
            break;
        }
    }
    fake.draining.store(true, Ordering::SeqCst);
    let drain = fake.flags.get("drain-seconds").and_then(|text| text.parse().ok()).unwrap_or(30);
    let deadline = Instant::now() + Duration::from_secs(drain);
    while fake.running.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
        tokio::select! {
            () = sleep(Duration::from_millis(2)) => {}
            _ = terms.recv() => break,
        }
    }
    0
}

/// Resolves when standard input ends, if the parent holds it to say so.
async fn parent_gone(watched: bool) {
    if !watched || behaviour("ORPHAN").is_some() {
        std::future::pending::<()>().await;
    }
    let (tell, told) = tokio::sync::oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(tell);
    });
    let _ = told.await;
}

async fn serve(fake: Arc<Fake>, listener: TcpListener) -> u8 {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return 70 };
        let _ = stream.set_nodelay(true);
        let fake = Arc::clone(&fake);
        tokio::spawn(async move {
            let service = service_fn(move |request| answer(Arc::clone(&fake), request));
            // A client that leaves is no concern of a fake.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

type Reply = Response<BoxBody<Bytes, Infallible>>;

fn reply(status: StatusCode, body: &Value) -> Reply {
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body.to_string())).boxed())
        .expect("a valid reply")
}

async fn answer(fake: Arc<Fake>, request: Request<Incoming>) -> Result<Reply, Infallible> {
    let hang = behaviour("HANG").unwrap_or_default();
    let path = request.uri().path().to_owned();
    let is_probe = path == "/livez" || path == "/readyz";
    if (hang == "probes" && is_probe) || (hang == "replies" && !is_probe) {
        std::future::pending::<()>().await;
    }
    Ok(match (request.method().clone(), path.as_str()) {
        (Method::GET, "/livez") => reply(StatusCode::OK, &json!({"status": "ok"})),
        (Method::GET, "/readyz") => readiness(&fake),
        (Method::POST, "/v1/chat/completions" | "/v1/completions") => {
            let chat = path.ends_with("/chat/completions");
            let body = request.into_body().collect().await;
            let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            match serde_json::from_slice(&body) {
                Ok(asked) => complete(&fake, &asked, chat).await,
                Err(error) => refuse(StatusCode::BAD_REQUEST, &error.to_string()),
            }
        }
        (method, path) => refuse(StatusCode::NOT_FOUND, &format!("no {method} {path} here")),
    })
}

fn refuse(status: StatusCode, message: &str) -> Reply {
    reply(
        status,
        &json!({"error": {"message": message, "type": "invalid_request_error", "param": null, "code": null}}),
    )
}

fn readiness(fake: &Fake) -> Reply {
    let loading = fake.ready_after.unwrap_or_default();
    let progress = fake.started.elapsed().as_secs_f64() / loading.as_secs_f64().max(1e-9);
    if fake.draining.load(Ordering::SeqCst) {
        reply(StatusCode::SERVICE_UNAVAILABLE, &json!({"status": "draining"}))
    } else if progress < 1.0 {
        let body = json!({"status": "loading", "phase": "model_load", "progress": progress});
        reply(StatusCode::SERVICE_UNAVAILABLE, &body)
    } else {
        reply(StatusCode::OK, &json!({"status": "ready"}))
    }
}

/// Counts a reply that is being written; dropped when it is out, or its reader has left.
struct Running(Arc<Fake>);

impl Running {
    fn new(fake: &Arc<Fake>) -> Self {
        fake.running.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(fake))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn complete(fake: &Arc<Fake>, asked: &Value, chat: bool) -> Reply {
    let running = Running::new(fake);
    let asked_for = asked["max_tokens"].as_u64().or(asked["max_completion_tokens"].as_u64());
    let most = number("TOKENS").unwrap_or(8);
    let tokens = asked_for.map_or(most, |n| n.min(most));
    let finish = if asked_for.is_some_and(|n| n <= most) { "length" } else { "stop" };
    let usage =
        json!({"prompt_tokens": 4, "completion_tokens": tokens, "total_tokens": 4 + tokens});
    let head = json!({
        "id": format!("fake-{}", std::process::id()),
        "created": 1_700_000_000,
        "model": fake.flags.get("name"),
        "system_fingerprint": format!("fake-{}", std::process::id()),
    });
    let pause = millis("TOKEN_MS").unwrap_or(Duration::from_millis(1));
    if asked["stream"] != json!(true) {
        let mut text = String::new();
        for n in 0..tokens {
            sleep(pause).await;
            text.push_str(&word(n));
        }
        drop(running);
        return reply(StatusCode::OK, &whole(head, &text, finish, &usage, chat));
    }
    let with_usage = asked["stream_options"]["include_usage"] == json!(true);
    let steps = (0..tokens + 3).collect::<Vec<_>>();
    let events = stream::unfold((steps.into_iter(), running), move |(mut steps, running)| {
        let (head, usage) = (head.clone(), usage.clone());
        async move {
            loop {
                let step = steps.next()?;
                let event = match step.checked_sub(tokens) {
                    None => {
                        sleep(pause).await;
                        chunk(head.clone(), Some(&word(step)), &Value::Null, chat)
                    }
                    Some(0) => chunk(head.clone(), None, &json!(finish), chat),
                    Some(1) if with_usage => {
                        let mut last = chunk(head.clone(), None, &Value::Null, chat);
                        last["choices"] = json!([]);
                        last["usage"] = usage.clone();
                        last
                    }
                    Some(1) => continue,
                    Some(_) => {
                        let done = Frame::data(Bytes::from_static(b"data: [DONE]\n\n"));
                        return Some((Ok::<_, Infallible>(done), (steps, running)));
                    }
                };
                let frame = Frame::data(Bytes::from(format!("data: {event}\n\n")));
                return Some((Ok(frame), (steps, running)));
            }
        }
    });
    Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .body(StreamBody::new(Box::pin(events)).boxed())
        .expect("a valid reply")
}

fn word(n: u64) -> String {
    if n == 0 { "t0".to_owned() } else { format!(" t{n}") }
}

fn whole(mut head: Value, text: &str, finish: &str, usage: &Value, chat: bool) -> Value {
    head["object"] = json!(if chat { "chat.completion" } else { "text_completion" });
    head["usage"] = usage.clone();
    head["choices"] = if chat {
        let message = json!({"role": "assistant", "content": text});
        json!([{"index": 0, "message": message, "finish_reason": finish, "logprobs": null}])
    } else {
        json!([{"index": 0, "text": text, "finish_reason": finish, "logprobs": null}])
    };
    head
}

fn chunk(mut head: Value, text: Option<&str>, finish: &Value, chat: bool) -> Value {
    head["object"] = json!(if chat { "chat.completion.chunk" } else { "text_completion" });
    head["choices"] = if chat {
        let delta = text.map_or(json!({}), |text| json!({"role": "assistant", "content": text}));
        json!([{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": null}])
    } else {
        json!([{"index": 0, "text": text.unwrap_or(""), "finish_reason": finish, "logprobs": null}])
    };
    head
}
