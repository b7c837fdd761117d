//! The loop: accept, serve, and in the end drain.
//!
//! Owns every connection task of one listener; dropping the loop drops them all. It never gives up on a failing
//! `accept`: without descriptors it closes idle connections, waits a little and goes on.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use nix::errno::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tower::Service;

use super::AcceptLimits;
use super::body::{Flight, RequestBody};
use super::guard;
use super::wire::{Talk, Wire};
use crate::limits::{ACCEPT_BACKOFF_MAX, ACCEPT_BACKOFF_MIN};

/// What became of the connections of one listener.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServeReport {
    /// Connections accepted in all.
    pub accepted: u64,
    /// Connections that were still busy when the drain limit came, and were cut.
    pub cut: usize,
}

/// What the loop tells its connections.
#[derive(Debug, Clone, Copy, Default)]
struct Order {
    /// Grows whenever idle connections should make room.
    shed: u64,
    /// Finish the running request, then close.
    drain: bool,
}

/// Serves `listener` until `shutdown` resolves, then drains for at most [`AcceptLimits::drain`].
///
/// The service is cloned per request. An error of the service ends the connection.
pub async fn serve<S, B>(
    listener: TcpListener,
    service: S,
    limits: AcceptLimits,
    shutdown: impl Future<Output = ()>,
) -> ServeReport
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let limits = Arc::new(limits);
    let room = Arc::new(Semaphore::new(limits.connections));
    let (orders, order) = watch::channel(Order::default());
    let mut connections = JoinSet::new();
    let mut report = ServeReport::default();
    let mut shutdown = pin!(shutdown);
    loop {
        let next = async {
            let permit = match room.clone().try_acquire_owned() {
                Ok(permit) => permit,
                Err(_) => {
                    orders.send_modify(|order| order.shed += 1);
                    // Never closed, so never an error: an endless wait would be the right answer to one.
                    match room.clone().acquire_owned().await {
                        Ok(permit) => permit,
                        Err(_) => std::future::pending().await,
                    }
                }
            };
            let (stream, peer) = accept(&listener, &orders).await;
            (permit, stream, peer)
        };
        tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            (permit, stream, peer) = next => {
                report.accepted += 1;
                let served = connection(stream, peer, service.clone(), limits.clone(), order.clone());
                connections.spawn(async move {
                    served.await;
                    drop(permit);
                });
            }
        }
    }
    drop(listener);
    orders.send_modify(|order| order.drain = true);
    let deadline = Instant::now() + limits.drain;
    while let Ok(Some(_)) = timeout_at(deadline, connections.join_next()).await {}
    report.cut = connections.len();
    if report.cut > 0 {
        tracing::warn!(connections = report.cut, "drain limit reached: connections cut");
    }
    connections.shutdown().await;
    report
}

/// The next connection, however long it takes to get one.
async fn accept(listener: &TcpListener, orders: &watch::Sender<Order>) -> (TcpStream, SocketAddr) {
    let mut backoff = ACCEPT_BACKOFF_MIN;
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) if exhausted(&error) => {
                if backoff == ACCEPT_BACKOFF_MIN {
                    tracing::warn!(%error, "cannot accept connections for now");
                }
                orders.send_modify(|order| order.shed += 1);
                sleep(backoff).await;
                backoff = (backoff * 2).min(ACCEPT_BACKOFF_MAX);
            }
            // The client left before we came: not our trouble.
            Err(error) => tracing::debug!(%error, "accept failed"),
        }
    }
}

fn exhausted(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM | Errno::EPERM)
    )
}

async fn connection<S, B>(
    stream: TcpStream,
    peer: SocketAddr,
    service: S,
    limits: Arc<AcceptLimits>,
    mut order: watch::Receiver<Order>,
) where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible> + Clone,
    B: Body<Data = Bytes> + Unpin + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let talk = Arc::new(Talk::new());
    let wire = Wire::new(stream, talk.clone(), limits.clone());
    let mut builder = http1::Builder::new();
    builder
        // Time is kept by the wire and the body; hyper's own timer would not tell idling from a slow head.
        .header_read_timeout(None::<Duration>)
        .max_header_size(limits.header_bytes)
        .max_buf_size(limits.header_bytes.max(8192));
    if limits.header_count != crate::limits::HEADER_COUNT {
        // hyper's default is the same 100, on the stack.
        builder.max_headers(limits.header_count);
    }
    let in_flight = talk.clone();
    let mut served = pin!(builder.serve_connection(
        wire,
        service_fn(move |request| {
            // Now, not when the future is first polled: the wire may look at the next head before that.
            let ambiguous = talk.ambiguous.swap(false, Ordering::Relaxed);
            let flight = Flight::begin(talk.clone());
            guard::call(request, ambiguous, service.clone(), flight, limits.clone(), peer)
        }),
    ));
    let mut seen = *order.borrow_and_update();
    loop {
        tokio::select! {
            biased;
            ended = served.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, %peer, "connection ended");
                }
                return;
            }
            _ = order.changed() => {}
        }
        let now = *order.borrow_and_update();
        let shed = now.shed != seen.shed && !in_flight.in_flight.load(Ordering::Relaxed);
        if now.drain || shed {
            served.as_mut().graceful_shutdown();
        }
        seen = now;
    }
}
