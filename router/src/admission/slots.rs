//! A seat's slots, and the bounded queue before them.
//!
//! Owns how many requests of a seat run at once, how many may wait and for how long, and the estimate behind every
//! `Retry-After`. A place in either is given back by dropping it: nothing leaks when a client leaves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sanctum_shared::openai::error::{ApiError, RETRY_AFTER_MAX_S, RETRY_AFTER_MIN_S};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Weight of the newest request in the mean duration.
const NEWEST: f64 = 0.1;

/// How many may run and wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capacity {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
}

/// The door of one seat.
#[derive(Debug)]
pub(crate) struct Gate {
    capacity: Capacity,
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Mean duration of finished requests, in seconds.
    mean_s: Mutex<f64>,
}

/// The right to run.
#[derive(Debug)]
pub(crate) struct Slot {
    gate: Arc<Gate>,
    since: Instant,
    _permit: OwnedSemaphorePermit,
}

struct Place<'a>(&'a AtomicUsize);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gate {
    pub(crate) fn new(capacity: Capacity) -> Arc<Self> {
        let free = Arc::new(Semaphore::new(capacity.running));
        Arc::new(Self { capacity, free, waiting: AtomicUsize::new(0), mean_s: Mutex::new(0.0) })
    }

    /// Waits for a slot until `deadline`, behind those who came before.
    ///
    /// # Errors
    /// 429 at once if the queue is full, 503 if the deadline passes; both say when to come again.
    pub(crate) async fn enter(self: &Arc<Self>, deadline: Instant) -> Result<Slot, ApiError> {
        if let Ok(permit) = self.free.clone().try_acquire_owned() {
            return Ok(self.slot(permit));
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= self.capacity.waiting {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(ApiError::queue_full(self.retry_after_s()));
        }
        let _place = Place(&self.waiting);
        match timeout_at(deadline, self.free.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(self.slot(permit)),
            Ok(Err(_)) | Err(_) => Err(ApiError::unavailable(
                "queue_timeout",
                "The request waited too long for a free slot. Please try again later.",
                Some(self.retry_after_s()),
            )),
        }
    }

    /// Requests that wait now.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(crate) fn running(&self) -> usize {
        self.capacity.running - self.free.available_permits()
    }

    fn slot(self: &Arc<Self>, permit: OwnedSemaphorePermit) -> Slot {
        Slot { gate: self.clone(), since: Instant::now(), _permit: permit }
    }

    fn retry_after_s(&self) -> u32 {
        let mean = *self.mean_s.lock().unwrap_or_else(PoisonError::into_inner);
        estimate_s(mean, self.waiting(), self.capacity.running)
    }

    fn finished(&self, took: Duration) {
        let mut mean = self.mean_s.lock().unwrap_or_else(PoisonError::into_inner);
        let took = took.as_secs_f64();
        *mean = if *mean == 0.0 { took } else { *mean + NEWEST * (took - *mean) };
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gate.finished(self.since.elapsed());
    }
}

/// Seconds until one more request would get its turn.
fn estimate_s(mean_s: f64, waiting: usize, running: usize) -> u32 {
    let turns = (waiting as f64 + 1.0) / running.max(1) as f64;
    let wait = (mean_s * turns).ceil();
    (wait.min(f64::from(RETRY_AFTER_MAX_S)) as u32).clamp(RETRY_AFTER_MIN_S, RETRY_AFTER_MAX_S)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[tokio::test]
    async fn slots_then_queue_then_refusal() {
        let gate = Gate::new(Capacity { running: 1, waiting: 1 });
        let first = gate.enter(soon()).await.expect("a free slot");
        let second = tokio::spawn({
            let gate = gate.clone();
            async move { gate.enter(soon()).await }
        });
        while gate.waiting() == 0 {
            tokio::task::yield_now().await;
        }
        let refused = gate.enter(soon()).await.expect_err("the queue is full");
        assert_eq!((refused.status.as_u16(), refused.retry_after_s), (429, Some(2)));
        drop(first);
        let second = second.await.expect("no panic").expect("its turn");
        assert_eq!((gate.running(), gate.waiting()), (1, 0));
        drop(second);
        assert_eq!(gate.running(), 0);
    }

    #[tokio::test]
    async fn waiting_ends_at_the_deadline_and_by_leaving() {
        let gate = Gate::new(Capacity { running: 1, waiting: 4 });
        let _first = gate.enter(soon()).await.expect("a free slot");
        let refused = gate.enter(Instant::now()).await.expect_err("too late");
        assert_eq!((refused.status.as_u16(), refused.code), (503, Some("queue_timeout")));
        let mut leaving = Box::pin(gate.enter(soon()));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(leaving.as_mut().poll(&mut cx).is_pending());
        assert_eq!(gate.waiting(), 1);
        drop(leaving);
        assert_eq!(gate.waiting(), 0);
    }

    proptest! {
        #[test]
        fn clients_are_told_a_wait_that_they_obey(mean in 0.0..1e9f64, waiting in 0usize..100_000, running in 0usize..64) {
            let s = estimate_s(mean, waiting, running);
            prop_assert!((2..=120).contains(&s));
            prop_assert!(estimate_s(mean, waiting + 1, running) >= s);
        }
    }
}
