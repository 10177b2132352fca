//! `requeue why --export`: writes the recorded events of a process to a file.

use std::io::Write;
use std::path::Path;

use requeue::history::Recording;

use crate::client::Server;
use crate::exit::{Ended, Exit, Refusal, complain, print_output};
use crate::output::files::{open_failure, open_file, open_to_overwrite};
use crate::output::summary::counted;

/// The error message if `--server` is missing.
const NO_SERVER: &str = "--export requires --server URL, with the address of a `run`, `files`, `watch` or controller: a \
                         store has no recording; `requeue why KEY` shows the past that the store keeps";

/// Writes the recording to `file`, and tells the user what the recording contains.
pub(super) async fn export(
    server: Option<Server>,
    file: &Path,
    key: Option<&[u8]>,
    hash_keys: bool,
) -> Result<Ended, Refusal> {
    let server = server.ok_or_else(|| Refusal::usage(NO_SERVER))?;
    let text = server.get_recording(key, hash_keys).await?;
    let recording: Recording = text.parse().map_err(|error| {
        server.refusal(&format!("{error}; use the version of requeue of that process"))
    })?;
    if file == Path::new("-") {
        print_output(text.as_bytes())?;
    } else {
        let (mut output, identity) = open_file("--export", file, open_to_overwrite, None)?;
        let emptied = if identity.is_some() { output.0.set_len(0) } else { Ok(()) };
        let written = emptied.and_then(|()| output.write_all(text.as_bytes()));
        written.map_err(|error| open_failure("--export", file, &error))?;
    }
    let events = counted(recording.events().len() as u64, "event");
    let names = counted(recording.names() as u64, "name");
    complain(&format!("{events} exported, with {names} of keys"));
    Ok(Ended::Exit(Exit::Done))
}
