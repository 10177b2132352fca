use alloc::format;
use alloc::string::{String, ToString};

use super::*;
use crate::queue::Config;
use crate::types::InFlightPolicy;

/// Replays a recording with these lines. Returns the number of skipped keys. If the replay differs,
/// returns the text of the first difference.
fn replay(lines: &str) -> Result<usize, String> {
    let text = format!("requeue-recording 1\n{}", lines.replace("; ", "\n"));
    let recording: Recording = text.parse().expect("a recording");
    let mut replay = recording.replay();
    match replay.find_map(Result::err) {
        Some(difference) => Err(difference.to_string()),
        None => Ok(replay.skipped_keys()),
    }
}

fn at(nanos: u64) -> Time {
    Time::from_nanos(nanos)
}

#[test]
fn a_start_of_a_skipped_key_counts_toward_its_pace() {
    let lines = "pace 1 60; lost 1; 0 00000001 delivered number=1 adds=1; \
        100 00000002 delivered number=2 adds=1; 101 00000002 completed done number=2; \
        102 00000002 added new due=102 new=1; 102 00000002 paced until=160";
    assert_eq!(replay(lines), Ok(2));
    // The pace of the skipped key does not delay another key.
    assert_eq!(replay(&format!("{lines}; 103 00000003 added new due=103 new=1")), Ok(2));
}

#[test]
fn a_cancel_that_only_ends_a_series_of_restarts_is_replayed_as_a_cancel() {
    let in_flight_policy = InFlightPolicy::Restart { at_most: Duration::from_nanos(100) };
    for by_group in [false, true] {
        let mut queue = Queue::new(Config {
            recording: 4096,
            groups: true,
            in_flight_policy,
            ..Config::default()
        });
        let add = |queue: &mut Queue<u8>, now| {
            _ = queue.add(1, 1, Add::now(), GroupId::default(), at(now));
        };
        add(&mut queue, 0);
        for now in [0, 60, 120] {
            let out = queue.get(at(now)).expect("a ready key");
            if now == 60 {
                queue.observe(at(now));
                let mut walk = queue.walk();
                match by_group {
                    true => _ = queue.cancel_groups(|_| true, &mut walk, 9, &mut Vec::new()),
                    false => _ = queue.cancel(&1, 1),
                }
            }
            add(&mut queue, now);
            let restarted = queue.cancel_reason(&out.ticket);
            assert_eq!(restarted, Some(CancelReason::Restarted), "at {now}");
            _ = queue.finish(&out.ticket, Finish::Cancelled { asked: out.asked }, at(now));
        }
        let recording = queue.recording().expect("events are recorded");
        assert_eq!(recording.replay().find_map(Result::err), None, "{recording}");
    }
}

#[test]
fn a_due_key_precedes_adds_deliveries_and_completions() {
    let begin = "0 00000001 added new due=5 delayed=1 new=1; 0 00000002 added new due=0 new=1";
    let delivered = "00000002 delivered number=1 adds=1";
    let completed = "10 00000002 completed done number=1";
    let cases = [
        (String::from(begin), String::from("10 00000003 added new due=10 new=1")),
        (String::from(begin), format!("10 {delivered}")),
        (format!("{begin}; 1 {delivered}"), String::from(completed)),
    ];
    for (before, operation) in cases {
        let difference = replay(&format!("{before}; {operation}")).expect_err("a late key");
        assert!(difference.ends_with("another key is due and did not become ready before"));
        assert_eq!(replay(&format!("{before}; 10 00000001 due; {operation}")), Ok(0));
    }
    // After a shutdown, no key becomes due.
    assert_eq!(replay(&format!("{begin}; 1 {delivered}; 2 - shut-down; {completed}")), Ok(0));
}

#[test]
fn an_operation_follows_a_limited_number_of_due_keys() {
    let mut queue = Queue::new(Config { recording: 1 << 16, ..Config::default() });
    for key in 0..300_u32 {
        _ = queue.add(key, key.into(), Add::at(at(5)), GroupId::default(), Time::ZERO);
    }
    _ = queue.add(300, 300, Add::now(), GroupId::default(), at(10));
    let recording = queue.recording().expect("events are recorded");
    assert_eq!(recording.events().len(), 300 + MAX_PROMOTIONS + 1);
    assert_eq!(recording.replay().find_map(Result::err), None);
}

#[test]
fn a_difference_shows_all_values_of_its_events() {
    let difference = replay(
        "0 00000001 added new due=0 new=1; 0 00000001 delivered number=1 adds=1; \
        0 00000001 completed retried number=1 failures=2 due=9 delay=9",
    );
    let line = |failures| {
        format!("0 00000001 completed retried number=1 failures={failures} due=9 delay=9")
    };
    let text = format!("event 3 is recorded as `{}`, but replayed as `{}`", line(2), line(1));
    assert_eq!(difference, Err(text));
    // The replay has an event that the recording does not have.
    let difference = replay(
        "pace 1 60; 0 00000001 added new due=0 new=1; 0 00000001 delivered number=1 adds=1; \
        1 00000001 completed done number=1; 2 00000001 added new due=2 new=1",
    );
    let text = "event 5 is not recorded, but replayed as `2 00000001 paced until=60`";
    assert_eq!(difference, Err(text.to_string()));
}

#[test]
fn a_shutdown_drops_a_ready_key_only_if_it_was_paused() {
    let end = "1 - shut-down; 1 00000001 dropped";
    let added = "groups; 0 00000001 added new due=0 new=1 group=7 weight=1";
    let difference = replay(&format!("{added}; {end}")).expect_err("a key that was not paused");
    assert!(difference.ends_with("the key has no run to drop"), "{difference}");
    assert_eq!(replay(&format!("{added}; 0 - paused; {end}")), Ok(0));
    assert_eq!(replay(&format!("{added}; 0 - group-paused group=7; {end}")), Ok(0));
    replay(&format!("{added}; 0 - group-paused group=8; {end}")).expect_err("another group");
}
