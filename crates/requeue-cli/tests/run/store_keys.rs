//! Keys of a queue in a store: their list, the explanation of one, and the default of `--store`.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use jiff::Timestamp;
use rustix::process::Signal;
use serde_json::Value;

use crate::limit::Limit;
use crate::store::{add, call, requeue, status, work};
use crate::store_schedules::schedule;
use crate::support::{Ended, directory, end, until};

/// Runs `requeue` with these arguments and this `REQUEUE_STORE`.
fn with_variable(dir: &Path, store: &str, args: &[&str], input: &str) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    end(command.args(args).env("REQUEUE_STORE", store).current_dir(dir), input)
}

#[test]
fn keys_are_listed_with_their_states() {
    let dir = directory("store_keys");
    add(&dir, &["bad\tkey"]);
    let ended = work(&dir, &["--retries", "0", "-c", "exit 3"]);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    add(&dir, &["a", "--priority", "high"]);
    add(&dir, &["late", "--after", "1h"]);

    let lines = |args: &[&str]| -> Vec<Vec<String>> {
        let ended = call(&dir, "keys", args);
        assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""));
        ended.text().lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    };
    let all = lines(&[]);
    assert_eq!(all[0], ["a", "ready", "", "0", ""]);
    assert_eq!(all[1], ["bad\\tkey", "parked", "", "1", "exit status: 3"]);
    assert_eq!([&all[2][0], &all[2][1]], ["late", "waiting"]);
    let due: jiff::Timestamp = all[2][2].parse().expect("a time");
    assert!(due > jiff::Timestamp::now(), "{due}");
    for (state, key) in [("ready", "a"), ("parked", "bad\\tkey"), ("waiting", "late")] {
        let listed = lines(&["--state", state]);
        assert_eq!((listed.len(), listed[0][0].as_str()), (1, key));
    }
    assert_eq!(lines(&["--state", "damaged"]), Vec::<Vec<String>>::new());
    assert_eq!(call(&dir, "keys", &["--state", "lost"]).code(), Some(2));
    assert_eq!(call(&dir, "keys", &["--queue", "other"]).code(), Some(125));

    let json = call(&dir, "keys", &["--json"]).text();
    let objects: Vec<Value> =
        json.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    assert_eq!(objects[0]["priority"], 1, "{json}");
    assert_eq!(objects[1]["why"], "exit status: 3", "{json}");
    assert_eq!((&objects[2]["state"], &objects[2]["attempts"]), (&"waiting".into(), &0.into()));
    // The objects are input of `requeue add`, and keep due times and priorities.
    let args = ["add", "--store", "sqlite:copy.db", "--input", "json"];
    assert_eq!(with_variable(&dir, "", &args, &json).code(), Some(0));
    let copied = with_variable(&dir, "sqlite:copy.db", &["keys"], "").text();
    let copied: Vec<_> =
        copied.lines().map(|line| line.split('\t').nth(1).expect("a state")).collect();
    assert_eq!(copied, ["ready", "ready", "waiting"]);
}

#[test]
fn a_long_list_of_keys_is_read_in_pages() {
    let dir = directory("store_keys_long");
    let keys: String = (0..600).map(|n| format!("{n:03}\n")).collect();
    assert_eq!(end(&mut requeue(&dir, "add", &[]), &keys).code(), Some(0));
    let listed = call(&dir, "keys", &["--state", "ready"]).text();
    let listed: Vec<_> =
        listed.lines().map(|line| line.split('\t').next().expect("a key")).collect();
    assert_eq!(listed, keys.lines().collect::<Vec<_>>());
}

#[test]
fn a_key_is_explained() {
    let dir = directory("store_explain");
    add(&dir, &["bad"]);
    work(&dir, &["--retries", "0", "-c", "exit 3"]);
    add(&dir, &["late", "--after", "1h"]);
    // The first line is the state of the key.
    let explain = |key: &str| {
        let ended = call(&dir, "why", &[key]);
        assert_eq!(ended.stderr, "");
        let text = ended.text();
        (ended.code(), text.lines().next().expect("a line").to_owned())
    };
    let (code, text) = explain("late");
    assert!(code == Some(0) && text.starts_with("late: due in 59m "));
    let at = text.rsplit_once("; next at ").expect("a time").1;
    let listed = call(&dir, "keys", &["--state", "waiting"]).text();
    let time = |text: &str| text.parse::<Timestamp>().expect("a time of RFC 3339").as_second();
    let listed = time(listed.split('\t').nth(2).expect("a time"));
    assert!((time(at) - listed).abs() <= 1, "{at}, {listed}");
    let (code, text) = explain("bad");
    assert_eq!(code, Some(0));
    assert!(
        text.starts_with("bad: parked for ") && text.contains("exit status: 3; since 2"),
        "{text}"
    );
    assert!(
        text.contains(
            "; it runs again only after a revive, or an add that revives it: exit status: 3"
        ),
        "{text}"
    );
    assert!(text.ends_with("Z; to run it again: requeue revive --store URL bad"), "{text}");
    let (code, text) = explain("no\nkey");
    assert_eq!(code, Some(1));
    assert!(text.starts_with("no\\nkey: not in the queue: "), "{text}");
    assert!(text.ends_with("; `requeue keys` lists the keys"), "{text}");
    for key in ["no\nkey", "late"] {
        let add = schedule(&dir, &["add", "--cron", "@yearly", key]);
        assert_eq!(add.code(), Some(0), "{}", add.stderr);
        let (_, text) = explain(key);
        let (why, at) = text.rsplit_once("; next at ").expect("a time");
        assert!(why.contains("; its schedule adds it in "), "{text}");
        assert!(at.ends_with("-01-01T00:00:00Z"), "{text}");
    }
    assert_eq!(schedule(&dir, &["pause", "late"]).code(), Some(0));
    let (code, text) = explain("late");
    assert!(code == Some(0) && text.ends_with("; its schedule is paused"), "{text}");
}

/// A key may look like an option. Then the printed command must not be one for all keys.
#[test]
fn the_printed_command_revives_only_this_key() {
    let dir = directory("store_explain_option");
    add(&dir, &["other", "--", "--all"]);
    work(&dir, &["--retries", "0", "-c", "exit 3"]);
    let text = call(&dir, "why", &["--", "--all"]).text();
    let command = "to run it again: requeue revive --store URL -- --all";
    assert!(text.lines().next().is_some_and(|line| line.ends_with(command)), "{text}");
    assert_eq!(call(&dir, "revive", &["--", "--all"]).code(), Some(0));
    assert_eq!(status(&dir), [1, 0, 0, 1]);
}

#[test]
fn the_last_failures_of_a_key_are_explained_with_their_outputs() {
    let dir = directory("store_attempts");
    add(&dir, &["bad"]);
    let command = "printf 'try %s\\n\\033[31m\\ttab\\377\\n' $REQUEUE_ATTEMPT >&2; exit 3";
    let failing = ["--worker", "w 1", "--retries", "3", "-c", command];
    work(&dir, &failing);
    let text = call(&dir, "why", &["bad"]).text();
    let parts: Vec<_> = text.split("\n\n").collect();
    assert_eq!(parts.len(), 3, "{text}");
    assert!(parts[0].starts_with("bad: parked for ") && !parts[0].contains('\n'), "{text}");
    let json = call(&dir, "why", &["bad", "--json"]).text();
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let events = json["events"].as_array().expect("a list").iter();
    // Before each run, the key has been ready for a while.
    let events = events.filter(|event| event["cause"] != "ready");
    let past: Vec<_> = events.map(|event| event["text"].as_str().expect("text")).collect();
    let expected = [
        "attempt 1 failed",
        "backing off after 1 failure",
        "attempt 2 failed: exit status: 3SAID",
        "backing off after 2 failures",
        "attempt 3 failed: exit status: 3SAID",
        "backing off after 3 failures",
        "attempt 4 failed for the last time: exit status: 3SAID",
        "parked after 4 failures",
    ];
    // The error ends with the last line of the output.
    let expected = expected.map(|text| text.replace("SAID", ": \u{1b}[31m\ttab\u{fffd}"));
    assert_eq!(past, expected, "{text}");
    assert!(
        parts[1].ends_with("\n(the store keeps no adds, and only the last runs of a key)"),
        "{text}"
    );

    let lines: Vec<_> = parts[2].lines().collect();
    assert_eq!(lines.len(), 9, "{text}");
    for (number, lines) in [4, 3, 2].into_iter().zip(lines.chunks(3)) {
        let how = if number == 4 { "failed for the last time" } else { "failed" };
        let begin = format!("attempt {number} {how}; ended at 2");
        assert!(lines[0].starts_with(&begin) && lines[0].contains("; took "), "{text}");
        assert!(lines[0].contains("; worker w 1; exit status: 3: "), "{text}");
        assert_eq!(lines[1..], [&*format!("    try {number}"), "    \\u001b[31m\ttab\u{fffd}"]);
    }
    // A server returns the same text.
    let mut serve = requeue(&dir, "serve", &["--queue", "default", "unix:page"]);
    let mut server = serve.stdin(Stdio::null()).spawn().expect("requeue starts");
    until(|| dir.join("page").exists());
    let mut explain = Command::new(env!("CARGO_BIN_EXE_requeue"));
    explain.args(["why", "--server", "unix:page", "bad"]).current_dir(&dir);
    let by_server = end(&mut explain, "").text();
    let of_runs = |text: &str| -> Vec<String> {
        // The server computes the times again.
        let words = |line: &str| {
            let words = line.split_once(" ago  ").map_or(line, |(_, words)| words);
            let words = words.split("; ended at ").next().unwrap_or_default();
            words.replace(|char: char| char.is_ascii_digit(), "")
        };
        text.lines().skip(1).map(words).collect()
    };
    assert_eq!(of_runs(&by_server), of_runs(&text), "{by_server}");
    server.kill().and_then(|()| server.wait()).expect("the server ends");
    // A success resets the failures.
    assert_eq!(call(&dir, "revive", &["bad"]).code(), Some(0));
    assert!(!call(&dir, "why", &["bad"]).text().contains("attempt"));
}

#[test]
fn a_variable_is_the_default_of_the_store() {
    let dir = directory("store_variable");
    let file = "sqlite:jobs.db";
    for (args, text) in [
        (&["store", "init", "--queue", "default"][..], ""),
        (&["add", "k"], ""),
        (&["queues"], "default\tkeys\n"),
        (&["keys", "--state", "ready"], "k\tready\t\t0\t\n"),
        (&["work", "--until-empty", "-c", "echo $1 $REQUEUE_STORE"], "k sqlite:jobs.db\n"),
        (&["parked"], ""),
        (&["drop", "default"], ""),
    ] {
        let ended = with_variable(&dir, file, args, "");
        assert_eq!((ended.code(), ended.text().as_str()), (Some(0), text), "{}", ended.stderr);
    }
    // The flag takes precedence, and an empty variable counts as not set.
    add(&dir, &["k"]);
    let flag = ["status", "--store", file];
    assert_eq!(with_variable(&dir, "sqlite:no.db", &flag, "").code(), Some(0));
    for args in [&["status"][..], &["queues"], &["drop", "q"], &["store", "init"], &["serve"]] {
        let ended = with_variable(&dir, "", args, "");
        assert_eq!(ended.code(), Some(2));
        let said = "requeue: no store; pass --store URL, as in --store sqlite:jobs.db, or set REQUEUE_STORE\n";
        assert_eq!(ended.stderr, said, "{args:?}");
    }
    // `requeue run` keeps its keys in memory.
    let ended = with_variable(&dir, file, &["run", "echo"], "other\n");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "other\n"));
    assert_eq!(status(&dir), [1, 0, 0, 0]);
}

#[test]
fn commands_do_not_see_a_variable_with_a_password() {
    let dir = directory("store_variable_password");
    let script = "echo ${REQUEUE_STORE-none}";
    let url = "postgres://me:secret@db/app";
    for (flags, seen) in [(&[][..], "none\n"), (&["--pass-passwords"], &format!("{url}\n"))] {
        add(&dir, &["k"]);
        let args = ["work", "--store", "sqlite:jobs.db", "--until-empty"];
        let args = [&args[..], flags, &["-c", script]].concat();
        assert_eq!(with_variable(&dir, url, &args, "").text(), seen);
    }
    // A flag that requires a store accepts the variable in place of --store.
    add(&dir, &["k"]);
    let args = ["work", "--pass-passwords", "--until-empty", "-c", script];
    let ended = with_variable(&dir, "sqlite:jobs.db", &args, "");
    assert_eq!(ended.text(), "sqlite:jobs.db\n", "{}", ended.stderr);
}

#[test]
fn a_worker_whose_output_is_closed_leaves_the_keys_in_the_store() {
    let dir = directory("store_closed_output");
    let keys: String = (0..100).map(|n| format!("{n}\n")).collect();
    assert_eq!(end(&mut requeue(&dir, "add", &[]), &keys).code(), Some(0));
    let mut worker = requeue(&dir, "work", &["-j1", "echo"]);
    let mut child = worker.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let limit = Limit::of(&child);
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::PIPE.as_raw()), "{said}");
    assert!(!limit.was_reached());
    let message =
        "standard output was closed before all keys were done; the store keeps its keys\n";
    assert!(said.contains(message), "{said}");
    let [ready, _, in_flight, parked] = status(&dir);
    assert!(ready > 0 && (in_flight, parked) == (0, 0), "{said}");
}
