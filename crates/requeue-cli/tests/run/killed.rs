//! If the program is killed, its commands and their children are also killed.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

#[cfg(feature = "kube")]
use crate::api::{Answer, Api, list, map};
#[cfg(feature = "sqlite")]
use crate::store::{add, requeue};
use crate::support::{Live, directory, until};

/// Keeps standard output open until the last process of the program has exited.
const FAMILY: &str = "sleep 1000 & echo \"up $1\"; wait";

/// Kills the program, and waits until the last command has exited.
#[track_caller]
fn kill(live: Live) {
    live.signal(Signal::KILL);
    assert_eq!(live.end().status.signal(), Some(Signal::KILL.as_raw()));
}

#[test]
fn commands_of_run_die_with_it() {
    let dir = directory("killed_run");
    let mut live = Live::start(&dir, &["-u", "-j3", "-c", FAMILY]);
    for key in ["a", "b", "c"] {
        live.send(&format!("{key}\n"));
        live.wait_for(&format!("up {key}"));
    }
    kill(live);
}

#[cfg(feature = "sqlite")]
#[test]
fn commands_of_work_die_with_it() {
    let dir = directory("killed_work");
    add(&dir, &["a"]);
    let mut live = Live::spawn(&mut requeue(&dir, "work", &["-u", "-c", FAMILY]));
    live.wait_for("up a");
    kill(live);
}

#[cfg(feature = "kube")]
#[test]
fn commands_of_watch_die_with_it() {
    let dir = directory("killed_watch");
    let api = Api::new(|request| match &*request.path {
        path if path.starts_with("/api/v1/namespaces/ns/configmaps") && !request.is_watch() => {
            list(&[map("a", 1)])
        }
        _ => Answer::Default,
    });
    let mut live = Live::spawn(&mut api.watch(&dir, &["cm", "-u", "-c", FAMILY]));
    live.wait_for("up ns/a");
    kill(live);
}

/// Returns the process ID of the guardian of this process; `None` if it has exited or not called exec yet.
fn guardian(of: u32) -> Option<Pid> {
    let ps =
        Command::new("ps").args(["-A", "-o", "pid=,stat=,args="]).output().expect("ps is there");
    let is_it = |line: &str| {
        let mut words = line.split_whitespace();
        let (pid, state) = (words.next()?, words.next()?);
        let is_its = words.eq(["kills-commands-left-by", &of.to_string()]);
        (is_its && !state.starts_with('Z')).then(|| pid.parse().ok().and_then(Pid::from_raw))?
    };
    String::from_utf8_lossy(&ps.stdout).lines().find_map(is_it)
}

#[test]
fn a_guardian_that_is_killed_has_a_successor_that_knows_what_runs() {
    let dir = directory("killed_guardian");
    let mut live = Live::start(&dir, &["-u", "-j1", "-c", FAMILY]);
    live.send("a\n");
    live.wait_for("up a");
    until(|| guardian(live.id()).is_some());
    let first = guardian(live.id()).expect("it was there");
    kill_process(first, Signal::KILL).expect("it is there");
    until(|| guardian(live.id()).is_some_and(|guardian| guardian != first));
    kill(live);
}

#[test]
fn signals_to_all_of_a_service_do_not_end_the_guardian_before_the_commands() {
    let dir = directory("killed_service");
    let mut live = Live::start(&dir, &["-u", "-j1", "-c", FAMILY]);
    live.send("a\n");
    live.wait_for("up a");
    // The program notices the exit, and starts another guardian.
    for _ in 0..3 {
        until(|| guardian(live.id()).is_some());
        let _ = kill_process(guardian(live.id()).unwrap_or(live.pid()), Signal::TERM);
    }
    kill(live);
}

/// A background job is a process group that contains the program.
#[test]
fn a_kill_of_the_whole_group_leaves_no_command() {
    let dir = directory("killed_group");
    let mut shell = Command::new("setsid");
    shell.arg(env!("CARGO_BIN_EXE_requeue")).args(["run", "-u", "-c", FAMILY]).current_dir(&dir);
    let mut live = Live::spawn(&mut shell);
    live.send("a\n");
    live.wait_for("up a");
    rustix::process::kill_process_group(live.pid(), Signal::KILL).expect("it leads one");
    assert_eq!(live.end().status.signal(), Some(Signal::KILL.as_raw()));
}

/// A process that a completed run has left behind does not count as in flight.
#[test]
fn what_a_command_has_left_behind_goes_on() {
    let dir = directory("killed_left");
    let script = "case $1 in first) sleep 1000 >/dev/null 2>&1 & echo $! >left;; \
                  *) echo up; exec sleep 1000;; esac";
    let mut live = Live::start(&dir, &["-u", "-j1", "-c", script]);
    live.send("first\nsecond\n");
    live.wait_for("up");
    kill(live);
    let left = std::fs::read_to_string(dir.join("left")).unwrap();
    let left = Pid::from_raw(left.trim().parse().unwrap()).unwrap();
    kill_process(left, Signal::KILL).expect("it still runs");
}

#[test]
fn no_guardian_is_left_after_an_orderly_end() {
    let dir = directory("killed_orderly");
    let mut live = Live::start(&dir, &["-c", "echo $1"]);
    live.send("a\n");
    live.wait_for("a");
    until(|| guardian(live.id()).is_some());
    let id = live.id();
    assert_eq!(live.end().code(), Some(0));
    assert_eq!(guardian(id), None);
}

#[test]
fn what_is_only_shown_needs_no_guardian() {
    let dir = directory("killed_dry");
    let mut live = Live::start(&dir, &["--dry-run", "true"]);
    live.send("a\n");
    live.wait_for("true a");
    assert_eq!(guardian(live.id()), None);
    assert_eq!(live.end().code(), Some(0));
}

#[test]
fn a_run_without_a_command_starts_no_guardian() {
    let dir = directory("killed_idle");
    let mut live = Live::start(&dir, &["--input", "json", "true"]);
    live.send("x\n");
    // At this point, the reader runs, and the signal is caught.
    live.wait_for_message("record 1");
    live.signal(Signal::USR1);
    live.wait_for_message("0 running");
    assert_eq!(guardian(live.id()), None);
    assert_eq!(live.end().code(), Some(3));
}
