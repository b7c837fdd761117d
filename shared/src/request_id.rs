//! The name of a request, from end to end: taken over from the client if it is harmless, made otherwise.
//!
//! It appears in headers and logs, so it refuses everything but letters, digits and `-_.:` and bounds the length.

use std::fmt;

use http::{HeaderMap, HeaderName, HeaderValue};
use uuid::Uuid;

use crate::limits::REQUEST_ID_BYTES;

/// The header that carries it.
pub const HEADER: HeaderName = HeaderName::from_static("x-request-id");

/// The name of a request.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// The client's own name for the request, or else a new one made from `fresh`.
    pub fn from_headers(headers: &HeaderMap, fresh: impl FnOnce() -> Uuid) -> Self {
        let kept = headers.get(HEADER).filter(|value| harmless(value.as_bytes()));
        kept.map_or_else(|| Self::from_uuid(fresh()), |value| Self(value.clone()))
    }

    /// As [`RequestId::from_headers`], with a time-ordered UUID as the new name.
    pub fn of(headers: &HeaderMap) -> Self {
        Self::from_headers(headers, Uuid::now_v7)
    }

    /// `req_` and 32 hexadecimal digits.
    pub fn from_uuid(uuid: Uuid) -> Self {
        let mut text = [0; 4 + uuid::fmt::Simple::LENGTH];
        text[..4].copy_from_slice(b"req_");
        uuid.simple().encode_lower(&mut text[4..]);
        let value = HeaderValue::from_bytes(&text);
        Self(value.unwrap_or_else(|_| HeaderValue::from_static("req_0")))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// As the value of [`HEADER`].
    pub fn header(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn harmless(name: &[u8]) -> bool {
    let allowed = |b: &u8| b.is_ascii_alphanumeric() || b"-_.:".contains(b);
    (1..=REQUEST_ID_BYTES).contains(&name.len()) && name.iter().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_for(sent: &str) -> RequestId {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_str(sent).expect("a header value"));
        RequestId::from_headers(&headers, || Uuid::from_u128(7))
    }

    #[test]
    fn a_harmless_name_is_kept() {
        assert_eq!(id_for("trace-1_a.b:c").as_str(), "trace-1_a.b:c");
    }

    #[test]
    fn anything_else_is_replaced() {
        let made = "req_00000000000000000000000000000007";
        for bad in ["", "two words", "<script>", "a\"b", &"x".repeat(REQUEST_ID_BYTES + 1)] {
            assert_eq!(id_for(bad).as_str(), made, "{bad:?}");
        }
    }

    #[test]
    fn made_names_differ() {
        let none = HeaderMap::new();
        assert_ne!(RequestId::of(&none), RequestId::of(&none));
    }
}
