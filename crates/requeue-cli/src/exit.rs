//! The end of the program: exit codes, refusals, and messages while nothing runs.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// The exit codes, as `--help` lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Every key is done.
    Done = 0,
    /// Some key was given up.
    GivenUp = 1,
    /// The command line makes no sense. clap has the same number for it.
    Usage = 2,
    /// Some of the input was no key.
    BadInput = 3,
    /// `--halt` has ended it.
    Halted = 4,
    /// The API server does not let us see what is asked for, or has no such thing.
    #[cfg(feature = "kube")]
    Denied = 5,
    /// Something failed that is neither a command's nor the user's.
    Failure = 125,
    /// The command can't be executed.
    NotExecutable = 126,
    /// There is no such command.
    NotFound = 127,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The end of a subcommand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Exit(Exit),
    /// Die of the signal that ended the run, so that a shell or an init system sees it.
    Signal(i32),
}

/// The reason why a subcommand did not run.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) exit: Exit,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into() }
    }

    pub(crate) fn failure(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failure, message: message.into() }
    }
}

/// An error and its sources, with `: ` between them.
///
/// requeue-store has a function like this for its own messages. It can't be this one: a build of this
/// program without stores lacks that crate, and errors of kube print their source in the middle.
#[cfg(any(feature = "kube", feature = "store"))]
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        // Some errors print their source themselves.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// Writes to standard output; `false` once it has no reader.
pub(crate) fn print(bytes: &[u8]) -> Result<bool, Refusal> {
    match std::io::stdout().write_all(bytes) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Refusal::failure(format!("standard output: {error}"))),
    }
}

/// Writes a message to standard error while nothing else writes there. Errors are ignored: there is no
/// other place to report them.
pub(crate) fn complain(message: &str) {
    let _ = writeln!(std::io::stderr(), "requeue: {message}");
}
