//! The Jinja environment of transformers' `apply_chat_template`, rebuilt on minijinja.
//!
//! Owns the functions and filters that templates of HF checkpoints expect, Python's way of printing, and the limits
//! that keep a template from eating the machine. String doubling cannot be limited from here (minijinja counts steps,
//! not bytes), which is why templates come from checkpoints only and never from requests.

use std::fmt;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};
use sanctum_shared::openai::timestamp::Civil;

use super::python_json::{Style, dumps};
use super::python_text;
use super::strftime::strftime;

/// Most steps of minijinja's machine per rendering; a long conversation takes some hundred thousand.
pub(super) const FUEL_STEPS: u64 = 10_000_000;
/// Deepest nesting of macro calls and includes.
const RECURSION_LEVELS: usize = 64;
/// Widest indentation, in spaces.
const MAX_INDENT: usize = 1024;

/// An environment in which `clock` says the time, in Unix seconds.
pub(super) fn environment(clock: fn() -> u64) -> Environment<'static> {
    let mut env = Environment::new();
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env.set_fuel(Some(FUEL_STEPS));
    env.set_recursion_limit(RECURSION_LEVELS);
    env.set_auto_escape_callback(|_| AutoEscape::None);
    env.set_formatter(print_as_python);
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_test("iterable", is_iterable);
    env.add_filter("string", |value: &Value| python_str(value));
    env.add_filter("upper", |value: &Value| python_str(value).map(|text| text.to_uppercase()));
    env.add_filter("lower", |value: &Value| python_str(value).map(|text| text.to_lowercase()));
    env.add_filter("indent", indent);
    env.add_filter("tojson", to_json);
    env.add_filter("fromjson", from_json);
    env.add_function("fromjson", from_json);
    env.add_function("raise_exception", raise);
    env.add_function("strftime_now", move |format: &str| {
        strftime(format, &Civil::from_unix(clock())).map_err(|directive| {
            invalid(format!("strftime_now: the directive {directive} is not known"))
        })
    });
    env
}

/// `raise_exception`: what the template's author wants the caller to read.
#[derive(Debug)]
pub(super) struct Raised(pub(super) String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

#[expect(clippy::needless_pass_by_value, reason = "the signature minijinja asks for")]
fn raise(message: Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(invalid("the template raised an exception").with_source(Raised(message)))
}

fn invalid(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Text and numbers as minijinja prints them, all else as Python does.
fn print_as_python(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Undefined | ValueKind::String | ValueKind::Bytes => {
            minijinja::escape_formatter(out, state, value)
        }
        _ => out.write_str(&python_str(value)?).map_err(Error::from),
    }
}

/// Python's `str` of a value; nothing for an undefined one.
fn python_str(value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Ok(String::new());
    }
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => as_json(value).map(|json| python_text::text(&json)),
    }
}

fn as_json(value: &Value) -> Result<serde_json::Value, Error> {
    serde_json::to_value(value).map_err(|error| invalid("not a plain value").with_source(error))
}

/// As in Python, where `None` is not iterable; `tools is iterable and tools | length > 0` relies on it.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

#[expect(clippy::needless_pass_by_value, reason = "the signature minijinja asks for")]
fn indent(
    text: &str,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = width.or(options.get("width")?).unwrap_or(4);
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    if width > MAX_INDENT {
        return Err(invalid("indent: too wide"));
    }
    Ok(python_text::indent(text, width, first, blank))
}

#[expect(clippy::needless_pass_by_value, reason = "the signature minijinja asks for")]
fn to_json(value: Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let json = as_json(&value)?;
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<Value>>("indent")?,
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let style = Style {
        indent: indent.filter(|value| !value.is_none()).map(usize::try_from).transpose()?,
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        separators: match separators.as_deref() {
            None => None,
            Some([item, key]) => Some((item.clone(), key.clone())),
            Some(_) => return Err(invalid("tojson: separators must be a pair")),
        },
    };
    options.assert_all_used()?;
    Ok(Value::from_safe_string(dumps(&json, &style)))
}

fn from_json(text: &str) -> Result<Value, Error> {
    serde_json::from_str::<serde_json::Value>(text)
        .map(Value::from_serialize)
        .map_err(|error| invalid("fromjson: not JSON").with_source(error))
}

/// Rewrites what minijinja's parser does not know: transformers' `{% generation %}` blocks mark text for training and
/// print their body, so they become blocks that are always taken.
pub(super) fn translate(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let (before, from) = rest.split_at(start);
        let (tag, after) = from.split_at(len + 2);
        out.push_str(before);
        let name = tag[2..len].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        match name {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::context;

    fn render(source: &str) -> Result<String, Error> {
        let source = translate(source);
        // 2024-02-29.
        environment(|| 1_709_219_045).render_str(
            &source,
            context! { tool => serde_json::json!({"name": "f<é>", "n": 1.0}), text => "{\"a\": [1]}" },
        )
    }

    #[test]
    fn what_hf_templates_use_is_there() {
        for (source, expected) in [
            ("{{ tool | tojson }}", r#"{"name": "f<é>", "n": 1.0}"#),
            ("{{ tool | tojson(indent=1) }}", "{\n \"name\": \"f<é>\",\n \"n\": 1.0\n}"),
            ("{{ tool | tojson(ensure_ascii=true) }}", r#"{"name": "f<\u00e9>", "n": 1.0}"#),
            ("{{ tool | tojson(separators=(',', ':')) }}", r#"{"name":"f<é>","n":1.0}"#),
            ("{{ strftime_now('%d %b %Y') }}", "29 Feb 2024"),
            ("{{ (text | fromjson).a[0] }}", "1"),
            ("{{ true }} {{ none }} {{ 1.0 }} {{ 3 }}", "True None 1.0 3"),
            ("{{ ' a '.strip() }}{{ 'a,b'.split(',')[1] }}", "ab"),
            ("{% for k, v in tool.items() %}{{ k }};{% endfor %}", "name;n;"),
            (
                "{% set ns = namespace(x=0) %}{% for i in range(3) %}{% set ns.x = i %}{% endfor %}{{ ns.x }}",
                "2",
            ),
            (
                "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
                "01",
            ),
            ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
            ("x {%- generation -%} y {% endgeneration %}z", "xy z"),
            ("{{ undefined_name }}|{{ 'ab'[::-1] }}", "|ba"),
            ("{{ '<&>' }}", "<&>"),
            ("{{ ['a', none] }} {{ ['a'] | string | length }}", "['a', None] 5"),
            (
                "{{ none is iterable }} {{ missing is iterable }} {{ 'a' is iterable }}",
                "False True True",
            ),
            ("{{ '{\n' | indent(2, first=true) }}x", "  {\nx"),
            ("{{ ['a'] | upper }}", "['A']"),
        ] {
            assert_eq!(render(source).expect(source), expected, "{source}");
        }
    }

    #[test]
    fn an_unknown_option_is_an_error() {
        assert!(render("{{ tool | tojson(indnt=1) }}").is_err());
        assert!(render("{{ tool | tojson(separators=(',',)) }}").is_err());
    }

    #[test]
    fn endless_work_runs_out_of_fuel() {
        let bomb = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% set x = a %}{% endfor %}{% endfor %}{% endfor %}";
        assert_eq!(render(bomb).expect_err("a bomb").kind(), ErrorKind::OutOfFuel);
        let recursion = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
        assert!(render(recursion).is_err());
    }
}
