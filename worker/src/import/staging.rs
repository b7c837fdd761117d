//! The directory an import is built in, renamed to its target when it is whole.
//!
//! A run that is cut short leaves only the staging directory, which the next run clears. A lock on it (advisory, held
//! by the open descriptor, so it ends with the process) keeps two imports into one target apart.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::ImportError;

/// A locked, empty directory beside the target. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Staging {
    target: PathBuf,
    path: PathBuf,
    force: bool,
    _lock: File,
}

impl Staging {
    /// Refuses a target that exists, or with `force` one that is no model directory.
    pub(super) fn open(target: &Path, force: bool) -> Result<Self, ImportError> {
        let target = std::path::absolute(target).map_err(ImportError::io("resolve", target))?;
        replaceable(&target, force)?;
        let path = sibling(&target, "importing");
        fs::create_dir_all(&path).map_err(ImportError::io("create", &path))?;
        let lock = File::open(&path).map_err(ImportError::io("open", &path))?;
        lock.try_lock().map_err(|_| ImportError::Busy(target.clone()))?;
        let staging = Self { target, path, force, _lock: lock };
        staging.clear()?;
        Ok(staging)
    }

    /// Where to write.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn clear(&self) -> Result<(), ImportError> {
        let entries = fs::read_dir(&self.path).map_err(ImportError::io("read", &self.path))?;
        for entry in entries {
            let path = entry.map_err(ImportError::io("read", &self.path))?.path();
            let removed =
                if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            removed.map_err(ImportError::io("remove", &path))?;
        }
        Ok(())
    }

    /// Puts the finished directory in its place.
    pub(super) fn commit(self) -> Result<(), ImportError> {
        replaceable(&self.target, self.force)?;
        let replaced = sibling(&self.target, "replaced");
        let replaces = self.target.exists();
        if replaces {
            let _ = fs::remove_dir_all(&replaced); // left by a run that was cut between the two renames
            fs::rename(&self.target, &replaced)
                .map_err(ImportError::io("move away", &self.target))?;
        }
        fs::rename(&self.path, &self.target).map_err(ImportError::io("create", &self.target))?;
        if let Some(parent) = self.target.parent() {
            let synced = File::open(parent).and_then(|parent| parent.sync_all());
            synced.map_err(ImportError::io("write", parent))?;
        }
        if replaces {
            fs::remove_dir_all(&replaced).map_err(ImportError::io("remove", &replaced))?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // After a commit the path is gone; otherwise the next run would clear what cannot be removed now.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn replaceable(target: &Path, force: bool) -> Result<(), ImportError> {
    let empty = || fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
    if !target.exists() || empty() {
        Ok(())
    } else if !force {
        Err(ImportError::Exists(target.to_owned()))
    } else if target.join("config.json").is_file() {
        Ok(())
    } else {
        Err(ImportError::NotAModel(target.to_owned()))
    }
}

fn sibling(target: &Path, suffix: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_an_import_that_was_given_up() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let target = dir.path().join("models/m");
        let staging = Staging::open(&target, false).expect("open");
        fs::write(staging.path().join("half"), "made").expect("writable");
        assert!(matches!(Staging::open(&target, false), Err(ImportError::Busy(_))));
        drop(staging);
        let left = fs::read_dir(dir.path().join("models")).expect("readable").count();
        assert_eq!(left, 0);
    }

    #[test]
    fn what_a_killed_run_left_is_cleared() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let target = dir.path().join("m");
        fs::create_dir_all(dir.path().join(".m.importing/sub")).expect("writable");
        fs::write(dir.path().join(".m.importing/half"), "made").expect("writable");
        let staging = Staging::open(&target, false).expect("open");
        fs::write(staging.path().join("config.json"), "{}").expect("writable");
        staging.commit().expect("committed");
        let names: Vec<_> =
            fs::read_dir(&target).expect("there").map(|e| e.expect("entry").file_name()).collect();
        assert_eq!(names, ["config.json"]);
    }

    #[test]
    fn only_force_replaces_and_only_a_model() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let target = dir.path().join("m");
        fs::create_dir(&target).expect("writable");
        fs::write(target.join("letter.txt"), "mine").expect("writable");
        assert!(matches!(Staging::open(&target, false), Err(ImportError::Exists(_))));
        assert!(matches!(Staging::open(&target, true), Err(ImportError::NotAModel(_))));
        fs::write(target.join("config.json"), "{}").expect("writable");
        let staging = Staging::open(&target, true).expect("open");
        fs::write(staging.path().join("config.json"), "new").expect("writable");
        staging.commit().expect("committed");
        assert_eq!(fs::read_to_string(target.join("config.json")).expect("there"), "new");
        assert!(!target.join("letter.txt").exists());
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1);
    }
}
