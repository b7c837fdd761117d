//! Seats as written: who serves them, under which names, with which defaults.

use super::super::fields::{Fields, name_is_usable, repeated};
use super::super::node::{At, Node};
use super::super::problem::Problems;
use super::super::seats::Defaults;
use super::{required_text, small};

const LATER_SEAT: &[&str] = &[
    "tier",
    "tiers",
    "budget",
    "detectors",
    "on_disconnect",
    "mtls",
    "listen",
    "queue",
    "callers",
    "critical",
];

pub(in crate::instance) struct SeatEntry {
    pub(in crate::instance) backends: Vec<At<String>>,
    pub(in crate::instance) fallback: Vec<At<String>>,
    pub(in crate::instance) personas: Vec<At<String>>,
    pub(in crate::instance) system: Option<String>,
    pub(in crate::instance) defaults: Defaults,
    pub(in crate::instance) second_model: Option<SecondEntry>,
}

pub(in crate::instance) struct SecondEntry {
    pub(in crate::instance) name: At<String>,
    pub(in crate::instance) backends: Vec<At<String>>,
}

pub(super) fn read(node: &Node, place: &str, problems: &mut Problems) -> Option<SeatEntry> {
    let mut f = Fields::open(node, place, LATER_SEAT, problems)?;
    let seat = SeatEntry {
        backends: required_names(&mut f, "backends", problems),
        fallback: unique_names(&mut f, "fallback", problems),
        personas: unique_names(&mut f, "personas", problems),
        system: f.text("system", problems).map(|text| text.value),
        defaults: f.section("defaults", problems).map_or_else(Defaults::default, |mut section| {
            let defaults = read_defaults(&mut section, problems);
            section.close(problems);
            defaults
        }),
        second_model: f.section("second_model", problems).and_then(|mut section| {
            let name = required_text(&mut section, "name", problems)
                .filter(|name| name_is_usable(name, "second model", problems));
            let backends = required_names(&mut section, "backends", problems);
            section.close(problems);
            Some(SecondEntry { name: name?, backends })
        }),
    };
    for persona in &seat.personas {
        name_is_usable(persona, "persona", problems);
    }
    f.close(problems);
    Some(seat)
}

fn read_defaults(f: &mut Fields<'_>, problems: &mut Problems) -> Defaults {
    Defaults {
        max_tokens: small(f, "max_tokens", (1, 1 << 24), problems),
        temperature: f.real("temperature", 0.0..=2.0, problems),
        top_p: f.real("top_p", 0.0..=1.0, problems),
        top_k: small(f, "top_k", (0, 1 << 20), problems),
        min_p: f.real("min_p", 0.0..=1.0, problems),
        repetition_penalty: f.real("repetition_penalty", 0.01..=10.0, problems),
        frequency_penalty: f.real("frequency_penalty", -2.0..=2.0, problems),
        presence_penalty: f.real("presence_penalty", -2.0..=2.0, problems),
        seed: f.whole("seed", 0..=i64::MAX as u64, problems).map(|seed| seed.value),
    }
}

/// A list of names that must not be empty.
fn required_names(
    f: &mut Fields<'_>,
    key: &'static str,
    problems: &mut Problems,
) -> Vec<At<String>> {
    let names = unique_names(f, key, problems);
    if !f.has(key) {
        let name = f.name_of(key);
        problems.add(f.at, format!("{name} is missing"));
    } else if f.is_empty_list(key) {
        let name = f.name_of(key);
        problems.add(f.at_key(key), format!("{name}: the list is empty: give at least one"));
    }
    names
}

fn unique_names(f: &mut Fields<'_>, key: &'static str, problems: &mut Problems) -> Vec<At<String>> {
    let name = f.name_of(key);
    let mut names: Vec<At<String>> = Vec::new();
    for word in f.texts(key, problems).unwrap_or_default() {
        match names.iter().find(|earlier| earlier.value == word.value) {
            Some(first) => {
                let message = repeated(&word.value, first.at).replace("duplicate key", "duplicate");
                problems.add(word.at, format!("{name}: {message}"));
            }
            None => names.push(word),
        }
    }
    names
}
