//! Keys are coalesced before they start, never run twice at the same time, and are never lost.

use std::fs;
use std::process::Command;

use crate::support::{Gate, Live, directory, run, run_in};

#[test]
fn keys_that_come_before_their_command_starts_are_run_once() {
    let dir = directory("run_once");
    let mut gate = Gate::new(&dir);
    let script = "echo $1 $REQUEUE_ADDS; read _ <gate";
    // The message about the limit shows that all keys before the last one have been read.
    let mut live = Live::start(&dir, &["-j1", "--max-keys", "3", "-c", script]);
    live.send("first\n");
    live.wait_for("first 1");
    live.send("a\nb\na\na\nb\na\na\nlast\n");
    live.wait_for_message("3 keys held");
    gate.open(4);
    let ended = live.end();
    assert_eq!(ended.text(), "first 1\na 5\nb 2\nlast 1\n");
    let counts = ["adds", "runs", "coalesced", "failures", "given up"].map(|of| ended.count(of));
    assert_eq!(counts, [9, 4, 5, 0, 0]);
}

#[test]
fn a_key_is_never_run_twice_at_once() {
    let dir = directory("exclusion");
    let keys: String = (0..1000).map(|n| format!("{}\n", n * 7 % 13)).collect();
    let script = "mkdir \"$1.lock\" && echo >>\"$1.log\" && rmdir \"$1.lock\"";
    let ended = run_in(&dir, &["-j8", "--retries", "0", "-c", script], keys);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.count("adds"), 1000);
    assert_eq!(ended.count("runs") + ended.count("coalesced"), 1000);
    let logged: usize = (0..13)
        .map(|key| fs::read_to_string(dir.join(format!("{key}.log"))).unwrap().lines().count())
        .sum();
    assert_eq!(logged as u64, ended.count("runs"));
}

#[test]
fn every_key_has_a_run_that_started_after_its_last_line() {
    let dir = directory("never_lost");
    let script = "cat \"$1.now\" >\"$1.new\" && mv \"$1.new\" \"$1.seen\"";
    let mut live = Live::start(&dir, &["-j3", "-c", script]);
    for version in 1..=300 {
        let key = ["a", "b", "c", "d"][version * 5 % 4];
        fs::write(dir.join("version"), version.to_string()).unwrap();
        fs::rename(dir.join("version"), dir.join(format!("{key}.now"))).unwrap();
        live.send(&format!("{key}\n"));
    }
    let ended = live.end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!(ended.count("runs") + ended.count("coalesced"), 300);
    for key in ["a", "b", "c", "d"] {
        let read = |what| fs::read_to_string(dir.join(format!("{key}.{what}"))).unwrap();
        assert_eq!(read("seen"), read("now"), "the last state of {key}");
    }
}

#[test]
fn a_slot_has_one_command_at_a_time_and_no_more_are_used_than_asked_for() {
    let dir = directory("slots");
    let keys: String = (0..60).map(|n| format!("{n}\n")).collect();
    let script = "mkdir slot && rmdir slot && echo";
    for jobs in ["-j1", "-P1", "--jobs=1", "--max-procs=1"] {
        let ended = run_in(&dir, &[jobs, "--retries", "0", "-c", script], &keys);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    }
    let script = "mkdir slot$REQUEUE_SLOT && rmdir slot$REQUEUE_SLOT && echo $REQUEUE_SLOT";
    let ended = run_in(&dir, &["-j3", "--retries", "0", "-c", script], &keys);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.text().lines().all(|slot| ["1", "2", "3"].contains(&slot)), "{}", ended.text());
}

#[test]
fn as_many_run_at_once_as_are_asked_for_and_0_is_no_limit() {
    for jobs in ["-j7", "-j0"] {
        let dir = directory(&format!("at_once{jobs}"));
        let mut gate = Gate::new(&dir);
        let mut live = Live::start(&dir, &[jobs, "-c", "echo \"<$1>\"; read _ <gate"]);
        live.send("1\n2\n3\n4\n5\n6\n7\n");
        live.close();
        (0..7).for_each(|_| live.wait_for("<"));
        gate.open(7);
        assert_eq!(live.end().code(), Some(0));
    }
}

#[test]
fn jobs_can_be_a_share_of_the_cores() {
    for jobs in ["1%", "50%", "100%", "400%"] {
        let ended = run(&["-j", jobs, "echo"], "a\nb\n");
        assert_eq!((ended.code(), ended.sorted()), (Some(0), vec!["a".into(), "b".into()]));
    }
}

#[test]
fn where_no_more_can_be_started_the_rest_waits_and_has_not_failed() {
    let dir = directory("shortage");
    let mut gate = Gate::new(&dir);
    let keys: String = (0..40).map(|n| format!("{n}\n")).collect();
    let mut shell = Command::new("sh");
    let script = "ulimit -n 32; exec \"$1\" run -j40 --retries 0 -c 'read _ <gate'";
    shell.args(["-c", script, "_", env!("CARGO_BIN_EXE_requeue")]).current_dir(&dir);
    let mut live = Live::spawn(&mut shell);
    live.send(&keys);
    live.wait_for_message("no command can be started, retrying");
    gate.open(40);
    let ended = live.end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert_eq!((ended.count("runs"), ended.count("failures")), (40, 0), "{}", ended.stderr);
}
