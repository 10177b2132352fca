//! The rate, the spacing and the order of the starts of commands.
//!
//! Times are long if no event may happen before they are over, and short if the test waits for them. The unit tests
//! check exact times with a fake clock.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Gate, Live, directory, run};

#[test]
fn what_comes_within_a_delay_or_a_debounce_waits_and_is_one_run() {
    for times in [
        &["--delay", "1h"][..],
        &["--debounce", "1h"],
        &["--debounce", "1h,2h"],
        &["--delay", "1ms", "--debounce", "1h"],
    ] {
        let dir = directory("windows");
        let mut live = Live::start(&dir, &[times, &["--max-keys", "2", "echo"]].concat());
        live.send("a\nb\na\na\nc\n");
        // All keys before `c` have been read.
        live.wait_for_message("2 keys held");
        live.signal(Signal::TERM);
        let ended = live.end();
        let counts = ["adds", "runs", "coalesced", "unfinished"].map(|of| ended.count(of));
        assert_eq!(counts, [4, 0, 2, 2], "{}", ended.stderr);
    }
}

#[test]
fn a_delay_and_a_debounce_pass() {
    for times in [
        &["--delay", "50ms"][..],
        &["--debounce", "50ms"],
        &["--debounce", "50ms,50ms"],
        &["--debounce", "50ms,60ms"],
        &["--delay", "20ms", "--debounce", "50ms"],
    ] {
        let dir = directory("windows_pass");
        let mut live = Live::start(&dir, &[times, &["-c", "echo $1 $REQUEUE_ADDS"]].concat());
        for _ in 0..2 {
            live.send("a\n");
            live.wait_for("a 1");
        }
        assert_eq!(live.end().code(), Some(0));
    }
}

#[test]
fn a_debounce_starts_anew_with_each_add() {
    let dir = directory("debounce");
    let args = ["--debounce", "1h,1000h", "-j1", "echo"];
    let mut live = Live::start(&dir, &args);
    live.send("a\na\n");
    let ended = live.end();
    assert_eq!((ended.text().as_str(), ended.count("coalesced")), ("a\n", 1));
    // If adds never pause, the limit ends the wait. The default limit is 10 times --debounce.
    for times in ["40ms", "200ms,300ms"] {
        let dir = directory("debounce_max");
        let args = ["--debounce", times, "-j1", "echo", "ran"];
        let mut live = Live::start(&dir, &args);
        let mut feeder = live.stdin.take().expect("it is piped");
        let feeding = thread::spawn(move || {
            // The pipe limits the rate.
            while feeder.write_all(b"a\n").is_ok() {}
        });
        live.wait_for("ran a");
        live.signal(Signal::TERM);
        live.end();
        feeding.join().unwrap();
    }
}

#[test]
fn at_the_end_of_the_input_windows_end() {
    for times in [["--delay", "1h"], ["--debounce", "1h"]] {
        for policy in ["replace", "hold", "keep-both"] {
            let args = [&times[..], &["--re-add", policy, "-c", "echo $1 $REQUEUE_ADDS"]];
            let ended = run(&args.concat(), "a\nb\na\na");
            assert_eq!((ended.code(), ended.sorted().join(" ").as_str()), (Some(0), "a 3 b 1"));
        }
    }
}

#[test]
fn a_record_may_have_a_time_or_a_debounce_of_its_own() {
    let dir = directory("own_times");
    let args = ["--input", "json", "--debounce", "1h", "echo"];
    let mut live = Live::start(&dir, &args);
    live.send("{\"key\":\"now\",\"after\":0}\n");
    live.wait_for("now");
    live.send("{\"key\":\"soon\",\"debounce\":\"1ms\"}\n");
    live.wait_for("soon");
    live.send("{\"key\":\"later\",\"after\":\"2h\"}\n{\"key\":\"waits\"}\n");
    // The end of the input ends only the wait of --debounce.
    live.close();
    live.wait_for("waits");
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!(ended.count("unfinished"), 1, "{}", ended.stderr);
}

#[test]
fn a_key_starts_again_no_sooner_than_asked_and_others_do() {
    let dir = directory("min_interval");
    let mut live = Live::start(&dir, &["--min-interval", "1h", "-j1", "echo"]);
    live.send("a\n");
    live.wait_for("a");
    live.send("a\nb\n");
    live.wait_for("b");
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!((ended.text().as_str(), ended.count("unfinished")), ("a\nb\n", 1));

    // The interval also applies at the end of the input, and to a retry.
    let start = Instant::now();
    let script = "echo $REQUEUE_ATTEMPT; [ $REQUEUE_ATTEMPT = 2 ]";
    let args = ["--min-interval", "600ms", "--base-delay", "1ms", "-c", script];
    assert_eq!(run(&args, "a\n").text(), "1\n2\n");
    assert!(start.elapsed() >= Duration::from_millis(600));
}

#[test]
fn a_key_starts_as_often_as_its_pace_permits() {
    let dir = directory("pace");
    let mut live = Live::start(&dir, &["--pace", "3/1h", "-j1", "-c", "echo $1 $REQUEUE_ADDS"]);
    for _ in 0..3 {
        live.send("a\n");
        live.wait_for("a 1");
    }
    live.send("a\na\nb\n");
    live.wait_for("b 1");
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!((ended.count("runs"), ended.count("unfinished")), (4, 1), "{}", ended.stderr);
}

#[test]
fn starts_can_be_limited_and_a_burst_is_no_more_than_asked() {
    for (burst, at_once) in [(&[][..], 1), (&["--burst", "1"], 1), (&["--burst", "3"], 3)] {
        let dir = directory("rate");
        let args = [&["--rate", "1/h", "-j8", "--max-keys", "10"], burst, &["echo", "started"]];
        let mut live = Live::start(&dir, &args.concat());
        live.send(&(0..40).map(|n| format!("{n}\n")).collect::<String>());
        (0..at_once).for_each(|_| live.wait_for("started"));
        // Keys wait although slots are idle.
        live.wait_for_message("10 keys held");
        live.signal(Signal::TERM);
        let ended = live.end();
        assert_eq!(ended.count("runs"), at_once, "{}", ended.stderr);
        assert!(ended.count("unfinished") >= 10 - at_once, "{}", ended.stderr);
    }
}

#[test]
fn a_turn_that_no_key_is_left_for_is_not_waited_for() {
    let echo = ["--rate", "1/h", "-j4", "echo"];
    assert_eq!(run(&echo, "a\n").code(), Some(0));

    // A program that waits for the end of its input also does not use the processor.
    let dir = directory("rate_ends");
    let mut live = Live::start(&dir, &echo);
    live.send("a\n");
    live.wait_for("a");
    assert_eq!(live.end().code(), Some(0));
}

#[test]
fn starts_come_at_the_rate_and_what_waits_for_its_turn_is_coalesced() {
    let start = Instant::now();
    let ended = run(&["--rate", "20/s", "-j8", "echo"], "a\nb\nc\nd\ne\n");
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 5));

    let dir = directory("rate_coalesces");
    let mut live = Live::start(&dir, &["--rate", "1/h", "echo"]);
    live.send("a\n");
    live.wait_for("a");
    live.send("b\nb\nb\nno\0key\n");
    live.wait_for_message("record 5");
    live.signal(Signal::TERM);
    let ended = live.end();
    let counts = ["runs", "coalesced", "unfinished"].map(|of| ended.count(of));
    assert_eq!(counts, [1, 2, 1], "{}", ended.stderr);
}

#[test]
fn priorities_come_first_unless_first_in_first_out_is_asked_for() {
    for (order, runs) in [
        (&[][..], "first\nhigh\nmiddle\nlow\n"),
        (&["--order", "priority"], "first\nhigh\nmiddle\nlow\n"),
        (&["--order", "fifo"], "first\nlow\nhigh\nmiddle\n"),
    ] {
        let dir = directory("priority");
        let mut gate = Gate::new(&dir);
        let script = "echo $1; read _ <gate";
        let args = [order, &["--input", "json", "--max-keys", "4", "-j1", "-c", script]].concat();
        let mut live = Live::start(&dir, &args);
        live.send("{\"key\":\"first\"}\n");
        live.wait_for("first");
        for (key, priority) in [("low", -1), ("high", 7), ("middle", 0), ("high", 2), ("more", -9)]
        {
            live.send(&format!("{{\"key\":\"{key}\",\"priority\":{priority}}}\n"));
        }
        live.wait_for_message("4 keys held");
        gate.open(5);
        assert_eq!(live.end().text(), format!("{runs}more\n"));
    }
}

#[test]
fn groups_can_take_turns() {
    let keys = "busy/0\nbusy/1\nbusy/2\nbusy/3\ncalm/4\n";
    for (args, runs) in [
        (&["--order", "fair", "--group-by", "^([^/]*)/"][..], "busy/0 busy/1 calm/4 busy/2 busy/3"),
        (&["--order", "fair", "--group-by", "^[^/]*"], "busy/0 busy/1 calm/4 busy/2 busy/3"),
        (&["--group-by", "^[^/]*"], "busy/0 busy/1 busy/2 busy/3 calm/4"),
    ] {
        let dir = directory("fair");
        let mut gate = Gate::new(&dir);
        let args = [args, &["--max-keys", "5", "-j1", "-c", "echo $1; read _ <gate"]].concat();
        let mut live = Live::start(&dir, &args);
        live.send(keys);
        live.send("busy/last\n");
        live.wait_for_message("5 keys held");
        gate.open(6);
        let ended = live.end().text();
        let ended = ended.strip_suffix("\nbusy/last\n").expect("the last").replace('\n', " ");
        // The first key may start before the others are read.
        assert!(
            ended == runs || ended == runs.replace("busy/1 calm/4", "calm/4 busy/1"),
            "{ended}"
        );
    }
}

#[test]
fn commands_of_a_group_can_be_limited() {
    let dir = directory("group_limit");
    let mut gate = Gate::new(&dir);
    let script = "echo \"<$1>\"; read _ <gate";
    let args = ["--group-limit", "1", "--group-by", "^.", "-j4", "-c", script];
    let mut live = Live::start(&dir, &args);
    live.send("a1\na2\na3\nb1\nb2\n");
    // A second key of `a` or `b` cannot start before the first one completes.
    live.wait_for("1>");
    live.wait_for("1>");
    live.send("c1\n");
    live.wait_for("<c1>");
    gate.open(6);
    let ended = live.end();
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 6), "{}", ended.stderr);
    let script = "mkdir lock_$(echo $1 | cut -c1) && rmdir lock_$(echo $1 | cut -c1)";
    let keys: String = (0..60).map(|n| format!("{}{n}\n", ["a", "b", "c"][n % 3])).collect();
    let args = ["--group-limit", "1", "--group-by", "^.", "-j8", "--retries", "0", "-c", script];
    let ended = crate::support::run_in(&dir, &args, keys);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

#[test]
fn a_pace_that_makes_no_sense_is_refused() {
    for (args, message) in [
        (&["--burst", "2"][..], "--burst requires --rate"),
        (&["--debounce", "2s,1s"], "shorter than the quiet time"),
        (&["--order", "fair"], "--order fair requires --group-by"),
        (&["--group-limit", "2"], "--group-limit requires --group-by"),
        (&["--group-by", "("], r#"--group-by "(": not a regular expression: unclosed group"#),
        (&["--group-by", ""], r#"--group-by "": the pattern is empty; use one such as"#),
        (&["--group-by", "^.", "--group-limit", "0"], "invalid value '0' for '--group-limit <N>'"),
        (&["--rate", "0"], "a number above 0"),
        (&["--rate", "1", "--burst", "0"], "--burst"),
        (&["--delay", "soon"], "a time like 1.5s"),
        (&["--pace", "5"], "1 to 1000 starts and a time above 0"),
        (&["--pace", "5/s", "--min-interval", "1s"], "cannot be used with"),
        (&["--order", "lifo"], "fifo"),
    ] {
        let ended = run(&[args, &["echo"]].concat(), "");
        assert_eq!(ended.code(), Some(2), "{args:?}");
        assert!(ended.stderr.contains(message), "{message}: {}", ended.stderr);
    }
}
