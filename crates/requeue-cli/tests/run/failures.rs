//! Failed keys are retried with backoff, and given up after the last retry.

use std::process::Command;

use rustix::process::Signal;

use crate::support::{Gate, Live, directory, run, run_in};

const HOUR: [&str; 4] = ["--base-delay", "1h", "--max-delay", "1h"];
const SHORT: [&str; 2] = ["--base-delay", "10ms"];

#[test]
fn a_failed_key_is_run_again_and_told_of_it() {
    let script =
        "echo $REQUEUE_ATTEMPT ${REQUEUE_LAST_EXIT-none}; [ $REQUEUE_ATTEMPT = 3 ] || exit 7";
    let ended = run(&[&SHORT[..], &["-c", script]].concat(), "k\n");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "1 none\n2 7\n3 7\n"));
    assert_eq!((ended.count("runs"), ended.count("failures"), ended.count("given up")), (3, 2, 0));
}

#[test]
fn a_failed_attempt_is_reported_when_it_happens() {
    let dir = directory("reported_attempt");
    let mut live = Live::start(&dir, &[&HOUR[..], &["-c", "exit 7"]].concat());
    live.send("a\tb\n");
    let message = live.wait_for_message("attempt");
    let start = "requeue: \"a\\tb\": attempt 1 of 6 failed (exit status: 7), retrying in ";
    assert!(message.starts_with(start), "{message}");
    live.signal(Signal::TERM);
    live.end();
    let args = ["--progress", "never", "--retries", "2", "-c", "[ $REQUEUE_ATTEMPT = 3 ]"];
    let quiet = run(&[&SHORT[..], &args].concat(), "k\n");
    assert_eq!((quiet.code(), quiet.count("failures")), (Some(0), 2));
    assert!(!quiet.stderr.contains("attempt"), "{}", quiet.stderr);
    let args = ["--retries", "inf", "-c", "[ $REQUEUE_ATTEMPT = 2 ]"];
    let endless = run(&[&SHORT[..], &args].concat(), "k\n");
    assert!(endless.stderr.contains("attempt 1 failed"), "{}", endless.stderr);
}

#[test]
fn many_failed_attempts_are_counted_not_listed() {
    let keys: String = (0..100).map(|n| format!("{n}\n")).collect();
    let ended = run(&["--retries", "1", "--base-delay", "0", "-j8", "false"], keys);
    let listed = ended.stderr.matches(": attempt 1 of 2 failed (exit status: 1)").count();
    let counted = ended.stderr.lines().filter_map(|line| line.strip_prefix("requeue: … and "));
    let counted: usize = counted
        .map(|line| line.split_once(" more failed attempt").expect(line).0)
        .map(|number| number.parse::<usize>().expect(number))
        .sum();
    assert_eq!(listed + counted, 100, "{}", ended.stderr);
    assert_eq!(ended.count("given up"), 100);
}

#[test]
fn a_signal_is_a_failure() {
    let script = "echo ${REQUEUE_LAST_EXIT-none}; [ $REQUEUE_ATTEMPT = 2 ] || kill -KILL $$";
    let ended = run(&[&SHORT[..], &["-c", script]].concat(), "k\n");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "none\n137\n"));
}

#[test]
fn past_its_retries_a_key_is_given_up_and_the_others_are_not() {
    for (retries, runs) in [("0", 1), ("1", 2), ("4", 5)] {
        let script = "[ \"$1\" != bad ] || exit 3";
        let args = [&SHORT[..], &["--retries", retries, "-c", script]].concat();
        let ended = run(&args, "good\nbad\nbetter\n");
        assert_eq!((ended.code(), ended.count("given up")), (Some(1), 1), "{}", ended.stderr);
        assert_eq!((ended.count("runs"), ended.count("failures")), (runs + 2, runs));
        let s = if runs == 1 { "" } else { "s" };
        let message = format!("\"bad\": given up after {runs} attempt{s}: exit status: 3");
        assert!(ended.stderr.contains(&message), "{}", ended.stderr);
    }
}

#[test]
fn without_being_told_there_are_five_retries() {
    let ended = run(&[&SHORT[..], &["false"]].concat(), "k\n");
    assert_eq!((ended.code(), ended.count("runs")), (Some(1), 6));
}

#[test]
fn retries_can_go_on_for_ever() {
    let script = "[ $REQUEUE_ATTEMPT = 12 ]";
    let args = ["--base-delay", "0", "--max-delay", "1ms", "--retries", "inf", "-c", script];
    let ended = run(&args, "k\n");
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 12), "{}", ended.stderr);
}

#[test]
fn a_key_that_waits_for_its_retry_holds_nobody_up() {
    let dir = directory("waits");
    let script = "echo $1; [ $1 != bad ]";
    let mut live = Live::start(&dir, &[&HOUR[..], &["-j1", "-c", script]].concat());
    live.send("bad\n");
    live.wait_for("bad");
    live.send("good\n");
    live.wait_for("good");
    live.close();
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!(ended.text(), "bad\ngood\n");
    assert_eq!((ended.count("failures"), ended.count("unfinished")), (1, 1), "{}", ended.stderr);
}

#[test]
fn a_re_add_can_replace_the_wait() {
    let dir = directory("replace");
    let script = "echo $REQUEUE_ATTEMPT; [ $REQUEUE_ATTEMPT = 2 ]";
    let policy = ["--re-add", "replace", "-c", script];
    let mut live = Live::start(&dir, &[&HOUR[..], &policy].concat());
    live.send("k\n");
    live.wait_for("1");
    live.send("k\n");
    let ended = live.end();
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "1\n2\n"));
}

#[test]
fn a_re_add_is_held_by_default() {
    for policy in [&[][..], &["--re-add", "hold"]] {
        let dir = directory("hold");
        let script = ["-j1", "-c", "echo $1; [ $1 != k ]"];
        let mut live = Live::start(&dir, &[&HOUR[..], policy, &script].concat());
        // With one slot, `first` runs after the run of `k`.
        live.send("k\nfirst\n");
        live.wait_for("first");
        live.send("k\nother\n");
        live.wait_for("other");
        live.close();
        live.signal(Signal::TERM);
        let ended = live.end();
        assert_eq!(ended.text(), "k\nfirst\nother\n");
        let counts = (ended.count("coalesced"), ended.count("unfinished"));
        assert_eq!(counts, (1, 1), "{}", ended.stderr);
    }
}

#[test]
fn a_re_add_can_keep_the_retry() {
    let dir = directory("keep");
    let script = "echo $1 $REQUEUE_ATTEMPT; [ $1$REQUEUE_ATTEMPT != k1 ]";
    let args = [&HOUR[..], &["--re-add", "keep-both", "-j1", "-c", script]].concat();
    let mut live = Live::start(&dir, &args);
    live.send("k\nfirst\n");
    live.wait_for("first 1");
    live.send("k\nother\n");
    live.wait_for("k 2");
    live.wait_for("other 1");
    live.close();
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!((ended.count("runs"), ended.count("unfinished")), (4, 1), "{}", ended.stderr);
}

#[test]
fn a_failure_before_the_retry_was_due_does_not_count() {
    let dir = directory("early_failures");
    let script = "echo $1 $REQUEUE_ATTEMPT; [ $1 != k ]";
    let policy = ["--re-add", "replace", "--retries", "1", "-j1", "-c", script];
    let mut live = Live::start(&dir, &[&HOUR[..], &policy].concat());
    live.send("k\nfirst\n");
    live.wait_for("first 1");
    for n in 0..4 {
        live.send(&format!("k\n{n}\n"));
        live.wait_for("k 2");
        live.wait_for(&format!("{n} 1"));
    }
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!((ended.count("failures"), ended.count("given up")), (5, 0), "{}", ended.stderr);
}

#[test]
fn at_the_end_of_the_input_retries_still_run() {
    let args = ["--base-delay", "100ms", "-c", "[ $REQUEUE_ATTEMPT = 3 ]"];
    let ended = run(&args, "a\nb");
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 6), "{}", ended.stderr);
}

#[test]
fn a_key_that_came_again_before_it_was_given_up_runs_afresh() {
    let dir = directory("afresh");
    let mut gate = Gate::new(&dir);
    let script = "echo $1 $REQUEUE_ATTEMPT ${REQUEUE_LAST_EXIT-none}; read _ <gate; exit 1";
    let mut live = Live::start(&dir, &["-j1", "--max-keys", "1", "--retries", "0", "-c", script]);
    live.send("k\n");
    live.wait_for("k 1 none");
    live.send("k\nlast\n");
    live.wait_for_message("1 key held");
    gate.open(3);
    let ended = live.end();
    assert_eq!(ended.text(), "k 1 none\nk 1 none\nlast 1 none\n");
    assert_eq!((ended.code(), ended.count("given up")), (Some(1), 3));
}

/// A retry would not find the program either.
#[test]
fn a_command_whose_name_is_the_key_can_be_missing_and_is_not_retried() {
    for (program, key, why) in [
        ("{}", "no-such-command", "\"no-such-command\": not found\n"),
        ("./{}", "no/such", "\"./no/such\": not found\n"),
        ("/dev/null/{}", "x", "\"/dev/null/x\": not found\n"),
        ("{}", "/dev/null", "\"/dev/null\": cannot be executed\n"),
        ("{}", "no such command", "\"no such command\": not found; a command is a program and"),
    ] {
        let ended = run(&["--retries", "inf", program], format!("{key}\n"));
        assert_eq!((ended.code(), ended.count("given up")), (Some(1), 1), "{}", ended.stderr);
        let message = format!("\"{key}\": given up after 1 attempt: {why}");
        assert!(ended.stderr.contains(&message), "{}", ended.stderr);
    }
    assert_eq!(run(&["{}"], "no-such-command\ntrue\n").count("failures"), 1);
}

/// No key is given up because a deployment has removed the program.
#[test]
fn a_command_that_vanishes_stops_the_run() {
    for (change, code, why) in [
        ("rm program", 127, "\"./program\": not found; no new"),
        ("chmod -x program", 126, "\"./program\": cannot be executed; no new"),
        (
            "echo '#!/no/such' >new; chmod +x new; mv new program",
            127,
            "\"./program\": its interpreter or loader was not found; for a script, see its first line; no new",
        ),
    ] {
        let dir = directory("vanishes");
        // Another process writes the program, because a file that this process has open for writing cannot be executed.
        let script = "printf '#!/bin/sh\necho $1\n%s\n' \"$1\" >program; chmod +x program";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, "_", change]).current_dir(&dir);
        assert!(shell.status().unwrap().success());
        let args = ["-j1", "--retries", "inf", "./program"];
        let ended = run_in(&dir, &args, "a\nb\nc\n");
        assert_eq!((ended.code(), ended.text().as_str()), (Some(code), "a\n"), "{ended:?}");
        let message = format!("requeue: {why} commands are started\n");
        assert_eq!(ended.stderr.matches(&message).count(), 1, "{}", ended.stderr);
        let counts = (ended.count("failures"), ended.count("unfinished"));
        assert_eq!(counts, (0, 2), "{}", ended.stderr);
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_key_that_makes_an_argument_too_long_is_given_up_at_once() {
    let ended = run(&["--retries", "inf", "echo", "{}{}"], vec![b'x'; 100_000]);
    assert_eq!((ended.code(), ended.count("given up")), (Some(1), 1), "{}", ended.stderr);
    assert!(ended.stderr.contains("xxx\"...: given up after 1 attempt:"), "{}", ended.stderr);
}

#[test]
fn a_base_delay_is_no_longer_than_the_longest() {
    let ended = run(&["--base-delay", "2s", "--max-delay", "1s", "true"], "");
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("--max-delay is shorter than --base-delay"));
}
