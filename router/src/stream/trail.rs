//! What became of the attempts, and what the caller is told when none gave an answer: a pure core.
//!
//! Owns how often a request is tried and the last word. It says how long to wait, and never where we asked.

use std::time::Duration;

use http::StatusCode;
use sanctum_shared::openai::error::{ApiError, RATE_LIMIT, RETRY_AFTER_MIN_S, SERVER_ERROR};

use crate::backend::failure::{Blame, Failure};

/// Most attempts that reach a backend.
const SENT: u32 = 3;
/// Most attempts in all; those that found no connection cost a backend nothing.
const TRIED: u32 = 8;

/// The attempts so far.
#[derive(Debug, Default)]
pub(crate) struct Trail {
    sent: u32,
    tried: u32,
    pressure: u32,
    rate_limited: bool,
    last: Option<Kind>,
    /// The shortest pause that a URL needs, as far as known.
    pause: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unreachable,
    Late,
    Broken,
}

impl Trail {
    /// Whether one more attempt is allowed.
    pub(crate) fn may_go_on(&self) -> bool {
        self.sent < SENT && self.tried < TRIED
    }

    /// Takes down a failure and how long its URL is to be left alone.
    pub(crate) fn add(&mut self, failure: &Failure, pause: Option<Duration>) {
        self.tried += 1;
        self.sent += u32::from(!failure.before_sending());
        self.pressure += u32::from(matches!(failure.blame(), Blame::Pressure(_)));
        self.rate_limited |=
            matches!(failure, Failure::Status { status: StatusCode::TOO_MANY_REQUESTS, .. });
        self.pause = [self.pause, pause].into_iter().flatten().min();
        self.last = Some(match failure {
            Failure::FirstToken(_) | Failure::Stall(_) | Failure::Deadline => Kind::Late,
            _ if failure.before_sending() => Kind::Unreachable,
            _ => Kind::Broken,
        });
    }

    /// Takes down requests of the last attempt that were sent again.
    pub(crate) fn resent(&mut self, times: u32) {
        self.sent += times;
    }

    /// What the caller is told. Where all that may be asked were asked and had the request, a client that repeats it by
    /// itself would only multiply the work: it is told not to.
    pub(crate) fn refusal(&self, seat: &str) -> ApiError {
        let seconds = self.pause.map_or(0, |pause| pause.as_secs_f64().ceil() as u32);
        let retry_after = Some(seconds.max(RETRY_AFTER_MIN_S));
        if self.tried > 0 && self.pressure == self.tried && self.rate_limited {
            let message =
                format!("All backends of seat `{seat}` are busy. Please try again later.");
            let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, RATE_LIMIT, message)
                .with_code("backends_busy");
            error.retry_after_s = retry_after;
            return error;
        }
        let (status, code, what) = match self.last {
            None => (503, "no_backend", "has no backend that is ready"),
            _ if self.pressure == self.tried => (503, "backends_busy", "is busy"),
            Some(Kind::Unreachable) => (503, "no_backend", "cannot reach any of its backends"),
            Some(Kind::Late) => {
                (504, "upstream_timeout", "got no answer from its backends in time")
            }
            Some(Kind::Broken) => (502, "upstream_error", "got no usable answer from its backends"),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let message = format!("Seat `{seat}` {what}. Please try again later.");
        let mut error = ApiError::new(status, SERVER_ERROR, message).with_code(code);
        error.retry_after_s = retry_after;
        if matches!(code, "upstream_timeout" | "upstream_error") {
            error = error.with_should_retry(false);
        }
        error
    }
}

/// The deadline of the whole request has passed.
pub(crate) fn too_late() -> ApiError {
    ApiError::new(
        StatusCode::GATEWAY_TIMEOUT,
        SERVER_ERROR,
        "The request took longer than allowed.",
    )
    .with_code("deadline_exceeded")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(status: u16, retry_after_s: Option<u64>) -> Failure {
        Failure::Status { status: StatusCode::from_u16(status).expect("a status"), retry_after_s }
    }

    fn said(failures: &[(Failure, Option<u64>)]) -> (u16, Option<u32>) {
        let mut trail = Trail::default();
        for (failure, pause) in failures {
            trail.add(failure, pause.map(Duration::from_secs));
        }
        let error = trail.refusal("coder");
        assert!(error.message.contains("`coder`"), "{error}");
        (error.status.as_u16(), error.retry_after_s)
    }

    #[test]
    fn the_last_word_is_honest() {
        let refused = || Failure::ConnectTimeout(Duration::from_secs(1));
        let late = || Failure::FirstToken(Duration::from_secs(1));
        assert_eq!(said(&[]), (503, Some(2)));
        assert_eq!(said(&[(refused(), Some(9)), (refused(), Some(4))]), (503, Some(4)));
        assert_eq!(said(&[(busy(429, Some(30)), Some(30))]), (429, Some(30)));
        assert_eq!(
            said(&[(busy(429, Some(30)), Some(30)), (busy(503, Some(8)), Some(8))]),
            (429, Some(8))
        );
        assert_eq!(said(&[(busy(503, Some(8)), Some(8))]), (503, Some(8)));
        assert_eq!(said(&[(busy(429, None), None), (busy(500, None), None)]), (502, Some(2)));
        assert_eq!(said(&[(Failure::Empty, None), (late(), None)]), (504, Some(2)));
    }

    #[test]
    fn clients_repeat_only_what_may_help() {
        let verdict = |failures: &[Failure]| {
            let mut trail = Trail::default();
            failures.iter().for_each(|failure| trail.add(failure, None));
            trail.refusal("coder").should_retry
        };
        assert_eq!(verdict(&[]), None);
        assert_eq!(verdict(&[busy(503, Some(8))]), None);
        assert_eq!(verdict(&[Failure::ConnectTimeout(Duration::ZERO)]), None);
        assert_eq!(verdict(&[busy(401, None)]), Some(false));
        assert_eq!(verdict(&[Failure::FirstToken(Duration::ZERO)]), Some(false));
    }

    #[test]
    fn a_request_sent_twice_counts_twice() {
        let mut trail = Trail::default();
        trail.add(&Failure::Cut(None), None);
        trail.resent(SENT - 1);
        assert!(!trail.may_go_on());
    }

    #[test]
    fn attempts_that_reach_nobody_are_cheap() {
        let mut trail = Trail::default();
        for _ in 0..TRIED - 1 {
            trail.add(&Failure::ConnectTimeout(Duration::ZERO), None);
            assert!(trail.may_go_on());
        }
        trail.add(&Failure::ConnectTimeout(Duration::ZERO), None);
        assert!(!trail.may_go_on());
        let mut trail = Trail::default();
        for _ in 0..SENT {
            assert!(trail.may_go_on());
            trail.add(&Failure::Empty, None);
        }
        assert!(!trail.may_go_on());
    }
}
