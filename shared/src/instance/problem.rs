//! What is wrong with an instance file, where, and what was probably meant.
//!
//! Owns the wording `file:line:column: message` and the search for the nearest right word.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Line and column in the file, both counted from 1, columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pos {
    /// Line, from 1.
    pub line: u64,
    /// Column, from 1, in characters.
    pub column: u64,
}

impl Pos {
    /// The first character of the file: where a problem of the whole file is shown.
    pub(super) const START: Self = Self { line: 1, column: 1 };

    /// A parser without a position says 0; the reader of the message wants a place to look.
    pub(super) fn new(line: u64, column: u64) -> Self {
        Self { line: line.max(1), column: column.max(1) }
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub at: Pos,
    /// What, with the offending word and a suggestion where there is one.
    pub message: String,
}

/// Everything that is wrong with one file, in the order of its lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems {
    file: PathBuf,
    found: Vec<Problem>,
}

impl Problems {
    pub(super) fn new(file: &Path) -> Self {
        Self { file: file.to_owned(), found: Vec::new() }
    }

    pub(super) fn add(&mut self, at: Pos, message: impl Into<String>) {
        self.found.push(Problem { at, message: message.into() });
    }

    /// Whether nothing was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The problems, in the order of the file's lines.
    #[must_use]
    pub fn found(&self) -> &[Problem] {
        &self.found
    }

    pub(super) fn sorted(mut self) -> Self {
        self.found.sort_by_key(|problem| problem.at);
        self
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Problem { at, message }) in self.found.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{}:{}:{}: {message}", self.file.display(), at.line, at.column)?;
        }
        Ok(())
    }
}

/// Why there is no instance. Either way the program ends with exit code 78.
#[derive(Debug, thiserror::Error)]
pub enum InstanceError {
    /// The file could not be read.
    #[error("{}: cannot read the instance file", path.display())]
    Read {
        /// The file asked for.
        path: PathBuf,
        /// The operating system's reason.
        #[source]
        source: io::Error,
    },
    /// The file is wrong; each line of the message names a place in it.
    #[error("{0}")]
    Invalid(Problems),
}

/// The word of `known` that `word` was probably meant to be.
///
/// Two typing slips are allowed in a long word and one in a short one; an exact match but for case always counts.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = word.to_lowercase();
    let slips = match word.chars().count() {
        0..=2 => 0,
        3..=4 => 1,
        _ => 2,
    };
    known
        .into_iter()
        .map(|candidate| {
            (strsim::damerau_levenshtein(&folded, &candidate.to_lowercase()), candidate)
        })
        .filter(|(distance, _)| *distance <= slips)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// `: did you mean ...?`, or the list of what there is, or nothing where there is nothing.
pub(super) fn suggestion<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
) -> String {
    if let Some(near) = nearest(word, known.clone()) {
        return format!(": did you mean `{near}`?");
    }
    let all: Vec<String> = known.into_iter().map(|word| format!("`{word}`")).collect();
    if all.is_empty() { String::new() } else { format!(" (there is {})", all.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_few() {
        let known = ["seats", "state_dir", "name"];
        assert_eq!(nearest("seatz", known), Some("seats"));
        assert_eq!(nearest("saets", known), Some("seats"), "swapped letters are one slip");
        assert_eq!(nearest("SEATS", known), Some("seats"));
        assert_eq!(nearest("stat_dirs", known), Some("state_dir"));
        assert_eq!(nearest("models", known), None);
        assert_eq!(nearest("", known), None);
    }

    #[test]
    fn problems_are_shown_in_the_order_of_lines() {
        let mut problems = Problems::new(Path::new("i.yaml"));
        problems.add(Pos::new(3, 1), "later");
        problems.add(Pos::new(1, 7), "sooner");
        assert_eq!(problems.sorted().to_string(), "i.yaml:1:7: sooner\ni.yaml:3:1: later");
    }
}
