//! The sources of keys, and records that are not keys.

use std::fs;

use crate::support::{Gate, Live, directory, run, run_in};

#[test]
fn empty_lines_are_skipped_and_the_last_needs_no_newline() {
    let ended = run(&["-j1", "printf", "<%s>\n"], "\na\n\n\nb");
    assert_eq!(ended.text(), "<a>\n<b>\n");
    assert_eq!(ended.count("adds"), 2);
    let ended = run(&["-0", "-j1", "printf", "<%s>\n"], "\0a\0\0b");
    assert_eq!(ended.text(), "<a>\n<b>\n");
}

#[test]
fn keys_can_end_with_any_byte() {
    for (delimiter, input) in [
        (",", "a,b\n,c"),
        ("\\t", "a\tb\n\tc"),
        ("\\0", "a\0b\n\0c"),
        ("\\x1e", "a\x1eb\n\x1ec"),
        ("\\036", "a\x1eb\n\x1ec"),
        ("\\\\", "a\\b\n\\c"),
    ] {
        for flag in ["-d", "--delimiter"] {
            let ended = run(&["-j1", flag, delimiter, "printf", "<%s>"], input);
            assert_eq!(ended.text(), "<a>\n<b\n>\n<c>\n", "{delimiter}");
        }
    }
    // The last flag takes effect, as in xargs.
    assert_eq!(run(&["-0", "-d", ",", "-j1", "echo"], "a,b").text(), "a\nb\n");
    assert_eq!(run(&["-d", ",", "-0", "-j1", "echo"], "a,b").text(), "a,b\n");
    for wrong in ["", "ab", "\\q", "é"] {
        let ended = run(&["-d", wrong, "echo"], "");
        assert_eq!(ended.code(), Some(2), "{wrong}");
        assert!(ended.stderr.contains("one byte, or an escape"), "{}", ended.stderr);
    }
}

#[test]
fn a_key_is_no_longer_than_an_argument_can_be() {
    let ended = run(&["echo"], vec![b'x'; 131_072]);
    assert_eq!(ended.code(), Some(3));
    assert!(ended.stderr.contains("and the limit is 131071"), "{}", ended.stderr);
}

#[test]
fn without_keys_nothing_is_run() {
    for args in [&["touch", "x"][..], &["-r", "touch", "x"], &["--no-run-if-empty", "touch", "x"]] {
        let dir = directory("without_keys");
        let ended = run_in(&dir, args, "");
        assert_eq!((ended.code(), ended.count("runs")), (Some(0), 0));
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    }
}

#[test]
fn keys_can_come_from_a_file() {
    let dir = directory("keys_from_a_file");
    fs::write(dir.join("keys"), "a\nb\n").unwrap();
    for args in [["-a", "keys"], ["--arg-file", "keys"]] {
        let ended = run_in(&dir, &[&args[..], &["-j1", "echo"]].concat(), "not read\n");
        assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "a\nb\n"));
    }
    assert_eq!(run(&["-a", "-", "echo"], "a\n").text(), "a\n");
}

#[test]
fn a_file_that_cannot_be_read_is_a_failure() {
    let dir = directory("no_file");
    let ended = run_in(&dir, &["-a", "missing", "echo"], "");
    assert_eq!(ended.code(), Some(125));
    assert!(ended.stderr.contains("\"missing\": No such file"), "{}", ended.stderr);
    let ended = run_in(&dir, &["-a", ".", "echo"], "");
    assert_eq!(ended.code(), Some(125));
    assert!(ended.stderr.contains("the input cannot be read"), "{}", ended.stderr);
}

#[test]
fn what_is_no_key_is_named_and_the_rest_goes_on() {
    let long = vec![b'x'; 131_072];
    let huge = vec![b'y'; 3 << 20];
    let input = [b"a\n\nb\0b\n", &long[..], b"\nc\n", &huge, b"\nd"].concat();
    let ended = run(&["-j1", "echo"], &input);
    assert_eq!(ended.code(), Some(3), "{}", ended.stderr);
    assert_eq!(ended.text(), "a\nc\nd\n");
    for message in [
        "requeue: record 3: not a key: it has a NUL byte",
        "requeue: record 4: not a key: it has 131072 bytes",
        "requeue: record 6: not a key: it has 3145728 bytes",
    ] {
        assert!(ended.stderr.contains(message), "{}", ended.stderr);
    }
    assert_eq!((ended.count("adds"), ended.count("bad records")), (3, 3));
}

#[test]
fn a_key_that_is_given_up_counts_more_than_bad_input() {
    let ended = run(&["--retries", "0", "false"], "a\0\nb\n");
    assert_eq!((ended.code(), ended.count("bad records")), (Some(1), 1));
}

#[test]
fn at_the_limit_keys_that_are_held_are_merged_and_a_new_one_waits() {
    let dir = directory("max_keys");
    let mut gate = Gate::new(&dir);
    let script = "echo start $1 $REQUEUE_ADDS; read _ <gate; echo end $1";
    let mut live = Live::start(&dir, &["-j1", "--max-keys", "2", "-c", script]);
    live.send("a\n");
    live.wait_for("start a 1");
    live.send("b\na\nb\na\na\nb\nc\nd\n");
    live.wait_for_message("2 keys held");
    gate.open(5);
    let ended = live.end();
    assert_eq!(ended.code(), Some(0));
    assert_eq!(
        ended.text().lines().filter(|line| line.starts_with("start")).collect::<Vec<_>>(),
        ["start a 1", "start b 3", "start a 3", "start c 1", "start d 1"]
    );
    assert_eq!((ended.count("adds"), ended.count("coalesced")), (9, 4));
    assert_eq!(ended.stderr.matches("keys held").count(), 1);
}
