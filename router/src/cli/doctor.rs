//! `sanctum doctor`: what this host has, and what is missing.
//!
//! Owns the facts of router and instance; those of MLX and the CPU are told by `sanctum-mlx doctor`, which runs last.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sanctum_shared::instance::{Instance, InstanceError};

use super::call::Caller;
use super::{CliError, check, find, with_causes};
use crate::supervise::worker_program;

/// What was found, line by line.
#[derive(Default)]
struct Findings {
    lines: Vec<(&'static str, String)>,
    /// Something that keeps the instance from serving.
    bad: bool,
}

impl Findings {
    fn note(&mut self, what: &'static str, text: impl Into<String>) {
        self.lines.push((what, text.into()));
    }

    fn bad(&mut self, what: &'static str, text: impl Into<String>) {
        self.bad = true;
        self.note(what, text);
    }
}

pub(super) async fn run(instance_file: &Path) -> Result<(), CliError> {
    let mut findings = Findings::default();
    let host = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    findings.note("sanctum", format!("{} on {host}, {cores} cores", env!("CARGO_PKG_VERSION")));
    let instance = look_at_instance(instance_file, &mut findings);
    look_for_router_program(&mut findings);
    if let Some(instance) = &instance {
        look_at_state_dir(&instance.state_dir, &mut findings);
        look_for_router(instance, &mut findings).await;
    }
    let worker = worker_program(instance.as_ref().and_then(|i| i.worker_binary.as_deref()));
    print(&findings)?;
    let healthy = ask_worker(&worker)?;
    if findings.bad || !healthy { Err(CliError::Told) } else { Ok(()) }
}

fn look_at_instance(file: &Path, findings: &mut Findings) -> Option<Instance> {
    match Instance::load(file) {
        Ok(instance) => {
            let (seats, backends) = (instance.seats.len(), instance.backends.len());
            let right = format!("{}: right ({seats} seats, {backends} backends)", file.display());
            findings.note("instance", right);
            for note in check::notes(&instance, check::is_set) {
                findings.note("", note);
            }
            Some(instance)
        }
        Err(InstanceError::Invalid(problems)) => {
            for line in problems.to_string().lines() {
                findings.bad("instance", line);
            }
            None
        }
        Err(error) => {
            findings.bad("instance", with_causes(&error));
            None
        }
    }
}

fn look_for_router_program(findings: &mut Findings) {
    let beside =
        std::env::current_exe().ok().and_then(|us| Some(us.parent()?.join("sanctum-router")));
    match beside.filter(|path| path.is_file()).or_else(|| in_path("sanctum-router")) {
        Some(path) => findings.note("sanctum-router", path.display().to_string()),
        None => findings.bad("sanctum-router", "missing: neither beside this program nor in PATH"),
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|program| program.is_file())
}

fn look_at_state_dir(dir: &Path, findings: &mut Findings) {
    match nix::unistd::access(dir, nix::unistd::AccessFlags::W_OK) {
        Ok(()) => findings.note("state", format!("{} can be written", dir.display())),
        Err(nix::errno::Errno::ENOENT) => {
            findings.note("state", format!("{} will be made at the first start", dir.display()));
        }
        Err(error) => findings.bad("state", format!("{}: {}", dir.display(), error.desc())),
    }
}

async fn look_for_router(instance: &Instance, findings: &mut Findings) {
    let router = match find::router_of(instance) {
        Ok(router) => router,
        Err(error) => return findings.note("router", with_causes(&error)),
    };
    let url = format!("http://{}/livez", router.admin);
    let answer = match Caller::new(None) {
        Ok(caller) => caller.look(&url).await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(_) => findings.note("router", format!("runs as process {} and answers", router.pid)),
        Err(error) => findings.bad(
            "router",
            format!("process {} does not answer: {}", router.pid, with_causes(&error)),
        ),
    }
}

fn print(findings: &Findings) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let width = findings.lines.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    for (what, text) in &findings.lines {
        writeln!(out, "{what:<width$}  {text}")?;
    }
    out.flush()
}

/// Runs `sanctum-mlx doctor`, which prints its part itself.
fn ask_worker(program: &Path) -> Result<bool, CliError> {
    let status = Command::new(program)
        .arg("doctor")
        .stdin(Stdio::null())
        .status()
        .map_err(|source| CliError::Program { program: program.to_owned(), source })?;
    Ok(status.success())
}
