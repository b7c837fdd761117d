//! Why an attempt failed, and whose fault that is.
//!
//! Owns the classes of ROUTER's outcome table as far as an attempt can tell them. What it says is for logs and
//! metrics; callers never see it, since it may name addresses.

use std::error::Error as StdError;
use std::time::Duration;

use http::StatusCode;
use sanctum_shared::sse::SseError;

/// Any error below ours.
pub(crate) type Cause = Box<dyn StdError + Send + Sync>;

/// An attempt that gave the caller nothing, so that another may follow.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("no connection")]
    Connect(#[source] Cause),
    #[error("no connection within {} ms", .0.as_millis())]
    ConnectTimeout(Duration),
    #[error("the TLS handshake failed")]
    Tls(#[source] Cause),
    #[error("the connection ended before the answer")]
    Cut(#[source] Option<Cause>),
    #[error("no content within {} ms", .0.as_millis())]
    FirstToken(Duration),
    #[error("silence for {} ms within the answer", .0.as_millis())]
    Stall(Duration),
    #[error("answered {status}")]
    Status { status: StatusCode, retry_after_s: Option<u64> },
    #[error("an error inside of a good answer")]
    InBand,
    #[error("an answer without content")]
    Empty,
    /// The URL has no such path; it may well have others.
    #[error("answered {status}: no such endpoint")]
    NoEndpoint { status: StatusCode },
    /// Our own limit on the whole request, which says nothing about the backend.
    #[error("the time for the whole request was over")]
    Deadline,
    #[error("the event stream is malformed")]
    Stream(#[source] SseError),
    #[error("the answer is no JSON")]
    NotJson,
    #[error("the answer is larger than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
}

/// What a failure means for the URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blame {
    /// It is broken: the more in a row, the longer it is avoided.
    Hard,
    /// It is busy and says so; avoid it for this long.
    Pressure(Option<Duration>),
    /// It refuses us: its key, rights or model are wrong. Only an operator can mend that.
    Config,
    /// It did nothing wrong.
    Neutral,
}

impl Failure {
    pub(crate) fn blame(&self) -> Blame {
        match self {
            Self::Status { status: StatusCode::TOO_MANY_REQUESTS, retry_after_s } => {
                Blame::Pressure(retry_after_s.map(Duration::from_secs))
            }
            Self::Status {
                status: StatusCode::SERVICE_UNAVAILABLE,
                retry_after_s: Some(pause),
            } => Blame::Pressure(Some(Duration::from_secs(*pause))),
            Self::Status { status, .. } if refuses_us(*status) => Blame::Config,
            Self::NoEndpoint { .. } | Self::Deadline => Blame::Neutral,
            _ => Blame::Hard,
        }
    }

    /// Its name in metrics and logs.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Connect(_) => "connect",
            Self::ConnectTimeout(_) => "connect_timeout",
            Self::Tls(_) => "tls",
            Self::Cut(_) => "cut",
            Self::FirstToken(_) => "first_token_timeout",
            Self::Stall(_) => "stall",
            Self::Status { .. } if matches!(self.blame(), Blame::Pressure(_)) => "pressure",
            Self::Status { .. } if self.blame() == Blame::Config => "config",
            Self::Status { .. } => "status",
            Self::InBand => "error_event",
            Self::Empty => "empty",
            Self::NoEndpoint { .. } => "no_endpoint",
            Self::Deadline => "deadline",
            Self::Stream(_) | Self::NotJson => "malformed",
            Self::TooLarge { .. } => "too_large",
        }
    }

    /// Nothing of the request reached the backend: trying elsewhere costs nobody anything.
    pub(crate) fn before_sending(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::ConnectTimeout(_) | Self::Tls(_))
    }
}

/// Whether a status is the caller's own mistake, which any backend would refuse. Other 4xx are about us: our key, our
/// rights, our names, our haste.
pub(crate) fn is_callers_mistake(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::CONFLICT
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY
    )
}

/// Whether a status will be the same until somebody changes the backend or its settings.
fn refuses_us(status: StatusCode) -> bool {
    let passing = matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY);
    status.is_client_error() && !passing
}

/// Whether a connector's error comes from the TLS handshake.
pub(crate) fn connect_failure(cause: Cause) -> Failure {
    let mut inner: Option<&(dyn StdError + 'static)> = Some(&*cause);
    while let Some(error) = inner {
        // The handshake's error travels as an `io::Error` around it.
        let wrapped = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let wrapped = wrapped.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if error.is::<rustls::Error>() || wrapped.is_some() {
            return Failure::Tls(cause);
        }
        inner = error.source();
    }
    Failure::Connect(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(status: StatusCode, retry_after_s: Option<u64>) -> Failure {
        Failure::Status { status, retry_after_s }
    }

    #[test]
    fn busy_is_not_broken() {
        let pause = Some(Duration::from_secs(7));
        for (failure, blame) in [
            (status(StatusCode::TOO_MANY_REQUESTS, Some(7)), Blame::Pressure(pause)),
            (status(StatusCode::TOO_MANY_REQUESTS, None), Blame::Pressure(None)),
            (status(StatusCode::SERVICE_UNAVAILABLE, Some(7)), Blame::Pressure(pause)),
            (status(StatusCode::SERVICE_UNAVAILABLE, None), Blame::Hard),
            (status(StatusCode::BAD_GATEWAY, Some(7)), Blame::Hard),
            (Failure::Empty, Blame::Hard),
            (Failure::Deadline, Blame::Neutral),
            (Failure::NoEndpoint { status: StatusCode::NOT_FOUND }, Blame::Neutral),
        ] {
            assert_eq!(failure.blame(), blame, "{failure}");
        }
    }

    #[test]
    fn refusals_of_our_key_are_no_mistake_of_the_caller() {
        for (code, callers, blame) in [
            (400, true, Blame::Config),
            (401, false, Blame::Config),
            (402, false, Blame::Config),
            (403, false, Blame::Config),
            (404, false, Blame::Config),
            (408, false, Blame::Hard),
            (409, true, Blame::Config),
            (413, true, Blame::Config),
            (415, true, Blame::Config),
            (422, true, Blame::Config),
            (429, false, Blame::Pressure(None)),
        ] {
            let code = StatusCode::from_u16(code).expect("a status");
            assert_eq!(
                (is_callers_mistake(code), status(code, None).blame()),
                (callers, blame),
                "{code}"
            );
        }
    }

    #[test]
    fn a_handshake_error_is_found_inside_of_others() {
        let tls = rustls::Error::General("no".into());
        let wrapped = std::io::Error::other(tls);
        assert!(matches!(connect_failure(Box::new(wrapped)), Failure::Tls(_)));
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        assert!(matches!(connect_failure(Box::new(refused)), Failure::Connect(_)));
    }
}
