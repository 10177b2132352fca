//! Reports of runs: command lines, the joblog, the progress.

use std::fs;
use std::process::Command;

use rustix::process::Signal;

use crate::support::{Gate, Live, directory, end, run, run_in};

#[test]
fn verbose_shows_each_command_as_it_starts() {
    for verbose in ["-t", "--verbose"] {
        let args = [verbose, "-j1", "-0", "printf", "<%s>\\n", "{}", "a b"];
        let ended = run(&args, b"k\0it's\0$(touch x)\0two\nlines\0\xff\0");
        let shown: Vec<_> =
            ended.stderr.lines().filter(|line| line.starts_with("printf")).collect();
        assert_eq!(
            shown,
            [
                "printf '<%s>\\n' k 'a b'",
                "printf '<%s>\\n' \"it's\" 'a b'",
                "printf '<%s>\\n' '$(touch x)' 'a b'",
                "printf '<%s>\\n' $'two\\nlines' 'a b'",
                "printf '<%s>\\n' $'\\xFF' 'a b'",
            ]
        );
        assert_eq!(ended.count("runs"), 5);
    }
}

#[test]
fn what_is_shown_comes_before_what_the_command_writes() {
    let mut shell = Command::new("sh");
    let script = "\"$1\" run -t -u -j1 --summary none -- sh -c 'echo \"$1\" >&2' _ 2>&1";
    shell.args(["-c", script, "_", env!("CARGO_BIN_EXE_requeue")]);
    let ended = end(&mut shell, "a\nb\n");
    let line = |key| format!("sh -c 'echo \"$1\" >&2' _ {key}\n{key}\n");
    assert_eq!(ended.text(), line("a") + &line("b"));
}

#[test]
fn a_dry_run_shows_the_commands_and_runs_none() {
    let dir = directory("dry_run");
    let ended = run_in(&dir, &["--dry-run", "-j1", "touch", "x{}"], "a\nb c\na\n");
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 0), "{}", ended.stderr);
    assert!(ended.text().starts_with("touch xa\ntouch 'xb c'\n"), "{ended:?}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
    // With --dry-run, a command that is printed counts as a success.
    let halt = ["--dry-run", "-j1", "--halt", "soon,done=2", "echo"];
    assert_eq!(run(&halt, "a\nb\nc\n").text(), "echo a\necho b\n");
}

/// Returns the fields of each line after the first.
fn joblog(file: &std::path::Path) -> Vec<Vec<String>> {
    let text = fs::read_to_string(file).expect("the joblog");
    let (header, lines) = text.split_once('\n').expect("a header");
    let columns = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand";
    assert_eq!(header, columns);
    lines.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn the_joblog_has_a_line_for_each_attempt() {
    let dir = directory("joblog");
    fs::write(dir.join("log"), "of another run").unwrap();
    let script =
        "cat >in; echo $1; case $1$REQUEUE_ATTEMPT in b1) exit 7;; c1) kill -KILL $$;; esac";
    let args = ["--joblog", "log", "-j1", "--base-delay", "0", "--stdin", "key", "-c", script];
    let ended = run_in(&dir, &args, "a\nb\nc\n");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let mut lines = joblog(&dir.join("log"));
    lines.sort_by_key(|fields| fields[0].parse::<u64>().unwrap());
    assert_eq!(lines.len(), 5, "{lines:?}");
    for (fields, seq) in lines.iter().zip(1..) {
        assert_eq!((fields.len(), fields[0].parse()), (9, Ok(seq)));
        assert_eq!((fields[1].as_str(), fields[4].as_str(), fields[5].as_str()), (":", "1", "2"));
        assert!(fields[2].parse::<f64>().unwrap() > 1.0e9, "{fields:?}");
        assert!(fields[3].trim().parse::<f64>().unwrap() >= 0.0, "{fields:?}");
        assert!(fields[8].starts_with("sh -c 'cat >in; echo $1; case"), "{fields:?}");
    }
    let mut ends: Vec<_> = lines
        .iter()
        .map(|fields| format!("{} {} {}", fields[6], fields[7], &fields[8][fields[8].len() - 1..]))
        .collect();
    // A retry may run before a first attempt.
    ends.sort();
    assert_eq!(ends, ["0 0 a", "0 0 b", "0 0 c", "0 9 c", "7 0 b"]);
}

#[test]
fn the_joblog_tells_of_time_outs_and_of_what_could_not_start() {
    let dir = directory("joblog_failures");
    let args = ["--joblog", "log", "-j1", "--retries", "0", "--timeout", "300ms", "{}", "1000"];
    let ended = run_in(&dir, &args, "sleep\nno-such-command\n");
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let exits: Vec<_> = joblog(&dir.join("log")).iter().map(|f| f[6..].join(" ")).collect();
    assert_eq!(exits, ["-1 15 sleep 1000", "127 0 no-such-command 1000"]);
}

#[test]
fn a_joblog_line_is_one_line_whatever_the_key() {
    let dir = directory("joblog_lines");
    let ended = run_in(&dir, &["-0", "--joblog", "log", "true"], b"a\nb\tc\0\xff\0");
    assert_eq!(ended.code(), Some(0));
    let mut commands: Vec<_> = joblog(&dir.join("log")).iter().map(|f| f[8].clone()).collect();
    commands.sort();
    assert_eq!(commands, ["true $'\\xFF'", "true $'a\\nb\\tc'"]);
}

#[test]
fn a_joblog_that_cannot_be_written_is_refused_before_anything_is_run() {
    let dir = directory("no_joblog");
    let ended = run_in(&dir, &["--joblog", "no/log", "touch"], "x\n");
    assert_eq!(ended.code(), Some(125));
    assert!(ended.stderr.contains("requeue: --joblog \"no/log\": No such file"), "{ended:?}");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_joblog_that_gets_full_is_a_failure() {
    let dir = directory("full_joblog");
    let ended = run_in(&dir, &["--joblog", "/dev/full", "touch"], "x\n");
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("--joblog \"/dev/full\": No space left"), "{ended:?}");
}

#[test]
fn sigusr1_asks_how_far_it_is() {
    let dir = directory("usr1");
    let mut gate = Gate::new(&dir);
    let mut live = Live::start(&dir, &["-j1", "-c", "echo up; read _ <gate"]);
    live.send("a\n");
    live.wait_for("up");
    live.signal(Signal::USR1);
    live.wait_for_message("0/1+ done, 1 running, 0 failed, 0 waiting, 0 ready, 0.0/s, \"a\" for ");
    gate.open(1);
    assert_eq!(live.end().code(), Some(0));
}

#[test]
fn the_progress_has_the_total_and_the_next_retry() {
    let dir = directory("usr1_total");
    let args = ["-j1", "--base-delay", "1h", "--max-delay", "1h", "-c", "[ $1 != bad ]"];
    let mut live = Live::start(&dir, &args);
    live.send("bad\ngood\n");
    live.close();
    live.wait_for_message("attempt 1 of 6 failed");
    let line = loop {
        live.signal(Signal::USR1);
        let line = live.wait_for_message(" running, ");
        if line.contains("1/2 done") {
            break line;
        }
    };
    assert!(line.starts_with("requeue: 1/2 done, about "), "{line}");
    let rest = "left, 0 running, 1 failed, 1 waiting (1 for a retry, next in ";
    assert!(line.contains(rest) && line.contains("), 0 ready, "), "{line}");
    live.signal(Signal::TERM);
    let ended = live.end();
    let said =
        "\nrequeue: 1 unfinished key: --store sqlite:FILE would have kept them for a later run\n";
    assert!(ended.stderr.contains(said), "{}", ended.stderr);
}

#[test]
fn progress_can_be_had_where_there_is_no_terminal() {
    let dir = directory("progress");
    let mut gate = Gate::new(&dir);
    let args = ["--progress", "always", "-j1", "-c", "echo up; read _ <gate"];
    let mut live = Live::start(&dir, &args);
    live.wait_for_message("0/0+ done, 0 running, 0 failed, 0 waiting, 0 ready, 0.0/s");
    live.send("a\n");
    live.wait_for("up");
    gate.open(1);
    assert_eq!(live.end().code(), Some(0));
    for args in [&[][..], &["--progress", "auto"], &["--progress", "never"]] {
        let ended = run(&[args, &["true"]].concat(), "a\n");
        assert!(!ended.stderr.contains("ready"), "{}", ended.stderr);
    }
}

#[test]
fn a_joblog_does_not_replace_the_input() {
    let dir = directory("joblog_is_input");
    fs::write(dir.join("keys"), "a\nb\n").unwrap();
    let ended = run_in(&dir, &["-a", "keys", "--joblog", "./keys", "echo"], "");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(2), ""), "{}", ended.stderr);
    assert!(ended.stderr.contains("--joblog: the file is the input"), "{}", ended.stderr);
    assert_eq!(fs::read_to_string(dir.join("keys")).unwrap(), "a\nb\n");
}
