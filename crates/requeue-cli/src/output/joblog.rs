//! The file of `--joblog`: a line for each run, in the format of GNU parallel.

use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::exit::Refusal;
use crate::output::blocking_file::BlockingFile;
use crate::output::dead_letters::DeadLetters;
use crate::output::files::{self, Identity};

const HEADER: &str = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n";

/// The open file of `--joblog`.
#[derive(Debug)]
pub(crate) struct Joblog(Mutex<BlockingFile>);

/// The values of four columns for one run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Log {
    pub(crate) exit: i32,
    pub(crate) signal: i32,
    /// The number of bytes that were written to the command's standard input.
    pub(crate) sent: u64,
    /// The number of bytes of the command's output.
    pub(crate) received: u64,
}

impl Joblog {
    pub(crate) fn create(
        path: &Path,
        input: Option<Identity>,
        dead_letters: &DeadLetters,
    ) -> Result<Self, Refusal> {
        let (mut file, identity) =
            files::open_file("--joblog", path, files::open_to_overwrite, input)?;
        if identity.is_some() && identity == dead_letters.identity {
            return Err(Refusal::usage(
                "--joblog: the file is that of --dead-letter; name another file",
            ));
        }
        // The file is emptied after the checks, so that a refused file keeps its content.
        let emptied = if identity.is_some() { file.0.set_len(0) } else { Ok(()) };
        let begun = emptied.and_then(|()| file.write_all(HEADER.as_bytes()));
        begun.map_err(|error| files::open_failure("--joblog", path, &error))?;
        Ok(Self(Mutex::new(file)))
    }

    pub(crate) fn write_run(
        &self,
        seq: u64,
        at: SystemTime,
        took: Duration,
        log: Log,
        command: &str,
    ) -> io::Result<()> {
        // If the system time is before 1970, the program still runs, and the column contains zero.
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let took = took.as_secs_f64();
        let Log { exit, signal, sent, received } = log;
        // Each line is written with one call, so that a process that follows the file sees whole lines.
        let line = format!(
            "{seq}\t:\t{at:.3}\t{took:10.3}\t{sent}\t{received}\t{exit}\t{signal}\t{command}\n"
        );
        self.0.lock().write_all(line.as_bytes())
    }
}
