//! What commands write, and the summary.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::thread;

use crate::support::{Gate, Live, command, directory, run};

#[test]
fn lines_of_several_commands_are_not_torn() {
    let script = "i=0; while [ $i -lt 100 ]; do printf %s- $1; printf %s= $1; echo $1; \
                  printf %s- $1 >&2; echo $1 >&2; i=$((i + 1)); done";
    let ended = run(&["-j6", "-c", script], "a\nbb\nccc\ndddd\neeeee\nffffff\n");
    for key in ["a", "bb", "ccc", "dddd", "eeeee", "ffffff"] {
        let count = |text: &str, line: String| text.lines().filter(|&have| have == line).count();
        assert_eq!(count(&ended.text(), format!("{key}-{key}={key}")), 100);
        assert_eq!(count(&ended.stderr, format!("{key}-{key}")), 100);
    }
    assert_eq!(ended.text().lines().count(), 600);
}

#[test]
fn lines_come_as_they_are_written_and_the_last_is_ended() {
    let dir = directory("as_written");
    let mut gate = Gate::new(&dir);
    let mut live = Live::start(&dir, &["-c", "echo first; read _ <gate; printf last"]);
    live.send("k\n");
    live.wait_for("first");
    gate.open(1);
    assert_eq!(live.end().text(), "first\nlast\n");
}

#[test]
fn bytes_are_passed_on_as_they_are() {
    let ended = run(&["-j1", "printf", "\\000\\377\\033[m\\r\\n%s\\n"], b"\xfe\n");
    assert_eq!(ended.stdout, b"\0\xff\x1b[m\r\n\xfe\n");
}

#[test]
fn a_long_line_is_not_mixed_with_others() {
    let dir = directory("long_lines");
    let line = |key: &str| key.repeat(300_000);
    for key in ["a", "b", "c"] {
        std::fs::write(dir.join(key), line(key)).unwrap();
    }
    let live = Live::spawn(command(&["-j3", "cat"]).current_dir(&dir));
    let mut live = live;
    live.send("a\nb\nc\n");
    let ended = live.end();
    // Pieces of a line that came between those of another are lines of their own.
    for key in ["a", "b", "c"] {
        let bytes = ended.text().matches(key).count();
        assert_eq!(bytes, 300_000);
    }
    assert!(ended.text().lines().all(|line| line.bytes().all(|byte| byte == line.as_bytes()[0])));
}

#[test]
fn output_can_be_inherited() {
    for args in [&["-u"][..], &["--ungroup"], &["--output", "inherit"]] {
        let ended = run(&[args, &["-c", "printf out; printf err >&2"]].concat(), "k\n");
        assert_eq!(ended.text(), "out");
        assert!(ended.stderr.starts_with("errrequeue: "), "{}", ended.stderr);
    }
    assert_eq!(run(&["--output", "lines", "printf"], "k\n").text(), "k\n");
}

#[test]
fn output_can_be_dropped() {
    let args = ["--output", "none", "--summary", "none", "-c", "echo out; echo err >&2"];
    let ended = run(&args, "k\n");
    assert_eq!((ended.code(), ended.text().as_str(), ended.stderr.as_str()), (Some(0), "", ""));
}

#[test]
fn what_a_command_leaves_behind_holds_nothing_up() {
    let dir = directory("left_behind");
    let mut gate = Gate::new(&dir);
    // The one that stays has the pipes, too.
    let script = "(read _ <gate) & echo done";
    let mut live = Live::start(&dir, &["-c", script]);
    live.send("k\n");
    let ended = live.end();
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "done\n"));
    gate.open(1);
}

#[test]
fn when_nobody_reads_any_more_it_stops_quietly() {
    for output in ["lines", "inherit"] {
        let mut child = command(&["-j1", "--summary", "none", "--output", output, "echo"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // Keys for ever, until nobody takes them.
        let feeding = thread::spawn(move || (0..u64::MAX).all(|n| writeln!(stdin, "{n}").is_ok()));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "0\n");
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(0), &b""[..]), "{output}");
        assert!(!feeding.join().unwrap());
    }
}

#[test]
fn standard_output_can_be_a_file() {
    let dir = directory("to_a_file");
    let file = File::create(dir.join("out")).unwrap();
    let mut child = command(&["-j2", "echo"])
        .stdin(Stdio::piped())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"a\n").unwrap();
    assert!(child.wait().unwrap().success());
    let written = std::fs::read_to_string(dir.join("out")).unwrap();
    assert!(written.starts_with("a\nrequeue: 1 adds, 1 runs,"), "{written}");
}

#[test]
fn the_summary_is_text_json_or_nothing() {
    let input = "a\na\0\nb\n";
    let args = ["-j1", "--retries", "1", "--base-delay", "0", "-c", "[ $1 = a ]"];
    let text = run(&args, input);
    assert!(
        text.stderr.lines().last().unwrap().starts_with(
            "requeue: 2 adds, 3 runs, 0 coalesced, 2 failures, 1 given up, 1 bad records in "
        ),
        "{}",
        text.stderr
    );
    let same = run(&[&["--summary", "text"][..], &args].concat(), input);
    assert_eq!(same.count("runs"), 3);
    let json = run(&[&["--summary", "json"][..], &args].concat(), input);
    let line = json.stderr.lines().last().unwrap();
    let counts = "{\"adds\":2,\"runs\":3,\"coalesced\":0,\"failures\":2,\"given_up\":1,\
                  \"bad_input\":1,\"unfinished\":0,\"cancelled\":0,\"elapsed\":";
    assert!(line.starts_with(counts) && line.ends_with('}'), "{line}");
    let none = run(&["--summary", "none", "true"], "a\n");
    assert_eq!(none.stderr, "");
}
