//! `--serve`: the dashboard of a run.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{Gate, Live, directory, run, run_in, until};

/// Requests `path` with this host name. Returns the status and the body.
#[track_caller]
fn ask(server: SocketAddr, host: &str, path: &str) -> (u16, String) {
    let stream = TcpStream::connect(server).expect("it listens");
    // A time that no test takes unless a program hangs.
    stream.set_read_timeout(Some(Duration::from_secs(900))).expect("it can be set");
    answer(stream, host, path)
}

/// Requests `path` at a Unix socket.
#[track_caller]
fn ask_socket(socket: &Path, host: &str, path: &str) -> (u16, String) {
    let stream = UnixStream::connect(socket).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(900))).expect("it can be set");
    answer(stream, host, path)
}

#[track_caller]
fn answer(mut stream: impl Read + Write, host: &str, path: &str) -> (u16, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), body.to_owned())
}

#[track_caller]
fn get(server: SocketAddr, path: &str) -> Value {
    let (status, body) = ask(server, "localhost", path);
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).expect("JSON")
}

/// Waits for the address that a run with `--serve` prints.
#[track_caller]
fn address(run: &mut Live) -> SocketAddr {
    let line = run.wait_for_message("http://");
    let (_, rest) = line.split_once("http://").expect("it is there");
    let (address, _) = rest.split_once('/').expect("it ends");
    address.parse().expect("an address")
}

#[test]
fn a_run_is_seen_on_loopback_at_a_port_that_it_says() {
    let dir = directory("a_run_is_seen_on_loopback_at_a_port_that_it_says");
    let mut gate = Gate::new(&dir);
    let script = "echo \"$1\"; read _ <gate; exit 7";
    let args = ["--serve", ":0", "-j1", "--base-delay", "1ms", "--retries", "1", "-c", script];
    let mut run = Live::start(&dir, &args);
    let server = address(&mut run);
    assert!(server.ip().is_loopback(), "{server}");
    run.send("a\nb\nb\n");
    run.wait_for("a");
    let row = get(server, "/api/v1/key?key=a");
    assert_eq!((&row["state"], &row["attempt"]), (&json!("running"), &json!(1)));
    assert_eq!(row["detail"], json!({ "slot": "1" }));

    let now = |name: &str| get(server, "/api/v1/summary")["now"][name].clone();
    until(|| now("coalesced") == json!(1));
    // `a` fails, then `b` fails, and one of them runs again.
    gate.open(2);
    until(|| now("failures") == json!(2) && now("running") == json!(1));
    let tried = |key: &str| {
        let row = get(server, &format!("/api/v1/key?key={key}"));
        assert_eq!((&row["attempt"], &row["detail"]["last exit"]), (&json!(2), &json!("7")));
        row["state"].as_str().expect("a state").to_owned()
    };
    let states = [tried("a"), tried("b")];
    assert!(states.contains(&"running".to_owned()), "{states:?}");

    let (status, metrics) = ask(server, "localhost", "/metrics");
    assert!(metrics.contains("\nworkqueue_failures_total{name=\"run\"} 2\n"), "{status} {metrics}");
    let (status, page) = ask(server, &server.to_string(), "/");
    assert!(status == 200 && page.contains("<h1>requeue run sh</h1>"), "{status} {page}");
    assert_eq!(ask(server, "example.org", "/").0, 403);
    assert_eq!(ask(server, "localhost", "/readyz").0, 200);

    gate.open(2);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("given up")), (Some(1), 2));
    assert!(TcpStream::connect(server).is_err(), "it is still there");
}

/// The last failure of a key counts like other failures, and an add that coalesces counts like other adds.
#[test]
fn the_summary_the_api_and_the_metrics_have_the_same_counts() {
    for retries in [0, 1] {
        let dir = directory(&format!("the_same_counts_{retries}"));
        let mut gate = Gate::new(&dir);
        let (many, script) = (retries.to_string(), "echo \"$1\"; read _ <gate; exit 7");
        let args = ["--serve", "0", "-j1", "--base-delay", "1ms", "--retries", &many];
        let args = [&args[..], &["--summary", "json", "-c", script]].concat();
        let mut run = Live::start(&dir, &args);
        let server = address(&mut run);
        run.send("a\n");
        run.wait_for("a");
        run.send("b\nc\nd\ne\nc\nd\n");
        until(|| get(server, "/api/v1/summary")["now"]["adds"] == json!(7));
        let failures = 5 * (retries + 1);
        gate.open(failures);
        until(|| get(server, "/api/v1/summary")["given_up"] == json!(5));
        let api = get(server, "/api/v1/summary");
        let (_, metrics) = ask(server, "localhost", "/metrics");
        let ended = run.end();
        let summary = ended.stderr.lines().last().expect("a summary");
        let summary: Value = serde_json::from_str(summary).expect("JSON");
        for (name, number) in
            [("adds", 7), ("coalesced", 2), ("runs", failures), ("failures", failures)]
        {
            let found = (&summary[name], &api["now"][name]);
            assert_eq!(found, (&json!(number), &json!(number)), "{name}, {retries} retries");
        }
        assert_eq!((&summary["given_up"], &api["given_up"]), (&json!(5), &json!(5)));
        // As in client-go, adds that coalesce do not count here, and retries do.
        for (name, number) in [("adds", failures), ("coalesced", 2), ("failures", failures)] {
            let line = format!("\nworkqueue_{name}_total{{name=\"run\"}} {number}\n");
            assert!(metrics.contains(&line), "no {line:?} in {metrics}");
        }
    }
}

#[test]
fn what_was_given_up_is_counted() {
    let dir = directory("what_was_given_up_is_counted");
    let mut run = Live::start(&dir, &["--serve", "0", "--retries", "0", "--", "false"]);
    let server = address(&mut run);
    run.send("a\nb\n");
    until(|| get(server, "/api/v1/summary")["given_up"] == json!(2));
    run.end();
}

#[test]
fn a_key_that_was_given_up_is_listed_with_its_error_and_the_end_of_its_output() {
    let dir = directory("a_key_that_was_given_up_is_listed");
    let script = "seq 5000 >&2; echo \"no such $1\" >&2; [ -e ok ]";
    let args = ["--serve", "0", "-j2", "--retries", "1", "--base-delay", "1ms", "-c", script];
    let mut run = Live::start(&dir, &args);
    let server = address(&mut run);
    run.send("a\nb\n");
    until(|| get(server, "/api/v1/summary")["now"]["parked"] == json!(2));
    let summary = get(server, "/api/v1/summary");
    assert_eq!((&summary["now"]["keys"], &summary["given_up"]), (&json!(2), &json!(2)));
    assert_eq!(summary["jobs"], json!({ "busy": 0, "total": 2 }));
    let listed = get(server, "/api/v1/keys?state=parked");
    assert_eq!(listed["keys"].as_array().map(Vec::len), Some(2));
    let page = get(server, "/api/v1/key?key=a");
    assert_eq!(
        (&page["state"], &page["error"]),
        (&json!("parked"), &json!("exit status: 1: no such a"))
    );
    let output = page["runs"][0]["output"].as_str().expect("text");
    assert!(output.ends_with("\n5000\nno such a\n") && output.len() < 5000, "{output}");
    assert_eq!(page["runs"].as_array().map(Vec::len), Some(2));
    // The key runs again when it is added again.
    std::fs::write(dir.join("ok"), "").expect("it is written");
    run.send("a\n");
    until(|| get(server, "/api/v1/summary")["now"]["parked"] == json!(1));
    until(|| get(server, "/api/v1/key?key=a")["state"] == json!("idle"));
    assert_eq!(get(server, "/api/v1/key?key=a")["runs"][0]["outcome"], json!("succeeded"));
    run.end();
}

#[test]
fn every_address_is_served_where_that_is_asked_for_but_no_foreign_name() {
    let dir = directory("every_address_is_served_where_that_is_asked_for");
    let mut run = Live::start(&dir, &["--serve", "0.0.0.0:0", "true"]);
    let port = address(&mut run).port();
    run.wait_for_message("every host that reaches this machine can see keys");
    let server = SocketAddr::from(([127, 0, 0, 1], port));
    for (host, status) in [("10.0.0.1", 200), ("localhost", 200), ("example.org", 403)] {
        assert_eq!(ask(server, host, "/healthz").0, status, "{host}");
    }
    run.end();
}

/// The limit of 64 open files applies to connections and commands together.
#[test]
fn silent_connections_leave_descriptors_for_commands_and_room_for_others() {
    let dir = directory("silent_connections");
    let mut command = Command::new("sh");
    command.current_dir(&dir).args(["-c", "ulimit -n 64; exec \"$0\" \"$@\""]);
    command.arg(env!("CARGO_BIN_EXE_requeue"));
    command.args(["run", "--serve", "0", "-j4", "--", "echo", "{}"]);
    let mut run = Live::spawn(&mut command);
    let server = address(&mut run);
    let silent: Vec<_> =
        (0..300).map(|_| TcpStream::connect(server).expect("it listens")).collect();
    for n in 0..20 {
        run.send(&format!("{n}\n"));
        run.wait_for(&n.to_string());
    }
    until(|| get(server, "/api/v1/summary")["now"]["runs"] == json!(20));
    drop(silent);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("failures")), (Some(0), 0), "{}", ended.stderr);
}

#[test]
fn an_address_that_is_none_or_is_taken_is_named_before_anything_runs() {
    for wrong in ["nowhere", "80:http", "65536", "::1:80", "unix:"] {
        let ended = run(&["--serve", wrong, "echo"], "a\n");
        assert_eq!((ended.code(), ended.text()), (Some(2), String::new()), "{wrong}");
        assert!(ended.stderr.contains(&format!("'{wrong}'")), "{}", ended.stderr);
    }
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let ended = run(&["--serve", &port, "echo"], "a\n");
    assert_eq!((ended.code(), ended.text()), (Some(125), String::new()));
    assert!(ended.stderr.contains(&format!("port {port}: ")), "{}", ended.stderr);
}

#[test]
fn a_run_is_seen_at_a_socket_that_its_owner_alone_can_reach() {
    let dir = directory("serve_unix");
    let socket = dir.join("s");
    // This socket is left by a killed process.
    drop(UnixListener::bind(&socket).expect("it is bound"));
    for _ in 0..2 {
        let mut run = Live::start(&dir, &["--serve", "unix:s", "--", "echo"]);
        run.wait_for_message("dashboard: unix:s");
        let found = socket.symlink_metadata().expect("it is there");
        assert!(found.file_type().is_socket());
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
        run.send("a\n");
        run.wait_for("a");
        until(|| ask_socket(&socket, "localhost", "/api/v1/summary").1.contains("\"runs\":1"));
        assert_eq!(ask_socket(&socket, "example.org", "/").0, 403);

        // A second run does not replace the socket of a live run.
        let args = ["--serve", "unix:s", "echo"];
        let ended = run_in(&dir, &args, "b\n");
        assert_eq!((ended.code(), ended.text()), (Some(125), String::new()));
        assert!(
            ended.stderr.contains("\"s\": another process uses this socket"),
            "{}",
            ended.stderr
        );
        assert_eq!(ask_socket(&socket, "localhost", "/healthz").0, 200);

        run.end();
        assert!(!socket.exists(), "it is still there");
    }
}

#[test]
fn what_is_no_socket_is_never_replaced_by_one() {
    let dir = directory("serve_unix_file");
    std::fs::write(dir.join("victim"), "precious").expect("it is written");
    std::os::unix::fs::symlink("victim", dir.join("link")).expect("it is made");
    std::os::unix::fs::symlink("nothing", dir.join("dangling")).expect("it is made");
    for path in ["victim", "link", "dangling", "."] {
        let ended = run_in(&dir, &["--serve", &format!("unix:{path}"), "echo"], "a\n");
        assert_eq!((ended.code(), ended.text()), (Some(125), String::new()), "{path}");
        assert!(ended.stderr.contains("exists and is not a socket"), "{}", ended.stderr);
    }
    assert_eq!(std::fs::read(dir.join("victim")).expect("it is there"), b"precious");
    assert!(!dir.join("nothing").exists());
}

#[cfg(feature = "sqlite")]
#[test]
fn a_worker_shows_the_queue_of_its_store() {
    use crate::store::{add, requeue};

    let dir = directory("a_worker_shows_the_queue_of_its_store");
    let mut gate = Gate::new(&dir);
    let script = "echo \"$1\"; read _ <gate; [ $1 != b ]";
    add(&dir, &["a", "--priority", "high"]);
    add(&dir, &["b"]);
    add(&dir, &["c", "--after", "1h"]);
    let args = ["--serve", ":0", "-j1", "--retries", "0", "-c", script];
    let mut run = Live::spawn(&mut requeue(&dir, "work", &args));
    let server = address(&mut run);
    run.wait_for("a");
    let row = get(server, "/api/v1/key?key=a");
    assert_eq!((&row["state"], &row["attempt"]), (&json!("running"), &json!(1)));
    assert_eq!(row["detail"]["slot"], json!("1"));
    // The token is text, and small enough for a number in JavaScript.
    let epoch = row["detail"]["fencing_token"].as_str().and_then(|epoch| epoch.parse::<u64>().ok());
    assert!(epoch.is_some_and(|epoch| epoch < 1 << 53), "{row}");
    let now = |name: &str| get(server, "/api/v1/summary")["now"][name].clone();
    until(|| now("keys") == json!(3) && now("running") == json!(1) && now("waiting") == json!(1));
    gate.open(2);
    until(|| now("parked") == json!(1) && now("running") == json!(0));
    let (status, metrics) = ask(server, "localhost", "/metrics");
    let counted = "\nworkqueue_given_up_total{name=\"default\"} 1\n";
    assert!(metrics.contains(counted), "{status} {metrics}");
    assert!(!metrics.contains("name=\"work\""), "{metrics}");
    assert_eq!(ask(server, "localhost", "/readyz").0, 200);
    run.signal(rustix::process::Signal::INT);
    run.end();
}

#[cfg(feature = "sqlite")]
#[test]
fn a_store_is_shown_without_a_worker() {
    use std::os::unix::process::ExitStatusExt;

    use rustix::process::Signal;

    use crate::store::{add, call, requeue};

    let dir = directory("a_store_is_shown_without_a_worker");
    add(&dir, &["a"]);
    add(&dir, &["b", "--after", "1h"]);
    let mut shown = Live::spawn(&mut requeue(&dir, "serve", &["0", "--queue", "default"]));
    let server = address(&mut shown);
    let now = |name: &str| get(server, "/api/v1/summary")["now"][name].clone();
    until(|| now("ready") == json!(1) && now("waiting") == json!(1));
    assert_eq!(get(server, "/api/v1/key?key=a")["state"], json!("ready"));
    assert_eq!(ask(server, "localhost", "/").0, 200);
    assert_eq!(ask(server, "localhost", "/readyz").0, 200);
    let (_, metrics) = ask(server, "localhost", "/metrics");
    assert!(metrics.contains("\nworkqueue_depth{name=\"default\""), "{metrics}");
    // `serve` takes no key.
    add(&dir, &["c"]);
    until(|| now("ready") == json!(2));
    shown.signal(Signal::TERM);
    assert_eq!(shown.end().status.signal(), Some(Signal::TERM.as_raw()));
    assert_eq!(call(&dir, "serve", &["0", "--queue", "none"]).code(), Some(125));
    assert_eq!(call(&dir, "serve", &["nowhere"]).code(), Some(2));
}

#[cfg(feature = "sqlite")]
#[test]
fn all_queues_of_a_store_are_served_without_a_name() {
    use rustix::process::Signal;

    use crate::store::{add, call, requeue};

    let dir = directory("all_queues_of_a_store_are_served_without_a_name");
    std::fs::write(dir.join("token"), format!("{TOKEN}\n")).expect("it is written");
    add(&dir, &["a"]);
    add(&dir, &["--queue", "b/c d", "x", "y"]);
    let args = ["0", "--serve-admin", "--token-file", "token"];
    let mut served = Live::spawn(&mut requeue(&dir, "serve", &args));
    let server = address(&mut served);
    let listed = |names: &[&str]| {
        let list = get(server, "/api/v1/queues");
        let rows = list["queues"].as_array().expect("rows").clone();
        (rows.iter().map(|row| &row["name"]).eq(names)).then_some(rows)
    };
    until(|| {
        let rows = listed(&["b/c d", "default"]).expect("both");
        rows[0]["ready"] == json!(2) && rows[1]["ready"] == json!(1)
    });
    let (status, page) = ask(server, "localhost", "/");
    assert!(status == 200 && page.contains("<h1>requeue: all queues</h1>"), "{page}");
    assert_eq!(ask(server, "localhost", "/readyz").0, 200);
    let (_, page) = ask(server, "localhost", "/queues/b%2Fc%20d/");
    assert!(page.contains("requeue add --store URL --queue b/c d KEY"), "{page}");
    let (_, metrics) = ask(server, "localhost", "/metrics");
    for name in ["default", "b/c d"] {
        assert!(metrics.contains(&format!("\nworkqueue_depth{{name=\"{name}\"}}")), "{metrics}");
    }

    // The other subcommands reach a queue by its path.
    let url = format!("http://{server}/queues/b%2Fc%20d");
    let ended = call(&dir, "add", &["--server", &url, "--token-file", "token", "z"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(call(&dir, "status", &["--queue", "b/c d"]).text().starts_with("ready       3"));
    // The process has no other queue at its address, so `--queue` selects the queue.
    let mut at_socket = Live::spawn(&mut requeue(&dir, "serve", &["unix:s"]));
    at_socket.wait_for_message("dashboard: unix:s");
    for url in [&format!("http://{server}"), "unix:s"] {
        let status = |queue: &[&str]| call(&dir, "status", &[&["--server", url], queue].concat());
        until(|| status(&["--queue", "b/c d"]).text().starts_with("ready       3"));
        until(|| status(&["--queue", "default"]).text().starts_with("ready       1"));
        let ended = status(&["--queue", "none"]);
        assert!(ended.code() == Some(125) && ended.stderr.contains("none"), "{}", ended.stderr);
    }
    at_socket.signal(Signal::TERM);
    at_socket.end();
    let url = format!("http://{server}");
    let change = |verb: &str, args: &[&str]| {
        call(&dir, verb, &[&["--server", &url, "--token-file", "token"], args].concat())
    };
    for (verb, args) in [("pause", &[][..]), ("cancel", &["--all"]), ("status", &[])] {
        let ended = change(verb, args);
        let said = "the process has several queues; name one of them";
        assert!(ended.code() == Some(125) && ended.stderr.contains(said), "{}", ended.stderr);
    }
    let ended = change("pause", &["b/c d"]);
    assert!(
        ended.code() == Some(0) && ended.stderr.contains("\"b/c d\" paused"),
        "{}",
        ended.stderr
    );
    let ended = change("cancel", &["--queue", "b/c d", "x", "a"]);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let left = call(&dir, "status", &["--queue", "b/c d"]).text();
    assert!(left.starts_with("paused by ") && left.contains("\nready       2"), "{left}");

    // Queues are created and dropped while the program runs.
    add(&dir, &["--queue", "new", "x"]);
    until(|| listed(&["b/c d", "default", "new"]).is_some());
    assert_eq!(call(&dir, "drop", &["--force", "default"]).code(), Some(0));
    until(|| listed(&["b/c d", "new"]).is_some());
    served.signal(Signal::TERM);
    served.end();

    let empty = directory("no_queues_to_serve");
    let ended = call(&empty, "serve", &["0"]);
    assert!(ended.code() == Some(125) && ended.stderr.contains("no such file"), "{}", ended.stderr);
}

const TOKEN: &str = "0123456789abcdef0123";

/// Sends an action with the token.
#[track_caller]
fn act(server: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let mut stream = TcpStream::connect(server).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(900))).expect("it can be set");
    let body = body.to_string();
    let request = format!(
        "POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer \
         {TOKEN}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.expect("a status"), serde_json::from_str(body).expect("JSON"))
}

#[test]
fn a_client_with_the_token_changes_a_run() {
    let dir = directory("a_client_with_the_token_changes_a_run");
    let script = "echo \"$1${REQUEUE_TOKEN-}\"; [ \"$1\" != bad ]";
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.current_dir(&dir).env("REQUEUE_TOKEN", TOKEN).args(["run", "--serve", "0"]);
    command.args(["--serve-admin", "-j1", "--retries", "1", "--base-delay", "1h", "-c", script]);
    let mut run = Live::spawn(&mut command);
    let server = address(&mut run);
    let state = |key: &str| get(server, &format!("/api/v1/key?key={key}"))["state"].clone();
    let named = |key: &str| json!({ "keys": [{ "key": key }] });

    assert_eq!(act(server, "add", &named("first")), (200, json!({ "results": ["new"] })));
    // The command does not see the token.
    run.wait_for("first");
    for wrong in ["", "a\0b"] {
        let (status, answer) = act(server, "add", &named(wrong));
        assert_eq!((status, &answer["parameter"]), (400, &json!("keys")), "{answer}");
    }
    act(server, "add", &named("bad"));
    run.wait_for("bad");
    until(|| state("bad") == json!("backing_off"));
    assert_eq!(act(server, "run-now", &named("bad")).1["changed"], json!(1));
    // The failure during the backoff does not count, and the key waits again.
    run.wait_for("bad");
    until(|| state("bad") == json!("backing_off"));

    assert_eq!(act(server, "pause", &json!({})), (200, json!({ "status": "paused" })));
    run.send("second\nthird\n");
    until(|| get(server, "/api/v1/summary")["now"]["ready"] == json!(2));
    assert_eq!(act(server, "cancel", &named("second")).1["changed"], json!(1));
    assert_eq!(act(server, "resume", &json!({})).1["status"], json!("open"));
    run.wait_for("third");
    let line = run.wait_for_message("resume by 127.0.0.1:");
    assert!(!line.contains(TOKEN), "{line}");
    let all = json!({ "matching": { "state": "backing_off" }, "expected": 1 });
    assert_eq!(act(server, "cancel", &all).1, json!({ "changed": 1, "matched": 1 }));
    let ended = run.end();
    assert!(ended.stderr.contains("cancel by 127.0.0.1:") && ended.stderr.contains("keys=1"));
    assert!(ended.stderr.contains("cancel starts by 127.0.0.1:"), "{}", ended.stderr);
    assert!(!ended.text().contains("second"), "{}", ended.text());
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

#[test]
fn a_worker_over_http_runs_keys_of_a_run() {
    let dir = directory("a_worker_over_http_runs_keys_of_a_run");
    let mut gate = Gate::new(&dir);
    std::fs::write(dir.join("tokens"), format!("add,work {TOKEN}\n")).expect("it can be written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.current_dir(&dir).args(["run", "--serve", "0", "--serve-admin"]);
    command.args(["--token-file", "tokens", "-j1", "--retries", "1", "--base-delay", "1ms"]);
    command.args(["-c", "echo \"$1\"; read _ <gate"]);
    let mut run = Live::spawn(&mut command);
    let server = address(&mut run);
    // The only slot of the run is busy.
    run.send("first\n");
    run.wait_for("first");

    let claim = || {
        let body = json!({ "worker": "w", "wait": 60 });
        let (status, answer) = act(server, "claim", &body);
        assert_eq!(status, 200, "{answer}");
        answer["claims"][0].clone()
    };
    let end = |path: &str, claimed: &Value| {
        let claim = json!({ "key": claimed["key"], "token": claimed["token"] });
        act(server, path, &json!({ "claims": [claim] })).1["results"][0]["result"].clone()
    };
    run.send("second\n");
    for (attempt, result) in [(1, "failed"), (2, "parked")] {
        let claimed = claim();
        assert_eq!((&claimed["key"], &claimed["attempt"]), (&json!("second"), &json!(attempt)));
        assert_eq!(end("fail", &claimed), json!(result));
    }
    run.send("third\n");
    let claimed = claim();
    assert_eq!(end("complete", &claimed), json!("completed"));
    assert_eq!(end("complete", &claimed), json!("lost"));
    assert_eq!(act(server, "pause", &json!({})).0, 403);
    gate.open(1);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("given up")), (Some(1), 1), "{}", ended.stderr);
    assert_eq!(ended.text(), "first\n");
}

#[test]
fn the_end_of_a_claim_makes_room_for_the_next_key() {
    let dir = directory("the_end_of_a_claim_makes_room");
    let mut gate = Gate::new(&dir);
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.current_dir(&dir).env("REQUEUE_TOKEN", TOKEN);
    command.args(["run", "--serve", "0", "--serve-admin", "--max-keys", "2", "-j1"]);
    command.args(["-c", "echo \"$1\"; read _ <gate"]);
    let mut run = Live::spawn(&mut command);
    let server = address(&mut run);
    run.send("first\nsecond\nthird\n");
    run.wait_for("first");
    // The only slot is busy with the first key, and the reader waits for room for the third.
    for key in ["second", "third"] {
        let (_, answer) = act(server, "claim", &json!({ "worker": "w", "wait": 60 }));
        let claimed = &answer["claims"][0];
        assert_eq!(claimed["key"], json!(key), "{answer}");
        let claim = json!({ "key": key, "token": claimed["token"] });
        assert_eq!(act(server, "complete", &json!({ "claims": [claim] })).0, 200);
    }
    gate.open(1);
    let ended = run.end();
    assert_eq!((ended.code(), ended.text()), (Some(0), "first\n".to_owned()), "{}", ended.stderr);
}

#[cfg(feature = "sqlite")]
#[test]
fn a_worker_over_http_runs_keys_of_a_store() {
    use rustix::process::Signal;

    use crate::store::{add, requeue};

    let dir = directory("a_worker_over_http_runs_keys_of_a_store");
    add(&dir, &["a"]);
    let args = ["0", "--queue", "default", "--serve-admin", "--retries", "0"];
    let mut run = Live::spawn(requeue(&dir, "serve", &args).env("REQUEUE_TOKEN", TOKEN));
    let server = address(&mut run);
    let (_, answer) = act(server, "claim", &json!({ "worker": "w", "wait": 60 }));
    let claimed = &answer["claims"][0];
    assert_eq!(claimed["key"], json!("a"), "{answer}");
    let failed = json!({ "key": "a", "token": claimed["token"], "error": "no answer" });
    let (status, answer) = act(server, "fail", &json!({ "claims": [failed] }));
    assert_eq!((status, answer), (200, json!({ "results": [{ "result": "parked" }] })));
    assert_eq!(get(server, "/api/v1/key?key=a")["error"], json!("no answer"));
    run.signal(Signal::TERM);
    run.end();
}

#[test]
fn a_token_that_is_missing_or_weak_is_refused_before_anything_runs() {
    let dir = directory("a_token_that_is_missing_or_weak");
    std::fs::write(dir.join("short"), "secret\n").expect("it is written");
    for (args, named) in [
        (&["--serve", "0", "--serve-admin", "echo"][..], "REQUEUE_TOKEN"),
        (
            &["--serve", "0", "--serve-admin", "--token-file", "none", "echo"],
            "--token-file \"none\"",
        ),
        (&["--serve", "0", "--serve-admin", "--token-file", "short", "echo"], "16 to 1,024"),
        (&["--serve-admin", "echo"], "--serve-admin requires --serve"),
        (&["--serve-target", "30s", "echo"], "--serve-target requires --serve"),
        (&["--serve", "0", "--token-file", "short", "echo"], "--serve-admin"),
    ] {
        let mut command = crate::support::command(args);
        let ended =
            crate::support::end(command.current_dir(&dir).env_remove("REQUEUE_TOKEN"), "a\n");
        assert_eq!((ended.code(), ended.text()), (Some(2), String::new()), "{args:?}");
        assert!(ended.stderr.contains(named), "{args:?}: {}", ended.stderr);
        assert!(!ended.stderr.contains("secret"), "{}", ended.stderr);
    }
}

/// The file of `work` can be for `--serve-admin` or for `--server`, and is of no use without both.
#[cfg(feature = "sqlite")]
#[test]
fn a_worker_refuses_tokens_without_a_use() {
    let dir = directory("a_worker_refuses_tokens_without_a_use");
    for args in [&["--serve", "0"][..], &[]] {
        let args = [args, &["--create", "--token-file", "none", "echo"]].concat();
        let ended = crate::store::call(&dir, "work", &args);
        assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.stderr);
        let why = "--token-file requires --serve-admin or --server";
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
}

#[test]
fn an_add_after_the_end_of_the_input_waits_for_no_further_adds() {
    for times in
        [&["--delay", "1h"][..], &["--debounce", "1h"], &["--delay", "1h", "--debounce", "2h"]]
    {
        let dir = directory("an_add_after_the_end_of_the_input");
        let script = "echo \"$REQUEUE_ADDS\"; until [ -e go ]; do sleep 0.01; done";
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.current_dir(&dir).env("REQUEUE_TOKEN", TOKEN).args(["run", "--serve", "0"]);
        command.arg("--serve-admin").args(times).args(["-j1", "-c", script]);
        let mut run = Live::spawn(&mut command);
        let server = address(&mut run);
        run.send("a\na\n");
        run.close();
        // The key starts at the end of the input, not after an hour.
        run.wait_for("2");
        let body = json!({ "keys": [{ "key": "a" }] });
        assert_eq!(act(server, "add", &body), (200, json!({ "results": ["dirty"] })));
        std::fs::write(dir.join("go"), "").expect("it is written");
        let ended = run.end();
        assert_eq!((ended.code(), ended.count("runs")), (Some(0), 2), "{}", ended.stderr);
    }
}

#[cfg(feature = "sqlite")]
#[test]
fn a_client_with_the_token_changes_a_store_and_pauses_its_worker() {
    use crate::store::{add, requeue};

    let dir = directory("a_client_with_the_token_changes_a_store");
    std::fs::write(dir.join("token"), format!("{TOKEN}\n")).expect("it is written");
    add(&dir, &["a", "--after", "1h"]);
    let args = ["--serve", "0", "--serve-admin", "--token-file", "token", "-j2", "--", "echo"];
    let mut run = Live::spawn(&mut requeue(&dir, "work", &args));
    let server = address(&mut run);
    assert_eq!(act(server, "pause", &json!({})), (200, json!({ "status": "paused" })));
    let body = json!({ "keys": [{ "key": "a" }] });
    assert_eq!(act(server, "run-now", &body).1, json!({ "changed": 1, "results": [true] }));
    until(|| get(server, "/api/v1/summary")["now"]["ready"] == json!(1));
    assert_eq!(act(server, "resume", &json!({})).1["status"], json!("open"));
    run.wait_for("a");
    run.wait_for_message("run-now by 127.0.0.1:");
    run.signal(rustix::process::Signal::INT);
    run.end();

    let mut shown = Live::spawn(
        requeue(&dir, "serve", &["0", "--serve-admin", "--token-file", "token"])
            .args(["--queue", "default"]),
    );
    let server = address(&mut shown);
    assert_eq!(act(server, "add", &body), (200, json!({ "results": ["new"] })));
    assert_eq!(act(server, "pause", &json!({})), (200, json!({ "status": "paused" })));
    let explained = crate::store::call(&dir, "why", &["a"]).text();
    assert!(explained.contains("the queue is paused"), "{explained}");
    assert_eq!(act(server, "resume", &json!({})), (200, json!({ "status": "open" })));
    shown.signal(rustix::process::Signal::TERM);
    shown.end();
}

#[test]
fn the_subcommands_of_stores_work_on_a_run_by_its_server() {
    use crate::support::end;

    let dir = directory("the_subcommands_of_stores_work_on_a_run");
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.current_dir(&dir).env("REQUEUE_TOKEN", TOKEN).args(["run", "--serve", "unix:s"]);
    command.args([
        "--serve-admin",
        "-j1",
        "--retries",
        "0",
        "-c",
        "echo \"$1\"; [ \"$1\" != bad ]",
    ]);
    let mut run = Live::spawn(&mut command);
    run.wait_for_message("dashboard: unix:s");
    let ask = |args: &[&str], input: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.current_dir(&dir).env("REQUEUE_TOKEN", TOKEN).env_remove("REQUEUE_STORE");
        let (verb, rest) = args.split_first().expect("a verb");
        end(command.arg(verb).args(["--server", "unix:s"]).args(rest), input)
    };
    let added = ask(&["add", "bad", "b"], "");
    assert!(added.code() == Some(0) && added.stderr.contains("2 adds: 2 new"), "{}", added.stderr);
    run.wait_for("b");
    let added = ask(
        &["add", "--after", "1h", "--input", "json"],
        "{\"key\":\"late\"}\n{\"key_base64\":\"/w==\"}\n",
    );
    assert_eq!(added.code(), Some(0), "{}", added.stderr);
    until(|| {
        ask(&["status"], "").text()
            == "ready       0\nwaiting     2\nin flight   0\nparked      1\n"
    });
    let status: Value = serde_json::from_str(&ask(&["status", "--json"], "").text()).expect("JSON");
    assert_eq!((&status["waiting"], &status["parked"]), (&json!(2), &json!(1)));
    let listed = ask(&["keys"], "").text();
    assert!(listed.contains("bad\tparked\t\t1\texit status: 1\n"), "{listed}");
    assert_eq!(ask(&["keys", "--state", "waiting"], "").text().lines().count(), 2);
    let json = ask(&["keys", "--state", "parked", "--json"], "").text();
    let parked: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&parked["key"], &parked["state"]), (&json!("bad"), &json!("parked")));

    let explained = ask(&["why", "late"], "");
    assert!(
        explained.code() == Some(0) && explained.text().starts_with("late: waiting; ready in ")
    );
    assert!(explained.text().contains("; next at 2"), "{}", explained.text());
    assert_eq!(ask(&["why", "none"], "").code(), Some(1));
    assert_eq!(ask(&["pause", "--note", "the API is down"], "").code(), Some(0));
    assert_eq!(ask(&["add", "held"], "").code(), Some(0));
    let text = ask(&["status"], "").text();
    let (paused, counts) = text.split_once('\n').expect("two lines");
    assert!(
        paused.starts_with("paused by ") && paused.ends_with(" ago, note: the API is down"),
        "{text}"
    );
    assert!(paused.contains(" on ") && counts.starts_with("ready       1"), "{text}");
    assert_eq!(ask(&["resume"], "").code(), Some(0));
    run.wait_for("held");
    let others = [&["pause", "another"][..], &["cancel", "--all", "--queue", "another"]];
    for other in others.map(|args| ask(args, "")) {
        assert_eq!(other.code(), Some(2), "{}", other.stderr);
        assert!(other.stderr.contains("name that one"), "{}", other.stderr);
    }
    let cancelled = ask(&["cancel", "late", "none"], "");
    assert_eq!(cancelled.code(), Some(1), "{}", cancelled.stderr);
    assert!(cancelled.stderr.contains("1 cancelled"), "{}", cancelled.stderr);
    assert!(ask(&["revive", "--all"], "").stderr.contains("1 revived"));
    run.wait_for("bad");
    until(|| ask(&["status"], "").text().ends_with("parked      1\n"));
    let cancelled = ask(&["cancel", "--all"], "");
    assert!(cancelled.stderr.contains("2 cancelled"), "{}", cancelled.stderr);

    // The cases are a missing token, a wrong token, and a missing server.
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.current_dir(&dir).env_remove("REQUEUE_TOKEN");
    let without = end(command.args(["add", "a", "--server", "unix:s"]), "");
    assert_eq!(without.code(), Some(2), "{}", without.stderr);
    std::fs::write(dir.join("wrong"), "a-token-of-another-process").expect("it is written");
    let wrong = ask(&["add", "a", "--token-file", "wrong"], "");
    assert!(wrong.code() == Some(125) && wrong.stderr.contains("wrong token"), "{}", wrong.stderr);
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    let nobody = end(command.current_dir(&dir).args(["status", "--server", "unix:none"]), "");
    assert!(
        nobody.code() == Some(125) && nobody.stderr.contains("--server \"none\""),
        "{}",
        nobody.stderr
    );
    assert_eq!(run.end().code(), Some(1));
}

/// Another user may have put a socket where a server was expected.
#[test]
fn the_token_is_not_sent_to_a_process_of_another_user() {
    use std::os::unix::process::CommandExt;

    use crate::support::{did_not_run, end};

    const OTHER: u32 = 65_534;
    let dir = directory("the_token_is_not_sent_to_a_process_of_another_user");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).expect("it is ours");
    let as_other = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.current_dir(&dir).uid(OTHER).gid(OTHER).env("REQUEUE_TOKEN", TOKEN);
        command
    };
    if as_other().arg("--version").output().is_err() {
        did_not_run(
            "the_token_is_not_sent_to_a_process_of_another_user",
            "only root can start a process of another user, in directories that this user can read",
        );
        return;
    }
    let mut command = as_other();
    command.args(["run", "--serve", "unix:s", "--serve-admin", "-c", "echo \"$1\""]);
    let mut run = Live::spawn(&mut command);
    run.wait_for_message("dashboard: unix:s");
    let ask = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.current_dir(&dir).env("REQUEUE_TOKEN", TOKEN).env_remove("REQUEUE_STORE");
        let (verb, rest) = args.split_first().expect("a verb");
        end(command.arg(verb).args(["--server", "unix:s"]).args(rest), "")
    };
    for args in [&["add", "key"][..], &["cancel", "key"], &["pause"]] {
        let refused = ask(args);
        assert_eq!(refused.code(), Some(125), "{args:?}: {}", refused.stderr);
        let why = format!("runs as user {OTHER}, and other users can write to ");
        assert!(refused.stderr.contains(&why), "{args:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("the token was not sent"), "{args:?}: {}", refused.stderr);
    }
    // This request does not need the token.
    let status = ask(&["status"]);
    assert_eq!(status.code(), Some(0), "{}", status.stderr);
    assert_eq!(run.end().text(), "");
}

#[test]
fn a_paced_key_is_explained_with_the_time_of_its_next_run() {
    use crate::support::end;

    let dir = directory("a_paced_key_is_explained");
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.current_dir(&dir).env("REQUEUE_TOKEN", TOKEN);
    command.args(["run", "--serve", "unix:s", "--serve-admin", "--min-interval", "1h", "echo"]);
    let mut run = Live::spawn(&mut command);
    run.send("a\n");
    run.wait_for("a");
    run.send("a\n");
    let mut explain = Command::new(env!("CARGO_BIN_EXE_requeue"));
    explain.current_dir(&dir).args(["why", "--server", "unix:s", "a"]);
    explain.env("REQUEUE_TOKEN", TOKEN).env_remove("REQUEUE_STORE");
    let text = loop {
        let text = end(&mut explain, "").text();
        // The run has ended, and the second add has been read.
        if text.starts_with("a: waiting") {
            break text;
        }
    };
    let state = text.lines().next().expect("a line");
    let (why, at) = state.split_once("; next at ").expect("a time");
    assert!(why.starts_with("a: waiting for its pace; ready in "), "{text}");
    assert!(why.ends_with("; it ran within the last 1h"), "{text}");
    let at: jiff::Timestamp = at.parse().expect("a time of RFC 3339");
    assert!(at > jiff::Timestamp::now(), "{text}");
    run.signal(rustix::process::Signal::TERM);
    run.end();
}
