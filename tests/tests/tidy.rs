//! Keeps the house tidy: what a reviewer would otherwise have to remember is checked here.
//!
//! It reads the source tree as text. It owns no style question that rustfmt or clippy can decide.

use std::fs;
use std::path::{Path, PathBuf};

/// Longest source file, in lines. A file that nears it is two rooms: split it, do not raise the number.
const MAX_LINES: usize = 500;
const CRATES: [&str; 5] = ["kernels", "shared", "worker", "router", "tests"];
/// Names that say nothing about what happens in the room.
const VAGUE: [&str; 6] = ["util", "utils", "common", "misc", "helpers", "helper"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace").to_owned()
}

fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && name != "fixtures" {
            walk(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Every Rust file of the workspace with its path relative to the root and its text.
fn sources() -> Vec<(String, String)> {
    let root = root();
    let mut paths = Vec::new();
    for name in CRATES {
        walk(&root.join(name), &mut paths);
    }
    assert!(paths.len() > 30, "found {} source files only: is the walk broken?", paths.len());
    paths
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("source files are readable UTF-8");
            let relative = path.strip_prefix(&root).expect("below the root");
            (relative.to_string_lossy().into_owned(), text)
        })
        .collect()
}

fn check(what: &str, offends: impl Fn(&str, &str) -> Option<String>) {
    let offenders: Vec<String> = sources()
        .iter()
        .filter_map(|(path, text)| offends(path, text).map(|why| format!("  {path}: {why}")))
        .collect();
    assert!(offenders.is_empty(), "{what}:\n{}", offenders.join("\n"));
}

#[test]
fn every_file_says_first_what_it_owns() {
    check("files must open with `//!`", |_, text| {
        (!text.starts_with("//!")).then(|| "opens without `//!`".to_owned())
    });
}

#[test]
fn files_can_be_seen_whole() {
    check("files that should be two rooms", |_, text| {
        let lines = text.lines().count();
        (lines > MAX_LINES).then(|| format!("{lines} lines, at most {MAX_LINES}"))
    });
}

#[test]
fn rooms_are_named_by_what_happens_there() {
    check("vague names", |path, _| {
        let vague = Path::new(path).components().any(|part| {
            let part = part.as_os_str().to_string_lossy();
            VAGUE.contains(&part.trim_end_matches(".rs"))
        });
        vague.then(|| "say what a request does there".to_owned())
    });
}

#[test]
fn unsafe_stays_in_kernels() {
    for name in ["shared", "worker", "router"] {
        let path = root().join(name).join("src/lib.rs");
        let text = fs::read_to_string(&path).expect("each crate has a lib.rs");
        assert!(
            text.contains("#![forbid(unsafe_code)]"),
            "{name}/src/lib.rs must forbid unsafe code"
        );
    }
}

#[test]
fn imports_point_one_way() {
    let forbidden: [(&str, &[&str]); 4] = [
        ("kernels/", &["sanctum_shared", "sanctum_mlx", "sanctum_router"]),
        ("shared/", &["sanctum_kernels", "sanctum_mlx", "sanctum_router", "mlx_rs"]),
        ("worker/", &["sanctum_router"]),
        ("router/", &["sanctum_kernels", "sanctum_mlx::", "mlx_rs"]),
    ];
    check("imports against the grain", |path, text| {
        let (_, names) = forbidden.iter().find(|(dir, _)| path.starts_with(dir))?;
        let line = text.lines().find(|line| {
            let line = line.trim_start();
            !line.starts_with("//")
                && names.iter().any(|name| line.contains(&format!("use {name}")))
        })?;
        Some(line.trim().to_owned())
    });
}

#[test]
fn the_router_is_built_without_mlx() {
    let tree = std::process::Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--prefix", "none", "--edges", "normal,build"])
        .args(["-p", "sanctum-router"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let crates = String::from_utf8_lossy(&tree.stdout);
    assert!(crates.contains("sanctum-shared"), "not the router's dependencies:\n{crates}");
    let mlx: Vec<&str> = crates.lines().filter(|line| line.contains("mlx")).collect();
    assert!(mlx.is_empty(), "the router must not need MLX: {mlx:?}");
}

#[test]
fn no_test_is_ignored_without_a_reason() {
    check("`#[ignore]` needs a reason", |path, text| {
        (path != "tests/tests/tidy.rs" && text.contains("#[ignore]"))
            .then(|| "write #[ignore = \"why\"]".to_owned())
    });
}

#[test]
fn the_mlx_version_is_the_same_everywhere() {
    let read = |path: &str| fs::read_to_string(root().join(path)).expect(path);
    let setup = read("kernels/mlx/setup.sh");
    let field = |name: &str| {
        let at = setup.find(name).unwrap_or_else(|| panic!("setup.sh sets {name}")) + name.len();
        setup[at..].split_whitespace().next().expect("a value").to_owned()
    };
    let (mlx, sys) = (field("MLX_VERSION="), field("MLX_SYS_VERSION="));
    let requirements = read("kernels/mlx/requirements-cpu.txt");
    assert!(
        requirements.contains(&format!("mlx-cpu=={mlx}")),
        "requirements-cpu.txt must pin {mlx}"
    );
    assert!(
        read("Cargo.toml").contains(&format!("mlx-sys = {{ version = \"={sys}\"")),
        "Cargo.toml must pin {sys}"
    );
}
