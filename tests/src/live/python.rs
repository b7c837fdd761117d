//! Python clients, in an installation of their own: made once per set of requirements and interpreter, and kept in
//! the cache directory beside what the set-up keeps there.
//!
//! A machine that cannot make it fails the test and says what is missing; nothing is skipped.

use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::{Process, workspace};

/// How long a script may take.
const SCRIPT: Duration = Duration::from_secs(120);

/// Packages that scripts may import.
#[derive(Debug)]
pub struct Python {
    packages: PathBuf,
}

impl Python {
    /// Python with the packages of a requirements file below `tests/python/`.
    ///
    /// # Panics
    /// If they cannot be installed.
    pub fn with(requirements: &str) -> Self {
        let requirements = workspace().join("tests/python").join(requirements);
        let text = fs::read_to_string(&requirements).expect("the requirements");
        let version = run(Command::new("python3").args(["-c", "import sys; print(sys.version)"]));
        let mut key = DefaultHasher::new();
        (&text, &version).hash(&mut key);
        let packages = cache().join(format!("clients-{:016x}", key.finish()));
        if !packages.is_dir() {
            install(&requirements, &packages);
        }
        Self { packages }
    }

    /// Runs a script below `tests/python/` to its end and returns what it printed.
    ///
    /// # Panics
    /// If it fails.
    pub async fn run(&self, script: &str, args: &[&str]) -> String {
        let mut command = Command::new("python3");
        command
            .arg("-B")
            .arg(workspace().join("tests/python").join(script))
            .args(args)
            .env("PYTHONPATH", &self.packages)
            // Variables that these clients would obey.
            .env_remove("OPENAI_API_KEY")
            .env_remove("OPENAI_BASE_URL")
            .env("LANGSMITH_TRACING", "false")
            .env("NO_PROXY", "127.0.0.1");
        let mut process = Process::start(&mut command);
        let code = process.exit_code(SCRIPT).await;
        assert_eq!(code, 0, "{script} failed after\n{}\n{}", process.out(), process.err());
        process.out()
    }
}

fn cache() -> PathBuf {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let home = || PathBuf::from(variable("HOME").expect("HOME is set")).join(".cache");
    variable("SANCTUM_CACHE").map_or_else(
        || variable("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("sanctum"),
        PathBuf::from,
    )
}

/// Installs beside the final place and moves there: a broken installation is never found.
fn install(requirements: &Path, packages: &Path) {
    let parent = packages.parent().expect("it lies in the cache");
    fs::create_dir_all(parent).expect("the cache can be written");
    let lock = File::create(packages.with_extension("lock")).expect("the cache can be written");
    lock.lock().expect("the cache can be locked");
    if packages.is_dir() {
        return;
    }
    let staged = tempfile::tempdir_in(parent).expect("the cache can be written");
    let target: OsString = staged.path().join("packages").into();
    let quiet = ["-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check"];
    run(Command::new("python3")
        .args(quiet)
        .arg("--target")
        .arg(&target)
        .arg("-r")
        .arg(requirements));
    fs::rename(&target, packages).expect("the cache can be written");
}

/// Runs a command that must work.
fn run(command: &mut Command) -> String {
    let shown = format!("{command:?}");
    let output = command.output().unwrap_or_else(|error| {
        panic!("{shown}: {error}; the tests of clients need Python 3 with pip (python3-pip)")
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{shown} failed; it needs Python 3 with pip (python3-pip):\n{said}"
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}
