//! Starting one worker process: its arguments, its environment, its group, its limits, its log.
//!
//! Owns the worker's command line as seen from the router. It waits for nothing.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use sanctum_shared::instance::Worker;
use tokio::process::{Child, Command};

use super::logfile;

/// The name of the worker's program.
pub(crate) const WORKER_PROGRAM: &str = "sanctum-mlx";

/// Where the dynamic loader looks first.
pub(super) const LIBRARY_PATH: &str =
    if cfg!(target_os = "macos") { "DYLD_LIBRARY_PATH" } else { "LD_LIBRARY_PATH" };

/// Everything that is needed to start one backend's worker.
#[derive(Debug, Clone)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) worker: Worker,
    pub(super) log: PathBuf,
    /// The router's own loader path, which a worker's comes before.
    pub(super) inherited_library_path: Option<OsString>,
    pub(super) drain: Duration,
    /// Variables of the router's environment that the worker does not get, unless the instance gives them to it.
    pub(super) withheld: Arc<[String]>,
}

/// A worker that could not be started.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    /// The program could not be run.
    #[error("cannot run {}", program.display())]
    Program {
        program: PathBuf,
        /// It is not there or not a program: another try finds the same.
        missing: bool,
        source: io::Error,
    },
    /// Its log could not be opened.
    #[error("cannot open the log {}", path.display())]
    Log { path: PathBuf, source: io::Error },
    /// Its limits could not be set.
    #[error("cannot limit the worker")]
    Limits { source: io::Error },
}

fn is_missing(error: &io::Error) -> bool {
    use io::ErrorKind::{IsADirectory, NotADirectory, NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied | IsADirectory | NotADirectory)
        || error.raw_os_error() == Some(nix::libc::ENOEXEC)
}

impl Launch {
    /// The arguments of `sanctum-mlx serve`.
    pub(super) fn arguments(&self, state_file: &Path) -> Vec<OsString> {
        let worker = &self.worker;
        let mut arguments: Vec<OsString> = vec!["serve".into()];
        let mut give = |flag: &str, value: &OsStr| {
            arguments.push(flag.into());
            arguments.push(value.to_owned());
        };
        give("--model", worker.model.path.as_os_str());
        give("--name", OsStr::new(&worker.model.name));
        give("--listen", OsStr::new(&format!("127.0.0.1:{}", worker.port)));
        give("--state-file", state_file.as_os_str());
        give("--drain-seconds", OsStr::new(&self.drain.as_secs().to_string()));
        let numbers = [
            ("--threads", worker.threads),
            ("--slots", worker.slots),
            ("--context", worker.context()),
            ("--queue", worker.queue),
        ];
        for (flag, number) in numbers {
            if let Some(number) = number {
                give(flag, OsStr::new(&number.to_string()));
            }
        }
        arguments.push("--exit-with-parent".into());
        arguments.extend(worker.args.iter().map(OsString::from));
        arguments
    }

    /// Starts the process as the leader of a group of its own, with a pipe on its standard input that says by its
    /// end that we are gone.
    ///
    /// # Errors
    /// Which of program, log file and limits it failed on.
    pub(super) fn start(&self, state_file: &Path) -> Result<Child, LaunchError> {
        let log_failed = |source| LaunchError::Log { path: self.log.clone(), source };
        let log = logfile::open(&self.log).map_err(log_failed)?;
        let mut command = self.command(state_file);
        command
            .stdin(Stdio::piped())
            .stdout(log.try_clone().map_err(log_failed)?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn().map_err(|source| LaunchError::Program {
            program: self.program.clone(),
            missing: is_missing(&source),
            source,
        })?;
        if let Some(pid) = child.id() {
            self.limit(pid).map_err(|source| LaunchError::Limits { source })?;
        }
        Ok(child)
    }

    /// The program with its arguments and its environment.
    fn command(&self, state_file: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.arguments(state_file));
        for variable in self.withheld.iter() {
            command.env_remove(variable);
        }
        command.envs(&self.worker.env);
        if let Some(path) = self.library_path() {
            command.env(LIBRARY_PATH, path);
        }
        command
    }

    fn library_path(&self) -> Option<OsString> {
        let mut path = self.worker.library_path.as_ref()?.clone().into_os_string();
        if let Some(inherited) =
            self.inherited_library_path.as_ref().filter(|path| !path.is_empty())
        {
            path.push(":");
            path.push(inherited);
        }
        Some(path)
    }

    /// Sets the process's limits from outside, right after its start: nothing of ours then runs between fork and exec.
    #[cfg(target_os = "linux")]
    fn limit(&self, pid: u32) -> io::Result<()> {
        use rustix::process::{Pid, Resource, Rlimit, prlimit};
        let limits = [
            (Resource::As, self.worker.address_space_mb.map(|mib| mib.saturating_mul(1 << 20))),
            (Resource::Nofile, self.worker.open_files),
        ];
        for (resource, limit) in limits {
            if let (Some(limit), Some(pid)) = (limit, Pid::from_raw(pid.cast_signed())) {
                let limit = Rlimit { current: Some(limit), maximum: Some(limit) };
                match prlimit(Some(pid), resource, limit) {
                    // It has ended already; its exit code says more.
                    Ok(_) | Err(rustix::io::Errno::SRCH) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    /// Elsewhere a process can be limited only from within, which the router does not do.
    #[cfg(not(target_os = "linux"))]
    fn limit(&self, _pid: u32) -> io::Result<()> {
        if self.worker.address_space_mb.is_some() || self.worker.open_files.is_some() {
            let why = "`address_space_mb` and `open_files` work on Linux only";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(())
    }
}

/// The worker's program: as the instance says, else beside the running executable, else whatever PATH finds.
pub(crate) fn worker_program(configured: Option<&Path>) -> PathBuf {
    if let Some(path) = configured {
        return path.to_owned();
    }
    std::env::current_exe()
        .ok()
        .and_then(|running| Some(running.parent()?.join(WORKER_PROGRAM)))
        .filter(|beside| beside.is_file())
        .unwrap_or_else(|| PathBuf::from(WORKER_PROGRAM))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sanctum_shared::instance::Model;

    use super::*;

    fn launch() -> Launch {
        let model =
            Model { name: "small".into(), path: "/models/small".into(), context: Some(512) };
        Launch {
            program: "/bin/true".into(),
            worker: Worker {
                model: Arc::new(model),
                threads: Some(2),
                slots: None,
                context: None,
                queue: Some(0),
                port: 0,
                env: BTreeMap::new(),
                args: vec!["--prefill-chunk".into(), "64".into()],
                library_path: Some("/cuda".into()),
                address_space_mb: None,
                open_files: None,
            },
            log: "/dev/null".into(),
            inherited_library_path: Some("/usr/lib".into()),
            drain: Duration::from_secs(30),
            withheld: ["FAR_KEY".to_owned(), "GIVEN_KEY".to_owned()].into(),
        }
    }

    #[test]
    fn keys_of_urls_are_withheld_unless_given() {
        let mut launch = launch();
        launch.worker.env.insert("GIVEN_KEY".into(), "given".into());
        let command = launch.command(Path::new("/state/a.json"));
        let environment: BTreeMap<_, _> = command.as_std().get_envs().collect();
        assert_eq!(environment[OsStr::new("FAR_KEY")], None, "taken out");
        assert_eq!(environment[OsStr::new("GIVEN_KEY")], Some(OsStr::new("given")));
    }

    #[test]
    fn the_command_line_says_what_the_instance_says() {
        let arguments = launch().arguments(Path::new("/state/a.1.json"));
        let line: Vec<&str> = arguments.iter().filter_map(|word| word.to_str()).collect();
        assert_eq!(
            line.join(" "),
            "serve --model /models/small --name small --listen 127.0.0.1:0 --state-file /state/a.1.json \
             --drain-seconds 30 --threads 2 --context 512 --queue 0 --exit-with-parent --prefill-chunk 64"
        );
    }

    #[test]
    fn another_libmlx_comes_first_on_the_path() {
        assert_eq!(launch().library_path(), Some(OsString::from("/cuda:/usr/lib")));
    }

    #[test]
    fn a_configured_program_wins() {
        assert_eq!(worker_program(Some(Path::new("/opt/w"))), Path::new("/opt/w"));
    }
}
