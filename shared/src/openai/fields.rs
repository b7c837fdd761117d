//! Reads the fields of one JSON object by name, so that every refusal names its field.
//!
//! `null` counts as absent, because clients send it so. Unknown fields are nobody's business here: they stay unread.
//! Expects text that [`super::json::checked`] has passed.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::error::ApiError;

/// The unread fields of an object, and the path to it.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    values: HashMap<String, &'a RawValue>,
    path: String,
}

impl<'a> Fields<'a> {
    /// Reads an object. `path` is what leads to it, empty for the body itself.
    pub(super) fn parse(text: &'a str, path: &str) -> Result<Self, ApiError> {
        let values = serde_json::from_str(text).map_err(|_| wrong_type(path, "an object", text))?;
        Ok(Self { values, path: path.to_owned() })
    }

    /// The full name of a field, as `error.param` carries it.
    pub(super) fn param(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The text of a field that is present and not null.
    pub(super) fn raw(&self, name: &str) -> Option<&'a str> {
        self.values.get(name).map(|value| value.get()).filter(|text| *text != "null")
    }

    /// A field of a type that serde knows; `expected` says in words what it should be.
    pub(super) fn get<T: Deserialize<'a>>(
        &self,
        name: &str,
        expected: &str,
    ) -> Result<Option<T>, ApiError> {
        self.raw(name)
            .map(|text| {
                serde_json::from_str(text)
                    .map_err(|_| wrong_type(&self.param(name), expected, text))
            })
            .transpose()
    }

    /// A string.
    pub(super) fn string(&self, name: &str) -> Result<Option<String>, ApiError> {
        self.get(name, "a string")
    }

    /// A boolean.
    pub(super) fn flag(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.get(name, "a boolean")
    }

    /// A number within `range`.
    pub(super) fn number(
        &self,
        name: &str,
        range: RangeInclusive<f32>,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.get::<f64>(name, "a number")? else { return Ok(None) };
        // Compared before narrowing: 2.00000001 is not 2.
        if value >= f64::from(*range.start()) && value <= f64::from(*range.end()) {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "within an f32 range; rounding is meant"
            )]
            return Ok(Some(value as f32));
        }
        Err(self.out_of_range(name, &format!("between {} and {}", range.start(), range.end())))
    }

    /// An integer within `range`. `1.0` is not one: OpenAI refuses it too.
    pub(super) fn integer(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<i64>, ApiError> {
        let Some(text) = self.raw(name) else { return Ok(None) };
        let value: Option<i128> = serde_json::from_str::<i64>(text)
            .map(i128::from)
            .or_else(|_| serde_json::from_str::<u64>(text).map(i128::from))
            .ok();
        let Some(value) = value else {
            return Err(wrong_type(&self.param(name), "an integer", text));
        };
        i64::try_from(value).ok().filter(|value| range.contains(value)).map(Some).ok_or_else(|| {
            let bounds = match (*range.start(), *range.end()) {
                (start, i64::MAX) => format!("at least {start}"),
                (start, end) => format!("between {start} and {end}"),
            };
            self.out_of_range(name, &bounds)
        })
    }

    /// An integer within `range`, as a count.
    pub(super) fn count(
        &self,
        name: &str,
        range: RangeInclusive<i64>,
    ) -> Result<Option<usize>, ApiError> {
        Ok(self.integer(name, range)?.and_then(|value| usize::try_from(value).ok()))
    }

    /// The elements of an array, unread.
    pub(super) fn array(&self, name: &str) -> Result<Option<Vec<&'a str>>, ApiError> {
        let items: Option<Vec<&'a RawValue>> = self.get(name, "an array")?;
        Ok(items.map(|items| items.into_iter().map(RawValue::get).collect()))
    }

    fn out_of_range(&self, name: &str, bounds: &str) -> ApiError {
        let param = self.param(name);
        let message = format!("Invalid value for '{param}': it must be {bounds}.");
        ApiError::invalid(param, message).with_code("invalid_value")
    }
}

/// 400 for a value of the wrong type.
pub(super) fn wrong_type(param: &str, expected: &str, text: &str) -> ApiError {
    let got = match text.trim_start().as_bytes().first() {
        Some(b'{') => "an object",
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    };
    let got = if got == expected { "one of another form" } else { got };
    ApiError::invalid(
        param,
        format!("Invalid type for '{param}': expected {expected}, but got {got} instead."),
    )
    .with_code("invalid_type")
}

/// 400 for a required field that is absent.
pub(super) fn missing(param: &str) -> ApiError {
    ApiError::invalid(param, format!("Missing required parameter: '{param}'."))
        .with_code("missing_required_parameter")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Fields<'_> {
        Fields::parse(text, "").expect("an object")
    }

    #[test]
    fn null_is_absent() {
        let fields = fields(r#"{"a":null}"#);
        assert_eq!(fields.flag("a"), Ok(None));
        assert_eq!(fields.flag("b"), Ok(None));
    }

    #[test]
    fn types_are_named_in_words() {
        let error = fields(r#"{"t":"hot"}"#).number("t", 0.0..=2.0).expect_err("a string");
        assert_eq!(
            error.message,
            "Invalid type for 't': expected a number, but got a string instead."
        );
        assert_eq!(error.param.as_deref(), Some("t"));
    }

    #[test]
    fn ranges_are_closed_and_checked_before_narrowing() {
        let read = |text: &str| fields(&format!("{{\"t\":{text}}}")).number("t", 0.0..=2.0);
        assert_eq!(read("2"), Ok(Some(2.0)));
        assert_eq!(read("0"), Ok(Some(0.0)));
        assert!(read("2.000000001").is_err());
        assert!(read("-0.1").is_err());
    }

    #[test]
    fn integers_are_integers_and_huge_ones_are_out_of_range() {
        let read = |text: &str| fields(&format!("{{\"n\":{text}}}")).integer("n", 1..=16);
        assert_eq!(read("16"), Ok(Some(16)));
        for text in ["0", "17", "1000000000", "18446744073709551615"] {
            assert_eq!(
                read(text).map_err(|error| error.code),
                Err(Some("invalid_value")),
                "{text}"
            );
        }
        for text in ["1.0", "\"1\"", "true", "[1]"] {
            assert_eq!(read(text).map_err(|error| error.code), Err(Some("invalid_type")), "{text}");
        }
    }

    #[test]
    fn a_path_prefixes_the_name() {
        let nested = Fields::parse(r#"{"include_usage":1}"#, "stream_options").expect("an object");
        let error = nested.flag("include_usage").expect_err("a number");
        assert_eq!(error.param.as_deref(), Some("stream_options.include_usage"));
    }
}
