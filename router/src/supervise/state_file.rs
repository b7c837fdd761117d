//! The files in which workers say where they listen, and what earlier routers left behind.
//!
//! Owns `workers/*.json` of the state directory. A process is signalled only if its own command line shows that it
//! is the worker of that file: process ids are used again by others.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, getpgid};
use serde::Deserialize;
use tokio::time::{Instant, sleep};

/// Largest state file that is read, in bytes.
const FILE_BYTES: u64 = 64 * 1024;
/// How long a stale worker may take to end after SIGTERM before it is killed.
const STALE_GRACE: Duration = Duration::from_secs(5);
/// How long a killed process may take to be gone.
const KILL_GRACE: Duration = Duration::from_secs(2);
/// Time between two looks at a process that should end.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// What a worker writes once it listens.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct WorkerState {
    pub(super) pid: u32,
    pub(super) address: SocketAddr,
}

impl WorkerState {
    /// Whether a process of that group wrote it: the leader itself, or what a wrapper around the worker started.
    pub(super) fn is_in_group(&self, leader: Pid) -> bool {
        // 0 would ask for our own group.
        let pid = i32::try_from(self.pid).ok().filter(|pid| *pid > 0).map(Pid::from_raw);
        pid.is_some_and(|pid| getpgid(Some(pid)) == Ok(leader))
    }
}

/// The state file of one process of `backend`; `generation` counts the processes of this router's life. The router's
/// own id keeps a worker that outlived another router from writing into the same file.
pub(super) fn path(state_dir: &Path, backend: &str, router: u32, generation: u64) -> PathBuf {
    state_dir.join("workers").join(format!("{backend}.{router}.{generation}.json"))
}

/// Reads a state file; `None` while it is not there or not whole, which are the same to one who waits for it.
pub(super) fn read(path: &Path) -> Option<WorkerState> {
    let facts = std::fs::metadata(path).ok()?;
    if !facts.is_file() || facts.len() > FILE_BYTES {
        return None;
    }
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Removes a state file, if it is there.
pub(super) fn remove(path: &Path) {
    if let Err(error) = std::fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "cannot remove a worker's state file");
    }
}

/// Ends every worker that an earlier router started here and that still runs, and removes their files.
///
/// # Errors
/// The directory cannot be read.
pub(super) async fn end_stale(state_dir: &Path) -> io::Result<()> {
    let mut left = Vec::new();
    for entry in std::fs::read_dir(state_dir.join("workers"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            left.push(path);
        }
    }
    let endings = left.into_iter().map(|path| async move {
        if let Some(state) = read(&path) {
            end_one(&state, &path).await;
        }
        remove(&path);
    });
    futures_util::future::join_all(endings).await;
    Ok(())
}

async fn end_one(state: &WorkerState, path: &Path) {
    let Ok(raw) = i32::try_from(state.pid) else { return };
    let pid = Pid::from_raw(raw);
    if raw <= 1 || !is_running(pid) {
        return;
    }
    if !is_worker_of(pid, path) {
        let file = path.display();
        tracing::info!(pid = raw, %file, "a stale state file names a process that is not its worker");
        return;
    }
    tracing::warn!(pid = raw, address = %state.address, "ending a worker that an earlier router left behind");
    // Failing to signal means that it has just ended.
    let _ = kill(pid, Signal::SIGTERM);
    if ends_within(pid, STALE_GRACE).await {
        return;
    }
    // It leads its own group; whatever it started goes with it.
    if is_worker_of(pid, path) && killpg(pid, Signal::SIGKILL).is_err() {
        let _ = kill(pid, Signal::SIGKILL);
    }
    if !ends_within(pid, KILL_GRACE).await {
        tracing::error!(pid = raw, "a stale worker survived SIGKILL");
    }
}

async fn ends_within(pid: Pid, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while is_running(pid) {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(LOOK_INTERVAL).await;
    }
    true
}

fn is_running(pid: Pid) -> bool {
    // A zombie answers signals too, but holds no port and no memory.
    !matches!(kill(pid, None), Err(Errno::ESRCH)) && !is_zombie(pid)
}

#[cfg(target_os = "linux")]
fn is_zombie(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

#[cfg(not(target_os = "linux"))]
fn is_zombie(_pid: Pid) -> bool {
    false
}

/// Whether the process was started with `--state-file PATH`, which no other process has reason to be.
fn is_worker_of(pid: Pid, path: &Path) -> bool {
    let Some(path) = path.to_str() else { return false };
    let words = command_line(pid);
    words.windows(2).any(|pair| pair[0] == "--state-file" && pair[1] == path)
}

#[cfg(target_os = "linux")]
fn command_line(pid: Pid) -> Vec<String> {
    let raw = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    raw.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// `ps` joins words by blanks; a path with blanks is then not recognised, and its process left alone.
#[cfg(not(target_os = "linux"))]
fn command_line(pid: Pid) -> Vec<String> {
    let shown = std::process::Command::new("ps")
        .args(["-ww", "-o", "command=", "-p", &pid.to_string()])
        .output()
        .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
        .unwrap_or_default();
    shown.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use nix::unistd::getpgrp;

    use super::*;

    #[test]
    fn only_a_process_of_the_group_is_believed() {
        let says = |pid| WorkerState { pid, address: (Ipv4Addr::LOCALHOST, 1).into() };
        let ours = getpgrp();
        assert!(says(std::process::id()).is_in_group(ours));
        // The first process of the system is in no group of ours, the highest id is nobody's, 0 is no id.
        for pid in [1, i32::MAX as u32, u32::MAX, 0] {
            assert!(!says(pid).is_in_group(ours), "{pid}");
        }
    }

    #[test]
    fn two_routers_never_share_a_file() {
        let of = |router| path(Path::new("/s"), "a", router, 1);
        assert_eq!(of(7), Path::new("/s/workers/a.7.1.json"));
        assert_ne!(of(7), of(8));
    }
}
