//! Admission: from bytes of a stranger to a request that may be routed.
//!
//! Owns what a body must be (size, encoding, JSON that every reader reads alike, a `model`, a Boolean `stream`), what
//! a seat changes in it, and the queue before a seat's slots. It keeps the text that it checked: what is forwarded is
//! what was looked at. Parameters are the backend's to judge.

mod members;
mod rewrite;
mod slots;

use std::error::Error as StdError;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http_body::Body;
use http_body_util::BodyExt as _;
use sanctum_shared::accept::BodyError;
use sanctum_shared::openai::error::ApiError;
use sanctum_shared::openai::json::{JsonLimits, checked};
use serde::de::IgnoredAny;
use serde_json::Value;

use members::{Members, Piece, first_element};
pub(crate) use rewrite::SeatText;
use rewrite::{Edit, apply};
pub(crate) use slots::{Capacity, Gate, Slot};

/// What a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Endpoint {
    Chat,
    Completions,
    Embeddings,
}

impl Endpoint {
    /// The path below a backend's base URL.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::Chat => "/chat/completions",
            Self::Completions => "/completions",
            Self::Embeddings => "/embeddings",
        }
    }

    /// Its name in metrics and logs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
        }
    }
}

/// How large and deep a body may be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimits {
    pub(crate) bytes: usize,
    pub(crate) json: JsonLimits,
}

/// A request whose body was checked whole.
#[derive(Debug, Clone)]
pub(crate) struct Admitted {
    pub(crate) endpoint: Endpoint,
    /// The seat, persona or second model that is asked for.
    pub(crate) model: String,
    pub(crate) stream: bool,
    /// Most tokens of a reply, if the caller said so.
    pub(crate) max_tokens: Option<u64>,
    /// Replies asked for.
    pub(crate) choices: u64,
    text: Bytes,
    model_span: Range<usize>,
    edits: Vec<Edit>,
}

impl Admitted {
    /// Checks `text` as the body of a request to `endpoint`.
    pub(crate) fn parse(
        endpoint: Endpoint,
        text: Bytes,
        limits: &JsonLimits,
    ) -> Result<Self, ApiError> {
        let whole = checked(&text, limits)?;
        let members = whole_members(whole)?;
        let model = members.get("model").filter(|model| !model.is_null());
        let model = model.ok_or_else(|| {
            ApiError::invalid("model", "`model` is required: name a seat (see /v1/models).")
                .with_code("missing_required_field")
        })?;
        let name: String =
            model.read().ok_or_else(|| ApiError::invalid("model", "`model` must be a string."))?;
        let stream = match members.get("stream") {
            None => false,
            Some(stream) => stream
                .read::<Option<bool>>()
                .ok_or_else(|| ApiError::invalid("stream", "`stream` must be true or false."))?
                .unwrap_or(false),
        };
        let number = |key: &str| members.get(key).and_then(Piece::read::<u64>);
        let prompts = match endpoint {
            Endpoint::Completions => {
                members.get("prompt").map_or(1, |prompt| prompts(whole, prompt))
            }
            Endpoint::Chat | Endpoint::Embeddings => 1,
        };
        Ok(Self {
            endpoint,
            model: name,
            stream: stream && endpoint != Endpoint::Embeddings,
            max_tokens: number("max_completion_tokens").or_else(|| number("max_tokens")),
            choices: number("n").unwrap_or(1).max(1).saturating_mul(prompts),
            model_span: model.span.clone(),
            edits: Vec::new(),
            text,
        })
    }

    /// Plans what the seat changes. A parameter that the seat sets counts as set by the caller from here on.
    pub(crate) fn dress(&mut self, seat: &SeatText) -> Result<(), ApiError> {
        if seat.is_empty() {
            return Ok(());
        }
        let text = self.text.clone();
        // Checked UTF-8 already, in `parse`.
        let whole = String::from_utf8_lossy(&text);
        let members = whole_members(&whole)?;
        self.edits = seat.edits(self.endpoint, &whole, &members)?;
        self.max_tokens = self.max_tokens.or(seat.max_tokens());
        Ok(())
    }

    /// The body for a backend that calls the model `model`; the caller's name for it if `None`.
    pub(crate) fn body_for(&self, model: Option<&str>) -> Bytes {
        match model.filter(|model| *model != self.model) {
            None => apply(&self.text, &self.edits, None),
            Some(model) => {
                let quoted = Value::from(model).to_string();
                apply(&self.text, &self.edits, Some((&self.model_span, &quoted)))
            }
        }
    }
}

/// How many prompts a `prompt` is: an array of strings or of token arrays is several, an array of tokens is one.
fn prompts(whole: &str, prompt: &Piece<'_>) -> u64 {
    match first_element(whole, prompt) {
        Some((Some(first), _)) if first.text.starts_with(['"', '[']) => {
            prompt.read::<Vec<IgnoredAny>>().map_or(1, |all| all.len() as u64)
        }
        _ => 1,
    }
}

fn whole_members(text: &str) -> Result<Members<'_>, ApiError> {
    Members::of_text(text)
        .ok_or_else(|| ApiError::bad_request("The request body must be a JSON object."))
}

/// Reads a body within the cap.
pub(crate) async fn read_body<B>(
    headers: &HeaderMap,
    mut body: B,
    limit_bytes: usize,
) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: StdError + 'static,
{
    if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err(ApiError::unsupported_media(
            "Compressed request bodies are not accepted: send it without Content-Encoding.",
        ));
    }
    let announced =
        headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: usize| length > limit_bytes) {
        return Err(ApiError::body_too_large(limit_bytes));
    }
    // Most bodies come in one piece, which then is not copied.
    let mut all = BytesMut::new();
    let mut only = Bytes::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&error))?;
        let Ok(data) = frame.into_data() else { continue };
        if only.len() + all.len() + data.len() > limit_bytes {
            return Err(ApiError::body_too_large(limit_bytes));
        }
        if all.is_empty() && only.is_empty() {
            only = data;
            continue;
        }
        if all.is_empty() {
            all.reserve(announced.unwrap_or(only.len() + data.len()));
            all.extend_from_slice(&std::mem::take(&mut only));
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { only } else { all.freeze() })
}

/// A body that did not come whole: late, or cut off.
fn broken(error: &(dyn StdError + 'static)) -> ApiError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if matches!(error.downcast_ref(), Some(BodyError::Timeout)) {
            return ApiError::request_timeout();
        }
        cause = error.source();
    }
    ApiError::bad_request("The request body is incomplete or badly framed.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use sanctum_shared::instance::Defaults;

    fn parse(text: &str) -> Result<Admitted, ApiError> {
        let text = Bytes::from(text.to_owned());
        Admitted::parse(Endpoint::Chat, text, &JsonLimits::default())
    }

    #[test]
    fn a_body_that_needs_nothing_is_forwarded_byte_by_byte() {
        let text = "{ \"model\" : \"coder\",\"x\": 1.50, \"messages\":[] }";
        let admitted = parse(text).expect("admitted");
        assert!(!admitted.stream && admitted.choices == 1);
        assert_eq!(admitted.body_for(None), text);
        assert_eq!(admitted.body_for(Some("coder")), text);
        assert_eq!(admitted.body_for(Some("m/\"7")), text.replace("\"coder\"", r#""m/\"7""#));
    }

    #[test]
    fn each_prompt_has_its_choices() {
        for (prompt, choices) in [
            (r#""a""#, 2),
            (r#"["a","b","c"]"#, 6),
            ("[1,2,3]", 2),
            ("[[1,2],[3]]", 4),
            ("[]", 2),
            ("null", 2),
        ] {
            let text = Bytes::from(format!(r#"{{"model":"a","n":2,"prompt":{prompt}}}"#));
            let limits = JsonLimits::default();
            let of = |endpoint| Admitted::parse(endpoint, text.clone(), &limits).expect("admitted");
            assert_eq!(of(Endpoint::Completions).choices, choices, "{prompt}");
            assert_eq!(of(Endpoint::Chat).choices, 2);
        }
    }

    #[test]
    fn faults_name_the_field() {
        for (text, param) in [
            ("{}", "model"),
            (r#"{"model":null}"#, "model"),
            (r#"{"model":7}"#, "model"),
            (r#"{"model":"a","stream":"yes"}"#, "stream"),
        ] {
            let refused = parse(text).expect_err(text);
            assert_eq!((refused.status.as_u16(), refused.param.as_deref()), (400, Some(param)));
        }
        for text in ["", "[]", "{\"model\":\"a\"", r#"{"model":"a","model":"b"}"#, r#"{"a":1e999}"#]
        {
            assert_eq!(parse(text).expect_err(text).status, 400);
        }
    }

    #[test]
    fn a_seats_limit_counts_as_the_callers() {
        let defaults = Defaults { max_tokens: Some(5), ..Defaults::default() };
        let seat = SeatText::new(&defaults, None);
        let mut admitted = parse(r#"{"model":"a","stream":null}"#).expect("admitted");
        admitted.dress(&seat).expect("dressed");
        assert_eq!(admitted.max_tokens, Some(5));
        assert_eq!(admitted.body_for(None), r#"{"max_tokens":5,"model":"a","stream":null}"#);
    }

    #[tokio::test]
    async fn bodies_have_a_cap_and_no_compression() {
        let body = || Full::new(Bytes::from_static(b"12345"));
        let mut headers = HeaderMap::new();
        assert_eq!(read_body(&headers, body(), 5).await.expect("fits"), "12345");
        assert_eq!(read_body(&headers, body(), 4).await.expect_err("too large").status, 413);
        headers.insert(CONTENT_LENGTH, 6.into());
        assert_eq!(read_body(&headers, body(), 5).await.expect_err("too large").status, 413);
        headers.insert(CONTENT_ENCODING, http::HeaderValue::from_static("gzip"));
        assert_eq!(read_body(&headers, body(), 9).await.expect_err("compressed").status, 415);
    }
}
