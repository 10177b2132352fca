//! The file of `--joblog`: a line for each run, in the format of GNU parallel.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use crate::exit::Refusal;
use crate::output::blocking_file::BlockingFile;
use crate::output::dead_letters::{DeadLetters, refusal};
use crate::output::files::{self, Identity, identity, standard};

const HEADER: &str = "Seq\tHost\tStarttime\tJobRuntime\tSend\tReceive\tExitval\tSignal\tCommand\n";

/// The open file.
#[derive(Debug)]
pub(crate) struct Joblog(Mutex<BlockingFile>);

/// The result of a run, for four of the columns.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Log {
    pub(crate) exit: i32,
    pub(crate) signal: i32,
    /// The number of bytes that were written to its standard input.
    pub(crate) sent: u64,
    /// The number of bytes of its output.
    pub(crate) received: u64,
}

impl Log {
    /// Returns the log of a command that could not be started.
    pub(crate) fn exit(exit: i32) -> Self {
        Self { exit, ..Self::default() }
    }
}

impl Joblog {
    pub(crate) fn create(
        path: &Path,
        input: Option<Identity>,
        dead_letters: &DeadLetters,
    ) -> Result<Self, Refusal> {
        let failed = |error| refusal("--joblog", path, &error);
        let mut file = match standard(path) {
            Some(stream) => stream.map_err(failed)?,
            None => {
                let file = files::overwrite(path).map_err(failed)?;
                let is = identity(&file.metadata().map_err(failed)?);
                if is.is_some() && is == input {
                    // The keys would be deleted before they are read.
                    return Err(Refusal::usage(
                        "--joblog: the file is the input; name another file",
                    ));
                }
                if is.is_some_and(|is| dead_letters.is(is)) {
                    return Err(Refusal::usage(
                        "--joblog: the file is that of --dead-letter; name another file",
                    ));
                }
                files::empty(&file).map_err(failed)?;
                BlockingFile::new(file)
            }
        };
        file.write_all(HEADER.as_bytes()).map_err(failed)?;
        Ok(Self(Mutex::new(file)))
    }

    pub(crate) fn write(
        &self,
        seq: u64,
        at: SystemTime,
        took: Duration,
        log: Log,
        command: &str,
    ) -> io::Result<()> {
        let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let took = took.as_secs_f64();
        let Log { exit, signal, sent, received } = log;
        // One write, so that a process that follows the file sees whole lines.
        let line = format!(
            "{seq}\t:\t{at:.3}\t{took:10.3}\t{sent}\t{received}\t{exit}\t{signal}\t{command}\n"
        );
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes())
    }
}
