//! Schedules of a queue in a store.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::store::{add, requeue};
use crate::support::{Ended, Live, directory, end};

/// Runs `requeue schedule` for the store in the directory.
pub(crate) fn schedule(dir: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.arg("schedule").args(args).args(["--store", "sqlite:jobs.db"]).current_dir(dir);
    end(&mut command, "")
}

#[test]
fn schedules_are_stored_listed_and_changed() {
    let dir = directory("store_schedules");
    let scheduled = |args: &[&str]| {
        let ended = schedule(&dir, args);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        ended
    };
    let berlin = ["--cron", "0 9 * * MON-FRI", "--zone", "Europe/Berlin", "--priority", "low"];
    let ended = scheduled(&[&["add", "report"], &berlin[..]].concat());
    assert_eq!(ended.stderr, "requeue: \"report\" scheduled\n");
    scheduled(&["add", "--every", "5m", "pulse"]);
    scheduled(&["pause", "pulse"]);
    let lines = || -> Vec<Vec<String>> {
        let text = scheduled(&["list"]).text();
        text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    };
    let [pulse, report] = &lines()[..] else { panic!("two schedules") };
    assert_eq!(pulse[..], ["pulse", "every 5m", "", "", "paused"]);
    assert_eq!(report[..3], ["report", "0 9 * * MON-FRI", "Europe/Berlin"]);
    let at: jiff::Timestamp = report[3].parse().expect("a time");
    assert!(at > jiff::Timestamp::now());
    assert!(report[3].ends_with(":00:00Z"), "{}", report[3]);
    let text = scheduled(&["list", "--json"]).text();
    let listed: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(listed[0]["is_paused"], true);
    let [spec, zone, key] = ["spec", "zone", "key"].map(|name| &listed[1][name]);
    assert_eq!(
        (spec, zone, key),
        (&"0 9 * * MON-FRI".into(), &"Europe/Berlin".into(), &"report".into())
    );
    assert_eq!(
        (&listed[1]["priority"], &listed[1]["at"]),
        (&Value::from(-1), &Value::from(&*report[3]))
    );
    scheduled(&["resume", "pulse"]);
    assert_eq!(lines()[0][4], "");
    let ended = schedule(&dir, &["remove", "pulse", "none"]);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("\"none\": has no schedule\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("1 removed\n"), "{}", ended.stderr);
    assert_eq!(lines().len(), 1);
}

#[test]
fn an_invalid_schedule_is_refused() {
    let dir = directory("store_schedules_invalid");
    for (args, why) in [
        (&["--cron", "0 0 30 2 *"][..], r#"invalid cron expression "0 0 30 2 *": it has no date"#),
        (&["--cron", "60 * * * *"], "value must be in range 0..=59; found 60"),
        (&["--cron", "0 9 * * *", "--zone", "Mars"], r#"unknown time zone "Mars": use a name"#),
        (&["--every", "0"], "invalid period 0ns of a schedule: use at least 1ms"),
        (&["--every", "5m", "--group", "a"], "queue \"default\": it has no groups"),
        (&["--every", "5m", "--zone", "UTC"], "cannot be used with"),
        (&[], "--cron"),
    ] {
        let ended = schedule(&dir, &[&["add", "k"], args].concat());
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
}

#[test]
fn a_worker_adds_the_keys_of_schedules() {
    let dir = directory("store_schedules_worker");
    add(&dir, &["first"]);
    let mut live = Live::spawn(&mut requeue(&dir, "work", &["-j1", "-c", "echo $1"]));
    live.wait_for("first");
    let ended = schedule(&dir, &["add", "--every", "20ms", "tick"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    for _ in 0..3 {
        live.wait_for("tick");
    }
    live.signal(Signal::TERM);
    let ended = live.end();
    assert!(ended.count("runs") >= 4, "{}", ended.stderr);
}

const TOKEN: &str = "0123456789abcdef";

/// The commands also work with the server of a worker.
#[test]
fn schedules_are_listed_and_changed_by_a_server() {
    let dir = directory("store_schedules_server");
    add(&dir, &["first"]);
    let serve = ["--serve", "unix:page", "--serve-admin", "-c", "echo $1"];
    let mut command = requeue(&dir, "work", &serve);
    let mut live = Live::spawn(command.env("REQUEUE_TOKEN", TOKEN));
    live.wait_for("first");
    let by_server = |subcommand: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.arg(subcommand).args(args).args(["--server", "unix:page"]).current_dir(&dir);
        end(command.env("REQUEUE_TOKEN", TOKEN), "")
    };
    let scheduled = |args: &[&str]| {
        let ended = by_server("schedule", args);
        assert_eq!(ended.code(), Some(0), "{args:?}: {}", ended.stderr);
        ended
    };
    let cron = ["--cron", "@yearly", "--zone", "Europe/Berlin", "--priority", "high"];
    let ended = scheduled(&[&["add", "report"], &cron[..]].concat());
    assert_eq!(ended.stderr, "requeue: \"report\" scheduled\n");
    scheduled(&["add", "--every", "365d", "pulse"]);
    scheduled(&["pause", "pulse"]);
    for is_json in [&[][..], &["--json"]] {
        let args = [&["list"][..], is_json].concat();
        let listed = scheduled(&args).text();
        assert_eq!(listed, schedule(&dir, &args).text());
        assert_eq!(listed.lines().count(), 2, "{listed}");
    }
    let ended = by_server("why", &["report"]);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(ended.text().contains("its schedule adds it in "), "{}", ended.text());
    scheduled(&["resume", "pulse"]);
    let ended = by_server("schedule", &["remove", "pulse", "none"]);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(ended.stderr.contains("\"none\": has no schedule\n"), "{}", ended.stderr);
    let ended = by_server("schedule", &["add", "--every", "0", "k"]);
    assert!(ended.stderr.contains("invalid period 0ns of a schedule"), "{}", ended.stderr);
    assert_eq!(scheduled(&["list"]).text().lines().count(), 1);
    live.signal(Signal::TERM);
    live.end();
}
