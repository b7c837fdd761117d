//! How a reply is to be decoded: the parameters that chat and text completions share, checked for range.
//!
//! Absent stays absent: defaults are the checkpoint's or the seat's business, not the wire's.

use serde_json::{Map, Value};

use super::error::ApiError;
use super::fields::{Fields, wrong_type};

/// Most choices one prompt may ask for.
pub const MAX_CHOICES: i64 = 16;
/// Most stop strings, and most stop token ids.
pub const MAX_STOPS: usize = 16;
/// Longest stop string, in bytes: what the stream may have to hold back.
pub const MAX_STOP_BYTES: usize = 1024;
/// Most alternatives reported per token.
pub const MAX_TOP_LOGPROBS: i64 = 20;
/// Most entries of `logit_bias`.
pub const MAX_LOGIT_BIAS: usize = 4096;

/// The decoding parameters of a request, as sent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decoding {
    /// `max_completion_tokens`, or `max_tokens` where only that is sent.
    pub max_tokens: Option<usize>,
    /// 0 (greedy) to 2.
    pub temperature: Option<f32>,
    /// 0 to 1: nucleus mass.
    pub top_p: Option<f32>,
    /// Candidates kept; 0 for all (`-1` on the wire means that too).
    pub top_k: Option<usize>,
    /// 0 to 1: smallest probability relative to the best.
    pub min_p: Option<f32>,
    /// Above 0, to 10; 1 is none.
    pub repetition_penalty: Option<f32>,
    /// -2 to 2.
    pub frequency_penalty: Option<f32>,
    /// -2 to 2.
    pub presence_penalty: Option<f32>,
    /// Token id and what is added to its logit (-100 to 100), in the order sent.
    pub logit_bias: Vec<(u32, f32)>,
    /// Any 64-bit integer, its bits kept.
    pub seed: Option<u64>,
    /// Stop strings, none of them empty.
    pub stop: Vec<String>,
    /// Token ids that end the reply besides the checkpoint's own.
    pub stop_token_ids: Vec<u32>,
    /// Decode on past the checkpoint's own end tokens.
    pub ignore_eos: bool,
    /// Choices per prompt, 1 to [`MAX_CHOICES`].
    pub n: usize,
    /// Send the reply as server-sent events.
    pub stream: bool,
    /// Send usage as the last event of a stream.
    pub include_usage: bool,
}

impl Decoding {
    /// Reads and checks the shared parameters.
    pub(super) fn parse(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let tokens = |name| fields.count(name, 1..=i64::from(u32::MAX));
        let (completion, legacy) = (tokens("max_completion_tokens")?, tokens("max_tokens")?);
        let top_k = fields.integer("top_k", -1..=i64::from(u32::MAX))?;
        let include_usage = match fields.raw("stream_options") {
            Some(text) => Fields::parse(text, "stream_options")?.flag("include_usage")?,
            None => None,
        };
        refuse_formats(fields)?;
        Ok(Self {
            max_tokens: completion.or(legacy),
            temperature: fields.number("temperature", 0.0..=2.0)?,
            top_p: fields.number("top_p", 0.0..=1.0)?,
            top_k: top_k.map(|k| usize::try_from(k).unwrap_or(0)),
            min_p: fields.number("min_p", 0.0..=1.0)?,
            repetition_penalty: fields.number("repetition_penalty", f32::EPSILON..=10.0)?,
            frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
            presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
            logit_bias: logit_bias(fields)?,
            seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(i64::cast_unsigned),
            stop: stop(fields)?,
            stop_token_ids: stop_token_ids(fields)?,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            n: fields.count("n", 1..=MAX_CHOICES)?.unwrap_or(1),
            stream: fields.flag("stream")?.unwrap_or(false),
            include_usage: include_usage.unwrap_or(false),
        })
    }
}

/// A reply format that we cannot enforce is refused: ignoring it would hand a parser free text.
fn refuse_formats(fields: &Fields<'_>) -> Result<(), ApiError> {
    let Some(text) = fields.raw("response_format") else { return Ok(()) };
    let format = Fields::parse(text, "response_format")?;
    match format.string("type")?.as_deref() {
        Some("text") => Ok(()),
        Some("json_object" | "json_schema") => Err(ApiError::unsupported(
            "response_format",
            "'response_format' of type 'json_object' or 'json_schema' is not available in this version; only 'text' is.",
        )),
        _ => Err(ApiError::invalid(
            "response_format.type",
            "Invalid value for 'response_format.type': it must be 'text', 'json_object' or 'json_schema'.",
        )
        .with_code("invalid_value")),
    }
}

fn stop(fields: &Fields<'_>) -> Result<Vec<String>, ApiError> {
    let Some(text) = fields.raw("stop") else { return Ok(Vec::new()) };
    let stops = if text.starts_with('[') {
        fields.get::<Vec<String>>("stop", "a string or an array of strings")?.unwrap_or_default()
    } else {
        fields.get("stop", "a string or an array of strings")?.into_iter().collect()
    };
    let refuse =
        |message: String| Err(ApiError::invalid("stop", message).with_code("invalid_value"));
    if stops.len() > MAX_STOPS {
        return refuse(format!("Invalid value for 'stop': at most {MAX_STOPS} strings."));
    }
    if stops.iter().any(|stop| stop.is_empty() || stop.len() > MAX_STOP_BYTES) {
        return refuse(format!(
            "Invalid value for 'stop': each string must have between 1 and {MAX_STOP_BYTES} bytes."
        ));
    }
    Ok(stops)
}

fn stop_token_ids(fields: &Fields<'_>) -> Result<Vec<u32>, ApiError> {
    let ids: Vec<u32> = fields.get("stop_token_ids", "an array of token ids")?.unwrap_or_default();
    if ids.len() > MAX_STOPS {
        let message = format!("Invalid value for 'stop_token_ids': at most {MAX_STOPS} ids.");
        return Err(ApiError::invalid("stop_token_ids", message).with_code("invalid_value"));
    }
    Ok(ids)
}

fn logit_bias(fields: &Fields<'_>) -> Result<Vec<(u32, f32)>, ApiError> {
    const NAME: &str = "logit_bias";
    let Some(entries) = fields.get::<Map<String, Value>>(NAME, "an object")? else {
        return Ok(Vec::new());
    };
    let refuse = |param: String, message: String| {
        Err(ApiError::invalid(param, message).with_code("invalid_value"))
    };
    if entries.len() > MAX_LOGIT_BIAS {
        return refuse(
            NAME.into(),
            format!("Invalid value for '{NAME}': at most {MAX_LOGIT_BIAS} entries."),
        );
    }
    let mut biases = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let Ok(id) = key.parse::<u32>() else {
            return refuse(
                NAME.into(),
                format!("Invalid value for '{NAME}': its keys must be token ids."),
            );
        };
        let param = format!("{NAME}.{id}");
        let Some(bias) = value.as_f64() else {
            return Err(wrong_type(&param, "a number", &value.to_string()));
        };
        if !(-100.0..=100.0).contains(&bias) {
            let message = format!("Invalid value for '{param}': it must be between -100 and 100.");
            return refuse(param, message);
        }
        #[expect(clippy::cast_possible_truncation, reason = "within ±100; rounding is meant")]
        biases.push((id, bias as f32));
    }
    Ok(biases)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Decoding, ApiError> {
        Decoding::parse(&Fields::parse(text, "")?)
    }

    #[test]
    fn nothing_sent_is_nothing_set() {
        assert_eq!(parse("{}"), Ok(Decoding { n: 1, ..Decoding::default() }));
    }

    #[test]
    fn the_newer_name_of_max_tokens_wins() {
        let tokens = |text: &str| parse(text).map(|decoding| decoding.max_tokens);
        assert_eq!(tokens(r#"{"max_tokens":5}"#), Ok(Some(5)));
        assert_eq!(tokens(r#"{"max_completion_tokens":6}"#), Ok(Some(6)));
        assert_eq!(tokens(r#"{"max_tokens":5,"max_completion_tokens":6}"#), Ok(Some(6)));
    }

    #[test]
    fn stop_is_a_string_or_an_array() {
        let stops = |text: &str| parse(text).map(|decoding| decoding.stop);
        assert_eq!(stops(r#"{"stop":"a"}"#), Ok(vec!["a".to_owned()]));
        assert_eq!(stops(r#"{"stop":["a","b"]}"#), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(stops(r#"{"stop":[]}"#), Ok(vec![]));
        assert_eq!(stops(r#"{"stop":null}"#), Ok(vec![]));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let seventeen = format!("{{\"stop\":{:?}}}", vec!["x"; 17]);
        let cases = [
            (r#"{"temperature":2.1}"#, "temperature"),
            (r#"{"temperature":"1"}"#, "temperature"),
            (r#"{"n":1000000000}"#, "n"),
            (r#"{"n":0}"#, "n"),
            (r#"{"top_p":-0.1}"#, "top_p"),
            (r#"{"top_k":-2}"#, "top_k"),
            (r#"{"max_tokens":0}"#, "max_tokens"),
            (r#"{"max_tokens":1.5}"#, "max_tokens"),
            (r#"{"stop":""}"#, "stop"),
            (r#"{"stop":[1]}"#, "stop"),
            (&seventeen, "stop"),
            (r#"{"logit_bias":{"x":1}}"#, "logit_bias"),
            (r#"{"logit_bias":{"7":101}}"#, "logit_bias.7"),
            (r#"{"logit_bias":{"7":"1"}}"#, "logit_bias.7"),
            (r#"{"stream_options":{"include_usage":"yes"}}"#, "stream_options.include_usage"),
            (r#"{"stream_options":true}"#, "stream_options"),
            (r#"{"response_format":{"type":"json_object"}}"#, "response_format"),
            (r#"{"response_format":{"type":"xml"}}"#, "response_format.type"),
            (r#"{"repetition_penalty":0}"#, "repetition_penalty"),
            (r#"{"seed":1.5}"#, "seed"),
            (r#"{"stop_token_ids":[-1]}"#, "stop_token_ids"),
        ];
        for (text, param) in cases {
            let error = parse(text).expect_err(text);
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (400, Some(param)),
                "{text}"
            );
        }
    }

    #[test]
    fn what_clients_send_for_off_is_off() {
        let decoding =
            parse(r#"{"top_k":-1,"response_format":{"type":"text"},"logit_bias":{},"seed":-1}"#);
        let expected =
            Decoding { top_k: Some(0), seed: Some(u64::MAX), n: 1, ..Decoding::default() };
        assert_eq!(decoding, Ok(expected));
    }
}
