//! The operator's command says what is, and ends with the code that says so to scripts.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use sanctum_tests::live::fleet::{Fleet, sanctum};
use sanctum_tests::live::process::{binary, workspace};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

fn instance(env: &str) -> String {
    let fake = env!("CARGO_BIN_EXE_fake-worker");
    format!(
        "worker_binary: {fake}\nmodels: {{ small: {{ path: none }} }}\n\
         backends: {{ a: {{ worker: {{ model: small, env: {{ {env} }} }} }} }}\n\
         seats: {{ coder: {{ backends: [a], personas: [yoda] }} }}\n"
    )
}

#[tokio::test]
async fn check_says_right_or_where_it_is_wrong() {
    let shipped = workspace().join("instance.yaml");
    let right = sanctum(&shipped, &["check", shipped.to_str().expect("UTF-8")]).await;
    assert_eq!(right.code, 0, "{}", right.err);
    assert!(right.out.contains("right: 4 seats, 3 backends (2 workers)"), "{}", right.out);

    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("broken.yaml");
    fs::write(&file, "name: x\nseatz: {}\n").expect("written");
    let path = file.to_str().expect("UTF-8");
    let wrong = sanctum(&shipped, &["check", path]).await;
    assert_eq!(wrong.code, 78);
    assert!(wrong.out.is_empty(), "{}", wrong.out);
    let first = format!("{path}:1:1: `seats` is missing");
    assert!(wrong.err.starts_with(&first), "{}", wrong.err);
    let second = format!("{path}:2:1: unknown key `seatz`: did you mean `seats`?");
    assert!(wrong.err.contains(&second), "{}", wrong.err);

    let missing = sanctum(&shipped, &["check", "/nowhere/i.yaml"]).await;
    assert_eq!(missing.code, 78);
    assert!(missing.err.contains("/nowhere/i.yaml: cannot read"), "{}", missing.err);
}

#[tokio::test]
async fn a_broken_file_keeps_the_router_from_starting() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("broken.yaml");
    fs::write(&file, "seats: { a: { backends: [b] } }\n").expect("written");
    let output = Command::new(binary("sanctum-router"))
        .arg("--instance")
        .arg(&file)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(78));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("broken.yaml:1:26: seat `a`: there is no backend `b`"), "{said}");
    assert!(!dir.path().join("var").exists(), "nothing was made for a broken file");
}

#[tokio::test]
async fn without_a_router_commands_say_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("i.yaml");
    fs::write(&file, instance("")).expect("written");
    for args in [&["status"][..], &["restart", "a"], &["chat", "coder", "hi"]] {
        let said = sanctum(&file, args).await;
        assert_eq!(said.code, 69, "{args:?}: {}", said.err);
        assert!(said.err.contains("no router runs for"), "{args:?}: {}", said.err);
    }
    let said = sanctum(&file, &["status", "--admin", "http://127.0.0.1:1"]).await;
    assert_eq!(said.code, 69);
    assert!(said.err.contains("cannot reach http://127.0.0.1:1/admin/status"), "{}", said.err);
    assert_eq!(sanctum(&file, &["statsu"]).await.code, 2, "wrong usage");
}

#[tokio::test]
async fn status_shows_the_fleet_as_table_and_as_json() {
    let fleet = Fleet::start(&instance(""), &["a"]).await;
    let table = fleet.sanctum(&["status"]).await;
    assert_eq!(table.code, 0, "{}", table.err);
    let pid = fleet.worker_pid("a").await.to_string();
    let line = |name: &str| table.out.lines().find(|line| line.starts_with(name)).expect(name);
    assert!(line("coder").contains("ready") && line("coder").contains("yoda"), "{}", table.out);
    let backend: Vec<&str> = line("a ").split_whitespace().collect();
    assert_eq!(backend[..4], ["a", "ready", "small", &pid], "{}", table.out);
    let json = fleet.sanctum(&["status", "--json"]).await;
    let status: Value = serde_json::from_str(&json.out).expect("JSON");
    assert_eq!(status["name"], "test");
    assert_eq!(status["seats"][0]["candidates"][0], "a");
}

/// What the admin listener answers to a request with that head.
async fn admin(fleet: &Fleet, head: &str) -> String {
    let mut socket = TcpStream::connect(fleet.admin).await.expect("the admin listener");
    let request = format!("{head}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.expect("written");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.expect("an answer in UTF-8");
    answer
}

#[tokio::test]
async fn metrics_are_for_loopback_and_not_for_web_pages() {
    let fleet = Fleet::start(&instance(""), &["a"]).await;
    let metrics = admin(&fleet, "GET /metrics HTTP/1.1\r\nHost: 127.0.0.1").await;
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    for series in [
        "sanctum_router_worker_ready{backend=\"a\"} 1",
        "sanctum_router_worker_starts_total{backend=\"a\"} 1",
    ] {
        assert!(metrics.contains(series), "{series} is not in\n{metrics}");
    }
    let rebound = admin(&fleet, "GET /metrics HTTP/1.1\r\nHost: evil.example").await;
    assert!(rebound.starts_with("HTTP/1.1 403"), "{rebound}");
    let page = "POST /admin/backends/a/restart HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nOrigin: http://evil.example";
    let page = admin(&fleet, page).await;
    assert!(page.starts_with("HTTP/1.1 403"), "{page}");
    assert_eq!(fleet.backend("a").await["worker"]["restarts"], 0);
}

#[tokio::test]
async fn chat_streams_an_answer_to_standard_output_only() {
    let fleet = Fleet::start(&instance("FAKE_TOKENS: '3'"), &["a"]).await;
    let said = fleet.sanctum(&["chat", "yoda", "What", "is", "2+2?"]).await;
    assert_eq!((said.code, said.out.as_str(), said.err.as_str()), (0, "t0 t1 t2\n", ""));
    let short = fleet.sanctum(&["chat", "coder", "hi", "--max-tokens", "1"]).await;
    assert_eq!((short.code, short.out.as_str()), (0, "t0\n"));
    let unknown = fleet.sanctum(&["chat", "nobody", "hi"]).await;
    assert_eq!((unknown.code, unknown.out.as_str()), (1, ""));
    assert!(unknown.err.contains("`nobody` does not exist"), "{}", unknown.err);
}

#[tokio::test]
async fn a_conversation_reads_lines_and_ends_with_its_input() {
    let fleet = Fleet::start(&instance("FAKE_TOKENS: '2'"), &["a"]).await;
    let mut chat = Command::new(binary("sanctum"))
        .args(["chat", "coder"])
        .env("SANCTUM_INSTANCE", fleet.file())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut input = chat.stdin.take().expect("a pipe");
    input
        .write_all(b"hello\n\nand again\n/reset\nonce more\n/exit\nnever sent\n")
        .expect("written");
    drop(input);
    // Another thread waits, so that the runtime goes on.
    let output = tokio::task::spawn_blocking(move || chat.wait_with_output()).await;
    let output = output.expect("a thread").expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, "t0 t1\nt0 t1\nt0 t1\n", "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
}

#[tokio::test]
async fn a_stream_that_breaks_is_an_error_not_an_answer() {
    let env = "FAKE_TOKENS: '1000', FAKE_TOKEN_MS: '20', FAKE_EXIT_AFTER_MS: '1500'";
    let fleet = Fleet::start(&instance(env), &["a"]).await;
    let said = fleet.sanctum(&["chat", "coder", "hi"]).await;
    assert_eq!(said.code, 1, "{}", said.out);
    assert!(said.err.starts_with("error: "), "{}", said.err);
}

#[tokio::test]
async fn every_help_text_is_there() {
    let file = workspace().join("instance.yaml");
    for command in ["check", "status", "restart", "chat", "doctor", "model"] {
        let said = sanctum(&file, &[command, "--help"]).await;
        assert_eq!(said.code, 0, "{command}: {}", said.err);
        assert!(said.out.contains("Usage:"), "{command}: {}", said.out);
    }
}
