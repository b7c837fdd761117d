//! Reading a section key by key, so that every mistake in it is found and none hides another.
//!
//! Owns types, ranges and unknown keys. A key that was never asked for is unknown, so the list of known keys
//! is the code that reads them and cannot drift from it.

use std::ops::RangeInclusive;

use super::node::{At, Node, Value, shorten};
use super::problem::{Pos, Problems, nearest};

/// One section being read.
pub(super) struct Fields<'a> {
    /// How messages call this section, such as "backend `coder-a`"; empty for the whole file.
    place: String,
    /// Where the section is, for keys that are missing from it.
    pub(super) at: Pos,
    entries: Vec<&'a (At<String>, Node)>,
    asked: Vec<&'static str>,
    /// Keys that a later version of Sanctum will know.
    later: &'static [&'static str],
}

impl<'a> Fields<'a> {
    /// Opens `node` as a section; anything else, and every repeated key, is a problem.
    pub(super) fn open(
        node: &'a Node,
        place: impl Into<String>,
        later: &'static [&'static str],
        problems: &mut Problems,
    ) -> Option<Self> {
        let place = place.into();
        let Value::Map(map) = &node.value else {
            let subject = if place.is_empty() { "the file" } else { &place };
            let found = node.value.describe();
            problems.add(node.at, format!("{subject}: expected keys with values, found {found}"));
            return None;
        };
        let mut entries: Vec<&(At<String>, Node)> = Vec::with_capacity(map.len());
        for entry in map {
            match entries.iter().find(|(key, _)| key.value == entry.0.value) {
                Some((first, _)) => problems.add(entry.0.at, repeated(&entry.0.value, first.at)),
                None => entries.push(entry),
            }
        }
        Some(Self { place, at: node.at, entries, asked: Vec::new(), later })
    }

    /// A section that was not written: every key takes its default.
    pub(super) fn absent(place: String, at: Pos) -> Self {
        Self { place, at, entries: Vec::new(), asked: Vec::new(), later: &[] }
    }

    /// The node under `key`, if it was written.
    pub(super) fn node(&mut self, key: &'static str) -> Option<&'a Node> {
        self.asked.push(key);
        self.entries.iter().find(|(name, _)| name.value == key).map(|(_, node)| node)
    }

    /// Every entry, for sections whose keys are names that the operator chooses.
    pub(super) fn named(self, what: &str, problems: &mut Problems) -> Vec<(At<String>, &'a Node)> {
        self.entries
            .into_iter()
            .filter(|(key, _)| name_is_usable(key, what, problems))
            .map(|(key, node)| (key.clone(), node))
            .collect()
    }

    /// Every entry, whatever its key.
    pub(super) fn all(self) -> Vec<(At<String>, &'a Node)> {
        self.entries.into_iter().map(|(key, node)| (key.clone(), node)).collect()
    }

    /// A subsection, opened.
    pub(super) fn section(
        &mut self,
        key: &'static str,
        problems: &mut Problems,
    ) -> Option<Fields<'a>> {
        let node = self.node(key)?;
        Fields::open(node, self.name_of(key), &[], problems)
    }

    /// A text.
    pub(super) fn text(
        &mut self,
        key: &'static str,
        problems: &mut Problems,
    ) -> Option<At<String>> {
        let node = self.node(key)?;
        text(node, &self.name_of(key), problems)
    }

    /// A list of texts; `None` if the key is absent or not a list.
    pub(super) fn texts(
        &mut self,
        key: &'static str,
        problems: &mut Problems,
    ) -> Option<Vec<At<String>>> {
        let node = self.node(key)?;
        let name = self.name_of(key);
        match &node.value {
            Value::List(items) => {
                Some(items.iter().filter_map(|item| text(item, &name, problems)).collect())
            }
            Value::Text(word) => {
                let word = shorten(word);
                problems.add(node.at, format!("{name}: expected a list: write `[{word}]`"));
                None
            }
            other => {
                let found = other.describe();
                problems.add(node.at, format!("{name}: expected a list, found {found}"));
                None
            }
        }
    }

    /// True or false.
    pub(super) fn flag(&mut self, key: &'static str, problems: &mut Problems) -> Option<bool> {
        let node = self.node(key)?;
        if let Value::Flag(flag) = node.value {
            return Some(flag);
        }
        let (name, found) = (self.name_of(key), node.value.describe());
        problems.add(node.at, format!("{name}: expected `true` or `false`, found {found}"));
        None
    }

    /// A whole number within `range`.
    pub(super) fn whole(
        &mut self,
        key: &'static str,
        range: RangeInclusive<u64>,
        problems: &mut Problems,
    ) -> Option<At<u64>> {
        let node = self.node(key)?;
        let within = match node.value {
            Value::Whole(number) => {
                u64::try_from(number).ok().filter(|number| range.contains(number))
            }
            _ => None,
        };
        if within.is_none() {
            let (name, found) = (self.name_of(key), node.value.describe());
            let (low, high) = range.into_inner();
            problems.add(
                node.at,
                format!("{name}: expected a whole number from {low} to {high}, found {found}"),
            );
        }
        within.map(|value| At { value, at: node.at })
    }

    /// A number within `range`; a whole number will do.
    pub(super) fn real(
        &mut self,
        key: &'static str,
        range: RangeInclusive<f64>,
        problems: &mut Problems,
    ) -> Option<f64> {
        let node = self.node(key)?;
        let number = match node.value {
            Value::Whole(number) => Some(number as f64),
            Value::Real(number) => Some(number),
            _ => None,
        };
        let within = number.filter(|number| range.contains(number));
        if within.is_none() {
            let (name, found) = (self.name_of(key), node.value.describe());
            let (low, high) = range.into_inner();
            problems.add(
                node.at,
                format!("{name}: expected a number from {low} to {high}, found {found}"),
            );
        }
        within
    }

    /// Ends the section: whatever was written but never asked for is unknown.
    pub(super) fn close(self, problems: &mut Problems) {
        let inside =
            if self.place.is_empty() { String::new() } else { format!(" in {}", self.place) };
        for (key, _) in &self.entries {
            let word = key.value.as_str();
            if self.asked.contains(&word) {
                continue;
            }
            let message = if self.later.contains(&word) {
                format!("key `{word}`{inside} is not available in this version")
            } else if let Some(near) = nearest(word, self.asked.iter().copied()) {
                format!("unknown key `{word}`{inside}: did you mean `{near}`?")
            } else {
                let known: Vec<String> = self.asked.iter().map(|key| format!("`{key}`")).collect();
                format!("unknown key `{}`{inside} (known: {})", shorten(word), known.join(", "))
            };
            problems.add(key.at, message);
        }
    }

    /// Whether `key` was written.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(name, _)| name.value == key)
    }

    /// Whether `key` was written as a list of nothing.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        self.entries
            .iter()
            .any(|(name, node)| name.value == key && node.value == Value::List(Vec::new()))
    }

    /// Where the value under `key` is, or the section if there is none.
    pub(super) fn at_key(&self, key: &str) -> Pos {
        self.entries.iter().find(|(name, _)| name.value == key).map_or(self.at, |(_, node)| node.at)
    }

    /// How messages call the value under `key`.
    pub(super) fn name_of(&self, key: &str) -> String {
        if self.place.is_empty() { format!("`{key}`") } else { format!("{}: `{key}`", self.place) }
    }
}

/// A text; numbers and flags must be quoted to become one, so that `on` and `1.10` mean what they say.
pub(super) fn text(node: &Node, name: &str, problems: &mut Problems) -> Option<At<String>> {
    match &node.value {
        Value::Text(text) if !text.trim().is_empty() => {
            Some(At { value: text.clone(), at: node.at })
        }
        Value::Text(_) | Value::Null => {
            problems.add(node.at, format!("{name}: must not be empty"));
            None
        }
        other => {
            let quote = match other {
                Value::List(_) | Value::Map(_) => "",
                _ => " (put it in quotes)",
            };
            let found = other.describe();
            problems.add(node.at, format!("{name}: expected text, found {found}{quote}"));
            None
        }
    }
}

/// Longest name of a seat, backend, model or persona, in characters.
const NAME_CHARS: usize = 64;

/// Whether a chosen name can be a file name, a header value and a metric label; if not, that is a problem.
pub(super) fn name_is_usable(name: &At<String>, what: &str, problems: &mut Problems) -> bool {
    let word = &name.value;
    let usable = word.len() <= NAME_CHARS
        && word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if !usable {
        let word = shorten(word);
        problems.add(
            name.at,
            format!(
                "{what} `{word}`: a name is 1 to {NAME_CHARS} of a-z, A-Z, 0-9, `.`, `_` and `-`, and starts with a letter or digit"
            ),
        );
    }
    usable
}

/// The message for a key or name that was given twice.
pub(super) fn repeated(word: &str, first: Pos) -> String {
    format!("duplicate key `{}`: first given at line {}", shorten(word), first.line)
}
