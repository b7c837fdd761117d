//! Keeps web pages out of the admin listener.
//!
//! A page in a browser on this machine can reach loopback. It cannot hide its `Origin`, and a name that it has
//! rebound to 127.0.0.1 shows in `Host`; both are refused. Operators' tools send neither.

use std::net::IpAddr;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::Response;
use http::header::{HOST, ORIGIN};
use http::uri::Authority;
use http::{HeaderMap, StatusCode};
use sanctum_shared::openai::error::{ApiError, INVALID_REQUEST};

pub(super) async fn refuse_browsers(request: Request, next: Next) -> Response {
    if let Some(why) = objection(request.headers()) {
        let error = ApiError::new(StatusCode::FORBIDDEN, INVALID_REQUEST, why);
        return error.into_response().map(Body::new);
    }
    next.run(request).await
}

fn objection(headers: &HeaderMap) -> Option<&'static str> {
    if headers.contains_key(ORIGIN) {
        return Some("The admin listener does not answer web pages.");
    }
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    (!is_loopback(host)).then_some("The admin listener answers to loopback addresses only.")
}

fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn asked(host: &'static str, origin: Option<&'static str>) -> Option<&'static str> {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static(host));
        if let Some(origin) = origin {
            headers.insert(ORIGIN, HeaderValue::from_static(origin));
        }
        objection(&headers)
    }

    #[test]
    fn loopback_names_pass() {
        for host in ["127.0.0.1:8901", "localhost:8901", "[::1]:8901", "127.3.2.1"] {
            assert_eq!(asked(host, None), None, "{host}");
        }
    }

    #[test]
    fn pages_and_rebound_names_do_not() {
        for host in ["evil.example:8901", "192.168.1.5:8901", "", "127.0.0.1.evil.example"] {
            assert!(asked(host, None).is_some(), "{host}");
        }
        assert!(asked("127.0.0.1:8901", Some("http://127.0.0.1:8901")).is_some());
    }
}
