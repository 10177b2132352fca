//! `--input json`: keys with due times, priorities and other fields.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{Gate, Live, directory, run};

const JSON: [&str; 3] = ["--input", "json", "-j1"];

#[test]
fn keys_come_as_text_or_base64() {
    let input =
        "{\"key\":\"a\\nb\"}\n\n  \n{\"key_base64\":\"/2I=\",\"other\":[1]}\n{\"key\":\"ö\"}";
    let ended = run(&[&JSON[..], &["printf", "<%s>"]].concat(), input);
    assert_eq!(
        (ended.code(), ended.stdout.as_slice()),
        (Some(0), &b"<a\nb>\n<\xffb>\n<\xc3\xb6>\n"[..])
    );
}

#[test]
fn objects_can_end_with_what_ends_keys() {
    let args = [&JSON[..], &["-0", "echo"]].concat();
    assert_eq!(run(&args, "{\"key\":\n\"a\"}\0{\"key\":\"b\"}\0").text(), "a\nb\n");
}

#[test]
fn a_key_is_run_no_earlier_than_asked() {
    let dir = directory("json_after");
    let input = "{\"key\":\"late\",\"after\":\"1h\"}\n{\"key\":\"later\",\"at\":\"2999-01-01T00:00:00Z\"}
{\"key\":\"now\"}\n{\"key\":\"past\",\"at\":\"2001-01-01T00:00:00+02:00\"}\n{\"key\":\"soon\",\"after\":0.05}\n";
    let mut live = Live::start(&dir, &[&JSON[..], &["echo"]].concat());
    live.send(input);
    live.wait_for("soon");
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!(ended.sorted(), ["now", "past", "soon"]);
    assert_eq!(ended.count("unfinished"), 2, "{}", ended.stderr);
}

#[test]
fn at_the_end_of_the_input_what_is_to_come_later_is_waited_for() {
    let start = Instant::now();
    let ended = run(&[&JSON[..], &["echo"]].concat(), "{\"key\":\"a\",\"after\":0.2}\n");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "a\n"));
    assert!(start.elapsed() >= Duration::from_millis(200));
}

#[test]
fn two_times_of_a_key_become_one_as_asked() {
    // The due time is in one or two hours, minus the time of the test.
    let [one, two] = [("1h", "5"), ("2h", "1h 5")];
    for (merge, first, second, left) in [
        ("earliest", one, two, one),
        ("earliest", two, one, one),
        ("latest", one, two, two),
        ("latest", two, one, two),
        ("exactly", one, two, two),
        ("exactly", two, one, one),
    ] {
        let dir = directory("json_merge");
        let mut live = Live::start(&dir, &[&JSON[..], &["echo"]].concat());
        for after in [first.0, second.0] {
            let rest = format!("\"after\":\"{after}\",\"merge\":\"{merge}\"");
            live.send(&format!("{{\"key\":\"k\",{rest}}}\n"));
        }
        live.send("{\"key\":\"last\"}\n");
        live.wait_for("last");
        live.signal(Signal::USR1);
        let progress = live.wait_for_message("next in ");
        let next = format!("next in {}", left.1);
        assert!(progress.contains(&next), "{merge} {first:?} {second:?}: {progress}");
        live.signal(Signal::TERM);
        assert_eq!(live.end().text(), "last\n");
    }
}

#[test]
fn a_key_can_be_taken_back_until_it_runs() {
    let dir = directory("json_cancel");
    let mut gate = Gate::new(&dir);
    let script = "echo $1; read _ <gate";
    let mut live = Live::start(&dir, &[&JSON[..], &["--max-keys", "3", "-c", script]].concat());
    live.send("{\"key\":\"runs\"}\n");
    live.wait_for("runs");
    live.send("{\"key\":\"ready\"}\n{\"key\":\"waits\",\"after\":\"1h\"}\n{\"key\":\"runs\"}\n");
    for key in ["ready", "waits", "runs", "runs", "unknown"] {
        live.send(&format!("{{\"op\":\"cancel\",\"key\":\"{key}\"}}\n"));
    }
    // Cancelled keys free space: only the fourth key remains.
    for key in ["a", "b", "c"] {
        live.send(&format!("{{\"key\":\"{key}\"}}\n"));
    }
    live.wait_for_message("3 keys held");
    gate.open(4);
    let ended = live.end();
    assert_eq!(ended.text(), "runs\na\nb\nc\n");
    assert_eq!((ended.count("cancelled"), ended.count("runs")), (3, 4), "{}", ended.stderr);
}

#[test]
fn a_key_taken_back_forgets_its_failures() {
    let dir = directory("json_cancel_failures");
    let script = "echo $1 $REQUEUE_ATTEMPT; [ $1 != k ]";
    let args = [&JSON[..], &["--base-delay", "1h", "--max-delay", "1h", "-c", script]].concat();
    let mut live = Live::start(&dir, &args);
    live.send("{\"key\":\"k\"}\n{\"key\":\"first\"}\n");
    live.wait_for("first 1");
    live.send("{\"key\":\"k\",\"op\":\"cancel\"}\n{\"key\":\"k\"}\n{\"key\":\"last\"}\n");
    live.wait_for("last 1");
    live.signal(Signal::TERM);
    assert_eq!(live.end().text(), "k 1\nfirst 1\nk 1\nlast 1\n");
}

#[test]
fn a_record_that_makes_no_sense_is_named_and_the_rest_goes_on() {
    let input = "{\"key\":\"a\"}\nb\n{\"key\":\"c\",\"after\":\"soon\"}\n{\"key\":\"\"}\n{\"key\":\"\\u0000\"}
{\"op\":\"cancel\"}\n{\"key\":\"d\"}";
    let ended = run(&[&JSON[..], &["echo"]].concat(), input);
    assert_eq!((ended.code(), ended.text().as_str()), (Some(3), "a\nd\n"));
    for message in [
        "requeue: record 2: not a JSON object\n",
        "requeue: record 3: after: \"soon\": expected a time like 1.5s",
        "requeue: record 4: not a key: it is empty\n",
        "requeue: record 5: not a key: it has a NUL byte",
        "requeue: record 6: it has neither `key` nor `key_base64`\n",
    ] {
        assert!(ended.stderr.contains(message), "{message}: {}", ended.stderr);
    }
    assert_eq!(ended.count("bad records"), 5);
}

#[test]
fn an_object_can_be_longer_than_a_key_but_not_than_a_record() {
    let padded = |size: usize| format!("{{\"key\":\"k{size}\",\"x\":\"{}\"}}\n", "x".repeat(size));
    let input = [padded(200_000), padded(1 << 20)].concat();
    let ended = run(&[&JSON[..], &["echo"]].concat(), input);
    assert_eq!((ended.code(), ended.text().as_str()), (Some(3), "k200000\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("record 2: it has 1048601 bytes, and the limit"));
}

#[test]
fn a_delimiter_that_objects_have_in_them_is_refused() {
    // If a key in a file contained the delimiter, the program could not read the key back.
    for (delimiter, code) in [(",", 2), ("k", 2), ("\\x20", 2), ("\\xff", 2), ("\\x1e", 0)] {
        let ended = run(&[&JSON[..], &["-d", delimiter, "echo"]].concat(), "");
        assert_eq!(ended.code(), Some(code), "{delimiter}: {}", ended.stderr);
        assert_eq!(ended.stderr.contains("--delimiter"), code == 2, "{delimiter}");
    }
}
