//! A worker's own log file: appended to by the worker itself, kept from growing without bound by us.
//!
//! The worker holds the descriptor, so its words survive the router's death. When the file grows too large its
//! contents move to `NAME.log.1` and it starts empty; the worker, which appends, need not know.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

/// Size at which a log is turned over, in bytes; one older part is kept.
pub(super) const LOG_BYTES: u64 = 8 * 1024 * 1024;

/// Opens `path` for a worker to append to.
pub(super) fn open(path: &Path) -> io::Result<File> {
    turn_over(path, LOG_BYTES)?;
    OpenOptions::new().create(true).append(true).open(path)
}

/// Turns the log over if it is larger than `limit` bytes.
pub(super) fn turn_over(path: &Path, limit: u64) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(facts) if facts.len() > limit => {}
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    }
    let mut older = path.as_os_str().to_owned();
    older.push(".1");
    fs::copy(path, &older)?;
    // What is written between the copy and this line is lost; a log may lose a line, a disk must not fill.
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_long_log_is_turned_over_under_its_writer() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.log");
        let mut writer = open(&path).expect("opens");
        writer.write_all(b"0123456789").expect("writes");
        turn_over(&path, 10).expect("small enough");
        assert_eq!(fs::read(&path).expect("reads"), b"0123456789");
        turn_over(&path, 9).expect("turns over");
        writer.write_all(b"new").expect("the writer goes on");
        assert_eq!(fs::read(&path).expect("reads"), b"new");
        assert_eq!(fs::read(dir.path().join("a.log.1")).expect("reads"), b"0123456789");
    }

    #[test]
    fn a_missing_log_is_no_error() {
        turn_over(Path::new("/nowhere/at/all.log"), 1).expect("nothing to do");
    }
}
