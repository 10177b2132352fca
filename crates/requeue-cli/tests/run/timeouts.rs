//! A command that exceeds its time limit is ended, with all its children.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Ended, Gate, Live, directory, run, run_in, until};

const ONCE: [&str; 2] = ["--retries", "0"];
const TIMEOUT: [&str; 2] = ["--timeout", "1s"];
/// Time limits, which are tried in this order until one is long enough for the start of a command.
const TIMEOUTS: [&str; 3] = ["1s", "5s", "20s"];

/// Runs a script that exceeds its time limit. Raises the limit until the script has reported that it is ready, for
/// example that it has set its traps.
#[track_caller]
fn time_out(dir: &Path, args: &[&str], script: &str, input: &str) -> Ended {
    for timeout in TIMEOUTS {
        let times = ["--timeout", timeout];
        let ended = run_in(dir, &[&times[..], &ONCE, args, &["-c", script]].concat(), input);
        if ended.text().matches("ready\n").count() == input.lines().count() {
            return ended;
        }
    }
    panic!("it never was ready");
}

/// Asserts that the process groups whose IDs were printed contain only zombies, after killed processes have had time to
/// exit.
#[track_caller]
fn assert_gone(ended: &Ended) {
    let text = ended.text();
    let leaders: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("leader ")).collect();
    assert!(!leaders.is_empty(), "{ended:?}");
    let is_left = |process: &str| {
        let mut fields = process.split_whitespace();
        let (group, state) = (fields.next().unwrap_or_default(), fields.next());
        let is_dead = state.is_some_and(|state| state.starts_with(['Z', 'X']));
        !is_dead && leaders.contains(&group)
    };
    let left = || {
        let ps = Command::new("ps").args(["-A", "-o", "pgid=,stat=,args="]).output();
        let all = String::from_utf8_lossy(&ps.expect("ps is there").stdout).into_owned();
        all.lines().filter(|process| is_left(process)).map(str::to_owned).collect::<Vec<_>>()
    };
    until(|| left().is_empty());
}

#[test]
fn what_takes_too_long_is_ended_and_has_failed() {
    let script = "echo $REQUEUE_ATTEMPT ${REQUEUE_LAST_EXIT-none}
                  [ $REQUEUE_ATTEMPT != 1 ] || exec sleep 1000";
    let all = TIMEOUTS
        .iter()
        .map(|timeout| run(&["--timeout", timeout, "--base-delay", "10ms", "-c", script], "k\n"));
    let mut all = all.inspect(|ended| println!("{ended:?}"));
    let ended = all.find(|ended| ended.text() == "1 none\n2 124\n").expect("one of them");
    assert_eq!((ended.code(), ended.count("timed out")), (Some(0), 1), "{}", ended.stderr);
}

#[test]
fn the_message_says_how_long_it_had() {
    let args = [&TIMEOUT[..], &ONCE, &["sleep"]].concat();
    let ended = run(&args, "1000\n");
    assert_eq!((ended.code(), ended.count("timed out")), (Some(1), 1), "{}", ended.stderr);
    let message = "\"1000\": given up after 1 attempt: timed out after 1s";
    assert!(ended.stderr.contains(message), "{}", ended.stderr);
}

#[test]
fn a_command_that_ends_well_when_told_to_has_failed_all_the_same() {
    let dir = directory("ends_well");
    let script = "trap 'echo told; exit 0' TERM; (echo ready; exec sleep 1000) & wait";
    let ended = time_out(&dir, &[], script, "k\n");
    let said = ended.text();
    assert_eq!((ended.code(), said.as_str()), (Some(1), "ready\ntold\n"), "{}", ended.stderr);
}

#[test]
fn one_that_has_ended_in_time_has_not_failed_however_late_that_is_seen() {
    // One of these times is long enough for the start and the stop if the machine is not overloaded.
    let mut all = [1, 5, 30].into_iter().map(held_up_for);
    let ended = all.find(|ended| ended.count("timed out") == 0).expect("one of them");
    assert_eq!((ended.code(), ended.count("timed out")), (Some(0), 0), "{}", ended.stderr);
}

/// Runs a command that completes while the program is stopped. The time limit is `seconds`, and the program is stopped
/// for longer than the limit.
#[track_caller]
fn held_up_for(seconds: u64) -> Ended {
    let dir = directory("ended_in_time");
    let mut gate = Gate::new(&dir);
    let script = "echo $$ >pid; echo started; read _ <gate";
    // After an early timeout, the next attempt repeats the test.
    let args = ["--timeout", &format!("{seconds}s"), "--retries", "1", "-c", script];
    let mut live = Live::start(&dir, &args);
    live.send("k\n");
    live.wait_for("started");
    live.stop();
    let stopped = Instant::now();
    gate.open(2);
    let pid = fs::read_to_string(dir.join("pid")).expect("it has started");
    until(|| {
        let ps = Command::new("ps").args(["-o", "stat=", "-p", pid.trim()]).output();
        let state = ps.expect("ps is there").stdout;
        state.is_empty() || state.starts_with(b"Z")
    });
    until(|| stopped.elapsed() > Duration::from_secs(seconds));
    live.signal(Signal::CONT);
    live.end()
}

#[test]
fn a_group_that_ignores_sigterm_is_killed() {
    let dir = directory("ignores_sigterm");
    let script = "trap '' TERM; echo leader $$; echo ready; sleep 1000 & sleep 1000";
    let ended = time_out(&dir, &["--kill-after", "100ms"], script, "a\nb\n");
    assert_eq!((ended.code(), ended.count("timed out")), (Some(1), 2), "{}", ended.stderr);
    assert_gone(&ended);
}

#[test]
fn children_that_ignore_sigterm_are_killed_after_their_leader_has_died() {
    let dir = directory("leader_died");
    // The child has closed all pipes, so only the process group reveals that it exists.
    let script = "echo leader $$; (trap '' TERM; echo ready; exec sleep 1000 >err 2>&1) & wait";
    let ended = time_out(&dir, &["--kill-after", "100ms"], script, "k\n");
    assert_eq!((ended.code(), ended.count("timed out")), (Some(1), 1), "{}", ended.stderr);
    assert_gone(&ended);
}

#[test]
fn children_have_their_time_to_end_after_their_leader_has_died() {
    // The leader dies immediately. If the program did not wait for the child, the child's output would be lost. If it did
    // not detect the child's exit, the test would take an hour.
    let dir = directory("time_to_end");
    let script = "echo leader $$
                  (trap 'while kill -0 $$; do sleep 0.01; done; echo cleaned up; exit' TERM
                  (echo ready; exec sleep 1000) & wait) & wait";
    let ended = time_out(&dir, &["--kill-after", "1h"], script, "k\n");
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    assert!(ended.text().ends_with("cleaned up\n"), "{ended:?}");
    assert_gone(&ended);
}

#[test]
fn a_command_that_was_stopped_is_ended_too() {
    let dir = directory("stopped");
    let script = "trap 'echo told; exit' TERM; echo ready; kill -STOP $$; sleep 1000 & wait";
    let ended = time_out(&dir, &["--kill-after", "1h"], script, "k\n");
    let said = ended.text();
    assert_eq!((ended.code(), said.as_str()), (Some(1), "ready\ntold\n"), "{}", ended.stderr);
}

#[test]
fn another_signal_can_be_sent() {
    let dir = directory("another_signal");
    let script = "trap 'echo int; exit' INT; trap 'echo usr1; exit' USR1
                  (echo ready; exec sleep 1000) & wait";
    for (signal, told) in [(["-s", "INT"], "int\n"), (["--signal", "SIGUSR1"], "usr1\n")] {
        let ended = time_out(&dir, &signal, script, "k\n");
        assert_eq!(ended.text(), format!("ready\n{told}"));
    }
    let ended = run(&[&TIMEOUT[..], &ONCE, &["-s", "9", "sleep"]].concat(), "1000\n");
    assert_eq!(ended.count("timed out"), 1);
}

#[test]
fn without_a_time_out_or_with_0_there_is_none() {
    for args in [&[][..], &["--timeout", "0", "--kill-after", "0"]] {
        let dir = directory("no_time_out");
        let mut gate = Gate::new(&dir);
        let script = "echo started; read _ <gate; echo done";
        let mut live = Live::start(&dir, &[args, &["-c", script]].concat());
        live.send("k\n");
        live.wait_for("started");
        gate.open(1);
        let ended = live.end();
        assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "started\ndone\n"));
    }
}

#[test]
fn after_the_second_signal_what_stays_is_killed_in_time() {
    let dir = directory("killed_in_time");
    let _gate = Gate::new(&dir);
    let script = "trap '' TERM; echo leader $$; cat gate & cat gate";
    let mut live = Live::start(&dir, &["--kill-after", "100ms", "-c", script]);
    live.send("a\n");
    live.wait_for("leader");
    live.signal(Signal::TERM);
    live.wait_for_message("no new commands are started");
    live.signal(Signal::INT);
    let ended = live.end();
    assert_eq!((ended.count("failures"), ended.count("unfinished")), (0, 1), "{}", ended.stderr);
    assert_gone(&ended);
}
