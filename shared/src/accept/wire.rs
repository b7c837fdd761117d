//! The socket as hyper sees it: watches framing and time, changes no byte.
//!
//! Owns the limits that need no understanding of a request: silence, slow heads, unread replies, and the pause
//! before a close. It hands hyper at most one message at a time, so that a pipelined head is scanned before hyper
//! parses it. Bodies have their own clock ([`super::body`]); while a reply is due, silence is expected and not timed.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::ReadBufCursor;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::AcceptLimits;
use super::head::{Framing, HeadScan};
use crate::timer::MovingTimer;

/// Bytes read from the socket at once.
const READ_BYTES: usize = 16 * 1024;

/// What the socket and the service of one connection tell each other. One task polls both.
#[derive(Debug)]
pub(super) struct Talk {
    /// A request was handed to the service and its reply is not finished.
    pub(super) in_flight: AtomicBool,
    /// The head that hyper parses next is ambiguous.
    pub(super) ambiguous: AtomicBool,
    opened: Instant,
    /// When the last reply ended, in milliseconds since `opened` and plus one; 0 once the wire has read it.
    reply_ended: AtomicU64,
}

impl Talk {
    pub(super) fn new() -> Self {
        Self {
            in_flight: AtomicBool::new(false),
            ambiguous: AtomicBool::new(false),
            opened: Instant::now(),
            reply_ended: AtomicU64::new(0),
        }
    }

    pub(super) fn begin_reply(&self) {
        self.in_flight.store(true, Ordering::Relaxed);
    }

    pub(super) fn end_reply(&self) {
        let ended = u64::try_from(self.opened.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
        self.reply_ended.store(ended + 1, Ordering::Relaxed);
        self.in_flight.store(false, Ordering::Relaxed);
    }

    fn take_reply_end(&self) -> Option<Instant> {
        let ended = self.reply_ended.swap(0, Ordering::Relaxed).checked_sub(1)?;
        Some(self.opened + Duration::from_millis(ended))
    }
}

#[derive(Debug)]
enum Expect {
    Head(HeadScan),
    Body(u64),
    /// Where chunks end only hyper knows: the service closes the connection after the reply.
    Chunks,
}

/// One client connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    talk: Arc<Talk>,
    limits: Arc<AcceptLimits>,
    expect: Expect,
    /// Bytes of the next message that came together with the current one.
    withheld: Vec<u8>,
    /// Silence is measured from here.
    quiet_since: Instant,
    /// Allowed length of that silence.
    patience: Duration,
    read_timer: MovingTimer,
    blocked_since: Option<Instant>,
    write_timer: MovingTimer,
    closing_since: Option<Instant>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, talk: Arc<Talk>, limits: Arc<AcceptLimits>) -> Self {
        let patience = limits.header_timeout;
        Self {
            stream,
            talk,
            limits,
            expect: Expect::Head(HeadScan::default()),
            withheld: Vec::new(),
            quiet_since: Instant::now(),
            patience,
            read_timer: MovingTimer::default(),
            blocked_since: None,
            write_timer: MovingTimer::default(),
            closing_since: None,
        }
    }

    /// How many of `bytes` belong to the current message; the rest waits for the next call.
    fn belonging(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            match &mut self.expect {
                Expect::Head(scan) => {
                    if !scan.started() {
                        self.quiet_since = Instant::now();
                        self.patience = self.limits.header_timeout;
                    }
                    let Some((head, framing)) = scan.feed(&bytes[used..]) else {
                        return bytes.len();
                    };
                    used += head;
                    self.expect = match framing {
                        Framing::Length(length) => Expect::Body(length),
                        Framing::Chunked => Expect::Chunks,
                        Framing::Ambiguous => {
                            self.talk.ambiguous.store(true, Ordering::Relaxed);
                            Expect::Chunks
                        }
                    };
                }
                Expect::Body(left) => {
                    let here =
                        (bytes.len() - used).min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= here as u64;
                    if *left == 0 {
                        self.expect = Expect::Head(HeadScan::default());
                    }
                    return used + here;
                }
                Expect::Chunks => return bytes.len(),
            }
        }
    }

    /// Nothing can be read now: is that still allowed?
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Expect::Head(scan) = &self.expect else { return Poll::Pending };
        if self.talk.in_flight.load(Ordering::Relaxed) {
            // hyper need not ask again when the reply has ended: a timer must be running by then.
            let later = Instant::now() + self.limits.idle_timeout;
            let _ = self.read_timer.poll(later, cx);
            return Poll::Pending;
        }
        if let Some(ended) = self.talk.take_reply_end() {
            self.quiet_since = ended;
            let idle = !scan.started();
            self.patience =
                if idle { self.limits.idle_timeout } else { self.limits.header_timeout };
        }
        ready!(self.read_timer.poll(self.quiet_since + self.patience, cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// The client does not read: for how long?
    fn poll_unread<T>(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        let since = *self.blocked_since.get_or_insert_with(Instant::now);
        ready!(self.write_timer.poll(since + self.limits.write_stall, cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Throws away what the client still sends: closing over unread bytes would turn our last words into a reset.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if matches!(&self.expect, Expect::Head(scan) if !scan.started()) {
            return Poll::Ready(());
        }
        let since = *self.closing_since.get_or_insert_with(Instant::now);
        let mut scratch = [std::mem::MaybeUninit::uninit(); READ_BYTES];
        loop {
            if self.read_timer.poll(since + self.limits.linger, cx).is_ready() {
                return Poll::Ready(());
            }
            let mut buffer = ReadBuf::uninit(&mut scratch);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                _ => return Poll::Ready(()),
            }
        }
    }
}

impl hyper::rt::Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut cursor: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let room = cursor.remaining().min(READ_BYTES);
        if !this.withheld.is_empty() {
            let bytes = std::mem::take(&mut this.withheld);
            let offered = &bytes[..bytes.len().min(room)];
            let used = this.belonging(offered);
            cursor.put_slice(&offered[..used]);
            this.withheld = bytes[used..].to_vec();
            return Poll::Ready(Ok(()));
        }
        let mut scratch = [std::mem::MaybeUninit::uninit(); READ_BYTES];
        let mut buffer = ReadBuf::uninit(&mut scratch[..room]);
        match Pin::new(&mut this.stream).poll_read(cx, &mut buffer) {
            Poll::Ready(Ok(())) => {
                let bytes = buffer.filled();
                if !bytes.is_empty() {
                    let used = this.belonging(bytes);
                    cursor.put_slice(&bytes[..used]);
                    this.withheld.extend_from_slice(&bytes[used..]);
                }
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => this.poll_silence(cx),
        }
    }
}

impl hyper::rt::Write for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(cx, bytes) {
            Poll::Pending => self.poll_unread(cx),
            done => {
                self.blocked_since = None;
                done
            }
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write_vectored(cx, slices) {
            Poll::Pending => self.poll_unread(cx),
            done => {
                self.blocked_since = None;
                done
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.closing_since.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        }
        self.poll_linger(cx).map(Ok)
    }
}
