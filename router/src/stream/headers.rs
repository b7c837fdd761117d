//! Which headers cross the router, in either direction.
//!
//! Owns the list of those that do not: hop-by-hop ones, the caller's credentials, and what would tell a caller where
//! a backend lives. All others pass, known or not.

use http::header::{
    ACCEPT_ENCODING, ALT_SVC, AUTHORIZATION, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH,
    CONTENT_TYPE, COOKIE, DATE, EXPECT, FORWARDED, HOST, LOCATION, ORIGIN, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, REFERER, SERVER, SET_COOKIE, STRICT_TRANSPORT_SECURITY, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VIA, WWW_AUTHENTICATE,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use sanctum_shared::request_id;

use crate::metrics::Ticket;

/// The seat that answered.
pub(crate) const SEAT: HeaderName = HeaderName::from_static("x-sanctum-seat");
/// The backend that answered.
pub(crate) const BACKEND: HeaderName = HeaderName::from_static("x-sanctum-backend");
/// How many URLs were asked.
pub(crate) const ATTEMPTS: HeaderName = HeaderName::from_static("x-sanctum-attempts");

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

const HOP_BY_HOP: [HeaderName; 10] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
    CONTENT_LENGTH,
];

/// A client's headers that stay here: its credentials are for us, and a compressed answer could not be inspected.
const REQUEST_ONLY: [HeaderName; 13] = [
    HOST,
    AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    COOKIE,
    ACCEPT_ENCODING,
    CONTENT_ENCODING,
    EXPECT,
    ORIGIN,
    REFERER,
    FORWARDED,
    VIA,
    HeaderName::from_static("x-forwarded-for"),
];

/// A backend's headers that stay here: they describe its server, not the answer.
const RESPONSE_ONLY: [HeaderName; 10] = [
    SERVER,
    DATE,
    VIA,
    ALT_SVC,
    LOCATION,
    SET_COOKIE,
    STRICT_TRANSPORT_SECURITY,
    WWW_AUTHENTICATE,
    HeaderName::from_static("access-control-allow-origin"),
    request_id::HEADER,
];

/// What of a client's headers goes to a backend. The body is JSON, whatever it was called.
pub(crate) fn to_backend(mut headers: HeaderMap, id: HeaderValue) -> HeaderMap {
    strip(&mut headers, &REQUEST_ONLY);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(request_id::HEADER, id);
    headers
}

/// What of a backend's headers goes to a client.
pub(crate) fn to_client(mut headers: HeaderMap) -> HeaderMap {
    strip(&mut headers, &RESPONSE_ONLY);
    headers
}

/// Says on a reply who answered it, and after how many attempts.
pub(crate) fn sign(headers: &mut HeaderMap, ticket: &Ticket) {
    headers.insert(request_id::HEADER, ticket.id().header());
    for (name, value) in [(SEAT, Some(ticket.seat())), (BACKEND, ticket.backend())] {
        // Names of seats and backends are fit for headers: the instance sees to that.
        if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
            headers.insert(name, value);
        }
    }
    headers.insert(ATTEMPTS, HeaderValue::from(ticket.attempts()));
}

fn strip(headers: &mut HeaderMap, also: &[HeaderName]) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in HOP_BY_HOP.iter().chain(also).chain(&named) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair =
            |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_callers_key_does_not_travel_and_unknown_headers_do() {
        let headers = map(&[
            ("authorization", "Bearer secret"),
            ("x-api-key", "secret"),
            ("connection", "close, X-Hop"),
            ("x-hop", "1"),
            ("content-length", "7"),
            ("content-type", "text/plain"),
            ("x-session-id", "s"),
        ]);
        let sent = to_backend(headers, HeaderValue::from_static("req_1"));
        let expected = map(&[
            ("content-type", "application/json"),
            ("x-session-id", "s"),
            ("x-request-id", "req_1"),
        ]);
        assert_eq!(sent, expected);
    }

    #[test]
    fn a_backends_whereabouts_do_not_travel() {
        let headers = map(&[
            ("server", "uvicorn"),
            ("location", "http://10.0.0.7/"),
            ("transfer-encoding", "chunked"),
            ("content-type", "text/event-stream"),
            ("x-ratelimit-remaining", "3"),
        ]);
        let expected =
            map(&[("content-type", "text/event-stream"), ("x-ratelimit-remaining", "3")]);
        assert_eq!(to_client(headers), expected);
    }
}
