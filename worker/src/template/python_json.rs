//! JSON as Python's `json.dumps` writes it.
//!
//! Checkpoints were trained on prompts in which tools were printed so: `", "` and `": "` between things, no HTML
//! escapes, floats in Python's form. A prompt that differs by a space is another prompt.

use std::fmt::Write;

use serde_json::Value;

/// How to write; the defaults are those of `apply_chat_template`'s `tojson`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Style {
    /// `indent`: spaces per level, each item on a line of its own.
    pub(super) indent: Option<usize>,
    /// `ensure_ascii`: escape everything beyond ASCII.
    pub(super) ensure_ascii: bool,
    /// `sort_keys`.
    pub(super) sort_keys: bool,
    /// `separators`: between items, and between key and value.
    pub(super) separators: Option<(String, String)>,
}

/// The JSON text of `value`.
pub(super) fn dumps(value: &Value, style: &Style) -> String {
    let (item, key) = match &style.separators {
        Some((item, key)) => (item.as_str(), key.as_str()),
        None if style.indent.is_some() => (",", ": "),
        None => (", ", ": "),
    };
    let mut writer = Writer { out: String::new(), style, item, key, level: 0 };
    writer.value(value);
    writer.out
}

struct Writer<'a> {
    out: String,
    style: &'a Style,
    item: &'a str,
    key: &'a str,
    level: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(true) => self.out.push_str("true"),
            Value::Bool(false) => self.out.push_str("false"),
            Value::Number(number) => match number.as_f64() {
                Some(float) if number.is_f64() => self.out.push_str(&python_float(float)),
                _ => self.out.push_str(&number.to_string()),
            },
            Value::String(text) => self.string(text),
            Value::Array(items) => {
                self.items('[', ']', items.iter(), Self::value);
            }
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.style.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.items('{', '}', entries.into_iter(), |writer, (key, value)| {
                    writer.string(key);
                    writer.out.push_str(writer.key);
                    writer.value(value);
                });
            }
        }
    }

    fn items<T>(
        &mut self,
        open: char,
        close: char,
        items: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.out.push(open);
        let any = items.len() > 0;
        self.level += 1;
        for (index, item) in items.enumerate() {
            if index > 0 {
                self.out.push_str(self.item);
            }
            self.line();
            write(self, item);
        }
        self.level -= 1;
        if any {
            self.line();
        }
        self.out.push(close);
    }

    fn line(&mut self) {
        if let Some(indent) = self.style.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(' ', indent * self.level));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if c < ' ' || (self.style.ensure_ascii && !(' '..='~').contains(&c)) => {
                    self.escape(c);
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    fn escape(&mut self, c: char) {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(self.out, "\\u{unit:04x}");
        }
    }
}

/// A float as Python's `repr` writes it: shortest digits, exponent from 1e16 and below 1e-4, of two digits at least.
pub(super) fn python_float(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) =
        exponent.strip_prefix('-').map_or(("+", exponent), |exponent| ("-", exponent));
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn spaces_stand_where_python_puts_them() {
        let value = json!({"b": [1, 2.0, null, true], "a": {"x": "é<>&'"}, "e": [], "o": {}});
        assert_eq!(
            dumps(&value, &Style::default()),
            r#"{"b": [1, 2.0, null, true], "a": {"x": "é<>&'"}, "e": [], "o": {}}"#
        );
    }

    #[test]
    fn every_option_does_what_pythons_does() {
        let value = json!({"b": ["é😀"], "a": 1});
        let ascii = Style { ensure_ascii: true, ..Style::default() };
        assert_eq!(dumps(&value, &ascii), r#"{"b": ["\u00e9\ud83d\ude00"], "a": 1}"#);
        let sorted = Style { sort_keys: true, ..Style::default() };
        assert_eq!(dumps(&value, &sorted), r#"{"a": 1, "b": ["é😀"]}"#);
        let compact = Style { separators: Some((",".into(), ":".into())), ..Style::default() };
        assert_eq!(dumps(&value, &compact), r#"{"b":["é😀"],"a":1}"#);
        let indented = Style { indent: Some(2), ..Style::default() };
        assert_eq!(dumps(&value, &indented), "{\n  \"b\": [\n    \"é😀\"\n  ],\n  \"a\": 1\n}");
    }

    #[test]
    fn control_characters_are_escaped() {
        let value = json!("a\"\\\n\r\t\u{8}\u{c}\u{1}\u{7f}");
        let expected = "\"a\\\"\\\\\\n\\r\\t\\b\\f\\u0001\u{7f}\"";
        assert_eq!(dumps(&value, &Style::default()), expected);
    }

    #[test]
    fn floats_look_like_pythons() {
        // Expectations from CPython's repr.
        for (value, expected) in [
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (1e-4, "0.0001"),
            (1e-5, "1e-05"),
            (-2.5e-7, "-2.5e-07"),
        ] {
            assert_eq!(python_float(value), expected);
        }
    }
}
