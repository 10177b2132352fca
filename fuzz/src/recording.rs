//! Fuzzes recordings: reads any text as a recording, and replays it.

use requeue_core::history::Recording;

/// Oracle: a recording does not change when it is written and read. No recording makes the replay panic.
pub fn recording(data: &[u8]) {
    let Ok(recording) = String::from_utf8_lossy(data).parse::<Recording>() else { return };
    assert_eq!(recording.to_string().parse().as_ref(), Ok(&recording));
    let mut replay = recording.replay();
    let steps = replay.by_ref().take_while(Result::is_ok).count();
    assert!(steps <= recording.events().len(), "a step has an event");
}
