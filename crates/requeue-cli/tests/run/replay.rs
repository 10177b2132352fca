//! `requeue replay`: recordings and their differences.

use std::fs;
use std::process::Command;
use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::{Add, Queue, intern_reason};

use crate::support::{Ended, directory, end};

/// Returns the recording of two keys that fail once, and two adds. It has 14 events in 16 places of 32 bytes.
fn recording(bytes: usize) -> String {
    let clock = FakeClock::new();
    let builder = Queue::<&str>::builder().clock(clock.clone()).record_events(bytes);
    let queue = builder.build().expect("the settings are valid");
    for key in ["a", "b"] {
        queue.add(key);
        let item = queue.try_get().expect("it is ready");
        item.complete(requeue::Completion::RetryAfter(Duration::from_secs(1)));
        clock.advance(Duration::from_secs(1));
        queue.try_get().expect("the backoff is over").succeed();
    }
    queue.add("b");
    queue.add_with("c", Add::now().reason(intern_reason("resync")));
    let names = queue.recording_with_names(|key| format!("name of {key}"));
    names.expect("events are recorded").to_string()
}

fn replay(test: &str, text: &str) -> Ended {
    let file = directory(test).join("recording");
    fs::write(&file, text).expect("it is written");
    end(Command::new(env!("CARGO_BIN_EXE_requeue")).arg("replay").arg(&file), "")
}

#[test]
fn a_replay_prints_each_event_with_the_state_after_it() {
    let ended = replay("replay-whole", &recording(1 << 16));
    assert_eq!(
        (ended.code(), ended.stderr.as_str()),
        (Some(0), "requeue: 14 events, no difference\n")
    );
    let text = ended.text();
    let last: Vec<_> = text.lines().skip(6).collect();
    assert_eq!(last.len(), 8, "{text}");
    for (line, part) in last.iter().zip([
        "name of b: 2.000s added | ready, waiting for a worker",
        "name of b: 2.000s delivery 3, for 1 add | in flight",
        "name of b: 2.000s delivery 3 failed and is retried; the key waits 1.0s | backing off; ready in 1.0s; failed once",
        "name of b: 3.000s due | ready, waiting for a worker; failed once",
        "name of b: 3.000s delivery 4, for 1 add | in flight; failed once",
        "name of b: 3.000s delivery 4 succeeded | no state",
        "name of b: 3.000s added | ready, waiting for a worker",
        "name of c: 3.000s added (resync) | ready, waiting for a worker",
    ]) {
        assert_eq!(*line, part, "{text}");
    }
    let without_name = text.lines().next().and_then(|line| line.split_once(": ")).expect("a line");
    assert!(without_name.0.len() == 8 && without_name.1.starts_with("1.000s added"), "{text}");
}

#[test]
fn a_recording_that_has_lost_events_is_replayed_in_part() {
    let ended = replay("replay-part", &recording(8 * 32));
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(ended.stderr.contains(" lost before the recording, so"), "{}", ended.stderr);
    assert!(ended.text().contains("| not replayed"), "{}", ended.text());
    assert!(
        ended.text().ends_with("name of c: 3.000s added (resync) | ready, waiting for a worker\n"),
        "{}",
        ended.text()
    );
}

#[test]
fn the_first_difference_is_named() {
    let text = recording(1 << 16).replacen("completed retried", "completed succeeded", 1);
    let ended = replay("replay-difference", &text);
    assert_eq!(ended.code(), Some(1));
    assert_eq!(ended.text().lines().count(), 2, "{}", ended.text());
    let parts =
        [" completed succeeded number=1 failures=1 due=", " completed succeeded number=1`;"];
    for part in parts {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
}

#[test]
fn a_file_that_is_no_recording_is_refused_by_its_line() {
    let text = recording(1 << 16);
    let line = text.lines().count() + 1;
    let ended = replay("replay-line", &format!("{text}5 00000000 exploded\n"));
    assert_eq!(ended.code(), Some(3));
    assert!(
        ended.stderr.contains(&format!("line {line}: unknown event `exploded`")),
        "{}",
        ended.stderr
    );
    assert_eq!(
        (replay("replay-empty", "").code(), replay("replay-other", "{}\n").code()),
        (Some(3), Some(3))
    );
}
