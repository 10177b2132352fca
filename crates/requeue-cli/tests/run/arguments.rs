//! A key reaches the command unchanged.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::support::{Gate, command, directory, end, run, run_in};

/// Keys with special characters of shells, option parsers and templates.
const ODD: [&[u8]; 16] = [
    b"$(touch x)",
    b"`touch x`",
    b"; touch x",
    b"'single' \"double\"",
    b"back\\slash \\n",
    b"-rf",
    b"--help",
    b"{}",
    b"{}{}",
    b"%s %d",
    b" leading and trailing ",
    b"\ttab\t",
    b"carriage return\r",
    b"* ? [a-z] ~ $HOME",
    b"\xff\xfe not UTF-8 \x80",
    "größe 大きさ".as_bytes(),
];

fn joined(keys: &[&[u8]], before: &[u8], after: &[u8]) -> Vec<u8> {
    keys.iter().flat_map(|key| [before, key, after].concat()).collect()
}

#[test]
fn a_key_is_one_argument_whatever_is_in_it() {
    let dir = directory("a_key_is_one_argument");
    let expected = joined(&ODD, b"<", b">\n");
    for args in [
        &["-j1", "--", "printf", "<%s>\\n", "{}"][..],
        &["-j1", "--", "printf", "<%s>\\n"],
        &["-j1", "-I", "@", "--", "printf", "<%s>\\n", "@"],
        &["-j1", "-c", "printf '<%s>\\n' \"$1\""],
        &["-j1", "--", "sh", "-c", "printf '<%s>\\n' \"$1\"", "_", "{}"],
        &["-j1", "--", "sh", "-c", "printf '<%s>\\n' \"$REQUEUE_KEY\""],
    ] {
        let ended = run_in(&dir, args, joined(&ODD, b"", b"\n"));
        assert_eq!(ended.code(), Some(0), "{ended:?}");
        assert_eq!(ended.stdout, expected, "{args:?}");
    }
    assert!(!dir.join("x").exists(), "a key was run");
}

#[test]
fn with_null_a_key_can_have_newlines() {
    let mut keys: Vec<&[u8]> = ODD.to_vec();
    keys.extend([&b"two\nlines"[..], b"\n", b"ends in one\n"]);
    for args in [
        &["-0", "-j1", "--", "printf", "<%s>"][..],
        &["--null", "-j1", "--", "printf", "<%s>", "{}"],
        &["-0", "-j1", "-c", "printf '<%s>' \"$1\""],
        &["-0", "-j1", "-c", "printf '<%s>' \"$REQUEUE_KEY\""],
        &["-0", "-j1", "-u", "--", "printf", "<%s>\\n"],
    ] {
        let ended = run(args, joined(&keys, b"", b"\0"));
        assert_eq!(ended.code(), Some(0), "{ended:?}");
        assert_eq!(ended.stdout, joined(&keys, b"<", b">\n"));
    }
}

#[test]
fn every_mark_is_the_key_and_a_mark_in_a_key_is_none() {
    let ended = run(&["printf", "%s|", "{}", "a{}b{}", "{{}}"], "{}\n");
    assert_eq!(ended.text(), "{}|a{}b{}|{{}}|\n");
    let ended = run(&["-I", "%%", "printf", "%s|", "{}", "x%%y", "%%%"], "k\n");
    assert_eq!(ended.text(), "{}|xky|k%|\n");
}

#[test]
fn the_parts_of_a_path_have_marks_as_in_gnu_parallel() {
    let args = ["printf", "<%s>", "{.}.o", "{/}", "{//}", "{/.}", "--tagstring={/}"];
    let ended = run(&args, "src/a b.c\n");
    assert_eq!(ended.text(), "<src/a b.o><a b.c><src><a b><--tagstring=a b.c>\n");
    let ended = run(&["--tagstring", "{/.}", "echo", "{/}"], "src/a.c\n");
    assert_eq!(ended.text(), "a\ta.c\n");
    // These are actions of Go templates. Other braces around a mark are part of the word.
    for word in ["{{.}}", "{{/}}", "{{//}}", "{{/.}}", "a{{.}}{{.}}b"] {
        assert_eq!(run(&["printf", "<%s>", word], "d/a.c\n").text(), format!("<{word}><d/a.c>\n"));
    }
    let ended = run(&["printf", "<%s>", "{{/}}{/}", "{{/}", "{/}}"], "d/a.c\n");
    assert_eq!(ended.text(), "<{{/}}a.c><{a.c><a.c}>\n");
    // The placeholders replace the key at the end of the arguments.
    assert_eq!(run(&["echo", "{.}"], "a.c\n").text(), "a\n");
    assert_eq!(run(&["-I", "@", "echo", "{.}"], "a.c\n").text(), "{.} a.c\n");
    for (mark, variable) in [("{#}", "REQUEUE_SEQ"), ("{%}", "REQUEUE_SLOT")] {
        let ended = run(&["echo", mark], "a\n");
        let said =
            format!("requeue: {mark}: not available; let the command read the variable {variable}");
        assert_eq!(ended.code(), Some(2));
        assert!(ended.stderr.starts_with(&said), "{}", ended.stderr);
    }
}

#[test]
fn a_mark_can_be_bytes_that_are_no_text() {
    let bytes = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let mut command = command(&["-I"]);
    command.arg(bytes(b"\xff")).args(["--", "printf", "%s"]).arg(bytes(b"a\xffb"));
    assert_eq!(end(&mut command, "k\n").text(), "akb\n");
}

#[test]
fn a_mark_can_be_in_the_commands_name() {
    let ended = run(&["-j1", "--", "/bin/{}", "hello"], "echo\n");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "hello\n"));
}

#[test]
fn the_first_word_that_is_no_option_starts_the_command() {
    let ended = run(&["-j", "2", "echo", "-j", "3", "--help", "--", "-n"], "k\n");
    assert_eq!(ended.text(), "-j 3 --help -- -n k\n");
    let ended = run(&["--", "echo", "-u"], "k\n");
    assert_eq!(ended.text(), "-u k\n");
}

#[test]
fn a_key_can_be_as_long_as_an_argument() {
    for length in [131_059, 131_060, 131_071] {
        let ended = run(&["-c", "printf '%s\\n' \"${#1}\""], vec![b'x'; length]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert_eq!(ended.text(), format!("{length}\n"));
    }
}

#[test]
fn a_command_has_nothing_to_read() {
    let ended = run(&["-j1", "sh", "-c", "cat; echo read \"$1\"", "_"], "a\nb\n");
    assert_eq!(ended.text(), "read a\nread b\n");
}

#[test]
fn a_command_can_read_its_key() {
    let mut keys: Vec<&[u8]> = ODD.to_vec();
    keys.extend([&b"two\nlines"[..], b"\n"]);
    // Separate words would not work: `sh` would pass the key as an unused argument.
    let args = ["-0", "-j1", "--output", "inherit", "--stdin", "key", "-c", "cat; printf '|'"];
    let ended = run(&args, joined(&keys, b"", b"\0"));
    assert_eq!((ended.code(), ended.stdout), (Some(0), joined(&keys, b"", b"|")));
    let ended = run(&["--stdin", "none", "-c", "cat; echo end"], "k\n");
    assert_eq!(ended.text(), "end\n");
}

#[test]
fn a_command_need_not_read_its_key() {
    let dir = directory("unread");
    let mut gate = Gate::new(&dir);
    // The data exceed the capacity of a pipe.
    let long = vec![b'x'; 131_071];
    let ended = run(&["--stdin", "key", "-c", "wc -c | tr -d ' '"], &long);
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "131071\n"));
    // The process in the background also keeps the pipe open.
    for script in ["exit 0", "exec 3<&0; (read _ <gate) & exit 0", "exec <&-; exit 0"] {
        let ended = run_in(&dir, &["--retries", "0", "--stdin", "key", "-c", script], &long);
        assert_eq!(ended.code(), Some(0), "{script}: {}", ended.stderr);
    }
    gate.open(1);
}

#[test]
fn a_command_is_told_of_its_run() {
    let show = "echo $REQUEUE_ATTEMPT $REQUEUE_ADDS $REQUEUE_SLOT $REQUEUE_SEQ \
                ${REQUEUE_LAST_EXIT-none}";
    let mut command = command(&["-j1", "-c", show]);
    // The variables of an outer run of the program.
    command.env("REQUEUE_LAST_EXIT", "9").env("REQUEUE_ATTEMPT", "9");
    assert_eq!(end(&mut command, "a\nb\n").text(), "1 1 1 1 none\n1 1 1 2 none\n");
}
