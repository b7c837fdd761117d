//! The members of a JSON object as pieces of its text: keys, and where each value stands.
//!
//! Owns no check: the text was checked whole before (`shared::openai::json`). It builds no tree, so that what is not
//! looked at costs nothing and what is not rewritten stays as the caller wrote it.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A value and the bytes it covers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    /// The value as written.
    pub(crate) text: &'a str,
    /// Where it stands in the whole text.
    pub(crate) span: Range<usize>,
}

impl<'a> Piece<'a> {
    fn within(whole: &'a str, raw: &'a RawValue) -> Self {
        let text = raw.get();
        let start = text.as_ptr() as usize - whole.as_ptr() as usize;
        Self { text, span: start..start + text.len() }
    }

    /// Reads the value as a `T`.
    pub(crate) fn read<T: Deserialize<'a>>(&self) -> Option<T> {
        serde_json::from_str(self.text).ok()
    }

    pub(crate) fn is_null(&self) -> bool {
        self.text == "null"
    }
}

/// The members of one object.
#[derive(Debug)]
pub(crate) struct Members<'a> {
    entries: Vec<(Cow<'a, str>, Piece<'a>)>,
    /// Just behind the opening brace.
    pub(crate) open: usize,
}

impl<'a> Members<'a> {
    /// The members of `piece` of `whole`, if it is an object.
    pub(crate) fn of(whole: &'a str, piece: &Piece<'a>) -> Option<Self> {
        let raw: Raw<'a> = piece.read()?;
        let entries =
            raw.0.into_iter().map(|(key, value)| (key, Piece::within(whole, value))).collect();
        let brace = piece.text.find('{')?;
        Some(Self { entries, open: piece.span.start + brace + 1 })
    }

    /// The members of a text that is an object as a whole.
    pub(crate) fn of_text(whole: &'a str) -> Option<Self> {
        Self::of(whole, &Piece { text: whole, span: 0..whole.len() })
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &str) -> Option<&Piece<'a>> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, piece)| piece)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The first element of an array (`None` inside if the array is empty), and the place just behind its bracket.
pub(crate) fn first_element<'a>(
    whole: &'a str,
    array: &Piece<'a>,
) -> Option<(Option<Piece<'a>>, usize)> {
    let First(first) = array.read()?;
    let bracket = array.text.find('[')?;
    Some((first.map(|raw| Piece::within(whole, raw)), array.span.start + bracket + 1))
}

struct Raw<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

/// A key, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de> Deserialize<'de> for Raw<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Raw<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw<'de>, A::Error> {
                let mut entries = Vec::with_capacity(8);
                while let Some((Key(key), value)) = map.next_entry()? {
                    entries.push((key, value));
                }
                Ok(Raw(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

struct First<'a>(Option<&'a RawValue>);

impl<'de> Deserialize<'de> for First<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Elements;
        impl<'de> Visitor<'de> for Elements {
            type Value = First<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<First<'de>, A::Error> {
                let first = seq.next_element()?;
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }
        deserializer.deserialize_seq(Elements)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_where_they_stand() {
        let text = " {\"a\" : [1, {\"b\":2}] ,\"mo\\u0064el\":\"x\\ny\",\"e\":{}} ";
        let members = Members::of_text(text).expect("an object");
        assert_eq!(members.open, 2);
        let a = members.get("a").expect("a");
        assert_eq!(&text[a.span.clone()], "[1, {\"b\":2}]");
        let model = members.get("model").expect("an escaped key is the same key");
        assert_eq!(model.read::<String>().as_deref(), Some("x\ny"));
        assert_eq!(&text[model.span.clone()], "\"x\\ny\"");
        assert!(members.get("b").is_none(), "nested keys are not ours");
        let e = members.get("e").expect("e").clone();
        assert!(Members::of(text, &e).expect("an object").is_empty());
    }

    #[test]
    fn first_elements_and_empty_arrays() {
        let text = r#"{"m":[ {"role":"user"} , 2],"n":[ ],"o":1}"#;
        let members = Members::of_text(text).expect("an object");
        let (first, behind) = first_element(text, members.get("m").expect("m")).expect("an array");
        assert_eq!(first.expect("an element").text, r#"{"role":"user"}"#);
        assert_eq!(&text[behind - 1..behind], "[");
        let (none, _) = first_element(text, members.get("n").expect("n")).expect("an array");
        assert!(none.is_none());
        assert!(first_element(text, members.get("o").expect("o")).is_none());
    }
}
