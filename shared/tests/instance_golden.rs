//! Broken instance files and the messages they must give, and the shipped file, which must give none.
//!
//! Each `tests/golden/instance/NAME.yaml` stands beside a `NAME.txt` with the exact message. After a deliberate
//! change of wording, `SANCTUM_BLESS=1` rewrites the `.txt` files: read the difference before committing it.

use std::fs;
use std::path::{Path, PathBuf};

use sanctum_shared::instance::{BackendKind, Instance, InstanceError};

/// Fewer pairs than this would mean that the directory was not found or was emptied.
const PAIRS_AT_LEAST: usize = 40;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("shared/ lies in the workspace")
        .to_owned()
}

#[test]
fn every_broken_file_gives_its_message() {
    let dir = root().join("tests/golden/instance");
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .expect("the golden directory")
        .map(|entry| entry.expect("a directory entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    assert!(files.len() >= PAIRS_AT_LEAST, "only {} golden files", files.len());
    let bless = std::env::var_os("SANCTUM_BLESS").is_some();
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("golden files are UTF-8");
        let shown = Path::new(file.file_name().expect("a file name"));
        let message = match Instance::parse(&text, shown) {
            Ok(_) => "(accepted)\n".to_owned(),
            Err(error) => format!("{error}\n"),
        };
        let expected_in = file.with_extension("txt");
        if bless {
            fs::write(&expected_in, &message).expect("golden files can be written");
        }
        let expected = fs::read_to_string(&expected_in).unwrap_or_default();
        if message != expected {
            wrong.push(format!("{}\n expected:\n{expected} got:\n{message}", shown.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn golden_messages_all_refuse_and_name_a_place() {
    for entry in fs::read_dir(root().join("tests/golden/instance")).expect("the golden directory") {
        let path = entry.expect("a directory entry").path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            let message = fs::read_to_string(&path).expect("golden files are UTF-8");
            let stem = path.file_stem().expect("a file name").to_string_lossy().into_owned();
            let place = format!("{stem}.yaml:");
            assert!(!message.is_empty(), "{stem}: an empty message");
            for line in message.lines() {
                assert!(line.starts_with(&place), "{stem}: `{line}` names no place");
            }
        }
    }
}

#[test]
fn the_shipped_instance_is_right() {
    let instance = Instance::load(&root().join("instance.yaml")).expect("instance.yaml is valid");
    let seats: Vec<&str> = instance.seats.iter().map(|seat| seat.name.as_str()).collect();
    assert_eq!(seats, ["council-secure", "coder", "spatial", "cloud"]);
    let workers =
        instance.backends.iter().filter(|b| matches!(b.kind, BackendKind::Worker(_))).count();
    assert_eq!(workers, 2, "`make serve` starts two workers");
    for name in ["yoda", "windu"] {
        let target = instance.target(name).expect("a persona is a model name");
        assert_eq!(target.seat.name, "council-secure");
    }
    assert!(instance.target("nobody").is_none());
    assert!(instance.listen.iter().all(|address| address.ip().is_loopback()));
    assert!(instance.state_dir.ends_with("var"));
}

#[test]
fn a_minimal_file_gets_every_default() {
    let text =
        "backends: { far: { url: 'http://127.0.0.1:9/v1' } }\nseats: { a: { backends: [far] } }";
    let instance =
        Instance::parse(text, Path::new("/etc/sanctum/i.yaml")).expect("minimal is enough");
    assert_eq!(instance.listen, ["127.0.0.1:8900".parse().expect("an address")]);
    assert_eq!(instance.admin, "127.0.0.1:8901".parse().expect("an address"));
    assert_eq!(instance.state_dir, Path::new("/etc/sanctum/var"));
    assert_eq!(instance.restart.failures, 5);
    assert_eq!(instance.limits.body_bytes, 16 << 20);
    assert_eq!(instance.names().collect::<Vec<_>>(), ["a"]);
}

#[test]
fn fallbacks_are_laid_out_depth_first_without_repeats() {
    let text = "
backends:
  one: { url: 'http://127.0.0.1:1/v1' }
  two: { url: 'http://127.0.0.1:2/v1' }
  three: { url: 'http://127.0.0.1:3/v1' }
seats:
  a: { backends: [one], fallback: [b, c], second_model: { name: a-big, backends: [three] } }
  b: { backends: [two, one], fallback: [c] }
  c: { backends: [three] }
";
    let instance = Instance::parse(text, Path::new("i.yaml")).expect("a valid file");
    let order = |model: &str| -> Vec<(String, String)> {
        let target = instance.target(model).expect("a known name");
        let named = target.candidates.iter();
        named.map(|c| (c.backend.name.clone(), c.seat.to_string())).collect()
    };
    let pair = |backend: &str, seat: &str| (backend.to_owned(), seat.to_owned());
    assert_eq!(order("a"), [pair("one", "a"), pair("two", "b"), pair("three", "c")]);
    assert_eq!(order("b"), [pair("two", "b"), pair("one", "b"), pair("three", "c")]);
    assert_eq!(order("a-big"), [pair("three", "a")]);
}

#[test]
fn a_file_that_is_not_there_is_named_once() {
    let missing = Path::new("/nowhere/at/all.yaml");
    let error = Instance::load(missing).expect_err("there is no such file");
    assert!(matches!(&error, InstanceError::Read { .. }));
    assert_eq!(error.to_string(), "/nowhere/at/all.yaml: cannot read the instance file");
}
