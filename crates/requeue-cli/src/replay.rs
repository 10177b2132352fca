//! `requeue replay`: replays a recording of a queue's events.

use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use requeue::history::{Recording, Step, Subject};

use crate::exit::{Ended, Exit, Refusal, complain, print_output};
use crate::key::escaped;
use crate::output::summary::counted;

/// Replays the recording in `file`. Prints each event, and the state of its key after the event.
pub(crate) fn replay(file: &Path) -> Result<Ended, Refusal> {
    let name = escaped(file.as_os_str().as_bytes());
    let bytes =
        std::fs::read(file).map_err(|error| Refusal::failure(format!("{name}: {error}")))?;
    let recording: Recording =
        String::from_utf8_lossy(&bytes).parse().map_err(|error| Refusal {
            exit: Exit::BadInput,
            message: format!(
                "{name}: {error}; export the recording again, or replay it with the version of \
             requeue that wrote it"
            ),
        })?;
    let mut replay = recording.replay();
    for step in &mut replay {
        match step {
            // The reader of the output may close it early, as `head` does.
            Ok(step) if !print_output(lines_of(&recording, &step).as_bytes())? => {
                return Ok(Ended::Exit(Exit::Done));
            }
            Ok(_) => {}
            Err(difference) => {
                complain(&format!(
                    "{name}: {difference}; report this difference with the recording"
                ));
                return Ok(Ended::Exit(Exit::GivenUp));
            }
        }
    }
    let events = counted(recording.events().len() as u64, "event");
    let mut summary = format!("{events}, no difference");
    if recording.lost_events() > 0 {
        let lost = counted(recording.lost_events(), "event");
        let keys = counted(replay.skipped_keys() as u64, "key");
        _ = write!(
            summary,
            "; {lost} lost before the recording, so events of {keys} were not replayed"
        );
    }
    complain(&summary);
    Ok(Ended::Exit(Exit::Done))
}

/// Returns a line for each event of a step. The last line also contains the state of the key after the step.
fn lines_of(recording: &Recording, step: &Step) -> String {
    let mut lines = String::new();
    for (index, event) in step.events.iter().enumerate() {
        let subject = match event.subject() {
            Subject::Key(key) => recording.name_of(key),
            Subject::Group(group) => format!("group {group}"),
            _ => "queue".to_owned(),
        };
        let is_last = index + 1 == step.events.len();
        let state = match (&step.entry, event.subject()) {
            _ if step.is_skipped => " | not replayed".to_owned(),
            (Some(entry), _) if is_last => format!(" | {}", entry.explain(event.at)),
            (None, Subject::Key(_)) if is_last => " | no state".to_owned(),
            _ => String::new(),
        };
        let reason = event.reason().and_then(|reason| recording.reason_text(reason));
        let event = event.with_reason_text(reason);
        _ = writeln!(lines, "{subject}: {event}{state}");
    }
    lines
}
