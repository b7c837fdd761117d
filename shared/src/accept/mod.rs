//! The front door: an own HTTP/1.1 accept loop over hyper's connection builder.
//!
//! Owns connections from `accept` to close: time limits for heads, bodies, idling and unread replies, caps on heads
//! and connections, refusal of ambiguous framing, and a drain that lets running requests finish. It exists because
//! `axum::serve` never closes slow or silent clients and hyper alone accepts `Transfer-Encoding` together with
//! `Content-Length`. It speaks no HTTP/2 and no TLS, and knows no route: any tower service fits, an axum router too.

mod bind;
mod body;
mod guard;
mod head;
mod serve;
mod wire;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

pub use bind::{BindError, bind};
pub use body::{BodyError, RequestBody, ServedBody};
pub use serve::{ServeReport, serve};

use crate::limits;

/// What one listener puts up with. Defaults are those of [`crate::limits`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptLimits {
    /// Longest wait for a complete head, counted from its first byte (on a new connection: from `accept`).
    pub header_timeout: Duration,
    /// Longest silence between two requests.
    pub idle_timeout: Duration,
    /// Longest wait for the next bytes of a body.
    pub body_stall: Duration,
    /// Longest time from the end of a head to the end of its body.
    pub body_timeout: Duration,
    /// Longest time that a client may leave bytes unread.
    pub write_stall: Duration,
    /// How long an unread request body is thrown away after the reply, so that the reply arrives.
    pub linger: Duration,
    /// Longest head, in bytes; hyper needs at least 8,192.
    pub header_bytes: usize,
    /// Most header fields.
    pub header_count: usize,
    /// Longest request target, in bytes.
    pub target_bytes: usize,
    /// Most open connections; beyond it idle ones are closed and new ones wait in the kernel's queue.
    pub connections: usize,
    /// How long running requests may go on after the stop.
    pub drain: Duration,
}

impl Default for AcceptLimits {
    fn default() -> Self {
        Self {
            header_timeout: limits::HEADER_TIMEOUT,
            idle_timeout: limits::IDLE_TIMEOUT,
            body_stall: limits::BODY_STALL,
            body_timeout: limits::BODY_TIMEOUT,
            write_stall: limits::WRITE_STALL,
            linger: limits::LINGER,
            header_bytes: limits::HEADER_BYTES,
            header_count: limits::HEADER_COUNT,
            target_bytes: limits::TARGET_BYTES,
            connections: limits::CONNECTIONS,
            drain: limits::DRAIN,
        }
    }
}

/// The client's address, as a request extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);
