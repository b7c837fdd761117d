//! The file that tells others where this process listens.
//!
//! Written whole or not at all, after the port is bound; removed at the end, unless another process has taken it over
//! by then.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write the state file {}", path.display())]
pub(super) struct StateFileError {
    path: PathBuf,
    source: io::Error,
}

/// What the file says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// The process.
    pub(super) pid: u32,
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// What it serves.
    pub(super) model: String,
    /// When it started, in Unix seconds.
    pub(super) started_unix: u64,
}

/// A written state file; dropping it removes the file.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    pid: u32,
}

impl StateFile {
    /// Writes `state` to `path`.
    pub(super) fn write(path: &Path, state: &State) -> Result<Self, StateFileError> {
        let refuse = |source| StateFileError { path: path.to_owned(), source };
        let text = serde_json::to_string(state).map_err(|error| refuse(error.into()))?;
        let mut staged = path.as_os_str().to_owned();
        staged.push(format!(".{}.tmp", state.pid));
        let staged = PathBuf::from(staged);
        let write = || -> io::Result<()> {
            let mut file = fs::File::create(&staged)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&staged, path)
        };
        write().map_err(|source| {
            // It may not exist; the error that matters is the first one.
            let _ = fs::remove_file(&staged);
            refuse(source)
        })?;
        Ok(Self { path: path.to_owned(), pid: state.pid })
    }
}

impl Drop for StateFile {
    fn drop(&mut self) {
        let ours = fs::read(&self.path)
            .ok()
            .and_then(|text| serde_json::from_slice::<State>(&text).ok())
            .is_some_and(|state| state.pid == self.pid);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "cannot remove the state file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(pid: u32) -> State {
        let address = "127.0.0.1:8912".parse().expect("an address");
        State { pid, address, model: "m".into(), started_unix: 7 }
    }

    #[test]
    fn it_is_there_until_dropped() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("worker.json");
        let file = StateFile::write(&path, &state(5)).expect("written");
        let text = fs::read_to_string(&path).expect("there");
        assert_eq!(text, r#"{"pid":5,"address":"127.0.0.1:8912","model":"m","started_unix":7}"#);
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 1, "nothing left beside it");
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn the_file_of_a_successor_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("worker.json");
        let old = StateFile::write(&path, &state(5)).expect("written");
        let _new = StateFile::write(&path, &state(6)).expect("written");
        drop(old);
        assert!(path.exists());
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = StateFile::write(Path::new("/nowhere/worker.json"), &state(5));
        let error = error.expect_err("no such directory").to_string();
        assert_eq!(error, "cannot write the state file /nowhere/worker.json");
    }
}
