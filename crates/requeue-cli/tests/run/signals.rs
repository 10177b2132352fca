//! Signals that stop a run.

use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{Gate, Live, command, did_not_run, directory, end};

const ALL: [Signal; 3] = [Signal::TERM, Signal::INT, Signal::HUP];

#[test]
fn the_first_signal_lets_commands_finish_and_starts_no_more() {
    for signal in ALL {
        let dir = directory("first_signal");
        let mut gate = Gate::new(&dir);
        let mut live = Live::start(&dir, &["-j1", "-c", "echo up $1; read _ <gate; echo done $1"]);
        live.send("a\nb\n");
        live.wait_for("up a");
        live.signal(signal);
        live.wait_for_message("no new commands are started");
        gate.open(2);
        let ended = live.end();
        assert_eq!(ended.status.signal(), Some(signal.as_raw()), "{}", ended.stderr);
        assert_eq!(ended.text(), "up a\ndone a\n");
        assert_eq!((ended.count("runs"), ended.count("failures")), (1, 0));
    }
}

#[test]
fn what_had_not_run_is_counted() {
    let dir = directory("not_run");
    let mut gate = Gate::new(&dir);
    let args = ["-j1", "--max-keys", "3", "-c", "echo up; read _ <gate"];
    let mut live = Live::start(&dir, &args);
    live.send("a\n");
    live.wait_for("up");
    live.send("a\nb\nc\nd\n");
    live.wait_for_message("3 keys held");
    live.signal(Signal::TERM);
    live.wait_for_message("no new commands are started");
    gate.open(1);
    let ended = live.end();
    // The unfinished keys are the second `a`, `b` and `c`. `d` was not read.
    assert_eq!((ended.count("adds"), ended.count("unfinished")), (4, 3), "{}", ended.stderr);
}

#[test]
fn where_nothing_runs_the_first_signal_ends_it() {
    let dir = directory("idle");
    let mut live = Live::start(&dir, &["echo"]);
    live.send("a\n");
    live.wait_for("a");
    live.signal(Signal::TERM);
    // Standard input is still open.
    live.wait_for_message("1 add, 1 run");
    assert_eq!(live.end().status.signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn the_second_signal_ends_the_process_groups() {
    let dir = directory("second_signal");
    let _gate = Gate::new(&dir);
    // The child of the shell must exit too, because the shell waits for it.
    let script = "trap 'echo ending' TERM; sh -c 'echo up; exec cat gate' & wait; wait; exit 1";
    let mut live = Live::start(&dir, &["-c", script]);
    live.send("a\n");
    live.wait_for("up");
    live.signal(Signal::TERM);
    live.wait_for_message("no new commands are started");
    live.signal(Signal::INT);
    live.wait_for_message("SIGINT: sent SIGTERM to 1 command in flight; another signal kills them");
    live.wait_for("ending");
    let ended = live.end();
    assert_eq!(ended.status.signal(), Some(Signal::TERM.as_raw()), "{}", ended.stderr);
    assert_eq!((ended.count("failures"), ended.count("unfinished")), (0, 1));
}

#[test]
fn the_third_signal_kills_them() {
    let dir = directory("third_signal");
    let _gate = Gate::new(&dir);
    let mut live = Live::start(&dir, &["-c", "trap '' TERM; echo up; cat gate"]);
    live.send("a\n");
    live.wait_for("up");
    live.signal(Signal::TERM);
    live.wait_for_message("no new commands are started");
    live.signal(Signal::INT);
    live.wait_for_message("SIGINT: sent SIGTERM to 1 command in flight");
    live.signal(Signal::HUP);
    live.wait_for_message("SIGHUP: sent SIGKILL to 1 command in flight");
    let ended = live.end();
    assert_eq!(ended.status.signal(), Some(Signal::TERM.as_raw()), "{}", ended.stderr);
    // The program has one second left to write the summary.
    if ended.stderr.lines().last().is_some_and(|line| line.contains(" adds, ")) {
        assert_eq!((ended.count("failures"), ended.count("unfinished")), (0, 1));
    }
}

#[test]
fn a_key_that_waits_does_not_keep_it_from_ending() {
    let dir = directory("waiting");
    let args = ["--base-delay", "1h", "--max-delay", "1h", "-j1", "-c", "echo $1; [ $1 = b ]"];
    let mut live = Live::start(&dir, &args);
    live.send("a\nb\n");
    live.wait_for("b");
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!(ended.status.signal(), Some(Signal::TERM.as_raw()));
    assert_eq!((ended.count("failures"), ended.count("unfinished")), (1, 1), "{}", ended.stderr);
}

#[test]
fn a_command_that_dies_of_the_same_signal_has_not_failed() {
    let dir = directory("same_signal");
    let mut gate = Gate::new(&dir);
    let mut live = Live::start(&dir, &["-c", "echo up; read _ <gate; kill -TERM $$"]);
    live.send("a\n");
    live.wait_for("up");
    live.signal(Signal::TERM);
    live.wait_for_message("no new commands are started");
    gate.open(1);
    let ended = live.end();
    assert_eq!((ended.count("failures"), ended.count("unfinished")), (0, 1), "{}", ended.stderr);
}

#[test]
#[cfg(target_os = "linux")]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let dir = directory("nohup");
    let mut gate = Gate::new(&dir);
    let mut shell = Command::new("sh");
    let script = "trap '' HUP INT; exec \"$1\" run -c 'echo up; read _ <gate; echo done'";
    shell.args(["-c", script, "_", env!("CARGO_BIN_EXE_requeue")]).current_dir(&dir);
    let mut live = Live::spawn(&mut shell);
    live.send("a\n");
    live.wait_for("up");
    live.signal(Signal::HUP);
    live.signal(Signal::INT);
    gate.open(1);
    let ended = live.end();
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "up\ndone\n"));
}

/// `nohup` and scripts that start jobs in the background make signals ignored.
#[test]
#[cfg(target_os = "linux")]
fn tests_that_were_started_with_signals_ignored_can_send_them_all_the_same() {
    const INNER: &str = "REQUEUE_SIGNALS_ARE_IGNORED";
    if std::env::var_os(INNER).is_some() {
        let mut live = Live::start(&directory("ignored"), &["echo"]);
        live.send("a\n");
        live.wait_for("a");
        live.signal(Signal::INT);
        live.wait_for_message("1 add, 1 run");
        assert_eq!(live.end().status.signal(), Some(Signal::INT.as_raw()));
        return;
    }
    let this = "signals::tests_that_were_started_with_signals_ignored_can_send_them_all_the_same";
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP INT TERM; exec \"$0\" --exact \"$1\""]).env(INNER, "1");
    let ended = end(shell.arg(std::env::current_exe().unwrap()).arg(this), "");
    assert!(ended.status.success() && ended.text().contains("1 passed"), "{ended:?}");
}

#[test]
fn a_command_does_not_get_what_the_program_gets() {
    let dir = directory("own_group");
    let mut gate = Gate::new(&dir);
    // The command leads a process group.
    let script = "[ \"$(ps -o pgid= -p $$ | tr -d ' ')\" = $$ ] && echo leads; read _ <gate";
    let mut live = Live::start(&dir, &["-c", script]);
    live.send("a\n");
    live.wait_for("leads");
    gate.open(1);
    assert_eq!(live.end().code(), Some(0));
}

/// The kernel discards a signal that the first process of a PID namespace sends itself, as in a container.
#[test]
fn the_first_process_of_a_container_exits_with_the_code_of_the_signal() {
    let first = |program: &Command| {
        let mut first = Command::new("unshare");
        first.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]);
        first.arg(program.get_program()).args(program.get_args());
        first
    };
    if !first(&Command::new("true")).status().is_ok_and(|status| status.success()) {
        return did_not_run("signals of the first process", "there is no unshare --user --pid");
    }
    let run = command(&["-c", "kill -TERM $REQUEUE_PID; sleep 0.1"]);
    let ended = end(&mut first(&run), "a\n");
    assert_eq!(ended.status.code(), Some(128 + Signal::TERM.as_raw()), "{}", ended.stderr);
}
