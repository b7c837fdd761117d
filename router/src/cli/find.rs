//! Finding the running router: as told, or through `router.json` in the instance's state directory.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use sanctum_shared::instance::{Instance, InstanceError};
use serde::Deserialize;

/// Name of the file in which a router says where it is.
pub(super) const ROUTER_FILE: &str = "router.json";

/// What a running router writes to its state directory.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct RouterFile {
    pub(super) pid: i32,
    pub(super) listen: Vec<SocketAddr>,
    pub(super) admin: SocketAddr,
}

/// Why no router was found.
#[derive(Debug, thiserror::Error)]
pub(super) enum FindError {
    /// The instance file, which says where to look, is missing or wrong.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// Nothing was left by a router.
    #[error("no router runs for {}: there is no {}", instance.display(), path.display())]
    NotRunning { instance: PathBuf, path: PathBuf },
    /// A router was killed before it could remove its file.
    #[error("no router runs for {}: process {pid} of {} is gone", instance.display(), path.display())]
    Gone { instance: PathBuf, path: PathBuf, pid: i32 },
    /// The file cannot be read or understood.
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
}

/// The router of an instance file.
pub(super) fn router(instance_file: &Path) -> Result<RouterFile, FindError> {
    let instance = Instance::load(instance_file)?;
    router_of(&instance)
}

/// The router of an instance.
pub(super) fn router_of(instance: &Instance) -> Result<RouterFile, FindError> {
    let path = instance.state_dir.join(ROUTER_FILE);
    let file = || instance.file.clone();
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(FindError::NotRunning { instance: file(), path });
        }
        Err(source) => return Err(FindError::Unreadable { path, source }),
    };
    let found: RouterFile = match serde_json::from_slice(&text) {
        Ok(found) => found,
        Err(source) => return Err(FindError::Unreadable { path, source: source.into() }),
    };
    if kill(Pid::from_raw(found.pid), None) == Err(Errno::ESRCH) {
        return Err(FindError::Gone { instance: file(), path, pid: found.pid });
    }
    Ok(found)
}

/// The router's admin URL.
pub(super) fn admin_url(told: Option<&str>, instance_file: &Path) -> Result<String, FindError> {
    if let Some(url) = told {
        return Ok(url.trim_end_matches('/').to_owned());
    }
    Ok(format!("http://{}", router(instance_file)?.admin))
}

/// The router's base URL for callers, without `/v1`.
pub(super) fn caller_url(told: Option<&str>, instance_file: &Path) -> Result<String, FindError> {
    if let Some(url) = told {
        let url = url.trim_end_matches('/');
        return Ok(url.strip_suffix("/v1").unwrap_or(url).to_owned());
    }
    let router = router(instance_file)?;
    let first = router.listen.first().copied().unwrap_or(router.admin);
    // An address of all interfaces can be listened on, not called.
    let host = match first.ip() {
        ip if ip.is_unspecified() && ip.is_ipv4() => {
            SocketAddr::from(([127, 0, 0, 1], first.port()))
        }
        ip if ip.is_unspecified() => {
            SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, first.port()))
        }
        _ => first,
    };
    Ok(format!("http://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(dir: &Path, router: Option<&str>) -> PathBuf {
        let file = dir.join("i.yaml");
        let text = "backends: { a: { url: 'http://h/v1' } }\nseats: { s: { backends: [a] } }\n";
        std::fs::write(&file, text).expect("writes");
        std::fs::create_dir_all(dir.join("var")).expect("makes");
        if let Some(router) = router {
            std::fs::write(dir.join("var").join(ROUTER_FILE), router).expect("writes");
        }
        file
    }

    #[test]
    fn a_running_router_is_found() {
        let dir = tempfile::tempdir().expect("a directory");
        let pid = std::process::id();
        let text =
            format!("{{\"pid\":{pid},\"listen\":[\"0.0.0.0:99\"],\"admin\":\"127.0.0.1:98\"}}");
        let file = written(dir.path(), Some(&text));
        assert_eq!(caller_url(None, &file).expect("found"), "http://127.0.0.1:99");
        assert_eq!(admin_url(None, &file).expect("found"), "http://127.0.0.1:98");
    }

    #[test]
    fn what_is_told_wins_and_may_end_in_v1() {
        let nowhere = Path::new("/nowhere.yaml");
        let url = caller_url(Some("http://h:1/v1/"), nowhere).expect("told");
        assert_eq!(url, "http://h:1");
    }

    #[test]
    fn no_router_is_said_plainly() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = written(dir.path(), None);
        assert!(matches!(router(&file), Err(FindError::NotRunning { .. })));
        // No process has the highest id there can be.
        let gone = "{\"pid\":2147483647,\"listen\":[],\"admin\":\"127.0.0.1:98\"}";
        let file = written(dir.path(), Some(gone));
        assert!(matches!(router(&file), Err(FindError::Gone { pid: i32::MAX, .. })));
        let file = written(dir.path(), Some("{"));
        assert!(matches!(router(&file), Err(FindError::Unreadable { .. })));
    }
}
