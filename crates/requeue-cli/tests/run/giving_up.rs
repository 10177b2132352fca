//! Keys that are given up, the files for them, and `--halt`.

use std::fs;
use std::process::Command;

use crate::support::{Ended, Gate, Live, did_not_run, directory, end, run, run_in};

const SHORT: [&str; 2] = ["--base-delay", "1ms"];

#[test]
fn some_failures_are_final() {
    for (fatal, script) in [
        ("7", "exit 7"),
        ("1-6,7-9", "exit 7"),
        ("SIGKILL", "kill -KILL $$"),
        ("9,137", "kill -KILL $$"),
        ("term", "kill -TERM $$"),
    ] {
        let script = format!("[ $1 = good ] || {{ {script}; }}");
        let args = [&SHORT[..], &["--fatal", fatal, "--retries", "inf", "-c", &script]].concat();
        let ended = run(&args, "bad\ngood\n");
        assert_eq!((ended.code(), ended.count("runs")), (Some(1), 2), "{fatal}: {}", ended.stderr);
        assert!(ended.stderr.contains("\"bad\": given up after 1 attempt: "), "{}", ended.stderr);
    }
    let args = [&SHORT[..], &["--fatal", "3", "-c", "exit $((REQUEUE_ATTEMPT + 1))"]].concat();
    let ended = run(&args, "k\n");
    assert_eq!((ended.code(), ended.count("runs")), (Some(1), 2), "{}", ended.stderr);
    assert!(ended.stderr.contains("\"k\": given up after 2 attempts: exit status: 3"));
    for wrong in ["", "0", "300", "1,", "SIGNONE"] {
        let ended = run(&["--fatal", wrong, "true"], "");
        assert_eq!(ended.code(), Some(2), "{wrong}");
        assert!(ended.stderr.contains("2,64-78,SIGSEGV"), "{}", ended.stderr);
    }
}

#[test]
fn what_is_given_up_is_in_the_dead_letter_file_at_once_and_can_be_fed_back() {
    let dir = directory("dead_letter");
    let args = ["--retries", "0", "--dead-letter", "dead", "-j1", "-c", "echo $1; [ $1 = ok ]"];
    let mut live = Live::start(&dir, &args);
    live.send("bad 1\nok\nbad 2\nend\n");
    live.wait_for("end");
    // The file is written during the run, so the last record may still be missing.
    assert!(fs::read_to_string(dir.join("dead")).unwrap().starts_with("bad 1\nbad 2\n"));
    assert_eq!(live.end().code(), Some(1));
    // The next run appends to the file.
    let ended = run_in(&dir, &args, "bad 3\n");
    assert_eq!(ended.code(), Some(1));
    let dead = fs::read_to_string(dir.join("dead")).unwrap();
    assert_eq!(dead, "bad 1\nbad 2\nend\nbad 3\n");
    let again = run_in(&dir, &["-a", "dead", "-j1", "echo"], "");
    assert_eq!((again.code(), again.text()), (Some(0), dead));
}

#[test]
fn dead_letters_have_the_form_of_the_input() {
    let dir = directory("dead_letter_form");
    let args = ["--retries", "0", "--dead-letter", "dead", "-0", "false"];
    run_in(&dir, &args, b"a\nb\0");
    assert_eq!(fs::read(dir.join("dead")).unwrap(), b"a\nb\0");

    let args =
        ["--retries", "1", "--base-delay", "1ms", "--dead-letter", "json", "--input", "json"];
    let input = "{\"key\":\"a\\nb\",\"priority\":3}\n{\"key_base64\":\"/w==\"}\n";
    let ended = run_in(&dir, &[&args[..], &["-j1", "-c", "exit 7"]].concat(), input);
    assert_eq!(ended.code(), Some(1));
    let dead = fs::read_to_string(dir.join("json")).unwrap();
    let lines: Vec<_> = dead.lines().collect();
    let why = "\"attempts\":2,\"exit\":7,\"why\":\"exit status: 7\",\"given_up_at\":\"2";
    assert_eq!(lines.len(), 2, "{dead}");
    assert!(lines[0].starts_with(&format!("{{\"key\":\"a\\nb\",\"priority\":3,{why}")), "{dead}");
    assert!(lines[1].starts_with(&format!("{{\"key_base64\":\"/w==\",{why}")), "{dead}");
    let again = run_in(&dir, &["--input", "json", "-a", "json", "-j1", "printf", "<%s>"], "");
    assert_eq!((again.code(), again.stdout), (Some(0), b"<a\nb>\n<\xff>\n".to_vec()));
}

#[test]
fn a_file_that_cannot_be_written_is_known_before_anything_runs() {
    let dir = directory("no_dead_letter");
    let ended = run_in(&dir, &["--dead-letter", "no/such", "touch"], "ran\n");
    assert_eq!(ended.code(), Some(125));
    let message = "--dead-letter \"no/such\": No such file";
    assert!(ended.stderr.contains(message), "{}", ended.stderr);
    assert!(!dir.join("ran").exists());
    // If the file were the input, failed keys would be read again and again.
    fs::write(dir.join("keys"), "k\n").unwrap();
    for args in [["-a", "keys"], ["--arg-file", "../no_dead_letter/keys"]] {
        let ended = run_in(&dir, &[&args[..], &["--dead-letter", "keys", "false"]].concat(), "");
        assert_eq!(ended.code(), Some(2));
        assert!(ended.stderr.contains("--dead-letter: the file is the input"), "{}", ended.stderr);
    }
}

#[test]
fn a_dead_letter_that_is_lost_is_a_failure_of_ours() {
    if !fs::exists("/dev/full").unwrap_or(false) {
        return did_not_run("a_dead_letter_that_is_lost", "there is no /dev/full here");
    }
    let args = ["--retries", "0", "--dead-letter", "/dev/full", "false"];
    let ended = run(&args, "k\n");
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("--dead-letter: \"k\": No space left"), "{}", ended.stderr);
}

fn halted(halt: &[&str], script: &str, input: &str) -> Ended {
    let args = ["-j1", "--retries", "0", "-c", script];
    let ended = run(&[halt, &args].concat(), input);
    assert_eq!(ended.code(), Some(4), "{halt:?}: {}", ended.stderr);
    assert!(ended.stderr.contains("requeue: halted: "), "{}", ended.stderr);
    ended
}

#[test]
fn a_run_can_be_halted_by_what_is_given_up_or_done() {
    let bad = "echo $1; [ $1 != bad ]";
    let bad = bad.replace("!= bad", "= ok");
    for (halt, input, runs) in [
        ("soon,fail=2", "x\nok\ny\nz\n", "x\nok\ny\n"),
        ("now,fail=1", "ok\nx\nz\n", "ok\nx\n"),
        ("soon,success=1", "x\nok\ny\n", "x\nok\n"),
        ("soon,done=2", "x\nok\ny\n", "x\nok\n"),
        ("soon,fail=60%", "x\nok\ny\nz\na\n", "x\nok\ny\nz\n"),
    ] {
        assert_eq!(halted(&["--halt", halt], &bad, input).text(), runs, "{halt}");
    }
    assert_eq!(halted(&["--fail-fast"], &bad, "x\ny\n").text(), "x\n");
    let never = run(&["--halt", "never", "--retries", "0", "false"], "a\nb\n");
    assert_eq!((never.code(), never.count("given up")), (Some(1), 2));
    for wrong in [&["--halt", "soon"][..], &["--halt", "soon,fail=1", "--fail-fast"]] {
        assert_eq!(run(&[wrong, &["true"]].concat(), "").code(), Some(2));
    }
}

#[test]
fn a_retry_is_no_failure_that_halts() {
    let args = [&SHORT[..], &["--halt", "now,fail=1", "-c", "[ $REQUEUE_ATTEMPT = 3 ]"]].concat();
    let ended = run(&args, "k\n");
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 3), "{}", ended.stderr);
}

#[test]
fn fail_fast_stops_at_the_first_failed_attempt() {
    let dir = directory("fail_fast");
    let args = ["--base-delay", "1h", "--max-delay", "1h", "-j1", "--fail-fast"];
    let files = ["--dead-letter", "dead", "false"];
    let ended = run_in(&dir, &[&args[..], &files].concat(), "a\nb\n");
    assert_eq!((ended.code(), ended.count("runs")), (Some(4), 1), "{}", ended.stderr);
    assert!(ended.stderr.contains("\"a\": given up after 1 attempt"), "{}", ended.stderr);
    assert_eq!(ended.count("unfinished"), 1, "{}", ended.stderr);
    assert_eq!(fs::read_to_string(dir.join("dead")).unwrap(), "a\n");

    let ended = run(&["--fail-fast", "--retries", "3", "true"], "");
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("--halt now,fail=1"), "{}", ended.stderr);
}

#[test]
fn a_halt_lets_commands_finish_or_ends_them() {
    for (halt, lines) in [("soon", "other finished\n"), ("now", "")] {
        let dir = directory(&format!("halt_{halt}"));
        let mut gate = Gate::new(&dir);
        let script =
            "[ $1 != bad ] || exit 1; trap '' TERM; echo started; read _ <gate; echo $1 finished";
        let script =
            if halt == "now" { script.replace("trap '' TERM; ", "") } else { script.into() };
        let halt = format!("{halt},fail=1");
        let args = ["-j2", "--retries", "0", "--halt", &halt, "-c", &script];
        let mut live = Live::start(&dir, &args);
        live.send("other\n");
        live.wait_for("started");
        live.send("bad\nlater\n");
        live.wait_for_message("halted: 0 keys succeeded, 1 given up");
        if !lines.is_empty() {
            gate.open(1);
        }
        let ended = live.end();
        assert_eq!(ended.code(), Some(4), "{}", ended.stderr);
        assert_eq!(ended.text(), format!("started\n{lines}"));
        // With `now`, the other command is terminated.
        assert!(halt.starts_with("soon") || ended.count("unfinished") > 0, "{}", ended.stderr);
    }
}

#[test]
fn a_halt_that_ends_commands_kills_those_that_do_not_heed_it() {
    let dir = directory("halt_kills");
    let script = "[ $1 != bad ] || exit 1; trap '' TERM; echo started; while :; do sleep 1; done";
    let args = ["-j2", "--retries", "0", "--fail-fast", "--kill-after", "50ms", "-c", script];
    let mut live = Live::start(&dir, &args);
    live.send("other\n");
    live.wait_for("started");
    live.send("bad\n");
    let ended = live.end();
    assert_eq!((ended.code(), ended.count("unfinished")), (Some(4), 1), "{}", ended.stderr);
}

#[test]
fn what_is_open_already_gets_dead_letters_and_the_joblog_and_keeps_what_it_had() {
    let dir = directory("dead_letter_stdout");
    let script = "exec \"$0\" run -j1 --retries 0 --dead-letter /dev/stdout --joblog /dev/stdout \
                  -c 'echo \"out $1\"; exit 1' >out";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_requeue")]).current_dir(&dir);
    assert_eq!(end(&mut shell, "a\nb\nc\n").code(), Some(1));
    let out = fs::read_to_string(dir.join("out")).unwrap();
    let count = |wanted: &str| out.lines().filter(|line| *line == wanted).count();
    for key in ["a", "b", "c"] {
        assert_eq!((count(key), count(&format!("out {key}"))), (1, 1), "{out}");
    }
    assert_eq!(out.lines().filter(|line| line.contains('\t')).count(), 4, "{out}");
}

#[test]
fn a_joblog_does_not_replace_a_file_of_keys() {
    let dir = directory("joblog_of_keys");
    fs::write(dir.join("dead"), "x\n").unwrap();
    let ended = run_in(&dir, &["--dead-letter", "dead", "--joblog", "./dead", "true"], "a\n");
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("--joblog"), "{}", ended.stderr);
    assert_eq!(fs::read_to_string(dir.join("dead")).unwrap(), "x\n");
}
