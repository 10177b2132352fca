//! The output of commands, and the summary.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::thread;

use rustix::process::Signal;

use crate::limit::{Limit, ends_well};
use crate::support::{Gate, Live, command, directory, end, run};

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
    // A piece of a line between pieces of another line becomes a separate line.
    for key in ["a", "b", "c"] {
        let bytes = ended.text().matches(key).count();
        assert_eq!(bytes, 300_000);
    }
    assert!(ended.text().lines().all(|line| line.bytes().all(|byte| byte == line.as_bytes()[0])));
}

#[test]
fn a_group_is_all_that_one_command_wrote() {
    let dir = directory("group");
    let mut gate = Gate::new(&dir);
    // `a` writes before `b`, and completes after it.
    let script = "[ $1 = a ] || until [ -e up ]; do sleep 0.01; done
                  echo $1 one; echo $1 err >&2
                  [ $1 = b ] || { touch up; read _ <gate; }
                  echo $1 two; printf end";
    let mut live = Live::start(&dir, &["--output", "group", "-j2", "-c", script]);
    live.send("a\nb\n");
    live.wait_for("end");
    gate.open(1);
    let ended = live.end();
    assert_eq!(ended.text(), "b one\nb two\nend\na one\na two\nend\n");
    assert!(ended.stderr.starts_with("b err\na err\n"), "{}", ended.stderr);
}

#[test]
fn a_group_can_be_larger_than_what_is_kept_in_memory() {
    let script = "i=0; while [ $i -lt 20 ]; do printf '%0200000d\\n' $1; i=$((i + 1)); done";
    let ended = run(&["--output", "group", "-j3", "-c", script], "1\n2\n3\n");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let text = ended.text();
    let mut lines: Vec<_> = text.lines().collect();
    assert!(lines.iter().all(|line| line.len() == 200_000));
    assert_eq!(lines.len(), 60);
    lines.dedup();
    assert_eq!(lines.len(), 3, "they are not mixed");
}

#[test]
fn output_can_keep_the_order_of_the_input() {
    let dir = directory("keep_order");
    // The first key completes last. It fails once, and keeps its place. The output of `b` does not fit in memory.
    let script = "echo $1 $REQUEUE_ATTEMPT; echo $1 err >&2
                  [ $1 != b ] || yes | head -n 3000000
                  [ $1 != a ] || until [ -e last ]; do sleep 0.01; done
                  [ $1 != z ] || touch last
                  [ $1 != a ] || [ $REQUEUE_ATTEMPT = 2 ]";
    let args = ["-k", "-j3", "--base-delay", "1ms", "--tag", "-c", script];
    let ended = end(command(&args).current_dir(&dir), "a\nb\nc\nd\ne\nz\n");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let text = ended.text();
    let lines = text.lines().filter(|line| !line.ends_with("\ty"));
    let expected = ["a\ta 1", "a\ta 2", "b\tb 1", "c\tc 1", "d\td 1", "e\te 1", "z\tz 1"];
    assert_eq!(lines.collect::<Vec<_>>(), expected);
    let b = text.split("b 1\n").nth(1).unwrap();
    assert!(
        b[..b.find("c\tc 1").unwrap()].lines().all(|line| line == "b\ty"),
        "they are not mixed"
    );
    assert_eq!(text.matches("\ty\n").count(), 3_000_000);
    let errors = ended.stderr.lines().filter_map(|line| line.strip_suffix(" err"));
    assert_eq!(errors.collect::<String>(), "a\taa\tab\tbc\tcd\tde\tez\tz", "{}", ended.stderr);
}

#[test]
fn the_order_of_many_keys_is_kept() {
    let keys: String = (0..3000).map(|n| format!("{n}\n")).collect();
    let script = "[ $(($1 % 7)) != 3 ] || [ $REQUEUE_ATTEMPT = 2 ] || exit 1; echo $1";
    let args = ["-k", "-j8", "--base-delay", "1ms", "-c", script];
    assert_eq!(run(&args, &keys).text(), keys);
    let commands: String = (0..3000).map(|n| format!("echo {n}\n")).collect();
    assert_eq!(run(&["-k", "-j8", "--dry-run", "echo"], &keys).text(), commands);
}

#[test]
fn output_that_waits_for_an_unfinished_key_is_printed_at_the_end() {
    let dir = directory("keep_order_stop");
    let args =
        ["-k", "-j1", "--base-delay", "1h", "--max-delay", "1h", "-c", "echo $1; [ $1 != a ]"];
    let mut live = Live::start(&dir, &args);
    live.send("a\nb\nc\n");
    live.wait_for("a");
    loop {
        live.signal(Signal::USR1);
        if live.wait_for_message(" running, ").contains("2/3+ done") {
            break;
        }
    }
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!((ended.text().as_str(), ended.count("unfinished")), ("a\nb\nc\n", 1), "{ended:?}");
}

/// A cancelled key also has a place.
#[test]
fn a_cancelled_key_does_not_hold_output_back() {
    let dir = directory("keep_order_cancel");
    let args = ["-k", "-j1", "--base-delay", "1h", "--max-delay", "1h", "--input", "json"];
    let mut live = Live::start(&dir, &[&args[..], &["-c", "echo $1; [ $1 != a ]"]].concat());
    live.send("{\"key\":\"a\"}\n{\"key\":\"b\"}\n");
    live.wait_for("a");
    // A cancel has no effect on a key in flight.
    live.wait_for_message("attempt 1 of 6 failed");
    live.send("{\"key\":\"a\",\"op\":\"cancel\"}\n{\"key\":\"c\"}\n");
    live.wait_for("b");
    live.wait_for("c");
    assert_eq!(live.end().code(), Some(0));
}

#[test]
fn a_group_that_cannot_be_kept_is_a_failure() {
    let dir = directory("no_tmp");
    let mut command =
        command(&["--output", "group", "--retries", "0", "-c", "yes | head -n 1000000"]);
    let ended = end(command.env("TMPDIR", dir.join("none")), "k\n");
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("\"k\": output lost: No such file"), "{}", ended.stderr);
}

#[test]
fn lines_can_begin_with_their_key() {
    let script = "echo one; echo two >&2; printf three";
    for output in ["lines", "group"] {
        let ended = run(&["--tag", "--output", output, "-c", script], b"it's\t\xff\n");
        assert_eq!(ended.text(), "it's\\t\\xff\tone\nit's\\t\\xff\tthree\n");
        assert!(ended.stderr.starts_with("it's\\t\\xff\ttwo\n"), "{}", ended.stderr);
    }
}

#[test]
fn lines_can_begin_with_a_text_of_ones_own() {
    for (args, begins) in [
        (&["--tagstring", "<{}>", "echo", "x", "{}"][..], "<k>\tx k\n"),
        (&["--tagstring", "a tag", "echo", "x"], "a tag\tx k\n"),
        (&["--tag", "--tagstring", "{}{}", "echo", "{}"], "kk\tk\n"),
        (&["-I", "@", "--tagstring", "@{}", "echo", "@"], "k{}\tk\n"),
    ] {
        assert_eq!(run(args, "k\n").text(), begins);
    }
}

#[test]
fn a_long_line_has_its_key_once() {
    let ended = run(&["--tag", "-c", "printf '%0200000d\\n' 7; echo"], "k\n");
    assert_eq!(ended.text(), format!("k\t{}7\nk\t\n", "0".repeat(199_999)));
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
    // The process in the background also keeps the pipes open.
    let script = "(read _ <gate) & echo done";
    let mut live = Live::start(&dir, &["-c", script]);
    live.send("k\n");
    let ended = live.end();
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "done\n"));
    gate.open(1);
}

#[test]
fn when_nobody_reads_any_more_it_stops_and_says_so() {
    for output in ["lines", "group", "inherit"] {
        let mut child = command(&["-j1", "--summary", "none", "--output", output, "echo"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let limit = Limit::of(&child);
        let mut stdin = child.stdin.take().unwrap();
        // The test writes keys until the pipe is closed.
        let feeding = thread::spawn(move || (0..u64::MAX).all(|n| writeln!(stdin, "{n}").is_ok()));
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "0\n");
        let ended = child.wait_with_output().unwrap();
        // A shell shows this as 141.
        assert_eq!(ended.status.signal(), Some(Signal::PIPE.as_raw()), "{output}");
        let said = "requeue: standard output was closed before all keys were done; \
                    --store sqlite:FILE keeps keys for a later run\n";
        assert_eq!(String::from_utf8(ended.stderr).unwrap(), said, "{output}");
        assert!(!feeding.join().unwrap() && !limit.was_reached());
    }
}

#[test]
fn output_that_nobody_reads_is_no_failure_after_the_last_key() {
    // The key starts when the program has read the end of the input.
    let mut child = command(&["--debounce", "1h", "echo"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    child.stdin.take().unwrap().write_all(b"a\n").unwrap();
    assert!(ends_well(child));
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
    assert!(ends_well(child));
    let written = std::fs::read_to_string(dir.join("out")).unwrap();
    assert!(written.starts_with("a\nrequeue: 1 add, 1 run,"), "{written}");
}

#[test]
fn the_summary_is_text_json_or_nothing() {
    let input = "a\na\0\nb\n";
    let args = ["-j1", "--retries", "1", "--base-delay", "0", "-c", "[ $1 = a ]"];
    let text = run(&args, input);
    assert!(
        text.stderr.lines().last().unwrap().starts_with(
            "requeue: 2 adds, 3 runs, 0 coalesced, 2 failures, 1 given up, 1 bad record in "
        ),
        "{}",
        text.stderr
    );
    let same = run(&[&["--summary", "text"][..], &args].concat(), input);
    assert_eq!(same.count("runs"), 3);
    let json = run(&[&["--summary", "json"][..], &args].concat(), input);
    let line: serde_json::Value =
        serde_json::from_str(json.stderr.lines().last().unwrap()).unwrap();
    for (name, count) in [
        ("adds", 2),
        ("runs", 3),
        ("coalesced", 0),
        ("revived", 0),
        ("done", 1),
        ("failures", 2),
        ("timed_out", 0),
        ("restarted", 0),
        ("given_up", 1),
        ("bad_input", 1),
        ("cancelled", 0),
        ("unfinished", 0),
    ] {
        assert_eq!(line[name], count, "{name} in {line}");
    }
    assert!(line["elapsed"].is_f64(), "{line}");
    let took = ["p50", "p90", "p99", "max"].map(|name| line["run_seconds"][name].as_f64().unwrap());
    assert!(took.is_sorted() && took[0] > 0.0, "{line}");
    let none = run(&["--summary", "none", "true"], "a\n");
    assert_eq!(none.stderr, "");
}
