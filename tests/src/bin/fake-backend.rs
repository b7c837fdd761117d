//! An OpenAI-compatible server that misbehaves on demand, over plain sockets so that it can break every rule.
//!
//! It prints its address on the first line of standard output and ends when standard input is closed. The `model` of
//! a request is the behaviour wanted; see [`answer`]. `GET /stats` tells per behaviour how many requests came, ended
//! and were abandoned by the other side, and the last body received.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

/// Pause between two chunks, or two looks at the other side.
const BEAT: Duration = Duration::from_millis(20);
/// How long a behaviour that waits for the other side to leave waits at most.
const PATIENCE: Duration = Duration::from_secs(60);

#[expect(clippy::disallowed_methods, reason = "being slow is this program's business")]
fn beats(count: u32) {
    thread::sleep(BEAT * count);
}

#[derive(Default)]
struct Stats(Mutex<BTreeMap<String, Count>>);

#[derive(Default)]
struct Count {
    begun: u64,
    ended: u64,
    left: u64,
    /// Connections that these requests came on first.
    fresh: u64,
    last_head: String,
    last_body: String,
}

impl Stats {
    fn change(&self, model: &str, change: impl FnOnce(&mut Count)) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        change(all.entry(model.to_owned()).or_default());
    }

    fn json(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = |(model, count): (&String, &Count)| {
            let value = json!({
                "begun": count.begun, "ended": count.ended, "left": count.left, "fresh": count.fresh,
                "head": count.last_head, "body": count.last_body,
            });
            (model.clone(), value)
        };
        Value::Object(all.iter().map(entry).collect()).to_string()
    }
}

fn main() -> io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(address)?;
    let mut out = io::stdout();
    writeln!(out, "{}", listener.local_addr()?)?;
    out.flush()?;
    let stats = Arc::new(Stats::default());
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let stats = Arc::clone(&stats);
            // A broken connection is what this program is for.
            thread::spawn(move || drop(serve(&stream, &stats)));
        }
    });
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

struct Asked {
    head: String,
    body: String,
}

fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Asked> {
    let mut head = String::new();
    loop {
        let before = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if head[before..].trim().is_empty() {
            break;
        }
    }
    let length = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Asked { head, body: String::from_utf8_lossy(&body).into_owned() })
}

fn serve(stream: &TcpStream, stats: &Stats) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut fresh = true;
    loop {
        let asked = read_request(&mut reader)?;
        let mut wire = Wire { stream: stream.try_clone()?, chunked: false };
        if asked.head.starts_with("GET /stats") {
            wire.json(200, "", &stats.json())?;
            continue;
        }
        if asked.head.starts_with("GET ") {
            wire.json(200, "", "{\"status\":\"ready\"}")?;
            continue;
        }
        let body: Value = serde_json::from_str(&asked.body).unwrap_or_default();
        let model = body["model"].as_str().unwrap_or("normal").to_owned();
        stats.change(&model, |count| {
            count.begun += 1;
            count.fresh += u64::from(std::mem::take(&mut fresh));
            count.last_head.clone_from(&asked.head);
            count.last_body.clone_from(&asked.body);
        });
        let end = answer(&model, &body, &asked, &mut wire);
        stats.change(&model, |count| match end {
            Ok(End::Left) | Err(_) => count.left += 1,
            Ok(_) => count.ended += 1,
        });
        match end? {
            End::KeepOpen => {}
            End::Close | End::Left => return Ok(()),
            End::Reset => return reset(stream),
        }
    }
}

/// How a request ended.
enum End {
    /// The connection serves on.
    KeepOpen,
    Close,
    /// With RST instead of FIN.
    Reset,
    /// The other side had gone.
    Left,
}

/// Closes with a reset: what is not delivered yet is thrown away.
fn reset(stream: &TcpStream) -> io::Result<()> {
    let linger = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(stream, sockopt::Linger, &linger)?;
    Ok(())
}

struct Wire {
    stream: TcpStream,
    chunked: bool,
}

impl Wire {
    fn raw(&mut self, text: &str) -> io::Result<()> {
        self.stream.write_all(text.as_bytes())
    }

    fn json(&mut self, status: u16, headers: &str, body: &str) -> io::Result<()> {
        let length = body.len();
        self.raw(&format!(
            "HTTP/1.1 {status} Whatever\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        ))
    }

    fn begin_stream(&mut self) -> io::Result<()> {
        self.chunked = true;
        self.raw("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nserver: fake\r\n\r\n")
    }

    /// One chunk in one write.
    fn chunk(&mut self, text: &str) -> io::Result<()> {
        self.raw(&format!("{:x}\r\n{text}\r\n", text.len()))
    }

    fn role(&mut self) -> io::Result<()> {
        self.chunk("data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n")
    }

    fn word(&mut self, n: usize) -> io::Result<()> {
        self.chunk(&content(n))
    }

    fn finish(&mut self) -> io::Result<()> {
        self.chunk(
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n",
        )
    }

    fn end_stream(&mut self) -> io::Result<End> {
        self.chunk("data: [DONE]\n\n")?;
        self.raw("0\r\n\r\n")?;
        Ok(End::KeepOpen)
    }

    /// Waits until the other side closes; says so at most after [`PATIENCE`].
    fn until_left(&mut self) -> io::Result<End> {
        self.stream.set_read_timeout(Some(PATIENCE))?;
        match self.stream.read(&mut [0; 64]) {
            Ok(0) => Ok(End::Left),
            Ok(_) => Ok(End::Close),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(End::Close),
            Err(_) => Ok(End::Left),
        }
    }
}

fn content(n: usize) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"w{n} \"}}}}]}}\n\n")
}

/// The whole reply of a request that is not streamed.
fn whole(text: &str) -> String {
    json!({
        "id": "fake", "object": "chat.completion", "usage": {"total_tokens": 3},
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
    })
    .to_string()
}

/// Behaves as `model` says. A number after a colon is how many words a stream has (8).
fn answer(model: &str, body: &Value, asked: &Asked, wire: &mut Wire) -> io::Result<End> {
    let streamed = body["stream"] == true;
    let (behaviour, words) = match model.split_once(':') {
        Some((name, number)) => (name, number.parse().unwrap_or(8)),
        None => (model, 8),
    };
    match behaviour {
        // Refusals.
        "error-500" => wire.json(500, "", "{\"error\":{\"message\":\"at http://secret:1/\"}}")?,
        "error-401" | "error-403" | "error-404" | "error-408" => {
            let status = behaviour[6..].parse().unwrap_or(500);
            wire.json(status, "", "{\"error\":{\"message\":\"secret key\"}}")?;
        }
        "error-503" => wire.json(503, "", "{}")?,
        "busy-503" => wire.json(503, "retry-after: 9\r\n", "{}")?,
        "busy-429" => wire.json(429, "retry-after: 7\r\n", "{\"error\":{\"message\":\"busy\"}}")?,
        "error-400" => wire.json(
            400,
            "server: fake\r\n",
            "{\"error\":{\"message\":\"your mistake\",\"code\":\"x\"}}",
        )?,
        "redirect" => wire.json(307, "location: http://127.0.0.1:1/\r\n", "{}")?,
        // Silence.
        "hang" => return wire.until_left(),
        "hang-after-head" => {
            wire.begin_stream()?;
            return wire.until_left();
        }
        "hang-after-role" => {
            wire.begin_stream()?;
            wire.role()?;
            return wire.until_left();
        }
        "half-body" => {
            wire.raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{\"cho")?;
            return wire.until_left();
        }
        "close" => return Ok(End::Close),
        "reset" => return Ok(End::Reset),
        // Answers that are none.
        "empty" => wire.json(200, "", "")?,
        "shapeless" => wire.json(200, "", "{\"detail\":\"secret\"}")?,
        "no-choices" => wire.json(200, "", "{\"choices\":[]}")?,
        "late-body" if !streamed => {
            // The head at once, the body after twice the stall limit of the tests.
            let text = whole("late");
            let length = text.len();
            wire.raw(&format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"))?;
            beats(100);
            wire.raw(&text)?;
        }
        "html" => wire.json(200, "", "<html>hello</html>")?,
        "error-in-200" => wire.json(200, "", "{\"error\":{\"message\":\"x\"}}")?,
        "echo" => wire.json(200, "x-fake: yes\r\nserver: fake\r\n", &whole(&asked.body))?,
        "big" => wire.json(200, "", &whole(&"x".repeat(3 << 20)))?,
        "normal" if !streamed => wire.json(200, "", &whole("hello"))?,
        "keep-and-die" if !streamed => {
            // The connection looks kept and is not.
            wire.json(200, "", &whole("hello"))?;
            return Ok(End::Close);
        }
        _ => return stream(behaviour, words, wire),
    }
    Ok(End::KeepOpen)
}

fn stream(behaviour: &str, words: usize, wire: &mut Wire) -> io::Result<End> {
    wire.begin_stream()?;
    match behaviour {
        "empty-stream" => return wire.end_stream(),
        "comments" => loop {
            if wire.chunk(": still here\n\n").is_err() {
                return Ok(End::Left);
            }
            beats(1);
        },
        "garbage" => {
            wire.chunk("data: <html>\n\n")?;
            return wire.end_stream();
        }
        "endless-line" => loop {
            if wire.chunk(&"x".repeat(65_536)).is_err() {
                return Ok(End::Left);
            }
        },
        _ => {}
    }
    wire.role()?;
    match behaviour {
        "role-then-error" => {
            wire.chunk("data: {\"error\":{\"message\":\"out of memory\"}}\n\n")?;
            return Ok(End::Close);
        }
        "role-then-end" => {
            wire.raw("0\r\n\r\n")?;
            return Ok(End::KeepOpen);
        }
        "flood" => {
            for n in 0.. {
                if wire.word(n).is_err() {
                    return Ok(End::Left);
                }
            }
        }
        "slow" | "endless" => {
            let count = if behaviour == "endless" { usize::MAX } else { words };
            for n in 0..count {
                if wire.word(n).is_err() {
                    return Ok(End::Left);
                }
                beats(1);
            }
        }
        _ => {
            for n in 0..words {
                wire.word(n)?;
            }
        }
    }
    match behaviour {
        "fin-mid" => return Ok(End::Close),
        "rst-mid" => {
            // What is in flight must arrive before the reset does.
            beats(5);
            return Ok(End::Reset);
        }
        "clean-end-mid" => {
            wire.raw("0\r\n\r\n")?;
            return Ok(End::KeepOpen);
        }
        "cut-event" => {
            let event = content(99);
            wire.chunk(&event[..event.len() / 2])?;
            wire.stream.shutdown(Shutdown::Both)?;
            return Ok(End::Close);
        }
        "garbage-mid" => wire.chunk("data: {\"choices\":\n\n")?,
        "error-mid" => wire.chunk("data: {\"error\":{\"message\":\"secret\"}}\n\n")?,
        "stall" => loop {
            if wire.chunk(": still here\n\n").is_err() {
                return Ok(End::Left);
            }
            beats(1);
        },
        "split" => {
            // Cut within a character, within a line, between the line ends.
            let event = "data: {\"choices\":[{\"delta\":{\"content\":\"ä🦀\"}}]}\n\n".as_bytes();
            for byte in event {
                wire.stream.write_all(b"1\r\n")?;
                wire.stream.write_all(&[*byte])?;
                wire.stream.write_all(b"\r\n")?;
            }
        }
        _ => {}
    }
    wire.finish()?;
    match behaviour {
        "no-done" => {
            wire.raw("0\r\n\r\n")?;
            Ok(End::KeepOpen)
        }
        "no-done-open" => wire.until_left(),
        _ => wire.end_stream(),
    }
}
