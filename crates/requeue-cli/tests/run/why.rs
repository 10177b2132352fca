//! `requeue why`.

use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::store::{add, call, requeue, work};
use crate::support::{Ended, Live, directory, end, until};

/// Runs `requeue why` for a run at the socket `s`.
fn why(dir: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.current_dir(dir).args(["why", "--server", "unix:s"]).args(args);
    end(command.env_remove("REQUEUE_STORE").env_remove("REQUEUE_TOKEN"), "")
}

/// Starts a run with a dashboard.
fn serve(dir: &Path, args: &[&str]) -> Live {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.current_dir(dir).args(["run", "--serve", "unix:s"]).args(args);
    Live::spawn(&mut command)
}

/// Returns the words of the lines about the past.
fn past(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| line.split_once(" ago  ")).map(|(_, words)| words).collect()
}

#[test]
fn a_run_tells_the_past_of_a_key_after_its_present_state() {
    let dir = directory("why_run");
    let mut run =
        serve(&dir, &["--base-delay", "1h", "--max-delay", "1h", "-c", "test $1 != a || exit 3"]);
    run.send("a\n");
    until(|| dir.join("s").exists());
    let waits = |ended: &Ended| ended.text().starts_with("a: backing off; ready in ");
    until(|| waits(&why(&dir, &["a"])));
    // The run is in the history of failures after its completion.
    until(|| why(&dir, &["a"]).text().contains("retried: exit status: 3"));
    let ended = why(&dir, &["a"]);
    let text = ended.text();
    assert_eq!((ended.code(), &*ended.stderr), (Some(0), ""));
    let lines = past(&text);
    assert_eq!(lines[0], "added");
    let [.., failed, wait] = &lines[..] else { panic!("{text}") };
    assert!(failed.starts_with("attempt 1 failed and is retried: exit status: 3; took "), "{text}");
    assert!(wait.starts_with("waits ") && wait.contains(" more, until 2"), "{text}");
    assert!(wait.ends_with("Z: backing off after 1 failure"), "{text}");
    assert!(text.contains("\n(all events of this key are known)\n"), "{text}");
    assert!(text.contains("\nattempt 1 failed; ended at 2"), "{text}");

    let json: Value = serde_json::from_str(&why(&dir, &["a", "--json"]).text()).expect("JSON");
    assert_eq!((&json["key"], &json["state"]), (&json!("a"), &json!("waiting")));
    assert_eq!(json["events"][0]["kind"], json!("add"));
    assert_eq!(json["runs"][0]["error"], json!("exit status: 3"));
    let why_text = json["why"].as_str().expect("text");
    assert!(why_text.starts_with("backing off; ready in "), "{why_text}");
    // A wait that is not over is shown for any period.
    assert_eq!(past(&why(&dir, &["a", "--since", "1h"]).text()).len(), lines.len());
    assert_eq!(past(&why(&dir, &["a", "--since", "0"]).text()).len(), 1);

    // The past of a key is shown even after it has left the queue.
    run.send("b\n");
    let last = "b: not in the queue; last: run succeeded";
    until(|| why(&dir, &["b"]).text().starts_with(last));
    let text = why(&dir, &["b", "--since", "0"]).text();
    assert!(text.starts_with(last), "{text}");

    let none = why(&dir, &["none"]);
    assert_eq!(none.code(), Some(1));
    let text = none.text();
    assert!(text.starts_with("none: not in the queue: it was never added"), "{text}");
    assert!(text.contains("; `requeue keys` lists the keys\n"), "{text}");
    run.signal(Signal::TERM);
    run.end();
}

#[test]
fn a_run_without_a_recording_says_how_to_get_one() {
    let dir = directory("why_off");
    let mut run = serve(&dir, &["--record-events", "0", "-c", "exit 3", "--base-delay", "1h"]);
    run.send("a\n");
    until(|| dir.join("s").exists());
    until(|| why(&dir, &["a"]).text().contains("attempt 1 failed: exit status: 3"));
    let text = why(&dir, &["a"]).text();
    assert!(text.contains("(this process records no events ("), "{text}");
    assert!(
        text.contains("--record-events): only the last runs of keys that have failed"),
        "{text}"
    );
    run.signal(Signal::TERM);
    run.end();

    for (size, error) in [
        (&["1M"][..], "--record-events requires --serve"),
        (&["4MB"], "invalid value '4MB' for '--record-events <SIZE>': expected a number of bytes"),
        (&["255", "--serve", "0"], "--record-events: use 256 bytes or more, or 0"),
        (&["9000000000G", "--serve", "0"], "--record-events: this machine has less memory"),
    ] {
        let mut run = Command::new(env!("CARGO_BIN_EXE_requeue"));
        let ended = end(run.args(["run", "--record-events"]).args(size).arg("true"), "");
        assert!(ended.code() == Some(2) && ended.stderr.contains(error), "{}", ended.stderr);
    }
}

/// Replays the file `name`, and returns the subjects of its lines.
fn replayed(dir: &Path, name: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    let ended = end(command.current_dir(dir).args(["replay", name]), "");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("no difference"), "{}", ended.stderr);
    let subject = |line: &str| line.split(": ").next().unwrap_or_default().to_owned();
    ended.text().lines().map(subject).collect()
}

#[test]
fn an_exported_recording_names_its_keys_or_has_no_text_of_a_user() {
    let dir = directory("why_export");
    let script = "echo s3cret-output >&2; test $1 != s3cret/bad || exit 3";
    let groups = ["--group-by", "^[^/]*", "--group-limit", "1"];
    let mut run = serve(&dir, &[&groups[..], &["--base-delay", "1h", "-c", script]].concat());
    run.send("s3cret/bad\ns3cret/good\n\u{1b}[31m\n");
    until(|| dir.join("s").exists());
    until(|| why(&dir, &["s3cret/bad"]).text().contains("retried: exit status: 3"));
    until(|| why(&dir, &["s3cret/good"]).text().contains("last: run"));

    let ended = why(&dir, &["--export", "named"]);
    assert_eq!((ended.code(), &*ended.text()), (Some(0), ""), "{}", ended.stderr);
    assert!(ended.stderr.contains(" events exported, with 1 name of keys\n"), "{}", ended.stderr);
    assert!(replayed(&dir, "named").contains(&"s3cret/bad".to_owned()));
    // A key that has left the queue is named if it is asked for. The file is replaced.
    assert_eq!(why(&dir, &["s3cret/good", "--export", "named"]).code(), Some(0));
    assert!(replayed(&dir, "named").contains(&"s3cret/good".to_owned()));

    let ended = why(&dir, &["s3cret/good", "--export", "-", "--hash-keys"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!ended.text().contains("s3cret"), "{}", ended.text());
    std::fs::write(dir.join("hashed"), ended.text()).expect("written");
    let subjects = replayed(&dir, "hashed");
    let number = |subject: &&String| subject.parse::<u64>().is_ok();
    assert!(subjects.contains(&"KEY".to_owned()), "{subjects:?}");
    assert!(subjects.iter().filter(number).count() > 4, "{subjects:?}");
    // The hashes of keys have a secret seed, but they are not in the file either.
    let named = std::fs::read_to_string(dir.join("named")).expect("it is there");
    let hashes = named.lines().filter_map(|line| line.strip_prefix("name ")?.get(..8));
    assert!(hashes.clone().count() > 1, "{named}");
    hashes.for_each(|hash| assert!(!ended.text().contains(hash), "{hash}"));
    run.signal(Signal::TERM);
    run.end();
}

#[test]
fn a_process_or_store_without_a_recording_says_so() {
    let dir = directory("why_no_export");
    let run = serve(&dir, &["--record-events", "0", "true"]);
    until(|| dir.join("s").exists());
    let refused = |ended: &Ended, code: i32, text: &str| {
        assert!(ended.code() == Some(code) && ended.stderr.contains(text), "{}", ended.stderr);
        assert!(!dir.join("out").exists());
    };
    let off = "this process records no events; start it with --record-events 4M";
    until(|| why(&dir, &["--export", "out"]).stderr.contains(off));
    refused(&why(&dir, &["a", "--export", "out", "--hash-keys"]), 125, off);
    refused(&why(&dir, &["a", "--hash-keys"]), 2, "--export <FILE>");
    refused(&why(&dir, &[]), 2, "<KEY>");
    run.signal(Signal::TERM);
    run.end();
    add(&dir, &["a"]);
    refused(&call(&dir, "why", &["--export", "out"]), 2, "--export requires --server URL, with");
    let mut command = requeue(&dir, "serve", &["unix:t", "--queue", "default"]);
    let server = Live::spawn(&mut command);
    until(|| dir.join("t").exists());
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.current_dir(&dir).args(["why", "--server", "unix:t", "--export", "out"]);
    let stored = "a queue in a store has no recording; `requeue why KEY` shows the past";
    refused(&end(&mut command, ""), 125, stored);
    server.signal(Signal::TERM);
    server.end();
}

#[test]
fn a_store_tells_the_last_failures_and_the_actions_of_operators() {
    let dir = directory("why_store");
    add(&dir, &["bad"]);
    work(&dir, &["--retries", "0", "-c", "exit 3"]);
    let revive = ["revive", "--note", "the API is back", "bad"];
    assert_eq!(call(&dir, revive[0], &revive[1..]).code(), Some(0));
    work(&dir, &["--retries", "0", "-c", "printf 'no\\nsuch column\\n' >&2; exit 4"]);
    let text = call(&dir, "why", &["bad"]).text();
    // Before each run, the key has been ready for a while.
    let events = |text: &str| -> Vec<String> {
        let is_event = |line: &&str| !line.ends_with("ready, waiting for a worker");
        past(text).into_iter().filter(is_event).map(str::to_owned).collect()
    };
    let lines = events(&text);
    assert_eq!(lines.len(), 4, "{text}");
    // The store returns ages, so events in quick succession may be in a different order.
    let has = |begin: &str, part: &str| {
        lines.iter().any(|line| line.starts_with(begin) && line.contains(part))
    };
    assert!(has("revived by ", ", note: the API is back"), "{text}");
    assert!(has("run failed for the last time; took ", ""), "{text}");
    // The error ends with what the command said last.
    let error = "attempt 1 failed for the last time: exit status: 4: such column";
    assert!(has(error, "; took "), "{text}");
    assert!(has("parked after 1 failure", ""), "{text}");
    // `explain` is the same command.
    assert_eq!(events(&call(&dir, "explain", &["bad"]).text()).len(), 4);
    let json: Value =
        serde_json::from_str(&call(&dir, "why", &["bad", "--json"]).text()).expect("JSON");
    assert_eq!((&json["state"], &json["recorded"]), (&json!("parked"), &json!(false)));

    let ended = end(&mut requeue(&dir, "why", &["bad", "--since", "yesterday"]), "");
    let error = "invalid value 'yesterday' for '--since <TIME>': expected a time like 1.5s";
    assert!(ended.code() == Some(2) && ended.stderr.contains(error), "{}", ended.stderr);
    // The period is shorter than the time since the failures.
    let recent = call(&dir, "why", &["bad", "--since", "0"]).text();
    assert_eq!(past(&recent), [""; 0], "{recent}");

    // The answer is the same without the table of actions.
    let file = rusqlite::Connection::open(dir.join("jobs.db")).expect("the file opens");
    file.execute_batch("drop table actions").expect("dropped");
    let ended = call(&dir, "why", &["bad"]);
    assert_eq!((ended.code(), events(&ended.text()).len()), (Some(0), 3), "{}", ended.stderr);
}
