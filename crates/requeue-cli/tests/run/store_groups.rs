//! Groups of a queue in a store: turns, limits, names and explanations.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::store::{add, call, requeue, work};
use crate::support::{Ended, Gate, Live, directory, end};

const TOKEN: &str = "0123456789abcdef";
const BY: [&str; 2] = ["--group-by", "^[^/]*"];

#[test]
fn groups_in_a_store_take_turns() {
    let dir = directory("store_groups_turns");
    let keys = ["busy/0", "busy/1", "busy/2", "calm/3"];
    add(&dir, &[&BY[..], &["--order", "fair"], &keys].concat());
    let ended = work(&dir, &[&BY[..], &["--order", "fair", "-j1", "echo"]].concat());
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.text(), "busy/0\ncalm/3\nbusy/1\nbusy/2\n");
    // The groups are a setting of the queue, so a worker need not name them.
    add(&dir, &keys);
    assert_eq!(work(&dir, &["-j1", "echo"]).text().lines().nth(1), Some("calm/3"));

    // `run --store` also creates such a queue.
    let args = [&BY[..], &["--queue", "run", "--group-limit", "1", "-j3", "echo"]].concat();
    let ended = end(&mut requeue(&dir, "run", &args), "a/1\na/2\nb/1\n");
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 3), "{}", ended.stderr);
    let other = ["--queue", "run", "--group-by", "^[^/]*", "--group-limit", "2", "a/1"];
    let ended = call(&dir, "add", &other);
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("the limit of its groups is 1, not 2"), "{}", ended.stderr);
    let ended = call(&dir, "work", &["--queue", "run", "--group-by", "^.", "echo"]);
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    let said = r#"its groups are extracted by the pattern "^[^/]*", and the option says groups extracted by the pattern "^.""#;
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
}

#[test]
fn a_group_limit_holds_over_all_workers() {
    let dir = directory("store_groups_limit");
    add(&dir, &[&BY[..], &["--group-limit", "1", "a/1", "a/2", "b/1"]].concat());
    let mut gate = Gate::new(&dir);
    let script = "echo \"<$1>\"; read _ <gate";
    let args = ["--until-empty", "-j4", "--worker", "w1", "-c", script];
    let mut live = Live::spawn(&mut requeue(&dir, "work", &args));
    live.wait_for("1>");
    live.wait_for("1>");
    let text = call(&dir, "why", &["a/2"]).text();
    let why = r#", but throttled by group "a": 1 of 1 in flight ("w1": a/1); since "#;
    assert!(text.starts_with("a/2: ready for ") && text.contains(why), "{text}");
    let listed = call(&dir, "status", &["--in-flight"]).text();
    let groups: Vec<_> =
        listed.lines().filter_map(|line| line.split('\t').nth(4)).map(str::to_owned).collect();
    assert_eq!(groups, ["a", "b"], "{listed}");
    let status: Value =
        serde_json::from_str(&call(&dir, "status", &["--in-flight", "--json"]).text()).unwrap();
    assert_eq!(status["in_flight_keys"][1]["group"], "b", "{status}");
    gate.open(3);
    let ended = live.end();
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 3), "{}", ended.stderr);
}

#[test]
fn adds_name_the_groups_of_their_keys() {
    let dir = directory("store_groups_named");
    add(&dir, &["--group", "acme", "--group-limit", "2", "k1", "k2"]);
    let records = "{\"key\":\"k3\",\"group\":\"zeta\"}\n{\"key\":\"k4\"}\n{\"key\":\"k5\",\"group\":\"a\\nb\"}\n";
    let ended = end(&mut requeue(&dir, "add", &["--input", "json"]), records);
    assert_eq!((ended.code(), ended.count("adds")), (Some(3), 2), "{}", ended.stderr);
    assert!(ended.stderr.contains("record 3: ") && ended.stderr.contains("has control characters"));
    let listed = call(&dir, "keys", &[]).text();
    let groups: Vec<_> = listed.lines().map(|line| line.rsplit('\t').next().unwrap()).collect();
    assert_eq!(groups, ["acme", "acme", "zeta", ""], "{listed}");
    let explained = call(&dir, "why", &["k3"]).text();
    assert!(explained.contains(" in group \"zeta\", 0 of 2 in flight; since "), "{explained}");

    // The objects are the input for another queue whose adds name the groups.
    let objects = call(&dir, "keys", &["--json"]).text();
    let first: Value = serde_json::from_str(objects.lines().next().unwrap()).unwrap();
    assert_eq!(first["group"], json!("acme"));
    let copy = ["--queue", "copy", "--group", "", "--input", "json"];
    let ended = end(&mut requeue(&dir, "add", &copy), &objects);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let copied = call(&dir, "keys", &["--queue", "copy"]).text();
    assert_eq!(
        copied.lines().map(|line| line.rsplit('\t').next().unwrap()).collect::<Vec<_>>(),
        groups
    );

    // A queue without groups refuses only the record with a group.
    add(&dir, &["--queue", "plain", "k"]);
    let plain = ["--queue", "plain", "--input", "json"];
    let ended = end(&mut requeue(&dir, "add", &plain), records);
    assert_eq!((ended.code(), ended.count("adds")), (Some(3), 1), "{}", ended.stderr);
    assert!(ended.stderr.contains("the queue \"plain\" has no groups"), "{}", ended.stderr);
    assert_eq!(
        call(&dir, "keys", &["--queue", "plain"]).text().lines().next(),
        Some("k\tready\t\t0\t")
    );
}

#[test]
fn flags_of_groups_that_do_not_fit_are_refused() {
    let dir = directory("store_groups_refused");
    for (subcommand, args, why) in [
        ("add", &["--order", "fair", "k"][..], "--order fair requires --group-by"),
        ("add", &["--group-limit", "2", "k"], "--group-limit requires --group-by"),
        ("add", &["--group", "a", "--group-by", "^.", "k"], "cannot be used with"),
        ("add", &["--group", "a", "--order", "fifo", "k"], "always takes fair turns"),
        ("add", &["--group", &"x".repeat(10_000), "k"], "has 10000 bytes; at most 100 are allowed"),
        ("work", &["--group-by", "(", "echo"], r#"--group-by "(": not a regular expression"#),
        ("work", &["--group-by", "", "--create", "echo"], r#"--group-by "": the pattern is empty"#),
        (
            "work",
            &["--group-limit", "0", "--group-by", "^.", "echo"],
            "'0' for '--group-limit <N>'",
        ),
        ("run", &["--order", "priority", "echo"], "always delivers by priority"),
        ("run", &["--order", "fair", "echo"], "--order fair requires --group-by"),
        ("run", &["--order", "fifo", "--group-by", "^.", "echo"], "always takes fair turns"),
    ] {
        let ended = end(&mut requeue(&dir, subcommand, args), "");
        assert!(matches!(ended.code(), Some(2 | 3)), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
    for (args, why) in [
        (&["limit", "a", "0"][..], "'0' for '<N>': expected a number from 1"),
        (&["default-limit", "0"], "`requeue pause` stops a queue"),
        (&["weight", "a", "0"], "`requeue groups pause` stops a group"),
        (&["rate", "a", "0"], "'0' for '<RATE>': expected a number above 0 per second"),
        (&["rate", "a", "1e-9/h"], "'1e-9/h' for '<RATE>': it is too high or too low"),
        (&["rate", "a", "1/s", "--burst", "0"], "'0' for '--burst <N>'"),
        (&["rate", "a", "none", "--burst", "2"], "--burst 2 requires a rate"),
    ] {
        let ended = groups(&dir, args);
        assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
    // None of the commands has created a queue.
    assert!(!dir.join("jobs.db").exists());
    for args in [&["--group", "a", "--group-limit", "2"][..], &["--group-by", "^."]] {
        let args = [args, &["--server", "http://127.0.0.1:9", "k"]].concat();
        let mut command = requeue(&dir, "add", &args);
        command.env("REQUEUE_TOKEN", TOKEN);
        let ended = end(&mut command, "");
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("--server: --group-by"), "{}", ended.stderr);
    }
}

/// Calls `requeue groups`.
fn groups(dir: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.arg("groups").args(args).args(["--store", "sqlite:jobs.db"]).env("LC_ALL", "C");
    end(command.current_dir(dir), "")
}

/// The lines of `groups list`, without the age.
fn listed(dir: &Path, args: &[&str]) -> Vec<String> {
    let text = groups(dir, &[&["list"], args].concat()).text();
    let lines = text.lines().skip(1).map(|line| {
        let mut words: Vec<_> = line.split_whitespace().collect();
        words.remove(7);
        words.join(" ")
    });
    lines.collect()
}

#[test]
fn groups_are_listed_and_changed() {
    let dir = directory("store_groups_changed");
    add(&dir, &[&BY[..], &["--group-limit", "2", "a/1", "a/2", "b/1", "/"]].concat());
    add(&dir, &["--after", "1h", "a/3"]);
    let change = |args: &[&str], said: &str| {
        let ended = groups(&dir, args);
        assert_eq!(ended.code(), Some(0), "{args:?}: {}", ended.stderr);
        assert_eq!(ended.stderr, format!("requeue: {said}\n"), "{args:?}");
    };
    assert_eq!(
        listed(&dir, &[]),
        ["1 0 0 2 1 - - - \"\"", "2 1 0 2 1 - - - a", "1 0 0 2 1 - - - b"]
    );
    change(&["limit", "a", "1"], "group \"a\": limit 1");
    change(&["weight", "b", "3"], "group \"b\": weight 3");
    change(&["rate", "b", "10/s"], "group \"b\": rate 10/s with a burst of 2");
    change(&["rate", "b", "none"], "group \"b\": no rate");
    change(&["rate", "b", "90/m", "--burst", "7"], "group \"b\": rate 90/m with a burst of 7");
    change(&["pause", ""], "group \"\": paused");
    change(&["default-limit", "none"], "groups without another limit: no limit");
    assert_eq!(
        listed(&dir, &[]),
        ["1 0 0 - 1 - - paused \"\"", "2 1 0 1 1 - - - a", "1 0 0 - 3 90/m 7 - b"]
    );
    let json = groups(&dir, &["list", "--json"]).text();
    let mut group: Value = serde_json::from_str(json.lines().nth(1).unwrap()).unwrap();
    assert!(group["oldest_ready"].take().is_f64(), "{json}");
    let expected = json!({
        "group": "a", "ready": 2, "waiting": 1, "in_flight": 0, "dirty": 0, "parked": 0,
        "oldest_ready": null, "limit": 1, "weight": 1, "rate": null, "is_paused": false,
    });
    assert_eq!(group, expected);
    let text = call(&dir, "why", &["/"]).text();
    assert!(text.contains(r#", but throttled by group "", which is paused"#), "{text}");

    change(&["default-limit", "7"], "groups without another limit: limit 7");
    change(&["limit", "a", "none"], "group \"a\": limit of the queue");
    change(&["resume", ""], "group \"\": resumed");
    change(&["cancel", "a", "--state", "waiting"], "1 cancelled");
    change(&["cancel", "b"], "1 cancelled");
    assert_eq!(
        listed(&dir, &[]),
        ["1 0 0 7 1 - - - \"\"", "2 0 0 7 1 - - - a", "0 0 0 7 3 90/m 7 - b"]
    );

    let long = "x".repeat(10_000);
    for (args, why) in [
        (&["pause", &*long][..], "has 10000 bytes; at most 100 are allowed"),
        (&["cancel", &long], "has 10000 bytes; at most 100 are allowed"),
        (&["weight", "a\nb", "2"], "has control characters"),
        (
            &["rate", "a", "1/h", "--burst", "4294967295"],
            "invalid rate 1/h with a burst of 4294967295: use a smaller burst",
        ),
    ] {
        let ended = groups(&dir, args);
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
    add(&dir, &["--queue", "plain", "k"]);
    for args in [&["list"][..], &["pause", "a"], &["cancel", "a"], &["default-limit", "1"]] {
        let ended = groups(&dir, &[args, &["--queue", "plain"]].concat());
        assert_eq!((ended.code(), ended.text()), (Some(2), String::new()), "{}", ended.stderr);
        assert!(ended.stderr.contains("the queue \"plain\" has no groups"), "{}", ended.stderr);
    }
    let ended = groups(&dir, &["list", "--queue", "none"]);
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
}

#[test]
fn queues_are_created_with_groups_and_show_them() {
    let dir = directory("store_groups_queues");
    let init = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.args(["store", "init", "--store", "sqlite:jobs.db"]).args(args);
        end(command.current_dir(&dir), "")
    };
    let by = [&BY[..], &["--group-limit", "3"]].concat();
    let ended = init(&[&["--queue", "mail", "--queue", "web"], &by[..]].concat());
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    add(&dir, &["--queue", "named", "--group", "a", "k"]);
    add(&dir, &["--queue", "plain", "k"]);
    let text = call(&dir, "queues", &[]).text();
    let lines = [
        "mail\tempty\tgroups by ^[^/]*, limit 3",
        "named\tkeys\tgroups named by adds",
        "plain\tkeys",
        "web\tempty\tgroups by ^[^/]*, limit 3",
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), lines);
    let json = call(&dir, "queues", &["--json"]).text();
    let settings = json.lines().map(|line| {
        let queue: Value = serde_json::from_str(line).unwrap();
        (queue["group_by"].clone(), queue["group_limit"].clone())
    });
    let by_pattern = (json!("^[^/]*"), json!(3));
    let expected =
        [by_pattern.clone(), (json!(""), json!(null)), (json!(null), json!(null)), by_pattern];
    assert_eq!(settings.collect::<Vec<_>>(), expected);

    for (args, why) in [
        (&by[..], "--queue <NAME>"),
        (&["--queue", "x", "--group-limit", "3"], "--group-limit requires --group-by"),
        (&["--queue", "mail", "--group-by", "^."], r#"extracted by the pattern "^[^/]*""#),
    ] {
        let ended = init(args);
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
}

#[test]
fn a_pattern_that_no_key_matches_is_named() {
    let dir = directory("store_groups_unmatched");
    let said = r#"requeue: --group-by "^z": no key matches, so all keys are in the group "";"#;
    let ended = add(&dir, &["--group-by", "^z", "a", "b"]);
    assert!(ended.stderr.starts_with(said), "{}", ended.stderr);
    let ended = add(&dir, &["--group-by", "^z", "a", "zeta"]);
    assert!(!ended.stderr.contains("no key matches"), "{}", ended.stderr);
    assert_eq!(listed(&dir, &[]), ["2 0 0 - 1 - - - \"\"", "1 0 0 - 1 - - - z"]);
    let run = |keys: &str| {
        let args = ["--queue", "run", "--group-by", "^z", "true"];
        end(&mut requeue(&dir, "run", &args), keys).stderr
    };
    let stderr = run("a\nb\n");
    assert!(stderr.contains(said), "{stderr}");
    for keys in ["a\nzeta\n", ""] {
        let stderr = run(keys);
        assert!(!stderr.contains("no key matches"), "{stderr}");
    }
}

/// A worker cannot name groups, so the limit alone is enough.
#[test]
fn a_worker_of_named_groups_may_pass_the_limit() {
    let dir = directory("store_groups_worker");
    add(&dir, &["--group", "acme", "--group-limit", "2", "k1"]);
    for subcommand in ["work", "run"] {
        let stops: &[&str] = if subcommand == "work" { &["--until-empty"] } else { &[] };
        let args = [stops, &["--group-limit", "2", "true"]].concat();
        let ended = end(&mut requeue(&dir, subcommand, &args), "");
        assert_eq!(ended.code(), Some(0), "{subcommand}: {}", ended.stderr);
    }
    add(&dir, &["--queue", "plain", "k"]);
    for (args, why) in [
        (&["--group-limit", "3", "true"][..], "the limit of its groups is 2, not 3"),
        (
            &["--queue", "plain", "--group-limit", "3", "true"],
            "it has no groups, and the option says",
        ),
        (&["--queue", "new", "--group-limit", "3", "true"], "no such queue"),
        (
            &["--queue", "new", "--create", "--group-limit", "3", "true"],
            "it does not exist, and a limit of its groups needs `group_by` or `--group-by`",
        ),
    ] {
        let ended = end(&mut requeue(&dir, "work", args), "");
        assert!(matches!(ended.code(), Some(2 | 125)), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
    assert_eq!(queues(&dir), ["default", "plain"]);
}

fn queues(dir: &Path) -> Vec<String> {
    let text = call(dir, "queues", &[]).text();
    text.lines().map(|line| line.split('\t').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn an_add_that_is_refused_creates_no_queue_and_the_first_other_one_fits() {
    let dir = directory("store_groups_first");
    let add_json = |queue: &str, args: &[&str], records: &str| {
        let args = [&["--queue", queue, "--input", "json"], args].concat();
        end(&mut requeue(&dir, "add", &args), records)
    };
    let long = "x".repeat(101);
    let named = format!(r#"{{"key":"k","group":"{long}"}}"#);
    let key = format!(r#"{{"key":"{}"}}"#, "x".repeat(3000));
    let other = r#"{"key":"a/1","group":"b"}"#;
    for (args, record, why) in [
        (&[][..], &*named, "has 101 bytes; at most 100 are allowed"),
        (&[], &key, "not a key: it has 3000 bytes"),
        (&BY, other, r#"the add names the group "b", and the pattern "#),
        (&[], "no record", "not a JSON object"),
    ] {
        let ended = add_json("refused", args, record);
        assert_eq!((ended.code(), ended.count("adds")), (Some(3), 0), "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{}", ended.stderr);
    }
    let cancelled = add_json("cancelled", &[], r#"{"key":"k","op":"cancel"}"#);
    assert_eq!((cancelled.code(), cancelled.count("cancelled")), (Some(0), 0));
    assert_eq!(queues(&dir), ["cancelled"]);

    let grouped = r#"{"key":"k1","group":"acme"}"#;
    let ended = add_json("named", &[], &format!("{named}\n{grouped}\n{}", r#"{"key":"k2"}"#));
    assert_eq!((ended.code(), ended.count("adds")), (Some(3), 2), "{}", ended.stderr);
    let ended = add_json("plain", &[], &format!("{}\n{grouped}", r#"{"key":"k2"}"#));
    assert_eq!((ended.code(), ended.count("adds")), (Some(3), 1), "{}", ended.stderr);
    assert_eq!(add_json("empty", &[], "").code(), Some(0));
    assert_eq!(queues(&dir), ["cancelled", "empty", "named", "plain"]);
    assert_eq!(
        listed(&dir, &["--queue", "named"]),
        ["1 0 0 - 1 - - - \"\"", "1 0 0 - 1 - - - acme"]
    );
}

/// The commands also work with the server of a worker.
#[test]
fn groups_are_listed_and_changed_by_a_server() {
    let dir = directory("store_groups_server");
    add(&dir, &["--group", "a", "--group-limit", "1", "k1", "k2"]);
    let mut gate = Gate::new(&dir);
    let script = "echo \"<$1>\"; read _ <gate";
    let serve = ["--serve", "unix:page", "--serve-admin", "--until-empty", "-j1", "--worker", "w1"];
    let mut command = requeue(&dir, "work", &[&serve[..], &["-c", script]].concat());
    let mut live = Live::spawn(command.env("REQUEUE_TOKEN", TOKEN));
    live.wait_for(">");
    let by_server = |subcommand: &str, args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
        command.arg(subcommand).args(args).args(["--server", "unix:page"]).current_dir(&dir);
        let ended = end(command.env("REQUEUE_TOKEN", TOKEN), "");
        assert_eq!(ended.code(), Some(0), "{subcommand} {args:?}: {}", ended.stderr);
        ended
    };
    let text = by_server("why", &["k2"]).text();
    let why = r#", but throttled by group "a": 1 of 1 in flight ("w1": k1); since "#;
    assert!(text.contains(why), "{text}");
    by_server("add", &["--group", "b", "k3"]);
    for (args, said) in [
        (&["weight", "a", "4"][..], "group \"a\": weight 4"),
        (&["limit", "b", "3"], "group \"b\": limit 3"),
        (&["rate", "b", "1/h", "--burst", "5"], "group \"b\": rate 1/h with a burst of 5"),
        (&["pause", "b"], "group \"b\": paused"),
        (&["default-limit", "2"], "groups without another limit: limit 2"),
        (&["cancel", "b", "--state", "ready"], "1 cancelled"),
    ] {
        let ended = by_server("groups", args);
        assert_eq!(ended.stderr, format!("requeue: {said}\n"));
    }
    let text = by_server("groups", &["list"]).text();
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(text.lines().count(), 3, "{text}");
    let state = ["0", "0", "0", "3", "1", "1/h", "5", "-", "paused", "b"];
    assert_eq!(words(text.lines().nth(2).unwrap()), state, "{text}");
    gate.open(2);
    let ended = live.end();
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 2), "{}", ended.stderr);
}
