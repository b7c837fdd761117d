//! A timer for deadlines that move: made when first needed, touched only when it fires at the wrong time.
//!
//! Owns one `tokio` sleep. A deadline that moves on with every byte costs nothing until the old one has passed.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep, sleep_until};

/// A timer whose deadline is given at each poll.
#[derive(Debug, Default)]
pub struct MovingTimer(Option<Pin<Box<Sleep>>>);

impl MovingTimer {
    /// Ready once `deadline` has passed. Between polls it may wake the task early, never late, for the deadline given last.
    pub fn poll(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        let sleep = self.0.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
        if sleep.deadline() > deadline {
            sleep.as_mut().reset(deadline);
        }
        while sleep.as_mut().poll(cx).is_ready() {
            if sleep.deadline() >= deadline {
                return Poll::Ready(());
            }
            sleep.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::time::Duration;

    #[tokio::test]
    async fn the_last_deadline_counts() {
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let mut timer = MovingTimer::default();
        // Later than first said.
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            timer.poll(if polls == 1 { at(5) } else { at(60) }, cx)
        })
        .await;
        assert!(began.elapsed() >= Duration::from_millis(60));
        // Sooner than first said.
        let mut polls = 0;
        poll_fn(|cx| {
            polls += 1;
            if polls == 1 {
                assert!(timer.poll(at(3_600_000), cx).is_pending());
            }
            timer.poll(at(70), cx)
        })
        .await;
        assert!((70..60_000).contains(&began.elapsed().as_millis()));
    }
}
