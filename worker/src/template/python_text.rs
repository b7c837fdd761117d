//! Values as Python prints them: `str` and `repr`.
//!
//! Templates that print a list or a flag without `tojson` were written, and models trained, on what Python made of it.

use std::fmt::Write;

use serde_json::Value;

use super::python_json::python_float;

/// `str(value)`: text as it is, all else as [`repr`].
pub(super) fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => repr(other),
    }
}

/// `repr(value)`.
pub(super) fn repr(value: &Value) -> String {
    let mut out = String::new();
    write_repr(&mut out, value);
    out
}

fn write_repr(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => out.push_str(&python_float(float)),
            _ => out.push_str(&number.to_string()),
        },
        Value::String(text) => write_quoted(out, text),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                separate(out, index);
                write_repr(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (index, (key, value)) in map.iter().enumerate() {
                separate(out, index);
                write_quoted(out, key);
                out.push_str(": ");
                write_repr(out, value);
            }
            out.push('}');
        }
    }
}

fn separate(out: &mut String, index: usize) {
    if index > 0 {
        out.push_str(", ");
    }
}

/// In single quotes, or in double ones where that saves escapes, as Python chooses.
fn write_quoted(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if c.is_control() => {
                // Control characters are below U+00A0. Writing to a string does not fail.
                let _ = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push(quote);
}

/// Jinja's `indent`: `width` spaces before every line but the first (`first`) and empty ones (`blank`).
pub(super) fn indent(text: &str, width: usize, first: bool, blank: bool) -> String {
    let spaces = " ".repeat(width);
    let mut out = String::with_capacity(text.len());
    for (index, line) in text.split('\n').enumerate() {
        if index > 0 {
            out.push('\n');
        }
        if (index == 0 && first) || (index > 0 && (blank || !line.is_empty())) {
            out.push_str(&spaces);
        }
        out.push_str(line);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_look_like_pythons() {
        // Expectations from CPython's str.
        for (value, expected) in [
            (json!("a'b"), "a'b"),
            (json!(["integer", null, true, 1.0, 2]), "['integer', None, True, 1.0, 2]"),
            (json!({"a": {"b": []}, "c": {}}), "{'a': {'b': []}, 'c': {}}"),
            (json!(["it's", "say \"x\"", "both '\""]), r#"["it's", 'say "x"', 'both \'"']"#),
            (json!(["a\n\t\\\u{1}é"]), "['a\\n\\t\\\\\\x01é']"),
        ] {
            assert_eq!(text(&value), expected);
        }
    }

    #[test]
    fn indents_like_jinja() {
        // Expectations from jinja2's `indent`.
        assert_eq!(indent("a\nb\n\nc", 2, false, false), "a\n  b\n\n  c");
        assert_eq!(indent("{\n", 4, true, false), "    {\n");
        assert_eq!(indent("a\n\nb", 1, true, true), " a\n \n b");
    }
}
