//! Asking a worker how it is, on a connection of its own.
//!
//! Owns `/livez` and `/readyz` as a client. A new connection per round also proves that the worker still accepts.
//! Whatever the worker does, a round ends within its time limit and reads a bounded reply.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

/// Most bytes of a probe's reply that are read.
const REPLY_BYTES: usize = 16 * 1024;

/// What a round of probes found.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Health {
    /// It takes requests.
    Ready,
    /// It lives, but takes no requests yet or no more.
    NotReady {
        /// What it says it is doing, such as "loading".
        phase: Option<String>,
        /// How far, 0 to 1.
        progress: Option<f64>,
    },
    /// It did not answer in time, or not sensibly.
    Silent,
}

#[derive(Deserialize)]
struct Readiness {
    phase: Option<String>,
    status: Option<String>,
    progress: Option<f64>,
}

/// One round: alive, then ready, both within `limit`.
pub(super) async fn ask(address: SocketAddr, limit: Duration) -> Health {
    match tokio::time::timeout(limit, round(address)).await {
        Ok(Ok(health)) => health,
        // Why it did not answer makes no difference to what happens next.
        Ok(Err(_)) | Err(_) => Health::Silent,
    }
}

type Unanswered = Box<dyn std::error::Error + Send + Sync>;

async fn round(address: SocketAddr) -> Result<Health, Unanswered> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let asking = async move {
        let (alive, _) = get(&mut sender, address, "/livez").await?;
        if !alive.is_success() {
            return Ok(Health::Silent);
        }
        sender.ready().await?;
        let (ready, body) = get(&mut sender, address, "/readyz").await?;
        if ready.is_success() {
            return Ok(Health::Ready);
        }
        let said: Option<Readiness> = serde_json::from_slice(&body).ok();
        Ok(match said {
            Some(said) => {
                Health::NotReady { phase: said.phase.or(said.status), progress: said.progress }
            }
            None => Health::NotReady { phase: None, progress: None },
        })
    };
    // The connection is driven here, not in a task of its own, so that the time limit ends it too.
    let mut asking = std::pin::pin!(asking);
    tokio::select! {
        answer = &mut asking => answer,
        _ = connection => asking.await,
    }
}

async fn get(
    sender: &mut SendRequest<Empty<Bytes>>,
    address: SocketAddr,
    path: &str,
) -> Result<(StatusCode, Bytes), Unanswered> {
    let request = Request::get(path)
        .header(header::HOST, address.to_string())
        .header(header::USER_AGENT, "sanctum-router")
        .body(Empty::new())?;
    let reply = sender.send_request(request).await?;
    let status = reply.status();
    let body = Limited::new(reply.into_body(), REPLY_BYTES).collect().await?.to_bytes();
    Ok((status, body))
}
