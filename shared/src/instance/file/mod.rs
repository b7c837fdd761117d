//! The instance file as written: every key typed and in range, names not yet followed.
//!
//! Owns which keys there are. Keys that a later version will have are refused as such, so that nothing is
//! accepted that would have no effect.

mod backends;
mod seats;

use std::net::SocketAddr;
use std::path::PathBuf;

use super::address::socket;
use super::fields::{Fields, name_is_usable};
use super::node::{At, Node};
use super::problem::Problems;
pub(super) use backends::{BackendEntry, KindEntry, WorkerEntry};
pub(super) use seats::SeatEntry;

use super::settings::{Health, Limits, Restart, Timeouts};

/// Where an instance listens if it does not say.
const DEFAULT_LISTEN: &str = "127.0.0.1:8900";
/// Where its admin listener is if it does not say.
const DEFAULT_ADMIN: &str = "127.0.0.1:8901";

const LATER: &[&str] = &[
    "pki", "tiers", "budgets", "disaster", "metrics", "callers", "audit", "peers", "store",
    "monitors",
];
const LATER_MODEL: &[&str] = &["manifest", "adapter", "adapters", "vision"];

/// The whole file.
pub(in crate::instance) struct File {
    pub(in crate::instance) name: String,
    pub(in crate::instance) listen: Vec<At<SocketAddr>>,
    pub(in crate::instance) admin: At<SocketAddr>,
    pub(in crate::instance) allow_wildcard: Option<At<bool>>,
    pub(in crate::instance) state_dir: PathBuf,
    pub(in crate::instance) worker_binary: Option<PathBuf>,
    pub(in crate::instance) models: Vec<(At<String>, Option<ModelEntry>)>,
    pub(in crate::instance) backends: Vec<(At<String>, Option<BackendEntry>)>,
    pub(in crate::instance) seats: Vec<(At<String>, Option<SeatEntry>)>,
    pub(in crate::instance) restart: Restart,
    pub(in crate::instance) health: Health,
    pub(in crate::instance) timeouts: Timeouts,
    pub(in crate::instance) limits: Limits,
}

pub(in crate::instance) struct ModelEntry {
    pub(in crate::instance) path: PathBuf,
    pub(in crate::instance) context: Option<u32>,
}

impl File {
    /// Reads every section; what is wrong goes to `problems` and is replaced by its default.
    pub(in crate::instance) fn read(root: &Node, problems: &mut Problems) -> Option<Self> {
        let mut f = Fields::open(root, "", LATER, problems)?;
        let name = f.text("name", problems);
        if let Some(name) = &name {
            name_is_usable(name, "`name`", problems);
        }
        let file = Self {
            name: name.map_or_else(|| "sanctum".to_owned(), |name| name.value),
            listen: read_listen(&mut f, problems),
            admin: read_admin(&mut f, problems),
            allow_wildcard: f
                .flag("allow_wildcard", problems)
                .map(|value| At { value, at: f.at_key("allow_wildcard") }),
            state_dir: f
                .text("state_dir", problems)
                .map_or_else(|| "var".into(), |t| t.value.into()),
            worker_binary: f.text("worker_binary", problems).map(|text| text.value.into()),
            models: named(&mut f, "models", "model", problems, read_model),
            backends: named(&mut f, "backends", "backend", problems, backends::read),
            seats: named(&mut f, "seats", "seat", problems, seats::read),
            restart: settings(&mut f, "restart", problems, Restart::read),
            health: settings(&mut f, "health", problems, Health::read),
            timeouts: settings(&mut f, "timeouts", problems, Timeouts::read),
            limits: settings(&mut f, "limits", problems, Limits::read),
        };
        if file.seats.is_empty() && !f.has("seats") {
            problems.add(f.at, "`seats` is missing: an instance needs at least one seat");
        }
        f.close(problems);
        Some(file)
    }
}

fn default_address(text: &str, f: &Fields<'_>, key: &str) -> At<SocketAddr> {
    // The two constants above are addresses; a test reads an empty file.
    let value = text.parse().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)));
    At { value, at: f.at_key(key) }
}

fn read_listen(f: &mut Fields<'_>, problems: &mut Problems) -> Vec<At<SocketAddr>> {
    let Some(texts) = f.texts("listen", problems) else {
        return vec![default_address(DEFAULT_LISTEN, f, "listen")];
    };
    if texts.is_empty() {
        problems.add(f.at_key("listen"), "`listen`: the list is empty: give at least one address");
    }
    texts.iter().filter_map(|text| socket(text, "`listen`", problems)).collect()
}

fn read_admin(f: &mut Fields<'_>, problems: &mut Problems) -> At<SocketAddr> {
    let text = f.text("admin", problems);
    text.and_then(|text| socket(&text, "`admin`", problems))
        .unwrap_or_else(|| default_address(DEFAULT_ADMIN, f, "admin"))
}

/// A section of numbers, all of which have defaults.
fn settings<T>(
    f: &mut Fields<'_>,
    key: &'static str,
    problems: &mut Problems,
    read: impl FnOnce(&mut Fields<'_>, &mut Problems) -> T,
) -> T {
    let mut section =
        f.section(key, problems).unwrap_or_else(|| Fields::absent(format!("`{key}`"), f.at));
    let read = read(&mut section, problems);
    section.close(problems);
    read
}

/// A section whose keys are names. A name whose entry is wrong stays known, so that one mistake gives one message.
fn named<T>(
    f: &mut Fields<'_>,
    key: &'static str,
    what: &str,
    problems: &mut Problems,
    read: impl Fn(&Node, &str, &mut Problems) -> Option<T>,
) -> Vec<(At<String>, Option<T>)> {
    let Some(section) = f.section(key, problems) else {
        return Vec::new();
    };
    let at = section.at;
    let entries = section.named(what, problems);
    if entries.is_empty() && key == "seats" {
        problems.add(at, "`seats`: the section is empty: an instance needs at least one seat");
    }
    entries
        .into_iter()
        .map(|(name, node)| {
            let entry = read(node, &format!("{what} `{}`", name.value), problems);
            (name, entry)
        })
        .collect()
}

fn read_model(node: &Node, place: &str, problems: &mut Problems) -> Option<ModelEntry> {
    let mut f = Fields::open(node, place, LATER_MODEL, problems)?;
    let path = required_text(&mut f, "path", problems);
    let context = small(&mut f, "context", (16, 1 << 24), problems);
    f.close(problems);
    Some(ModelEntry { path: path?.value.into(), context })
}

pub(super) fn small(
    f: &mut Fields<'_>,
    key: &'static str,
    (low, high): (u64, u64),
    problems: &mut Problems,
) -> Option<u32> {
    f.whole(key, low..=high, problems).and_then(|number| u32::try_from(number.value).ok())
}

pub(super) fn required_text(
    f: &mut Fields<'_>,
    key: &'static str,
    problems: &mut Problems,
) -> Option<At<String>> {
    let text = f.text(key, problems);
    if !f.has(key) {
        let name = f.name_of(key);
        problems.add(f.at, format!("{name} is missing"));
    }
    text
}
