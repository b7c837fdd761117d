//! One process under test: started with its output in files, signalled by id, killed when the test lets go of it.
//!
//! Owns where binaries are found: beside the running test, in the same target directory. Cargo builds no binaries of
//! other packages for a test, so their absence is said plainly.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use super::poll::eventually;

/// The path of a binary of this workspace.
///
/// # Panics
/// If it has not been built.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    // target/<profile>/deps/<test>
    let profile = test.ancestors().nth(2).expect("tests lie in target/<profile>/deps");
    let path = profile.join(name);
    assert!(
        path.is_file(),
        "{} is missing: build it with `cargo build -p sanctum-mlx -p sanctum-router --bins` (`make test` does)",
        path.display()
    );
    path
}

/// The workspace's root.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_owned()
}

/// A started process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    name: String,
    output: TempDir,
}

impl Process {
    /// Starts a command. Its standard input is a pipe that we hold; its output goes to files.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> Self {
        let output = tempfile::tempdir().expect("a temporary directory");
        let file = |name: &str| File::create(output.path().join(name)).expect("a new file");
        let name = Path::new(command.get_program()).display().to_string();
        command.stdin(Stdio::piped()).stdout(file("out")).stderr(file("err"));
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        Self { child, name, output }
    }

    /// Its process id.
    ///
    /// # Panics
    /// Never: ids are positive `i32`s.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("ids fit"))
    }

    /// What it has written to standard output.
    pub fn out(&self) -> String {
        self.written("out")
    }

    /// What it has written to standard error.
    pub fn err(&self) -> String {
        self.written("err")
    }

    fn written(&self, name: &str) -> String {
        let bytes = fs::read(self.output.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has been waited for already.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal)
            .unwrap_or_else(|error| panic!("{signal} to {}: {error}", self.name));
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// How it ended, if it has.
    ///
    /// # Panics
    /// If the system does not know the process.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("our own child")
    }

    /// Waits for its end and returns the exit code.
    ///
    /// # Panics
    /// If it runs on, or dies of a signal.
    pub async fn exit_code(&mut self, limit: Duration) -> i32 {
        let what = format!("the end of {}", self.name);
        let status = eventually(&what, limit, async || match self.ended() {
            Some(status) => Ok(status),
            None => Err(format!("still running; its log ends:\n{}", tail(&self.err()))),
        })
        .await;
        status.code().unwrap_or_else(|| {
            panic!("{} died of signal {:?}:\n{}", self.name, status.signal(), tail(&self.err()))
        })
    }
}

impl Drop for Process {
    #[expect(clippy::print_stderr, reason = "a failing test shows what its process wrote")]
    fn drop(&mut self) {
        // It may have ended already; then there is nothing to kill and the wait returns at once.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {} wrote:\n{}", self.name, tail(&self.err()));
        }
    }
}

/// Lines of a log that a failing test shows.
const TAIL_LINES: usize = 40;

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Whether a process exists and is no zombie.
pub fn is_alive(pid: Pid) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        // Without /proc (macOS) a zombie of somebody else's is gone in a moment.
        return !Path::new("/proc/self").exists() && kill(pid, None).is_ok();
    };
    // The name stands in brackets and may hold blanks; the state follows it.
    !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}
