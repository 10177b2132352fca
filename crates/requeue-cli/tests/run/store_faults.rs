//! Queues in a store with processes that stop, die, freeze or compete.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;

use rustix::process::Signal;

use crate::store::{add, call, requeue, status, work};
use crate::support::{Gate, Live, directory, end, until};

/// A lease for a process that must lose it. A shorter lease could expire too early on a slow machine. The worker that
/// takes over has the default lease.
const SOON: [&str; 2] = ["--lease", "5s"];

#[test]
fn a_run_that_is_killed_goes_on_where_it_was() {
    let dir = directory("store_killed");
    let _gate = Gate::new(&dir);
    let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
    // The fifth command and all later ones wait.
    let script = "[ $REQUEUE_SEQ -le 4 ] || { echo up; read _ <gate; }; echo $1 >>done";
    let args = [&SOON[..], &["-j1", "-c", script]].concat();
    let mut live = Live::spawn(&mut requeue(&dir, "run", &args));
    live.send(&(keys.join("\n") + "\n"));
    live.wait_for("up");
    until(|| status(&dir) == [35, 0, 1, 0]);
    // Standard input is still open.
    live.signal(Signal::KILL);
    // The commands are killed with the program.
    assert_eq!(live.end().status.signal(), Some(Signal::KILL.as_raw()));

    let script = "echo $REQUEUE_ATTEMPT $1; echo $1 >>done";
    let args = ["--base-delay", "10ms", "-c", script];
    let ended = end(&mut requeue(&dir, "run", &args), "new\n");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    // The interrupted run counts as a failure.
    assert_eq!(ended.text().lines().filter(|line| line.starts_with("2 ")).count(), 1);
    let mut runs = BTreeMap::<String, u32>::new();
    for key in fs::read_to_string(dir.join("done")).unwrap().lines() {
        *runs.entry(key.to_owned()).or_default() += 1;
    }
    // Each key has completed once.
    assert_eq!((runs.len(), runs.values().sum::<u32>()), (keys.len() + 1, 41), "{runs:?}");
    assert_eq!((ended.count("runs"), status(&dir)), (37, [0; 4]), "{}", ended.stderr);
}

#[test]
fn a_run_through_a_store_ends_and_fails_as_any_other() {
    let dir = directory("store_run");
    let script = "echo $1 $REQUEUE_ATTEMPT; [ $1 != bad ]";
    let args = ["-j1", "--retries", "1", "--base-delay", "10ms", "-c", script];
    let run = |input: &str| end(&mut requeue(&dir, "run", &args), input);
    let ended = run("a\nbad\n\nb\n");
    assert_eq!(ended.code(), Some(1));
    assert_eq!(ended.sorted(), ["a 1", "b 1", "bad 1", "bad 2"]);
    assert_eq!((ended.count("adds"), ended.count("given up")), (3, 1), "{}", ended.stderr);
    assert_eq!(status(&dir), [0, 0, 0, 1]);
    // The key is added again, and starts without failures.
    let ended = run("bad\n");
    assert_eq!((ended.code(), ended.sorted()), (Some(1), vec!["bad 1".into(), "bad 2".into()]));
    assert_eq!(end(&mut requeue(&dir, "run", &["true"]), "a\0b\nc\n").code(), Some(3));
}

#[test]
fn two_who_work_never_run_a_key_at_once() {
    let dir = directory("store_two");
    let mut gate = Gate::new(&dir);
    let script = "mkdir \"at-$1\" || echo overlap; \
                  case $1 in first*) echo up; read _ <gate;; esac; rmdir \"at-$1\"; echo $1";
    let args = ["--create", "-j1", "-c", script];
    let mut both = [(); 2].map(|()| Live::spawn(&mut requeue(&dir, "work", &args)));
    add(&dir, &["first-1", "first-2"]);
    // Each worker has one key.
    both.iter_mut().for_each(|live| live.wait_for("up"));
    gate.open(2);
    for _ in 0..20 {
        add(&dir, &["a", "b", "c"]);
    }
    until(|| status(&dir) == [0; 4]);
    both.iter().for_each(|live| live.signal(Signal::TERM));
    let ended = both.map(Live::end);
    let all: String = ended.iter().map(|ended| ended.text() + &ended.stderr).collect();
    assert!(!all.contains("overlap") && !all.contains("File exists"), "{all}");
    for key in ["a", "b", "c"] {
        assert!(all.lines().any(|line| line == key), "{key}: {all}");
    }
    assert!(ended.iter().all(|ended| ended.count("failures") == 0), "{all}");
}

#[test]
fn a_command_whose_key_is_lost_is_ended_and_not_believed() {
    let dir = directory("store_lost");
    let _gate = Gate::new(&dir);
    add(&dir, &["k"]);
    // The command exits with 0 on SIGTERM.
    let script = "trap 'echo ending; exit 0' TERM; echo up; cat gate & wait; wait";
    let json = ["--summary", "json", "--joblog", "joblog", "-j1", "-c", script];
    let mut frozen = Live::spawn(&mut requeue(&dir, "work", &[&SOON[..], &json].concat()));
    frozen.wait_for("up");
    frozen.stop();
    // Another worker takes the key when the lease expires.
    let ended = work(&dir, &["-c", "echo $REQUEUE_ATTEMPT"]);
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "2\n"), "{}", ended.stderr);
    frozen.signal(Signal::CONT);
    frozen.wait_for("ending");
    frozen.wait_for_message("\"k\": the lease has expired");
    frozen.signal(Signal::TERM);
    let ended = frozen.end();
    let summary: serde_json::Value =
        serde_json::from_str(ended.stderr.lines().last().unwrap()).unwrap();
    let count = |what: &str| summary[what].as_u64().unwrap();
    assert_eq!((count("runs"), count("done"), count("failures")), (1, 0, 1));
    let joblog = fs::read_to_string(dir.join("joblog")).unwrap();
    assert_eq!(joblog.lines().nth(1).unwrap().split('\t').nth(6), Some("-1"), "{joblog}");
    assert_eq!(status(&dir), [0; 4]);
}

/// No worker can report the end of the key's last run. The process that finds the lease expired reports the key.
#[test]
fn a_key_that_is_parked_because_its_worker_died_is_reported() {
    let dir = directory("store_parked");
    let _gate = Gate::new(&dir);
    add(&dir, &["k", "good"]);
    let script = "[ $1 = good ] || { echo up; read _ <gate; }";
    let args = [&SOON[..], &["-j2", "--retries", "0", "-c", script]].concat();
    let mut dying = Live::spawn(&mut requeue(&dir, "work", &args));
    dying.wait_for("up");
    until(|| status(&dir) == [0, 0, 1, 0]);
    dying.signal(Signal::KILL);
    assert_eq!(dying.end().status.signal(), Some(Signal::KILL.as_raw()));

    let args = ["--retries", "0", "--dead-letter", "dead", "--summary", "json", "echo"];
    let ended = work(&dir, &args);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let said = "\"k\": parked after 1 attempt: the lease expired (`requeue revive` runs it again)";
    assert_eq!(ended.stderr.matches(said).count(), 1, "{}", ended.stderr);
    assert_eq!(fs::read_to_string(dir.join("dead")).unwrap(), "k\n");
    let summary = ended.stderr.lines().last().unwrap();
    let summary: serde_json::Value = serde_json::from_str(summary).unwrap();
    let count = |what: &str| summary[what].as_u64().unwrap();
    assert_eq!((count("runs"), count("given_up"), status(&dir)), (0, 1, [0, 0, 0, 1]));
    // The key was reported only once.
    assert_eq!(work(&dir, &args).code(), Some(0));
}

#[test]
fn the_first_signal_drains_and_the_second_puts_back() {
    let dir = directory("store_signals");
    let mut gate = Gate::new(&dir);
    // Keys that are added together have no defined order, so they are added one by one.
    for key in ["a", "b", "c"] {
        add(&dir, &[key]);
    }
    let script = "echo up $1 $REQUEUE_ATTEMPT; read _ <gate; echo done $1";
    let mut live = Live::spawn(&mut requeue(&dir, "work", &["-j1", "-c", script]));
    live.wait_for("up a 1");
    live.signal(Signal::TERM);
    live.wait_for_message("no new commands are started");
    gate.open(1);
    let ended = live.end();
    assert_eq!(ended.status.signal(), Some(Signal::TERM.as_raw()), "{}", ended.stderr);
    assert_eq!(ended.text(), "up a 1\ndone a\n");
    assert_eq!(status(&dir), [2, 0, 0, 0]);

    let mut live = Live::spawn(&mut requeue(&dir, "work", &["-j1", "-c", script]));
    live.wait_for("up b 1");
    live.signal(Signal::TERM);
    live.wait_for_message("no new commands are started");
    live.signal(Signal::INT);
    let ended = live.end();
    assert_eq!(ended.status.signal(), Some(Signal::TERM.as_raw()), "{}", ended.stderr);
    assert_eq!((ended.count("failures"), ended.count("unfinished")), (0, 1), "{}", ended.stderr);
    assert_eq!(status(&dir), [2, 0, 0, 0]);
    // No run has failed, so this is still attempt 1.
    let ended = work(&dir, &["-c", "echo $1 $REQUEUE_ATTEMPT"]);
    assert_eq!(ended.sorted(), ["b 1", "c 1"]);
}

#[test]
fn input_that_was_read_is_in_the_store_when_a_run_is_ended() {
    let dir = directory("store_ended");
    let mut gate = Gate::new(&dir);
    let script = "echo up; read _ <gate";
    let args = ["-j1", "-c", script];
    let mut live = Live::spawn(&mut requeue(&dir, "run", &args));
    live.send("a\nb\nc\n");
    live.wait_for("up");
    until(|| status(&dir) == [2, 0, 1, 0]);
    live.signal(Signal::TERM);
    live.wait_for_message("no new commands are started");
    gate.open(1);
    let ended = live.end();
    assert_eq!(ended.status.signal(), Some(Signal::TERM.as_raw()), "{}", ended.stderr);
    assert_eq!(status(&dir), [2, 0, 0, 0]);
}

#[test]
fn who_ends_early_leaves_no_key_to_wait_for_its_lease() {
    // The adds that are in progress when a program stops differ from run to run.
    for _ in 0..12 {
        let dir = directory("store_left");
        let halt = ["--halt", "soon,success=1", "-j1", "true"];
        let ended = end(&mut requeue(&dir, "run", &halt), "a\nb\n");
        assert_eq!(ended.code(), Some(4), "{}", ended.stderr);
        let left = [2 - ended.count("runs"), 0, 0, 0];
        assert_eq!(status(&dir), left, "{}", ended.stderr);

        let keys: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        add(&dir, &keys.iter().map(String::as_str).collect::<Vec<_>>());
        let fail = ["-j8", "--retries", "0", "--fail-fast", "false"];
        let ended = call(&dir, "work", &fail);
        assert_eq!(ended.code(), Some(4), "{}", ended.stderr);
        let [_, waiting, in_flight, parked] = status(&dir);
        let found = [waiting, in_flight, parked];
        assert_eq!(found, [0, 0, ended.count("given up")], "{}", ended.stderr);
    }
}

#[test]
fn a_halt_and_a_rate_are_of_the_process() {
    let dir = directory("store_halt");
    add(&dir, &["a", "b", "c"]);
    let args = ["-j1", "--rate", "1000/s", "--halt", "soon,done=2", "true"];
    let ended = call(&dir, "work", &args);
    assert_eq!((ended.code(), ended.count("runs")), (Some(4), 2), "{}", ended.stderr);
    assert_eq!(status(&dir), [1, 0, 0, 0]);
    let ended =
        work(&dir, &["--rate", "1000/s", "--progress", "always", "--stdin", "key", "-c", "cat"]);
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 1), "{}", ended.stderr);
    assert_eq!(ended.text().trim_end().len(), 1, "{}", ended.text());
    let progress = ended.stderr.lines().next().unwrap();
    assert!(progress.contains("requeue: 0 done, 0 running, 0 failed, "), "{progress}");
}

#[test]
fn what_a_store_refuses_is_said_while_it_is_tried_again() {
    let dir = directory("store_warned");
    let mut live = Live::spawn(&mut requeue(&dir, "work", &["--create", "echo"]));
    until(|| dir.join("jobs.db").exists() && call(&dir, "status", &[]).code() == Some(0));
    let file = rusqlite::Connection::open(dir.join("jobs.db")).unwrap();
    file.execute_batch("alter table keys rename to others").unwrap();
    let said = live.wait_for_message("store rejects the request: jobs.db: no such table: keys");
    assert!(said.trim_end().ends_with("; retrying"), "{said}");
    file.execute_batch("alter table others rename to keys").unwrap();
    add(&dir, &["k"]);
    live.wait_for("k");
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!(ended.count("runs"), 1);
    let lines = |what: &str| ended.stderr.lines().filter(|line| line.contains(what)).count();
    assert_eq!(
        (lines("store rejects"), lines("store works again after ")),
        (1, 1),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_file_is_complete_without_its_log_when_the_program_has_ended() {
    let dir = directory("store_closed");
    let copy_has = |keys: [u64; 4]| {
        for rest in ["jobs.db-wal", "jobs.db-shm"] {
            assert!(!dir.join(rest).exists(), "{rest}");
        }
        let elsewhere = directory("store_closed_copy");
        fs::copy(dir.join("jobs.db"), elsewhere.join("jobs.db")).unwrap();
        assert_eq!(status(&elsewhere), keys);
    };
    add(&dir, &["a", "b"]);
    copy_has([2, 0, 0, 0]);
    assert_eq!(status(&dir), [2, 0, 0, 0]);
    assert_eq!(call(&dir, "status", &["--queue", "typo"]).code(), Some(125));
    assert_eq!(call(&dir, "cancel", &["b"]).code(), Some(0));
    copy_has([1, 0, 0, 0]);
    work(&dir, &["--retries", "0", "false"]);
    copy_has([0, 0, 0, 1]);
    assert_eq!(call(&dir, "revive", &["a"]).code(), Some(0));
    copy_has([1, 0, 0, 0]);
    assert_eq!(end(&mut requeue(&dir, "run", &["true"]), "c\n").code(), Some(0));
    copy_has([0; 4]);
    // A run that is stopped by a signal.
    let mut live = Live::spawn(&mut requeue(&dir, "work", &["echo"]));
    add(&dir, &["d"]);
    live.wait_for("d");
    until(|| status(&dir) == [0; 4]);
    add(&dir, &["--after", "1h", "e"]);
    assert!(dir.join("jobs.db-wal").exists(), "the worker has the file open");
    live.signal(Signal::TERM);
    live.end();
    copy_has([0, 1, 0, 0]);
}

#[test]
fn a_file_that_is_locked_at_the_start_is_named() {
    let dir = directory("store_locked");
    add(&dir, &["a"]);
    let file = rusqlite::Connection::open(dir.join("jobs.db")).unwrap();
    file.execute_batch("begin immediate").unwrap();
    let failing = call(&dir, "add", &["--queue", "new", "b"]);
    assert_eq!(failing.code(), Some(125));
    let said = "jobs.db: another process holds the lock on the file";
    assert!(failing.stderr.contains(said), "{}", failing.stderr);
    file.execute_batch("rollback").unwrap();
    add(&dir, &["b"]);
    assert_eq!(status(&dir), [2, 0, 0, 0]);
}
