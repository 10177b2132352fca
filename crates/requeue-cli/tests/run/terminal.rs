//! The program on a terminal.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::ExitStatus;

use rustix::process::{Pid, Signal};

use crate::support::{Gate, Live, Terminal, command, directory, until};

/// Returns the state of a process as `ps` shows it: `T` if it is stopped.
fn state(pid: Pid) -> Option<char> {
    let pid = pid.as_raw_nonzero().to_string();
    let ps = std::process::Command::new("ps").args(["-o", "stat=", "-p", &pid]).output();
    String::from_utf8(ps.expect("ps is there").stdout).expect("letters").trim().chars().next()
}

/// Waits until a process is stopped or has exited.
fn until_stopped(pid: Pid) {
    until(|| matches!(state(pid), Some('T' | 'Z') | None));
}

fn until_it_goes_on(pid: Pid) {
    until(|| state(pid) != Some('T'));
}

/// Waits for a number in this file.
fn number_in(file: &Path) -> Pid {
    let read = || fs::read_to_string(file).ok().filter(|text| text.ends_with('\n'));
    until(|| read().is_some());
    let text = read().expect("it was there");
    text.trim().parse().ok().and_then(Pid::from_raw).expect("a process's number")
}

#[test]
fn a_command_that_wants_the_terminal_is_killed_and_told_so() {
    for (script, name) in
        [("read x </dev/tty", "SIGTTIN"), ("stty -echo </dev/tty; echo", "SIGTTOU")]
    {
        let dir = directory("wants_the_terminal");
        fs::write(dir.join("keys"), "k\n").unwrap();
        let mut command = command(&["-a", "keys", "--retries", "1", "--base-delay", "0"]);
        command.args(["-c", script]).current_dir(&dir);
        let (said, status) = Terminal::spawn(command).end();
        assert_eq!(status.code(), Some(1), "{said}");
        let why = format!("stopped by {name}: it wants the terminal, which no command gets");
        assert_eq!(said.matches(&format!("\"k\": {why}; killed")).count(), 2, "{said}");
        assert!(said.contains(&format!("\"k\": given up after 2 attempts: {why}")), "{said}");
    }
}

#[test]
fn a_command_that_stops_for_another_reason_is_left_alone() {
    let dir = directory("stops_itself");
    let mut live = Live::start(&dir, &["-c", "echo $$ >pid; kill -STOP $$; echo went on"]);
    live.send("k\n");
    let command = number_in(&dir.join("pid"));
    until_stopped(command);
    rustix::process::kill_process(command, Signal::CONT).unwrap();
    let ended = live.end();
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "went on\n"));
}

#[test]
fn stopping_and_continuing_reach_the_commands() {
    let dir = directory("stop");
    let mut gate = Gate::new(&dir);
    let script = "sleep 1000 & echo $! >child; echo $$ >pid; read _ <gate; kill $!; echo done";
    // The program runs in a separate process group, as if a shell had started it.
    let mut live = Live::spawn(command(&["-j2", "-c", script]).current_dir(&dir).process_group(0));
    live.send("k\n");
    let all = [live.pid(), number_in(&dir.join("pid")), number_in(&dir.join("child"))];
    for _ in 0..2 {
        live.signal(Signal::TSTP);
        all.into_iter().for_each(until_stopped);
        live.signal(Signal::CONT);
        all.into_iter().for_each(until_it_goes_on);
    }
    gate.open(1);
    let ended = live.end();
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "done\n"), "{}", ended.stderr);
}

#[test]
fn where_no_shell_would_continue_it_it_does_not_stop() {
    let dir = directory("no_job_control");
    let mut gate = Gate::new(&dir);
    fs::write(dir.join("keys"), "k\n").unwrap();
    let mut command = command(&["-a", "keys", "-c", "echo up; read _ <gate; echo done"]);
    command.current_dir(&dir);
    // The program leads the session, as with `ssh -t host requeue ...`.
    let mut terminal = Terminal::spawn(command);
    terminal.wait_for("up");
    terminal.send("\x1a");
    // The terminal shows the typed character after it has sent the signal.
    terminal.wait_for("^Z");
    gate.open(1);
    let (said, status) = terminal.end();
    assert!(status.success() && said.contains("done\r\n"), "{said}");
}

#[test]
fn a_shell_can_stop_and_continue_it_and_time_outs_stand_still() {
    // This time is long enough if the machine is not overloaded.
    let (mut said, mut status) = stopped_for(5);
    if said.contains("timed out") {
        (said, status) = stopped_for(30);
    }
    assert!(status.success(), "{said}");
    assert!(said.contains("1 add, 1 run, 0 coalesced, 0 failures, 0 given up in"), "{said}");
}

/// Runs a command with a time limit of `seconds`, while a shell stops it and the program for longer than the limit.
#[track_caller]
fn stopped_for(seconds: u64) -> (String, ExitStatus) {
    let dir = directory("job_control");
    let mut gate = Gate::new(&dir);
    let write = |name, text| fs::write(dir.join(name), text).expect("it can be written");
    write("keys", "k\n");
    write("work", "echo $$ >pid; read _ <gate; echo well >out\n");
    let mut shell = std::process::Command::new("sh");
    shell.arg("-i").current_dir(&dir).env_remove("ENV").env("PS1", "");
    let mut terminal = Terminal::spawn(shell);
    let requeue = env!("CARGO_BIN_EXE_requeue");
    // After an early timeout, the next attempt repeats the test.
    let args = format!("-a keys --retries 1 --timeout {seconds}s -- sh work");
    terminal.send(&format!("sh -c 'echo $$ >program; exec {requeue} run {args}'\n"));
    let (program, command) = (number_in(&dir.join("program")), number_in(&dir.join("pid")));
    terminal.send("\x1a");
    until_stopped(program);
    until_stopped(command);
    let start = std::time::Instant::now();
    until(|| start.elapsed().as_secs() > seconds);
    terminal.send("fg\n");
    until_it_goes_on(program);
    until_it_goes_on(command);
    gate.open(2);
    until(|| dir.join("out").exists());
    terminal.send("exit\n");
    terminal.end()
}

/// The most important parts that fit are shown whole.
#[test]
fn a_narrow_terminal_shows_how_much_is_left() {
    let dir = directory("narrow");
    let mut gate = Gate::new(&dir);
    fs::write(dir.join("keys"), "a\nb\nc\n").unwrap();
    let mut shell = std::process::Command::new("sh");
    let script = "stty rows 24 cols 40; exec \"$1\" run -a keys -j1 --retries 1 --base-delay 1h --max-delay 1h \
                  -c '[ $1 != a ] || exit 1; read _ <gate'";
    shell.args(["-c", script, "_", env!("CARGO_BIN_EXE_requeue")]).current_dir(&dir);
    let mut terminal = Terminal::spawn(shell);
    // It is padded to the width.
    terminal.wait_for(&format!("{:40}\r", "0/3 done, 1 running, 1 failed"));
    gate.open(1);
    terminal.wait_for("1/3 done, about ");
    terminal.wait_for(" left, 1 running");
    gate.open(1);
    terminal.wait_for(" left, 0 running");
    terminal.send("\x03");
    terminal.end();
}

#[test]
fn on_a_terminal_progress_is_a_line_below_the_others() {
    let dir = directory("progress_bar");
    let mut gate = Gate::new(&dir);
    fs::write(dir.join("keys"), "k\n").unwrap();
    for args in [&[][..], &["--progress", "always"]] {
        let mut command = command(args);
        command.args(["-a", "keys", "-c", "read _ <gate; echo a line"]).current_dir(&dir);
        let mut terminal = Terminal::spawn(command);
        terminal.wait_for("0/1 done, 1 running, 0 failed, 0 waiting, 0 ready, 0.0/s, \"k\" for ");
        gate.open(1);
        let (said, _) = terminal.end();
        // The line is erased before other output.
        let (before, after) = said.split_once("a line\r\n").unwrap();
        assert!(before.ends_with("\r\x1b[2K"), "{said:?}");
        assert!(after.ends_with("s\r\n"), "the summary is the last: {said:?}");
        let (once_more, _) = after.split_once("requeue: 1 add, 1 run").unwrap();
        assert!(once_more.is_empty() || once_more.ends_with("\r\x1b[2K"), "{said:?}");
    }
}
