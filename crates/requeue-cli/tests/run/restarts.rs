//! `--on-readd restart`: an add of a key terminates its command, and the key runs again.

use std::fs;

use crate::support::{Gate, Live, directory, run};

const RESTART: [&str; 4] = ["--on-readd", "restart", "--summary", "json"];

/// Starts the program with a script whose first run does not end by itself. Adds the key again after that run has
/// reported that it is ready. Returns the output and the counts of the summary.
#[track_caller]
fn restart_once(test: &str, args: &[&str], first: &str) -> (String, serde_json::Value) {
    let dir = directory(test);
    let script = format!(
        "[ $REQUEUE_ADDS = 1 ] || {{ echo again $REQUEUE_ADDS $REQUEUE_ATTEMPT; exit 0; }}; {first}"
    );
    let mut live = Live::start(&dir, &[&RESTART, args, &["-c", &script]].concat());
    live.send("k\n");
    live.wait_for("ready");
    live.send("k\n");
    live.wait_for("again");
    let ended = live.end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let summary = ended.stderr.lines().last().expect("a summary");
    (ended.text(), serde_json::from_str(summary).expect("it is JSON"))
}

#[test]
fn an_add_terminates_the_command_and_the_key_runs_again() {
    let (text, counts) = restart_once("restart", &[], "echo ready; exec sleep 1000");
    assert_eq!(text, "ready\nagain 2 1\n");
    for (name, count) in
        [("adds", 2), ("runs", 2), ("restarted", 1), ("done", 1), ("failures", 0), ("given_up", 0)]
    {
        assert_eq!(counts[name], count, "{name} in {counts}");
    }
}

#[test]
fn the_joblog_shows_a_restarted_run_as_neither_a_success_nor_a_failure() {
    let dir = directory("restart_joblog");
    let script = "[ $REQUEUE_ADDS = 1 ] || exit 0; echo ready; exec sleep 1000";
    let mut live = Live::start(&dir, &[&RESTART[..], &["--joblog", "log", "-c", script]].concat());
    live.send("k\n");
    live.wait_for("ready");
    live.send("k\n");
    assert_eq!(live.end().code(), Some(0));
    let log = fs::read_to_string(dir.join("log")).unwrap();
    let columns = |line: &str| line.split('\t').skip(6).take(2).collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = log.lines().skip(1).map(columns).collect();
    assert_eq!(lines, ["-1 15", "0 0"], "{log}");
}

#[test]
fn a_command_that_exits_with_0_when_it_is_terminated_has_not_succeeded() {
    let first = "trap 'exit 0' TERM; echo ready; sleep 1000 & wait";
    let (_, counts) = restart_once("restart_exits_with_0", &[], first);
    assert_eq!((&counts["restarted"], &counts["done"]), (&1.into(), &1.into()));
}

#[test]
fn a_command_that_ignores_the_signal_is_killed() {
    let first = "trap '' TERM; echo ready; while :; do sleep 1000; done";
    let (_, counts) = restart_once("restart_kills", &["--kill-after", "50ms"], first);
    assert_eq!((&counts["restarted"], &counts["failures"]), (&1.into(), &0.into()));
}

#[test]
fn after_the_bound_a_command_is_left_alone() {
    let dir = directory("restart_bound");
    let mut gate = Gate::new(&dir);
    // The second run reports more than a millisecond after the restart.
    let script = "sleep 0.01; echo run $REQUEUE_ADDS; read _ <gate; echo done";
    let mut live = Live::start(&dir, &["--on-readd", "restart,1ms", "-j1", "-c", script]);
    live.send("k\n");
    live.wait_for("run 1");
    live.send("k\n");
    live.wait_for("run 2");
    live.send("k\nother\n");
    gate.open(3);
    let ended = live.end();
    assert_eq!((ended.code(), ended.count("restarted")), (Some(0), 1), "{}", ended.stderr);
    assert_eq!(ended.text().matches("done").count(), 3);
}

#[test]
fn by_default_the_command_completes_and_the_key_runs_once_more() {
    for args in [&[][..], &["--on-readd", "after"]] {
        let dir = directory("restart_default");
        let mut gate = Gate::new(&dir);
        let script = "echo run; read _ <gate";
        let mut live = Live::start(&dir, &[args, &["-c", script]].concat());
        live.send("k\n");
        live.wait_for("run");
        live.send("k\n");
        gate.open(2);
        let ended = live.end();
        let counts = ["runs", "restarted", "failures"].map(|of| ended.count(of));
        assert_eq!((ended.code(), counts), (Some(0), [2, 0, 0]), "{}", ended.stderr);
    }
}

#[test]
fn another_value_is_refused() {
    let ended = run(&["--on-readd", "restart,soon", "true"], "");
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("restart,10s"), "{}", ended.stderr);
}
