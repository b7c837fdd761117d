//! From the file as written to the instance: names are followed, ports compared, fallbacks laid out.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::address::{Claim, refuse_clashes, refuse_wildcards, require_loopback};
use super::file::{BackendEntry, File, KindEntry, ModelEntry, SeatEntry, WorkerEntry};
use super::node::At;
use super::problem::{Pos, Problems, suggestion};
use super::seats::{Candidate, Seat, SecondModel};
use super::{Backend, BackendKind, Instance, Model, Remote, Worker};

/// Follows every name of `file`; `None` only if something was reported.
pub(super) fn resolve(file: File, path: &Path, problems: &mut Problems) -> Option<Instance> {
    check_ports(&file, problems);
    check_names(&file.seats, problems);
    let base = path.parent().unwrap_or(Path::new(""));
    check_models(&file, problems);
    check_seats(&file, problems);
    if problems.is_empty() {
        // A wrong name elsewhere is often why something seems unused.
        check_effects(&file, problems);
    }
    if !problems.is_empty() {
        return None;
    }
    let models = models(&file.models, base);
    let backends: Vec<Arc<Backend>> = written(&file.backends)
        .filter_map(|(name, entry)| backend(name, entry, &models, base))
        .map(Arc::new)
        .collect();
    let seats = Seats { entries: &file.seats, backends: &backends };
    Some(Instance {
        seats: seats.all(),
        name: file.name,
        file: path.to_owned(),
        listen: file.listen.iter().map(|address| address.value).collect(),
        admin: file.admin.value,
        state_dir: base.join(file.state_dir),
        worker_binary: file.worker_binary.map(|binary| base.join(binary)),
        backends,
        restart: file.restart,
        health: file.health,
        timeouts: file.timeouts,
        limits: file.limits,
    })
}

type Named<T> = [(At<String>, Option<T>)];

/// The entries that could be read; the others have been reported.
fn written<T>(entries: &Named<T>) -> impl Iterator<Item = (&At<String>, &T)> {
    entries.iter().filter_map(|(name, entry)| Some((name, entry.as_ref()?)))
}

fn names<T>(entries: &Named<T>) -> impl Iterator<Item = &str> + Clone {
    entries.iter().map(|(name, _)| name.value.as_str())
}

fn check_ports(file: &File, problems: &mut Problems) {
    let allowed = file.allow_wildcard.as_ref().is_some_and(|flag| flag.value);
    refuse_wildcards(&file.listen, allowed, problems);
    require_loopback(&file.admin, problems);
    let claim = |address: &At<SocketAddr>, by: &str| Claim {
        address: At { value: address.value, at: address.at },
        by: by.to_owned(),
    };
    let mut claims: Vec<Claim> = file.listen.iter().map(|at| claim(at, "`listen`")).collect();
    claims.push(claim(&file.admin, "`admin`"));
    for (name, entry) in written(&file.backends) {
        if let KindEntry::Worker(worker) = &entry.kind {
            let port = &worker.port;
            claims.push(Claim::of_worker(port, &name.value));
        }
    }
    refuse_clashes(&claims, problems);
}

/// Seats, personas and second models share one space of names: a caller's `model` must mean one thing.
fn check_names(seats: &Named<SeatEntry>, problems: &mut Problems) {
    let mut taken: BTreeMap<&str, (String, Pos)> = BTreeMap::new();
    let mut claims: Vec<(&At<String>, String)> =
        seats.iter().map(|(name, _)| (name, format!("seat `{}`", name.value))).collect();
    for (seat, entry) in written(seats) {
        for persona in &entry.personas {
            claims.push((persona, format!("a persona of seat `{}`", seat.value)));
        }
        if let Some(second) = &entry.second_model {
            claims.push((&second.name, format!("the second model of seat `{}`", seat.value)));
        }
    }
    for (name, by) in claims {
        if let Some((first, at)) = taken.get(name.value.as_str()) {
            let (word, line) = (&name.value, at.line);
            problems.add(
                name.at,
                format!("`{word}` as {by}: that name is {first} at line {line} already"),
            );
        } else {
            taken.insert(&name.value, (by, name.at));
        }
    }
}

fn check_models(file: &File, problems: &mut Problems) {
    for (backend, entry) in written(&file.backends) {
        let KindEntry::Worker(worker) = &entry.kind else { continue };
        let word = worker.model.value.as_str();
        if !names(&file.models).any(|name| name == word) {
            let (backend, hint) = (&backend.value, suggestion(word, names(&file.models)));
            problems.add(
                worker.model.at,
                format!("backend `{backend}`: `worker`: there is no model `{word}`{hint}"),
            );
        }
    }
}

fn models(entries: &Named<ModelEntry>, base: &Path) -> Vec<Arc<Model>> {
    written(entries)
        .map(|(name, entry)| {
            let path = base.join(&entry.path);
            Arc::new(Model { name: name.value.clone(), path, context: entry.context })
        })
        .collect()
}

fn backend(
    name: &At<String>,
    entry: &BackendEntry,
    models: &[Arc<Model>],
    base: &Path,
) -> Option<Backend> {
    let kind = match &entry.kind {
        KindEntry::Worker(entry) => {
            let model = models.iter().find(|model| model.name == entry.model.value)?;
            BackendKind::Worker(Box::new(worker(entry, model, base)))
        }
        KindEntry::Remote { url, model, api_key_env } => BackendKind::Remote(Remote {
            url: url.value.clone(),
            model: model.clone(),
            api_key_env: api_key_env.clone(),
        }),
    };
    let fallback_urls = entry.fallback_urls.iter().map(|url| url.value.clone()).collect();
    Some(Backend { name: name.value.clone(), kind, fallback_urls })
}

fn worker(entry: &WorkerEntry, model: &Arc<Model>, base: &Path) -> Worker {
    Worker {
        model: Arc::clone(model),
        threads: entry.threads,
        slots: entry.slots,
        context: entry.context,
        queue: entry.queue,
        port: entry.port.value,
        env: entry.env.clone(),
        args: entry.args.clone(),
        library_path: entry.library_path.as_ref().map(|path: &PathBuf| base.join(path)),
        address_space_mb: entry.address_space_mb,
        open_files: entry.open_files,
    }
}

/// Reports backends and fallback seats that do not exist, and fallbacks that come back to where they began.
fn check_seats(file: &File, problems: &mut Problems) {
    for (seat, entry) in written(&file.seats) {
        let seat = &seat.value;
        let second = entry.second_model.iter().flat_map(|second| &second.backends);
        for At { value: word, at } in entry.backends.iter().chain(second) {
            if !names(&file.backends).any(|name| name == word) {
                let hint = suggestion(word, names(&file.backends));
                problems.add(*at, format!("seat `{seat}`: there is no backend `{word}`{hint}"));
            }
        }
        for At { value: word, at } in &entry.fallback {
            if !names(&file.seats).any(|name| name == word) {
                let hint = suggestion(word, names(&file.seats));
                problems.add(
                    *at,
                    format!("seat `{seat}`: `fallback`: there is no seat `{word}`{hint}"),
                );
            } else if let Some(way) = way_back(&file.seats, word, seat) {
                let way = way.join("` → `");
                problems.add(
                    *at,
                    format!("seat `{seat}`: `fallback` leads back to itself: `{seat}` → `{way}`"),
                );
            }
        }
    }
}

/// Reports what is written and would change nothing.
fn check_effects(file: &File, problems: &mut Problems) {
    if let Some(flag) = file.allow_wildcard.as_ref().filter(|flag| flag.value)
        && !file.listen.iter().any(|address| address.value.ip().is_unspecified())
    {
        problems.add(flag.at, "`allow_wildcard`: `listen` holds no address of all interfaces");
    }
    let used = |model: &str| {
        written(&file.backends).any(|(_, entry)| {
            matches!(&entry.kind, KindEntry::Worker(worker) if worker.model.value == model)
        })
    };
    for (name, _) in file.models.iter().filter(|(name, _)| !used(&name.value)) {
        problems.add(name.at, format!("model `{}`: no backend uses it", name.value));
    }
    // Every seat can be asked for by its name, so a fallback reaches nothing that is not some seat's own.
    let asked = written(&file.seats).flat_map(|(_, entry)| {
        let second = entry.second_model.iter().flat_map(|second| &second.backends);
        entry.backends.iter().chain(second).map(|name| name.value.as_str())
    });
    let reached: BTreeSet<&str> = asked.collect();
    for (name, _) in file.backends.iter().filter(|(name, _)| !reached.contains(name.value.as_str()))
    {
        problems.add(name.at, format!("backend `{}`: no seat uses it", name.value));
    }
}

/// The seats from `from` to `to` along fallbacks, both included, if there is such a way.
fn way_back<'a>(seats: &'a Named<SeatEntry>, from: &'a str, to: &str) -> Option<Vec<&'a str>> {
    let mut ways: Vec<Vec<&'a str>> = vec![vec![from]];
    let mut seen = vec![from];
    while let Some(way) = ways.pop() {
        let here = *way.last()?;
        if here == to {
            return Some(way);
        }
        let next = written(seats).filter(|(name, _)| name.value == here);
        for word in next.flat_map(|(_, entry)| &entry.fallback) {
            if word.value == to || !seen.contains(&word.value.as_str()) {
                seen.push(&word.value);
                ways.push(way.iter().copied().chain([word.value.as_str()]).collect());
            }
        }
    }
    None
}

/// Lays out who may answer for each seat. Every name is known by now and no fallback turns in a circle.
struct Seats<'a> {
    entries: &'a Named<SeatEntry>,
    backends: &'a [Arc<Backend>],
}

impl Seats<'_> {
    fn all(&self) -> Vec<Arc<Seat>> {
        written(self.entries)
            .map(|(name, entry)| {
                let mut candidates = Vec::new();
                self.gather(&name.value, &mut candidates);
                let second_model = entry.second_model.as_ref().map(|second| SecondModel {
                    name: second.name.value.clone(),
                    candidates: self.of(&second.backends, &name.value),
                });
                Arc::new(Seat {
                    name: name.value.clone(),
                    personas: entry.personas.iter().map(|word| word.value.clone()).collect(),
                    system: entry.system.clone(),
                    defaults: entry.defaults.clone(),
                    candidates,
                    second_model,
                })
            })
            .collect()
    }

    /// Own backends first, then each fallback seat's, depth first; a backend met twice keeps its first place.
    fn gather(&self, seat: &str, candidates: &mut Vec<Candidate>) {
        let Some((_, entry)) = written(self.entries).find(|(name, _)| name.value == seat) else {
            return;
        };
        for candidate in self.of(&entry.backends, seat) {
            if !candidates.iter().any(|known| known.backend.name == candidate.backend.name) {
                candidates.push(candidate);
            }
        }
        for next in &entry.fallback {
            self.gather(&next.value, candidates);
        }
    }

    fn of(&self, names: &[At<String>], seat: &str) -> Vec<Candidate> {
        let seat: Arc<str> = Arc::from(seat);
        names
            .iter()
            .filter_map(|name| self.backends.iter().find(|backend| backend.name == name.value))
            .map(|backend| Candidate { backend: Arc::clone(backend), seat: Arc::clone(&seat) })
            .collect()
    }
}
