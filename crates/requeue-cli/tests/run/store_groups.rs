//! Groups of a queue in a store: turns, limits, names and explanations.

use serde_json::{Value, json};

use crate::store::{add, call, requeue, work};
use crate::support::{Gate, Live, directory, end};

const BY: [&str; 2] = ["--group-by", "^[^/]*"];

#[test]
fn groups_in_a_store_take_turns() {
    let dir = directory("store_groups_turns");
    let keys = ["busy/0", "busy/1", "busy/2", "calm/3"];
    add(&dir, &[&BY[..], &["--order", "fair"], &keys].concat());
    let ended = work(&dir, &[&BY[..], &["--order", "fair", "-j1", "echo"]].concat());
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.text(), "busy/0\ncalm/3\nbusy/1\nbusy/2\n");
    // The groups are a setting of the queue, so that a worker need not name them.
    add(&dir, &keys);
    assert_eq!(work(&dir, &["-j1", "echo"]).text().lines().nth(1), Some("calm/3"));

    // `run --store` creates such a queue, too.
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
    let text = call(&dir, "explain", &["a/2"]).text();
    let why = r#", but its group "a" has 1 of 1 keys in flight: a/1 at worker "w1"; since "#;
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
    let explained = call(&dir, "explain", &["k3"]).text();
    assert!(explained.contains(" in group \"zeta\"; since "), "{explained}");

    // The objects are input of another queue whose adds name the groups.
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

    // A queue without groups refuses the record, and takes the others.
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
        ("add", &["--group", &"x".repeat(101), "k"], "at most 100 are allowed"),
        ("work", &["--group-by", "(", "echo"], "--group-by: regex parse error"),
        ("work", &["--group-by", "", "--create", "echo"], "the pattern of its groups is empty"),
        ("work", &["--group-limit", "0", "--group-by", "^.", "echo"], "--group-limit"),
        ("run", &["--order", "priority", "echo"], "always delivers by priority"),
        ("run", &["--order", "fair", "echo"], "--order fair requires --group-by"),
        ("run", &["--order", "fifo", "--group-by", "^.", "echo"], "always takes fair turns"),
    ] {
        let ended = end(&mut requeue(&dir, subcommand, args), "");
        assert!(matches!(ended.code(), Some(2 | 3)), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
    for args in [&["--group", "a"][..], &["--group-by", "^."]] {
        let args = [args, &["--server", "http://127.0.0.1:9", "k"]].concat();
        let mut command = requeue(&dir, "add", &args);
        command.env("REQUEUE_TOKEN", "a token of sixteen");
        let ended = end(&mut command, "");
        assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("--server: --group, --group-by"), "{}", ended.stderr);
    }
}
