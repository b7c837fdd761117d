//! The YAML text as a tree in which every key and value knows its line and column.
//!
//! Owns the step from text to tree and its syntax errors. It gives no meaning to any key: that is `file`'s work.
//! A tree, rather than derived structs, because a derived struct stops at its first mistake and an operator
//! wants to see them all; repeated keys are kept so that they can be reported with both positions.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, NonFiniteFloatPolicy, Spanned};

use super::problem::{Pos, Problems};

/// A value and where it was written.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) at: Pos,
}

/// One YAML node.
pub(super) type Node = At<Value>;

/// What a node holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Flag(bool),
    Whole(i128),
    Real(f64),
    Text(String),
    List(Vec<Node>),
    /// In the order written, repeated keys included.
    Map(Vec<(At<String>, Node)>),
}

impl Value {
    /// What a message calls this value: "the number 3", "a list".
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Flag(flag) => format!("`{flag}`"),
            Self::Whole(number) => format!("the number {number}"),
            Self::Real(number) => format!("the number {number}"),
            Self::Text(text) => format!("the text `{}`", shorten(text)),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a section of keys".to_owned(),
        }
    }
}

/// Characters of a value that a message repeats.
const SHOWN_CHARS: usize = 60;

/// The first line of a text, cut to what fits in a message.
pub(super) fn shorten(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    if line.chars().count() <= SHOWN_CHARS && line.len() == text.len() {
        line.to_owned()
    } else {
        let kept: String = line.chars().take(SHOWN_CHARS).collect();
        format!("{kept}…")
    }
}

/// Reads `text`; a syntax error becomes the one problem there is.
pub(super) fn parse(text: &str, problems: &mut Problems) -> Option<Node> {
    let options = serde_saphyr::options! {
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        strict_booleans: true,
        // The range of the key refuses them, with the key's name.
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        with_snippet: false,
    };
    match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options) {
        Ok(root) => Some(place(root)),
        Err(error) => {
            let at = error.location().map_or(Pos::START, |at| Pos::new(at.line(), at.column()));
            match first_indenting_tab(text) {
                // A tab there is legal only inside quoted or block text, so where parsing failed it is the cause.
                Some(tab) if tab.line <= at.line => {
                    problems.add(tab, "tab in the indentation: YAML indents with spaces only");
                }
                _ => problems.add(at, syntax(&error)),
            }
            None
        }
    }
}

/// The parser's message on one line, without the position that we print ourselves.
fn syntax(error: &serde_saphyr::Error) -> String {
    if matches!(error.without_snippet(), serde_saphyr::Error::MultipleDocuments { .. }) {
        return "not one YAML document: an instance is one document, without `---` in the middle"
            .to_owned();
    }
    let full = error.without_snippet().to_string();
    let line = full.lines().next().unwrap_or_default();
    let bare = match line.find(" at line ") {
        Some(cut) => &line[..cut],
        None => line,
    };
    let bare = match bare.strip_prefix("error: ").unwrap_or(bare).split_once(": ") {
        Some((head, rest)) if head.starts_with("line ") => rest,
        _ => bare,
    };
    format!("not valid YAML: {bare}")
}

fn first_indenting_tab(text: &str) -> Option<Pos> {
    text.lines().enumerate().find_map(|(index, line)| {
        let column = line.chars().take_while(|c| *c == ' ').count();
        (line[column..].starts_with('\t') && !line.trim().is_empty())
            .then(|| Pos::new(index as u64 + 1, column as u64 + 1))
    })
}

fn place(raw: Spanned<Raw>) -> Node {
    let at = Pos::new(raw.referenced.line(), raw.referenced.column());
    let value = match raw.value {
        Raw::Leaf(value) => value,
        Raw::List(items) => Value::List(items.into_iter().map(place).collect()),
        Raw::Map(entries) => Value::Map(
            entries
                .into_iter()
                .map(|(key, node)| {
                    let at = Pos::new(key.referenced.line(), key.referenced.column());
                    (At { value: key.value, at }, place(node))
                })
                .collect(),
        ),
    };
    At { value, at }
}

/// The shape serde fills; positions still in the parser's own type.
enum Raw {
    Leaf(Value),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Leaf(Value::Null))
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Leaf(Value::Null))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Raw, E> {
        Ok(Raw::Leaf(Value::Flag(flag)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Raw, E> {
        Ok(Raw::Leaf(Value::Whole(i128::from(number))))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Raw, E> {
        Ok(Raw::Leaf(Value::Whole(i128::from(number))))
    }

    fn visit_i128<E>(self, number: i128) -> Result<Raw, E> {
        Ok(Raw::Leaf(Value::Whole(number)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Raw, E> {
        Ok(Raw::Leaf(Value::Real(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
        Ok(Raw::Leaf(Value::Text(text.to_owned())))
    }

    fn visit_string<E>(self, text: String) -> Result<Raw, E> {
        Ok(Raw::Leaf(Value::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Raw::Map(map))
    }
}
