//! The worker of `examples/go-worker`, which is written in Go, beside `requeue work`.

use std::path::{Path, PathBuf};
use std::process::Command;

use requeue_servers::{Postgres, did_not_run};
use rustix::process::Signal;

use crate::support::{Gate, Live, directory, end, until};

/// Builds the worker. Returns `None` if there is no Go here that can build it.
fn build(dir: &Path) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/go-worker");
    let path = std::env::var("PATH").unwrap_or_default();
    let go = |args: &[&str]| {
        let mut go = Command::new("sh");
        // The directory of the Go installer may be missing in PATH.
        go.args(["-c", "exec go \"$@\"", "go"]).args(args).current_dir(&source);
        go.env("PATH", format!("{path}:/usr/local/go/bin")).env("GOTOOLCHAIN", "local");
        end(go.env("CGO_ENABLED", "0").env("GOFLAGS", "-buildvcs=false -trimpath"), "")
    };
    if go(&["list", "-m"]).code() != Some(0) {
        did_not_run("Go is missing or too old to build the worker");
        return None;
    }
    let program = dir.join("go-worker");
    let built = go(&["build", "-mod=readonly", "-o", program.to_str().expect("a path"), "."]);
    assert_eq!(built.code(), Some(0), "{}", built.stderr);
    Some(program)
}

#[test]
fn a_worker_in_go_and_a_worker_in_rust_run_each_key_once() {
    let dir = directory("go-worker");
    let Some(program) = build(&dir) else { return };
    let Some(server) = Postgres::start() else { return };
    let url = server.database();
    let requeue = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.args(args).args(["--store", &url, "--queue", "mail"]).current_dir(&dir);
        command
    };
    let init = Command::new(env!("CARGO_BIN_EXE_requeue"))
        .args(["store", "init", "--store", &url])
        .status();
    assert!(init.expect("it starts").success());
    let mut gate = Gate::new(&dir);
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    let add = end(requeue(&["add"]).args(&keys), "");
    assert_eq!(add.code(), Some(0), "{}", add.stderr);

    // The first run of `k7` fails.
    let run = "echo \"$0 $1\" >>began; read _ <gate; echo \"$0 $1\" >>ran; mkdir \"failed-$1\" 2>/dev/null && [ \"$1\" = k7 ] && exit 3; :";
    let mut go = Command::new(&program);
    go.args([&*server.proxied(&url, server.port()), "mail", "sh", "-c", run, "go"])
        .current_dir(&dir);
    let go = Live::spawn(&mut go);
    let rust = Live::spawn(requeue(&["work"]).args(["-j4", "--", "sh", "-c", run, "rust", "{}"]));
    let lines = |file: &str| -> Vec<String> {
        let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    };
    // Both workers hold as many keys as they run at the same time.
    until(|| lines("began").len() == 12);
    for (worker, expected) in [("go", 8), ("rust", 4)] {
        assert_eq!(lines("began").iter().filter(|line| line.starts_with(worker)).count(), expected);
    }
    gate.open(41);
    let is_empty = || {
        let status = end(&mut requeue(&["status", "--json"]), "");
        let status: serde_json::Value = serde_json::from_str(&status.text()).expect("it is JSON");
        ["ready", "waiting", "in_flight"].iter().all(|state| status[state] == 0)
    };
    until(is_empty);
    let mut ran: Vec<String> = lines("ran")
        .iter()
        .filter_map(|line| line.split_once(' '))
        .map(|(_, key)| key.to_owned())
        .collect();
    ran.sort();
    let mut expected = [&keys[..], &["k7".to_owned()]].concat();
    expected.sort();
    assert_eq!(ran, expected, "only the failed key runs twice");
    go.signal(Signal::TERM);
    rust.signal(Signal::TERM);
    let go = go.end();
    assert_eq!(go.code(), Some(0), "{}", go.stderr);
    rust.end();
}
