//! Backends as written: a worker of our own or somebody's URL, never both.

use std::collections::BTreeMap;
use std::path::PathBuf;

use http::Uri;

use super::super::address::base_url;
use super::super::fields::{Fields, text};
use super::super::node::{At, Node};
use super::super::problem::Problems;
use super::{required_text, small};

const LATER_BACKEND: &[&str] = &["price", "breaker", "tls", "weight"];
const LATER_WORKER: &[&str] = &["owned_by", "kv_bits", "adapters", "speculate"];

pub(in crate::instance) struct BackendEntry {
    pub(in crate::instance) kind: KindEntry,
    pub(in crate::instance) fallback_urls: Vec<At<Uri>>,
}

pub(in crate::instance) enum KindEntry {
    Worker(Box<WorkerEntry>),
    Remote { url: At<Uri>, model: Option<String>, api_key_env: Option<String> },
}

pub(in crate::instance) struct WorkerEntry {
    pub(in crate::instance) model: At<String>,
    pub(in crate::instance) threads: Option<u32>,
    pub(in crate::instance) slots: Option<u32>,
    pub(in crate::instance) context: Option<u32>,
    pub(in crate::instance) queue: Option<u32>,
    pub(in crate::instance) port: At<u16>,
    pub(in crate::instance) env: BTreeMap<String, String>,
    pub(in crate::instance) args: Vec<String>,
    pub(in crate::instance) library_path: Option<PathBuf>,
    pub(in crate::instance) address_space_mb: Option<u64>,
    pub(in crate::instance) open_files: Option<u64>,
}

pub(super) fn read(node: &Node, place: &str, problems: &mut Problems) -> Option<BackendEntry> {
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
    // Compared as they will be asked, so that a slash at the end makes no second server of the same one.
    let bare = |text: &At<String>| text.value.trim_end_matches('/').parse::<Uri>().ok();
    let mut seen: Vec<Uri> = url.and_then(bare).into_iter().collect();
    let mut urls = Vec::new();
    for text in f.texts("fallback_urls", problems).unwrap_or_default() {
        if bare(&text).is_some_and(|url| seen.contains(&url)) {
            problems.add(text.at, format!("{name}: `{}` is listed twice", text.value));
        } else if let Some(value) = base_url(&text, &name, problems) {
            seen.push(value.clone());
            urls.push(At { value, at: text.at });
        }
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
