//! Rates of a queue in a store and of its groups.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::store::{add, call, requeue, status};
use crate::support::{Ended, Live, directory, end, until};

const TOKEN: &str = "0123456789abcdef";

/// Calls `requeue queues rate`.
fn set_rate(dir: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.args(["queues", "rate"]).args(args).current_dir(dir).env("LC_ALL", "C");
    end(command.env("REQUEUE_TOKEN", TOKEN), "")
}

#[test]
fn the_rate_of_a_queue_changes_while_a_worker_waits() {
    let dir = directory("store_rate");
    add(&dir, &["a", "b", "c", "d"]);
    let store = ["--store", "sqlite:jobs.db"];
    let set = |args: &[&str]| set_rate(&dir, &[args, &store].concat());
    let ended = set(&["default", "1/h", "--burst", "1"]);
    let said = "requeue: \"default\": rate 1/h with a burst of 1\n";
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), said));
    let listed = call(&dir, "queues", &[]).text();
    assert_eq!(listed, "default\tkeys\trate 1/h with a burst of 1\n");
    let listed: Value = serde_json::from_str(&call(&dir, "queues", &["--json"]).text()).unwrap();
    assert_eq!(listed["rate"], json!({ "starts": 1, "per": 3600.0, "burst": 1 }));
    let serve = ["--serve", "unix:page", "--serve-admin", "--until-empty", "--rate", "1/h"];
    let mut command = requeue(&dir, "work", &[&serve[..], &["--burst", "1", "echo"]].concat());
    let live = Live::spawn(command.env("REQUEUE_TOKEN", TOKEN));
    until(|| status(&dir) == [3, 0, 0, 0]);
    let server = ["--server", "unix:page"];
    let held = call(&dir, "keys", &["--state", "ready"]).text();
    let key = held.split('\t').next().unwrap();
    for from in [&[][..], &server] {
        let said = call(&dir, "why", &[&[key], from].concat()).text();
        let why =
            "throttled by the queue: its rate of 1/h with a burst of 1 permits the next start in ";
        assert!(said.contains(why), "{said}");
    }
    let ended = set_rate(&dir, &[&["other", "none"], &server[..]].concat());
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("that process is \"default\""), "{}", ended.stderr);
    let ended = set_rate(&dir, &[&["default", "none"], &server[..]].concat());
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), "requeue: \"default\": no rate\n"));
    let ended = live.end();
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 4), "{}", ended.stderr);

    for (args, code, why) in [
        (&["default", "x"][..], 2, "'x' for '<RATE>': expected a number above 0"),
        (&["default", "none", "--burst", "1"], 2, "--burst 1 requires a rate"),
        (
            &["default", "1/h", "--burst", "4294967295"],
            2,
            "invalid rate 1/h with a burst of 4294967295",
        ),
        (&["none", "1/s"], 125, "\"none\""),
    ] {
        let ended = set(args);
        assert_eq!(ended.code(), Some(code), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
    let ended = call(&dir, "work", &["--rate", "1e-9/h", "echo"]);
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("--rate: invalid rate \"1e-9/h\": it is too"),
        "{}",
        ended.stderr
    );
}
