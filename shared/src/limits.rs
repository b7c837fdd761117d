//! Every limit of router and worker that guards a door: its name, its unit, its default.
//!
//! Owns numbers only; who enforces one is said beside it. What `instance.yaml` can change is a default here and a
//! setting there. Nothing else in the workspace may write such a number bare.

use std::time::Duration;

/// Longest wait for the complete head of a first request on a connection, silence included. Enforced by [`crate::accept`].
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence between two requests of one connection. Enforced by [`crate::accept`].
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Longest wait for the next bytes of a request body. Enforced by [`crate::accept`].
pub const BODY_STALL: Duration = Duration::from_secs(30);
/// Longest time from the end of a head to the end of its body, however steadily it trickles. Enforced by [`crate::accept`].
pub const BODY_TIMEOUT: Duration = Duration::from_secs(300);
/// Longest time that a client may leave bytes unread before it is cut. Enforced by [`crate::accept`].
pub const WRITE_STALL: Duration = Duration::from_secs(60);
/// How long a refused upload is read and thrown away, so that the refusal arrives instead of a reset.
pub const LINGER: Duration = Duration::from_secs(2);
/// Longest head (request line and headers), in bytes.
pub const HEADER_BYTES: usize = 64 * 1024;
/// Most header fields of one request.
pub const HEADER_COUNT: usize = 100;
/// Longest request target (path and query), in bytes.
pub const TARGET_BYTES: usize = 8 * 1024;
/// Most connections open at once on one listener.
pub const CONNECTIONS: usize = 16 * 1024;
/// How long running requests may go on after a stop was asked for.
pub const DRAIN: Duration = Duration::from_secs(30);
/// First wait after `accept` failed for want of descriptors or memory; doubles up to [`ACCEPT_BACKOFF_MAX`].
pub const ACCEPT_BACKOFF_MIN: Duration = Duration::from_millis(10);
/// Longest wait between two tries of a failing `accept`.
pub const ACCEPT_BACKOFF_MAX: Duration = Duration::from_secs(1);

/// Largest request body, in bytes.
pub const BODY_BYTES: usize = 16 * 1024 * 1024;
/// Deepest nesting of arrays and objects in a request body.
pub const JSON_DEPTH: usize = 64;
/// Longest line of an event stream, in bytes. Enforced by [`crate::sse::Decoder`].
pub const SSE_LINE_BYTES: usize = 1024 * 1024;
/// Largest event of an event stream, in bytes. Enforced by [`crate::sse::Decoder`].
pub const SSE_EVENT_BYTES: usize = 2 * 1024 * 1024;

/// Largest reply that the router buffers (a reply that is not streamed), in bytes.
pub const REPLY_BYTES: usize = 64 * 1024 * 1024;
/// Largest error body of a backend that the router passes on, in bytes.
pub const ERROR_BODY_BYTES: usize = 64 * 1024;
/// Most bytes of events held back before the first content event.
pub const HELD_BACK_BYTES: usize = 256 * 1024;

/// Longest name of a request (`x-request-id`) taken over from a client, in bytes.
pub const REQUEST_ID_BYTES: usize = 128;

/// How long an unused connection to a backend is kept: less than the 5 s after which common servers close theirs.
pub const UPSTREAM_IDLE: Duration = Duration::from_secs(4);
/// Most unused connections kept per URL.
pub const UPSTREAM_IDLE_CONNECTIONS: usize = 64;
/// Longest pause that a backend may ask for with `Retry-After`.
pub const UPSTREAM_PAUSE: Duration = Duration::from_secs(300);
