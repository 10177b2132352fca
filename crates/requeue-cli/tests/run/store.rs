//! Queues in a store: adding keys, working on them, and reading them.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{Ended, Gate, Live, directory, end, until};

const STORE: [&str; 2] = ["--store", "sqlite:jobs.db"];

/// Returns `requeue` with this subcommand and arguments, for the store in the directory.
pub(crate) fn requeue(dir: &Path, subcommand: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.arg(subcommand).args(STORE).args(args).env("LC_ALL", "C").current_dir(dir);
    command
}

pub(crate) fn call(dir: &Path, subcommand: &str, args: &[&str]) -> Ended {
    end(&mut requeue(dir, subcommand, args), "")
}

pub(crate) fn add(dir: &Path, args: &[&str]) -> Ended {
    let ended = call(dir, "add", args);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    ended
}

/// Works until no key is left.
pub(crate) fn work(dir: &Path, args: &[&str]) -> Ended {
    call(dir, "work", &[&["--until-empty", "--base-delay", "10ms"], args].concat())
}

/// Returns the numbers of keys: ready, waiting, in flight and parked.
pub(crate) fn status(dir: &Path) -> [u64; 4] {
    let ended = call(dir, "status", &["--json"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let status: serde_json::Value = serde_json::from_str(&ended.text()).expect("it is JSON");
    ["ready", "waiting", "in_flight", "parked"].map(|state| status[state].as_u64().expect(state))
}

#[test]
fn what_is_added_is_worked_on() {
    let dir = directory("store_added");
    let ended = add(&dir, &["a", "b", "a"]);
    assert!(ended.stderr.contains("3 adds: 2 new, 1 coalesced in "), "{}", ended.stderr);
    assert_eq!(status(&dir), [2, 0, 0, 0]);
    let text = call(&dir, "status", &[]).text();
    assert!(
        text.starts_with("ready       2, the oldest for ") && text.ends_with("parked      0\n"),
        "{text}"
    );
    let script = "echo $1 $REQUEUE_KEY $REQUEUE_ATTEMPT $REQUEUE_ADDS";
    let ended = work(&dir, &["-j1", "-c", script]);
    assert_eq!((ended.code(), ended.sorted()), (Some(0), vec!["a a 1 2".into(), "b b 1 1".into()]));
    assert_eq!((ended.count("runs"), status(&dir)), (2, [0; 4]));
}

/// A deployment that removes the program must not park the whole queue.
#[test]
fn a_command_that_vanishes_parks_no_key() {
    let dir = directory("store_vanishes");
    add(&dir, &["a", "b", "c"]);
    let script = "printf '#!/bin/sh\nrm program\n' >program; chmod +x program";
    let mut shell = Command::new("sh");
    assert!(shell.args(["-c", script]).current_dir(&dir).status().unwrap().success());
    let ended = work(&dir, &["-j1", "--retries", "0", "./program"]);
    assert_eq!((ended.code(), ended.count("failures")), (Some(127), 0), "{}", ended.stderr);
    assert_eq!(status(&dir), [2, 0, 0, 0], "{}", ended.stderr);
    let ended = work(&dir, &["-j1", "-c", "echo attempt $REQUEUE_ATTEMPT"]);
    assert_eq!(ended.text(), "attempt 1\nattempt 1\n", "{}", ended.stderr);
}

#[test]
fn an_input_that_ends_in_blank_records_loses_none_before_them() {
    let dir = directory("store_blank");
    for (input, ready) in [("a\n\n", 1), ("b\n\n\n", 2), ("c\nd\n\n", 4)] {
        let ended = end(&mut requeue(&dir, "add", &[]), input);
        assert_eq!((ended.code(), status(&dir)), (Some(0), [ready, 0, 0, 0]), "{}", ended.stderr);
    }
    let ended = end(&mut requeue(&dir, "run", &["-c", "echo $1"]), "e\n\n");
    assert_eq!((ended.code(), ended.sorted().len(), status(&dir)), (Some(0), 5, [0; 4]));
}

#[test]
fn keys_are_read_in_the_formats_of_run() {
    let dir = directory("store_read");
    let read = |args: &[&str], input: &[u8]| {
        let ended = end(&mut requeue(&dir, "add", args), input);
        let last = ended.stderr.lines().last().unwrap_or_default().to_owned();
        (ended.code(), last)
    };
    let (code, said) = read(&[], b"a\nb\n\na");
    assert_eq!(code, Some(0));
    assert!(said.contains("3 adds: 2 new, 1 coalesced in "), "{said}");
    let records = [
        r#"{"key":"low","priority":-3}"#,
        r#"{"key":"high","priority":7}"#,
        r#"{"key":"late","after":"1h"}"#,
        r#"{"key":"a","op":"cancel"}"#,
        r#"{"key":"b","priority":1,"merge":"exactly"}"#,
        r#"{"key_base64":"/w=="}"#,
        "nonsense",
    ];
    let (code, said) = read(&["--input", "json"], records.join("\n").as_bytes());
    assert_eq!(code, Some(3));
    assert!(said.contains("5 adds: 5 new, 1 cancelled, 1 bad record in "), "{said}");
    assert_eq!(status(&dir), [4, 1, 0, 0]);
    assert_eq!(call(&dir, "cancel", &["late"]).code(), Some(0));
    let ended = work(&dir, &["-j1", "-c", "printf '%s\\n' \"$1\""]);
    assert_eq!(ended.stdout, b"high\nb\n\xff\nlow\n", "{}", ended.text());

    let (code, said) = read(&["-0", "--summary", "json"], b"x\ny\0z");
    assert_eq!(code, Some(0));
    let counts: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((counts["adds"].as_u64(), counts["parked"].as_u64()), (Some(2), Some(0)));
}

#[test]
fn what_is_said_of_all_keys_holds_for_those_that_say_nothing() {
    let dir = directory("store_unsaid");
    add(&dir, &["--priority", "low", "last"]);
    add(&dir, &["normal"]);
    add(&dir, &["--priority", "high", "first"]);
    add(&dir, &["--after", "1h", "late"]);
    assert_eq!(status(&dir), [3, 1, 0, 0]);
    // The worker waits for the waiting key, and is notified when that key is cancelled.
    let mut live = Live::spawn(&mut requeue(&dir, "work", &["--until-empty", "-j1", "echo"]));
    live.wait_for("last");
    until(|| status(&dir) == [0, 1, 0, 0]);
    assert_eq!(call(&dir, "cancel", &["late"]).code(), Some(0));
    let ended = live.end();
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "first\nnormal\nlast\n"));
}

#[test]
fn a_key_may_have_any_bytes_but_nul_and_not_too_many() {
    let dir = directory("store_hostile");
    let long = vec![b'l'; 2048];
    let keys: [&[u8]; 8] = [
        b"it's \"quoted\" $(touch x) `y` {} *",
        b" leading and trailing ",
        b"two\nlines\r",
        b"\xff\xfe\x01",
        b"-rf",
        b"';drop table keys;--",
        "größe".as_bytes(),
        &long,
    ];
    let mut input = keys.join(&b'\0');
    input.extend([&b"\0"[..], &[b'x'; 2049], b"\0last"].concat());
    let ended = end(&mut requeue(&dir, "add", &["-0"]), &input);
    assert_eq!(ended.code(), Some(3));
    let said = "record 9: not a key: it has 2049 bytes, and the limit is 2048";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert!(ended.stderr.contains("9 adds: 9 new, 1 bad record in "), "{}", ended.stderr);
    let named = call(&dir, "add", &["ok", &"y".repeat(2049), ""]);
    assert_eq!(named.code(), Some(3));
    assert!(named.stderr.contains("\"...: not a key: it has 2049 bytes"), "{}", named.stderr);
    assert!(named.stderr.contains("\"\": not a key: it is empty"), "{}", named.stderr);

    let ended = work(&dir, &["-j1", "-c", "printf '%s\\0\\n' \"$1\""]);
    let mut ran: Vec<_> = ended.stdout.split_inclusive(|&byte| byte == b'\0').collect();
    // Each key is printed with a newline.
    assert_eq!(ran.pop(), Some(&b"\n"[..]));
    ran = ran.iter().enumerate().map(|(n, key)| &key[usize::from(n > 0)..key.len() - 1]).collect();
    ran.sort_unstable();
    let mut added = [&keys[..], &[b"last", b"ok"]].concat();
    added.sort_unstable();
    assert_eq!((ran, status(&dir)), (added, [0; 4]));
    assert!(!dir.join("x").exists());
}

#[test]
fn what_fails_is_tried_again_and_parked_in_the_end() {
    let dir = directory("store_parked");
    add(&dir, &["good", "bad\tkey", "fatal"]);
    let script =
        "echo \"$1 $REQUEUE_ATTEMPT\"; case $1 in good) ;; fatal) exit 9;; *) exit 3; esac";
    let args = ["-j1", "--retries", "2", "--fatal", "9", "--dead-letter", "dead", "-c", script];
    let ended = work(&dir, &args);
    assert_eq!(ended.code(), Some(1));
    assert_eq!(ended.sorted(), ["bad\tkey 1", "bad\tkey 2", "bad\tkey 3", "fatal 1", "good 1"]);
    assert_eq!((ended.count("failures"), ended.count("given up")), (4, 2), "{}", ended.stderr);
    let said =
        "\"bad\\tkey\": parked after 3 attempts: exit status: 3 (`requeue revive` runs it again)\n";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let said =
        "\"bad\\tkey\": attempt 1 of 3 failed (exit status: 3), retrying after its backoff\n";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let dead = std::fs::read_to_string(dir.join("dead")).unwrap();
    assert_eq!(dead, "fatal\nbad\tkey\n");

    let parked = call(&dir, "parked", &[]).text();
    let lines: Vec<Vec<_>> = parked.lines().map(|line| line.split('\t').collect()).collect();
    let told: Vec<_> = lines.iter().map(|line| (line[0], line[1], line[3])).collect();
    let wanted = [("bad\\tkey", "3", "exit status: 3"), ("fatal", "1", "exit status: 9")];
    assert_eq!(told, wanted, "{parked}");

    // An add revives the key.
    let json = call(&dir, "parked", &["--json"]);
    let ended = add(&dir, &["fatal", "new", "new"]);
    assert!(ended.stderr.contains("3 adds: 1 new, 1 coalesced, 1 revived in "), "{}", ended.stderr);
    assert_eq!(call(&dir, "cancel", &["new"]).code(), Some(0));
    assert_eq!(status(&dir), [1, 0, 0, 1]);
    let args = ["--summary", "json", "--input", "json"];
    let ended = end(&mut requeue(&dir, "add", &args), &json.stdout);
    let counts: serde_json::Value = serde_json::from_str(&ended.stderr).expect("it is JSON");
    let count = |name: &str| counts[name].as_u64().expect(name);
    let counts =
        ["adds", "new", "coalesced", "dirty", "backing_off", "revived", "parked"].map(count);
    assert_eq!(counts, [2, 0, 1, 0, 0, 1, 0], "{}", ended.stderr);
    let ended = work(&dir, &["-j1", "-c", "echo \"$1 $REQUEUE_ATTEMPT\""]);
    assert_eq!(ended.sorted(), ["bad\tkey 1", "fatal 1"]);
    assert_eq!(status(&dir), [0; 4]);
}

#[test]
fn a_queue_may_keep_parked_keys() {
    let dir = directory("store_keeps");
    let ended = add(&dir, &["--parked-add", "keep", "k"]);
    assert!(ended.stderr.contains("1 add: 1 new in "), "{}", ended.stderr);
    assert_eq!(work(&dir, &["--retries", "0", "false"]).code(), Some(1));
    let ended = add(&dir, &["k", "k", "new"]);
    let said = "3 adds: 1 new, 2 left parked (--revive revives them) in ";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert_eq!(status(&dir), [1, 0, 0, 1]);
    let ended = call(&dir, "add", &["--parked-add", "revive", "k"]);
    assert_eq!(ended.code(), Some(2));
    assert!(
        ended.stderr.contains("its adds keep parked keys, and the option says revive"),
        "{}",
        ended.stderr
    );
    let ended = add(&dir, &["--revive", "k"]);
    assert!(ended.stderr.contains("1 add: 1 revived in "), "{}", ended.stderr);
    assert_eq!(status(&dir), [2, 0, 0, 0]);
    // `run` revives each parked key that it reads.
    assert_eq!(work(&dir, &["--retries", "0", "false"]).code(), Some(1));
    let ended = end(&mut requeue(&dir, "run", &["true"]), "k\n");
    assert!(ended.stderr.contains("0 given up, 1 revived in "), "{}", ended.stderr);
    assert_eq!(status(&dir), [0, 0, 0, 1]);
}

#[test]
fn json_input_says_whether_an_add_revives() {
    let dir = directory("store_json_revive");
    let keys = ["plain", "revived", "left"];
    add(&dir, &[&["--parked-add", "keep"][..], &keys].concat());
    assert_eq!(work(&dir, &["--retries", "0", "false"]).code(), Some(1));
    assert_eq!(status(&dir), [0, 0, 0, 3]);
    let records = r#"{"key":"plain"}
{"key":"revived","revive":true}
{"key":"left","revive":false}
"#;
    let read = |subcommand: &str, args: &[&str]| {
        let ended = end(&mut requeue(&dir, subcommand, args), records);
        (ended.code(), ended.stderr)
    };
    let (code, said) = read("add", &["--input", "json"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("3 adds: 1 revived, 2 left parked"), "{said}");
    assert_eq!(status(&dir), [1, 0, 0, 2]);
    // A record's own setting applies to its key. The flag applies to the other keys.
    let (code, said) = read("add", &["--input", "json", "--revive"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("3 adds: 1 coalesced, 1 revived, 1 left parked"), "{said}");
    assert_eq!(status(&dir), [2, 0, 0, 1]);
    let (code, said) = read("run", &["--input", "json", "true"]);
    assert_eq!((code, status(&dir)), (Some(0), [0, 0, 0, 1]), "{said}");
}

/// A key that was re-added during its last attempt is not parked, and not reported as parked.
#[test]
fn only_what_is_parked_is_reported_as_parked() {
    let dir = directory("store_added_meanwhile");
    let mut gate = Gate::new(&dir);
    add(&dir, &["k"]);
    let script = "echo up $REQUEUE_ATTEMPT; read _ <gate; exit 1";
    let args = ["--until-empty", "--retries", "0", "-c", script];
    let mut live = Live::spawn(&mut requeue(&dir, "work", &args));
    live.wait_for("up 1");
    add(&dir, &["k"]);
    gate.open(2);
    let ended = live.end();
    assert_eq!(ended.count("failures"), 2, "{}", ended.stderr);
    assert_eq!(
        ended.stderr.matches("\"k\": parked after 1 attempt: ").count(),
        1,
        "{}",
        ended.stderr
    );
    assert_eq!((ended.count("given up"), status(&dir)), (1, [0, 0, 0, 1]));
}

#[test]
fn parked_keys_are_revived_and_cancelled_by_name_or_all() {
    let dir = directory("store_revived");
    let many: Vec<String> = (0..300).map(|n| n.to_string()).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    add(&dir, &many);
    assert_eq!(work(&dir, &["--retries", "0", "false"]).code(), Some(1));
    assert_eq!(status(&dir), [0, 0, 0, 300]);

    let ended = call(&dir, "revive", &["7", "8", "nobody"]);
    assert_eq!(ended.code(), Some(1));
    assert!(ended.stderr.contains("\"nobody\": was not parked"), "{}", ended.stderr);
    assert!(ended.stderr.contains("2 revived"), "{}", ended.stderr);
    assert_eq!(call(&dir, "cancel", &["7", "9"]).code(), Some(0));
    assert_eq!(status(&dir), [1, 0, 0, 297]);
    let ended = call(&dir, "cancel", &["nobody"]);
    assert_eq!(ended.code(), Some(1));
    assert!(ended.stderr.contains("\"nobody\": was not ready"), "{}", ended.stderr);
    let ended = call(&dir, "revive", &["--all"]);
    assert!(ended.stderr.contains("297 revived"), "{}", ended.stderr);
    assert_eq!(status(&dir), [298, 0, 0, 0]);
    add(&dir, &["--after", "1h", "late", "later"]);
    let ended = call(&dir, "cancel", &["--all", "--state", "waiting"]);
    assert!(ended.stderr.contains("requeue: 2 cancelled\n"), "{}", ended.stderr);
    assert_eq!(status(&dir), [298, 0, 0, 0]);
    let ended = call(&dir, "cancel", &["--all"]);
    assert!(ended.stderr.contains("requeue: 298 cancelled\n"), "{}", ended.stderr);
    assert_eq!((ended.code(), status(&dir)), (Some(0), [0; 4]));
    assert_eq!(call(&dir, "cancel", &["--state", "ready", "k"]).code(), Some(2));
    assert_eq!(call(&dir, "cancel", &["--all", "k"]).code(), Some(2));
    assert_eq!(call(&dir, "revive", &[]).code(), Some(2));
    assert_eq!(call(&dir, "revive", &["--all", "k"]).code(), Some(2));
}

#[test]
fn what_another_process_adds_is_worked_on_at_once() {
    let dir = directory("store_while_working");
    let mut gate = Gate::new(&dir);
    let script = "echo up $1; read _ <gate; echo done $1";
    let mut live = Live::spawn(&mut requeue(&dir, "work", &["--create", "-j1", "-c", script]));
    add(&dir, &["k"]);
    live.wait_for("up k");
    // The key runs once more for any number of adds.
    add(&dir, &["k"]);
    let ended = add(&dir, &["k"]);
    assert!(ended.stderr.contains("1 add: 1 coalesced in "), "{}", ended.stderr);
    assert_eq!(status(&dir), [0, 0, 1, 0]);
    assert!(call(&dir, "status", &[]).text().contains("in flight   1, 1 to run once more"));
    gate.open(2);
    live.wait_for("up k");
    live.wait_for("done k");
    until(|| status(&dir) == [0; 4]);
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!((ended.count("runs"), ended.count("failures")), (2, 0), "{}", ended.stderr);
}

#[test]
fn queues_in_a_store_are_apart() {
    let dir = directory("store_queues");
    add(&dir, &["--queue", "one", "a"]);
    add(&dir, &["--queue", "two", "b"]);
    let text = |queue| work(&dir, &["--queue", queue, "echo"]).text();
    let list = |args| call(&dir, "queues", args).text();
    assert_eq!(list(&[]), "one\tkeys\ntwo\tkeys\n");
    assert_eq!((text("two"), text("one")), ("b\n".into(), "a\n".into()));
    assert_eq!(list(&[]), "one\tempty\ntwo\tempty\n");
    add(&dir, &["--queue", "four", "--re-add", "hold", "--parked-add", "keep", "k"]);
    let text = list(&["--json"]);
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let four = serde_json::json!({
        "queue": "four", "is_empty": false, "is_paused": false, "re_add": "hold",
        "paused_by": null, "paused_note": null, "paused_for": null,
        "parked_add": "keep", "rate": null, "group_by": null, "group_limit": null,
    });
    assert_eq!(first, four);
}

#[test]
fn the_epoch_of_a_key_only_rises() {
    let dir = directory("store_epoch");
    let mut last = 0;
    for _ in 0..3 {
        add(&dir, &["k"]);
        let script = "echo $REQUEUE_FENCING_TOKEN; [ $REQUEUE_ATTEMPT = 2 ]";
        for epoch in work(&dir, &["-c", script]).text().lines() {
            let epoch: u64 = epoch.parse().unwrap();
            assert!(epoch > last, "{epoch} after {last}");
            last = epoch;
        }
    }
    assert!(last >= 6, "{last}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = directory("store_refused");
    std::fs::write(dir.join("text"), "no database, but long enough to be looked at").unwrap();
    let with = |store: &str, subcommand: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.args([subcommand, "--store", store]).args(args).current_dir(&dir);
        let ended = end(&mut command, "");
        assert_eq!(ended.text(), "");
        (ended.code().unwrap(), ended.stderr)
    };
    let name = "n".repeat(201);
    for (store, args, code, part) in [
        ("nowhere", &["k"][..], 2, "is not the address of a store; use one such as sqlite:FILE"),
        ("floppy:jobs", &["k"], 2, "unknown kind of store \"floppy\""),
        ("sqlite:", &["k"], 2, "the file name is missing"),
        ("sqlite::memory:", &["k"], 2, "a store in memory would be lost at the end"),
        ("sqlite://jobs.db", &["k"], 2, "use a path after sqlite:"),
        ("sqlite:a?mode=x", &["k"], 2, "unknown option \"mode\"; the options are synchronous"),
        ("sqlite:a?synchronous=banana", &["k"], 2, "synchronous=banana: expected normal or full"),
        ("sqlite:jobs.db", &["--queue", "", "k"], 2, "invalid name: use 1 to 200 bytes"),
        ("sqlite:jobs.db", &["--queue", &name, "k"], 2, "invalid name: use 1 to 200 bytes"),
        ("sqlite:jobs.db", &["--re-add", "keep-both", "k"], 2, "use replace or hold"),
        ("sqlite:text", &["k"], 125, "file is not a database"),
        ("sqlite:no/such/dir", &["k"], 125, "no/such/dir"),
    ] {
        let (ended, said) = with(store, "add", args);
        assert_eq!(ended, code, "{store} {args:?}: {said}");
        assert!(said.contains(part), "{store} {args:?}: {said}");
    }
    let work = with("sqlite:text", "work", &["echo"]);
    assert_eq!(work.0, 125, "{}", work.1);
    // Subcommands that only read do not create a file.
    for subcommand in ["status", "parked", "queues"] {
        let (code, said) = with("sqlite:absent.db", subcommand, &[]);
        assert_eq!(code, 125);
        assert!(said.contains("no such file"), "{said}");
        let (code, said) = with("sqlite:absent.db?synchronous=banana", subcommand, &[]);
        assert_eq!(code, 2);
        assert!(said.contains("synchronous=banana: expected normal or full"), "{said}");
    }
    assert!(!dir.join("absent.db").exists());
    add(&dir, &["k"]);
    for (subcommand, key) in
        [("status", &[][..]), ("parked", &[]), ("cancel", &["k"]), ("revive", &["k"])]
    {
        let (code, said) =
            with("sqlite:jobs.db", subcommand, &[&["--queue", "typo"], key].concat());
        assert_eq!(code, 125);
        assert_eq!(said, "requeue: no such queue: \"typo\"\n");
    }
    let hold = ["--queue", "typo", "--re-add", "hold", "k"];
    assert_eq!(with("sqlite:jobs.db", "add", &hold).0, 0);
    // The first process fixes the queue's setting.
    let replace = ["--queue", "typo", "--re-add", "replace", "true"];
    let (code, said) = with("sqlite:jobs.db", "work", &replace);
    assert_eq!(code, 2);
    assert!(said.contains("its re-add policy is hold"), "{said}");
    // Flags that a queue in a store does not have.
    for args in [
        &["--delay", "1s"][..],
        &["--debounce", "1s"],
        &["--min-interval", "1s"],
        &["--pace", "5/s"],
        &["--on-readd", "restart"],
        &["--keep-order"],
        &["--max-keys", "1"],
        &["--dry-run"],
    ] {
        for (subcommand, refused) in
            [("run", "cannot be used with"), ("work", "unexpected argument")]
        {
            let (code, said) = with("sqlite:jobs.db", subcommand, &[args, &["echo"]].concat());
            assert_eq!(code, 2, "{said}");
            assert!(
                said.contains(refused) && said.contains(args[0]),
                "{subcommand} {args:?}: {said}"
            );
        }
    }
    for args in [&["--delay", "1s"][..], &["--dry-run"], &["-k"]] {
        let (code, said) = with("sqlite:jobs.db", "add", &[args, &["key"]].concat());
        assert!(code == 2 && said.contains("unexpected argument"), "{args:?}: {said}");
    }
}

#[test]
fn work_creates_a_queue_only_if_it_is_asked_to() {
    let dir = directory("store_create");
    let file = dir.join("jobs.db");
    let (missing, typo) = (&["--until-empty", "true"][..], &["--queue", "mial", "true"][..]);
    let ended = call(&dir, "work", missing);
    let said = "requeue: sqlite:jobs.db: no such file; `requeue add --queue default` or --create creates \
                it\n";
    assert_eq!((ended.code(), ended.stderr.as_str(), file.exists()), (Some(125), said, false));
    add(&dir, &["--queue", "mail", "k"]);
    let ended = call(&dir, "work", typo);
    let said = "requeue: no such queue: \"mial\" (did you mean \"mail\"?); `requeue add --queue mial` \
                or --create creates it\n";
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(125), said));
    assert_eq!(call(&dir, "status", &["--queue", "mial"]).code(), Some(125), "it was not created");

    // A worker that starts before the first add.
    let args = ["--queue", "new", "--create", "--until-empty", "true"];
    assert_eq!(call(&dir, "work", &args).code(), Some(0));
    assert_eq!(call(&dir, "status", &["--queue", "new"]).code(), Some(0));
    let ended = end(&mut requeue(&dir, "run", &["--queue", "run", "true"]), "k\n");
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 1), "{}", ended.stderr);
    let mut init = Command::new(env!("CARGO_BIN_EXE_requeue"));
    init.args(["store", "init", "--queue", "a", "--queue", "b"]).args(STORE).current_dir(&dir);
    assert_eq!(end(&mut init, "").code(), Some(0));
    for queue in ["a", "b"] {
        let args = ["--queue", queue, "--until-empty", "true"];
        assert_eq!(call(&dir, "work", &args).code(), Some(0));
    }
}

#[test]
fn a_store_can_be_made_beforehand() {
    let dir = directory("store_init");
    let init = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        end(command.args(["store", "init"]).args(STORE).current_dir(&dir), "")
    };
    for _ in 0..2 {
        assert_eq!(init().code(), Some(0));
    }
    let ended = call(&dir, "status", &[]);
    let said = "requeue: no such queue: \"default\"\n";
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(125), said));
    add(&dir, &["k"]);
    let ended = call(&dir, "parked", &[]);
    assert_eq!((ended.code(), ended.text() + &ended.stderr), (Some(0), String::new()));
}

#[test]
fn a_queue_is_dropped_only_without_keys_or_by_force() {
    let dir = directory("store_drop");
    add(&dir, &["--queue", "mail", "a"]);
    add(&dir, &["--queue", "mail", "--after", "1h", "b"]);
    let ended = call(&dir, "drop", &["mail"]);
    let said = "queue \"mail\" was not dropped: it has keys (1 ready, 1 waiting, 0 in flight, \
                0 parked); --force drops the queue with its keys and schedules";
    assert_eq!((ended.code(), ended.text().as_str()), (Some(1), ""));
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    let ended = call(&dir, "drop", &["mial"]);
    assert_eq!(ended.code(), Some(125));
    let said = "no such queue: \"mial\" (did you mean \"mail\"?)";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
    assert_eq!(call(&dir, "drop", &[]).code(), Some(2));
    let ended = call(&dir, "drop", &["mail", "--force"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("\"mail\" dropped, with 2 keys\n"), "{}", ended.stderr);
    assert_eq!(call(&dir, "queues", &[]).text(), "");
    assert_eq!(call(&dir, "drop", &["mail", "--force"]).code(), Some(125));
    call(&dir, "add", &["--queue", "mail", "--re-add", "hold", "a"]);
    assert!(call(&dir, "queues", &["--json"]).text().contains("\"re_add\":\"hold\""));
    assert_eq!(call(&dir, "cancel", &["--queue", "mail", "a"]).code(), Some(0));
    let ended = call(&dir, "drop", &["mail"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("\"mail\" dropped\n"), "{}", ended.stderr);
}

#[test]
fn a_worker_whose_queue_is_dropped_ends_and_so_does_its_command() {
    let dir = directory("store_drop_working");
    let script = "echo up $1; exec sleep 600";
    let args = ["--create", "-j2", "--lease", "1s", "--worker", "the \"first\"", "-c", script];
    let mut live = Live::spawn(&mut requeue(&dir, "work", &args));
    add(&dir, &["k"]);
    live.wait_for("up k");
    let text = call(&dir, "status", &["--in-flight"]).text();
    let line = text.lines().last().expect("there is one");
    let fields: Vec<_> = line.split('\t').collect();
    assert_eq!((fields.len(), &fields[..2]), (4, &["k", "the \"first\""][..]), "{text}");
    let json = call(&dir, "status", &["--in-flight", "--json"]).text();
    let json: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    let found = &json["in_flight_keys"];
    assert_eq!((found.as_array().map(Vec::len), &found[0]["key"]), (Some(1), &"k".into()));
    assert_eq!(found[0]["worker"], "the \"first\"");
    assert!(found[0]["fencing_token"].is_string() && found[0]["lease"].is_number(), "{json}");
    assert!(!call(&dir, "status", &["--json"]).text().contains("in_flight_keys"));
    assert_eq!(call(&dir, "drop", &["default"]).code(), Some(1));
    assert_eq!(call(&dir, "drop", &["default", "--force"]).code(), Some(0));
    let ended = live.end();
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("queue \"default\" was dropped"), "{}", ended.stderr);
    let ended = call(&dir, "work", &["--create", "--worker", "", "echo"]);
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("use 1 to 100 bytes"), "{}", ended.stderr);
}

#[test]
fn adds_are_debounced_up_to_a_bound() {
    let dir = directory("store_debounced");
    let due = || -> f64 {
        let ended = call(&dir, "keys", &["--json"]);
        let entry: serde_json::Value = serde_json::from_str(&ended.text()).expect("it is JSON");
        let at: jiff::Timestamp = entry["at"].as_str().expect("a time").parse().expect("a time");
        at.duration_since(jiff::Timestamp::now()).as_secs_f64()
    };
    add(&dir, &["--debounce", "1h,2h", "a"]);
    let ended = add(&dir, &["--debounce", "3h,3h", "a"]);
    assert!(ended.stderr.contains("1 add: 1 coalesced in "), "{}", ended.stderr);
    // The earliest bound counts.
    assert!((7_000.0..=7_200.0).contains(&due()), "{}", due());
    // The times of a record replace the flags.
    let record = r#"{"key":"a","debounce":"10m"}"#;
    add(&dir, &["--debounce", "3h", "--input", "json", record]);
    assert!((500.0..=600.0).contains(&due()), "{}", due());
    for (args, why) in [
        (&["--debounce", "2s,1s", "a"][..], "shorter than the quiet time"),
        (&["--debounce", "2s", "--after", "1s", "a"], "cannot be used with"),
    ] {
        let ended = call(&dir, "add", args);
        assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
}

#[test]
fn a_run_is_cancelled_from_another_process() {
    let dir = directory("store_cancel_running");
    add(&dir, &["a", "b"]);
    // The command of `a` ignores SIGTERM, so SIGKILL is needed.
    let script =
        "if [ $1 = a ]; then trap '' TERM; fi; echo $1 >>begun; while :; do sleep 0.1; done";
    let mut work =
        requeue(&dir, "work", &["--until-empty", "-j2", "--kill-after", "300ms", "-c", script]);
    let work = Live::spawn(&mut work);
    let begun = || std::fs::read_to_string(dir.join("begun")).unwrap_or_default().lines().count();
    until(|| begun() == 2);
    assert_eq!(call(&dir, "cancel", &["--running", "c"]).code(), Some(1));
    // The second run of `b` is not cancelled.
    add(&dir, &["b"]);
    let ended = call(&dir, "cancel", &["--running", "a", "b"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("2 cancelled"), "{}", ended.stderr);
    until(|| begun() == 3);
    // All data of `a` is removed.
    until(|| status(&dir) == [0, 0, 1, 0]);
    assert_eq!(call(&dir, "cancel", &["--running", "b"]).code(), Some(0));
    let ended = work.end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("\"a\": cancelled"), "{}", ended.stderr);
    assert_eq!((ended.count("cancelled"), ended.count("failures")), (3, 0), "{}", ended.stderr);
    assert_eq!(status(&dir), [0; 4]);
}

#[test]
fn a_paused_queue_starts_no_command_until_it_is_resumed() {
    let dir = directory("store_paused");
    add(&dir, &["a"]);
    let ended = call(&dir, "pause", &["default"]);
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), "requeue: \"default\" paused\n"));
    let listed = call(&dir, "queues", &[]).text();
    assert!(listed.starts_with("default\tkeys\tpaused by "), "{listed}");
    let listed = call(&dir, "queues", &["--json"]).text();
    assert!(listed.contains("\"is_paused\":true"), "{listed}");
    let explained = call(&dir, "why", &["a"]).text();
    assert!(explained.contains(", but the queue is paused"), "{explained}");

    let mut worker = Live::spawn(&mut requeue(&dir, "work", &["--until-empty", "-c", "echo $1"]));
    add(&dir, &["b"]);
    assert_eq!(status(&dir), [2, 0, 0, 0]);
    let ended = call(&dir, "resume", &["default"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    worker.wait_for("a");
    assert_eq!(worker.end().code(), Some(0));
    assert_eq!(call(&dir, "queues", &[]).text(), "default\tempty\n");

    let ended = call(&dir, "pause", &["another"]);
    assert!(ended.code() == Some(125) && ended.stderr.contains("another"), "{}", ended.stderr);
    assert_eq!(call(&dir, "pause", &[]).code(), Some(2));
}

#[test]
fn status_shows_the_work_of_all_processes_since_a_time() {
    let dir = directory("store_since");
    add(&dir, &["a", "b", "bad"]);
    let worked = work(&dir, &["--fatal", "1", "-c", "test $1 != bad"]);
    assert_eq!(worked.code(), Some(1), "{}", worked.stderr);
    let status = |args: &[&str]| call(&dir, "status", args);
    let text = status(&["--since", "1h"]).text();
    for line in [
        "adds        3, ",
        "starts      3, ",
        "successes   2, ",
        "failures    1, ",
        "given up    1, ",
    ] {
        assert!(text.contains(&format!("\n{line}")), "{text}");
    }
    assert!(text.contains("\nran for     p50 ") && text.contains("\nworkers     0\n"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&status(&["--since", "7d", "--json"]).text()).expect("it is JSON");
    assert_eq!(json["activity"]["total"]["runs"], 3);
    assert_eq!(json["activity"]["workers"], serde_json::json!([]));

    for (since, error) in [("8d", "use at most 7d"), ("soon", "expected a time like")] {
        let refused = status(&["--since", since]);
        assert_eq!(refused.code(), Some(2), "{}", refused.stderr);
        assert!(refused.stderr.contains(error), "{}", refused.stderr);
    }
}

/// Returns the recorded actions of a queue, the oldest first: their names, targets and notes.
fn recorded(dir: &Path, queue: &str) -> Vec<String> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let url = format!("sqlite:{}", dir.join("jobs.db").display());
        let store = requeue_store::Store::connect(&url).await.expect("the store opens");
        let queue = store.queue(queue).must_exist().open().await.expect("the queue exists");
        let actions = queue.last_actions(100).await.expect("read");
        let by = actions.iter().map(|action| &*action.by);
        assert!(by.clone().all(|by| by.starts_with("ann on ")), "{:?}", by.collect::<Vec<_>>());
        let texts = actions
            .iter()
            .rev()
            .map(|action| format!("{}|{}|{}", action.action, action.target, action.note));
        texts.collect()
    })
}

#[test]
fn actions_are_recorded_with_the_user_and_the_note() {
    let dir = directory("store_actions");
    add(&dir, &["a", "b", "c", "d"]);
    let act = |subcommand: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.args(subcommand.split(' ')).args(args).args(STORE);
        end(command.current_dir(&dir).env("USER", "ann"), "")
    };
    let status = || call(&dir, "status", &[]).text();
    assert!(status().starts_with("ready "), "{}", status());
    let paused = act("pause", &["default", "--note", "the API is down"]);
    assert_eq!(paused.code(), Some(0), "{}", paused.stderr);
    let line = status().lines().next().unwrap_or_default().to_owned();
    assert!(
        line.starts_with("paused by ann on ") && line.ends_with(" ago, note: the API is down"),
        "{line}"
    );
    let json: serde_json::Value =
        serde_json::from_str(&call(&dir, "status", &["--json"]).text()).expect("it is JSON");
    assert_eq!(json["is_paused"], true);
    assert_eq!(json["paused_note"], "the API is down");
    assert!(json["paused_for"].is_number(), "{json}");
    let queues = |args: &[&str]| call(&dir, "queues", args).text();
    let line = queues(&[]);
    let start = "default\tkeys\tpaused by ann on ";
    assert!(line.starts_with(start) && line.ends_with(" ago, note: the API is down\n"), "{line}");
    let json: serde_json::Value = serde_json::from_str(&queues(&["--json"])).expect("it is JSON");
    assert_eq!(
        (&json["is_paused"], &json["paused_note"]),
        (&true.into(), &"the API is down".into())
    );
    assert_eq!(act("resume", &["default"]).code(), Some(0));
    assert!(status().starts_with("ready "), "{}", status());

    assert_eq!(act("cancel", &["a", "none", "--note", "a mistake"]).code(), Some(1));
    assert_eq!(act("cancel", &["none"]).code(), Some(1));
    assert_eq!(act("cancel", &["--all"]).code(), Some(0));
    assert_eq!(act("revive", &["--all"]).code(), Some(0));
    assert_eq!(act("queues rate", &["default", "10/s"]).code(), Some(0));
    let scheduled = act("schedule add", &["daily", "--cron", "@daily"]);
    assert_eq!(scheduled.code(), Some(0), "{}", scheduled.stderr);
    assert_eq!(act("schedule remove", &["daily", "--note", "unused"]).code(), Some(0));
    let expected = [
        "pause||the API is down",
        "resume||",
        "cancel|a|a mistake",
        "cancel|3 keys|",
        "rate|rate 10/s with a burst of 2|",
        "schedule-add|daily|",
        "schedule-remove|daily|unused",
    ];
    assert_eq!(recorded(&dir, "default"), expected);
    let actions = call(&dir, "status", &["--actions"]).text();
    let actions: Vec<_> = actions.lines().skip_while(|line| *line != "last actions").collect();
    assert_eq!(actions.len(), 1 + expected.len(), "{actions:?}");
    assert!(actions[1].starts_with("  schedule-remove daily by ann on "), "{actions:?}");
    assert!(
        actions[1].ends_with(" ago, note: unused") && actions[7].starts_with("  pause by ann on ")
    );
    let json: serde_json::Value =
        serde_json::from_str(&call(&dir, "status", &["--actions", "--json"]).text()).expect("JSON");
    let names: Vec<_> = json["actions"].as_array().expect("a list").iter().collect();
    assert_eq!((names.len(), &names[0]["action"]), (7, &"schedule-remove".into()));

    let group = ["--queue", "grouped"];
    add(&dir, &["--queue", "grouped", "--group", "acme", "x", "y"]);
    for (command, args) in [
        ("groups pause", &["acme", "--note", "too many"][..]),
        ("groups limit", &["acme", "2"]),
        ("groups default-limit", &["5"]),
        ("groups cancel", &["acme"]),
    ] {
        let ended = act(command, &[args, &group].concat());
        assert_eq!(ended.code(), Some(0), "{command}: {}", ended.stderr);
    }
    let expected = [
        "group-pause|acme|too many",
        "group-limit|acme: limit 2|",
        "group-limit|groups without another limit: limit 5|",
        "group-cancel|acme: 2 keys|",
    ];
    assert_eq!(recorded(&dir, "grouped"), expected);

    let long = act("pause", &["default", "--note", &"x".repeat(501)]);
    assert_eq!(long.code(), Some(2));
    assert!(long.stderr.contains("--note") && long.stderr.contains("500 bytes"), "{}", long.stderr);
}
