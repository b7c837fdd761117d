//! The instance file as written: every key typed and in range, names not yet followed.
//!
//! Owns which keys there are. Keys that a later version will have are refused as such, so that nothing is
//! accepted that would have no effect.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use http::Uri;

use super::address::{base_url, socket};
use super::fields::{Fields, name_is_usable, repeated, text};
use super::node::{At, Node};
use super::problem::Problems;
use super::seats::Defaults;
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
const LATER_BACKEND: &[&str] = &["price", "breaker", "tls", "weight"];
const LATER_WORKER: &[&str] = &["owned_by", "kv_bits", "adapters", "speculate"];
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

/// The whole file.
pub(super) struct File {
    pub(super) name: String,
    pub(super) listen: Vec<At<SocketAddr>>,
    pub(super) admin: At<SocketAddr>,
    pub(super) allow_wildcard: bool,
    pub(super) state_dir: PathBuf,
    pub(super) worker_binary: Option<PathBuf>,
    pub(super) models: Vec<(At<String>, ModelEntry)>,
    pub(super) backends: Vec<(At<String>, BackendEntry)>,
    pub(super) seats: Vec<(At<String>, SeatEntry)>,
    pub(super) restart: Restart,
    pub(super) health: Health,
    pub(super) timeouts: Timeouts,
    pub(super) limits: Limits,
}

pub(super) struct ModelEntry {
    pub(super) path: PathBuf,
    pub(super) context: Option<u32>,
}

pub(super) struct BackendEntry {
    pub(super) kind: KindEntry,
    pub(super) fallback_urls: Vec<At<Uri>>,
}

pub(super) enum KindEntry {
    Worker(Box<WorkerEntry>),
    Remote { url: At<Uri>, model: Option<String>, api_key_env: Option<String> },
}

pub(super) struct WorkerEntry {
    pub(super) model: At<String>,
    pub(super) threads: Option<u32>,
    pub(super) slots: Option<u32>,
    pub(super) context: Option<u32>,
    pub(super) queue: Option<u32>,
    pub(super) port: At<u16>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) args: Vec<String>,
    pub(super) library_path: Option<PathBuf>,
    pub(super) address_space_mb: Option<u64>,
    pub(super) open_files: Option<u64>,
}

pub(super) struct SeatEntry {
    pub(super) backends: Vec<At<String>>,
    pub(super) fallback: Vec<At<String>>,
    pub(super) personas: Vec<At<String>>,
    pub(super) system: Option<String>,
    pub(super) defaults: Defaults,
    pub(super) second_model: Option<SecondEntry>,
}

pub(super) struct SecondEntry {
    pub(super) name: At<String>,
    pub(super) backends: Vec<At<String>>,
}

impl File {
    /// Reads every section; what is wrong goes to `problems` and is replaced by its default.
    pub(super) fn read(root: &Node, problems: &mut Problems) -> Option<Self> {
        let mut f = Fields::open(root, "", LATER, problems)?;
        let name = f.text("name", problems);
        if let Some(name) = &name {
            name_is_usable(name, "`name`", problems);
        }
        let file = Self {
            name: name.map_or_else(|| "sanctum".to_owned(), |name| name.value),
            listen: read_listen(&mut f, problems),
            admin: read_admin(&mut f, problems),
            allow_wildcard: f.flag("allow_wildcard", problems).unwrap_or(false),
            state_dir: f
                .text("state_dir", problems)
                .map_or_else(|| "var".into(), |t| t.value.into()),
            worker_binary: f.text("worker_binary", problems).map(|text| text.value.into()),
            models: named(&mut f, "models", "model", problems, read_model),
            backends: named(&mut f, "backends", "backend", problems, read_backend),
            seats: named(&mut f, "seats", "seat", problems, read_seat),
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

/// A section whose keys are names.
fn named<T>(
    f: &mut Fields<'_>,
    key: &'static str,
    what: &str,
    problems: &mut Problems,
    read: impl Fn(&Node, &str, &mut Problems) -> Option<T>,
) -> Vec<(At<String>, T)> {
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
        .filter_map(|(name, node)| {
            let entry = read(node, &format!("{what} `{}`", name.value), problems)?;
            Some((name, entry))
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

fn read_backend(node: &Node, place: &str, problems: &mut Problems) -> Option<BackendEntry> {
    let mut f = Fields::open(node, place, LATER_BACKEND, problems)?;
    let worker = f.node("worker").map(|node| read_worker(node, place, problems));
    let url = f.text("url", problems);
    let model = f.text("model", problems);
    let api_key_env = f.text("api_key_env", problems);
    let fallback_urls = read_fallback_urls(&mut f, url.as_ref(), problems);
    let kind = match (worker, url) {
        (Some(worker), None) => {
            for key in ["model", "api_key_env"].into_iter().filter(|key| f.has(key)) {
                let hint =
                    if key == "model" { ": a worker's model stands in `worker`" } else { "" };
                let name = f.name_of(key);
                problems.add(
                    f.at_key(key),
                    format!("{name}: belongs to a `url`, not to a `worker`{hint}"),
                );
            }
            worker.map(KindEntry::Worker)
        }
        (None, Some(text)) => {
            let url = base_url(&text, &f.name_of("url"), problems);
            let api_key_env = api_key_env.filter(|name| variable_is_usable(name, &f, problems));
            url.map(|value| KindEntry::Remote {
                url: At { value, at: text.at },
                model: model.map(|model| model.value),
                api_key_env: api_key_env.map(|name| name.value),
            })
        }
        (Some(_), Some(url)) => {
            problems
                .add(url.at, format!("{place}: has both `worker` and `url`: make it two backends"));
            None
        }
        (None, None) => {
            if !f.has("url") {
                problems.add(f.at, format!("{place}: needs a `worker` or a `url`"));
            }
            None
        }
    };
    f.close(problems);
    Some(BackendEntry { kind: kind?, fallback_urls })
}

fn read_fallback_urls(
    f: &mut Fields<'_>,
    url: Option<&At<String>>,
    problems: &mut Problems,
) -> Vec<At<Uri>> {
    let name = f.name_of("fallback_urls");
    let mut seen: Vec<String> = url.iter().map(|url| url.value.clone()).collect();
    let mut urls = Vec::new();
    for text in f.texts("fallback_urls", problems).unwrap_or_default() {
        if seen.contains(&text.value) {
            problems.add(text.at, format!("{name}: `{}` is listed twice", text.value));
        } else if let Some(value) = base_url(&text, &name, problems) {
            urls.push(At { value, at: text.at });
        }
        seen.push(text.value);
    }
    urls
}

/// Flags of `sanctum-mlx serve` that the supervisor gives itself.
const OWN_FLAGS: [&str; 10] = [
    "--model",
    "--listen",
    "--name",
    "--threads",
    "--slots",
    "--context",
    "--queue",
    "--state-file",
    "--exit-with-parent",
    "--drain-seconds",
];

fn read_worker(node: &Node, backend: &str, problems: &mut Problems) -> Option<Box<WorkerEntry>> {
    let mut f = Fields::open(node, format!("{backend}: `worker`"), LATER_WORKER, problems)?;
    let model = required_text(&mut f, "model", problems);
    let port = f.whole("port", 0..=u64::from(u16::MAX), problems);
    let port = port.unwrap_or(At { value: 0, at: f.at });
    let args = f.texts("args", problems).unwrap_or_default();
    for arg in &args {
        let flag = arg.value.split('=').next().unwrap_or_default();
        if OWN_FLAGS.contains(&flag) {
            let name = f.name_of("args");
            problems.add(
                arg.at,
                format!("{name}: `{flag}` is set by the supervisor: use the keys of `worker`"),
            );
        }
    }
    let worker = WorkerEntry {
        model: model.clone().unwrap_or(At { value: String::new(), at: f.at }),
        threads: small(&mut f, "threads", (1, 1024), problems),
        slots: small(&mut f, "slots", (1, 1024), problems),
        context: small(&mut f, "context", (16, 1 << 24), problems),
        queue: small(&mut f, "queue", (0, 65_536), problems),
        port: At { value: u16::try_from(port.value).unwrap_or(0), at: port.at },
        env: read_env(&mut f, problems),
        args: args.into_iter().map(|arg| arg.value).collect(),
        library_path: f.text("library_path", problems).map(|text| text.value.into()),
        address_space_mb: f.whole("address_space_mb", 64..=1 << 30, problems).map(|n| n.value),
        open_files: f.whole("open_files", 64..=1 << 20, problems).map(|n| n.value),
    };
    f.close(problems);
    model.map(|_| Box::new(worker))
}

fn read_env(f: &mut Fields<'_>, problems: &mut Problems) -> BTreeMap<String, String> {
    let Some(section) = f.section("env", problems) else {
        return BTreeMap::new();
    };
    let mut env = BTreeMap::new();
    for (key, node) in section.all() {
        let name = format!("{}: `{}`", f.name_of("env"), key.value);
        if let (true, Some(value)) =
            (variable_is_usable(&key, f, problems), text(node, &name, problems))
        {
            env.insert(key.value, value.value);
        }
    }
    env
}

fn variable_is_usable(name: &At<String>, f: &Fields<'_>, problems: &mut Problems) -> bool {
    let word = &name.value;
    let usable = word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !usable {
        // The word is not repeated: somebody may have written the key itself here.
        let place = f.name_of("api_key_env");
        let place = if f.has("api_key_env") { place } else { f.name_of("env") };
        problems.add(name.at, format!("{place}: this is not the name of an environment variable"));
    }
    usable
}

fn read_seat(node: &Node, place: &str, problems: &mut Problems) -> Option<SeatEntry> {
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

fn small(
    f: &mut Fields<'_>,
    key: &'static str,
    (low, high): (u64, u64),
    problems: &mut Problems,
) -> Option<u32> {
    f.whole(key, low..=high, problems).and_then(|number| u32::try_from(number.value).ok())
}

fn required_text(
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
