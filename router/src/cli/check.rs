//! `sanctum check`: is the instance file right?

use std::io::{self, Write as _};
use std::path::Path;

use sanctum_shared::instance::{BackendKind, Instance};

use super::CliError;

pub(super) fn run(file: &Path) -> Result<(), CliError> {
    let instance = Instance::load(file)?;
    let mut out = io::stdout().lock();
    let workers =
        instance.backends.iter().filter(|b| matches!(b.kind, BackendKind::Worker(_))).count();
    writeln!(
        out,
        "{}: right: {}, {} ({}), listening on {}",
        file.display(),
        count(instance.seats.len(), "seat"),
        count(instance.backends.len(), "backend"),
        count(workers, "worker"),
        instance.listen.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    )?;
    for note in notes(&instance, is_set) {
        writeln!(out, "note: {note}")?;
    }
    Ok(())
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Whether the router would find a key in that variable: an empty one, or one that is no text, counts as none.
pub(super) fn is_set(variable: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| holds_key(&value))
}

fn holds_key(value: &str) -> bool {
    !value.trim().is_empty()
}

/// What is no mistake in the file, and yet would keep a backend from answering as things are now.
pub(super) fn notes(instance: &Instance, is_set: impl Fn(&str) -> bool) -> Vec<String> {
    let mut notes = Vec::new();
    for backend in &instance.backends {
        let name = &backend.name;
        match &backend.kind {
            BackendKind::Worker(worker) if !worker.model.path.is_dir() => {
                let path = worker.model.path.display();
                notes.push(format!("backend `{name}`: there is no model directory {path} yet"));
            }
            BackendKind::Remote(remote) => {
                if let Some(variable) = remote.api_key_env.as_ref().filter(|name| !is_set(name)) {
                    notes.push(format!(
                        "backend `{name}`: {variable} is not set here: it would not be called"
                    ));
                }
            }
            BackendKind::Worker(_) => {}
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_variable_holds_no_key() {
        assert!(!holds_key("") && !holds_key(" \n"));
        assert!(holds_key("sk-1"));
    }

    #[test]
    fn notes_name_what_is_missing_around_the_file() {
        let text = "
models: { m: { path: not-here } }
backends: { a: { worker: { model: m } }, b: { url: 'http://h/v1', api_key_env: B_KEY } }
seats: { s: { backends: [a, b] } }
";
        let instance = Instance::parse(text, Path::new("/tmp/i.yaml")).expect("a valid file");
        let all = notes(&instance, |_| false);
        assert_eq!(all.len(), 2);
        assert!(all[0].contains("/tmp/not-here") && all[1].contains("B_KEY"), "{all:?}");
        assert_eq!(notes(&instance, |name| name == "B_KEY").len(), 1);
    }
}
