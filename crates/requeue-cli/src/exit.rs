//! Exit codes, refusals, and messages while no run writes to standard error.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use crate::key::{printable, without_controls};

/// The exit codes, which `--help` lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All keys succeeded.
    Done = 0,
    /// A key was given up.
    GivenUp = 1,
    /// The command line is wrong. clap exits with the same code.
    Usage = 2,
    /// A record of the input was not a key.
    BadInput = 3,
    /// `--halt` stopped the run.
    Halted = 4,
    /// The API server does not have the resource, or denies access to it.
    #[cfg(feature = "kube")]
    Denied = 5,
    /// The program itself failed. Neither a command nor the user caused this.
    Failure = 125,
    /// The command cannot be executed.
    NotExecutable = 126,
    /// The command was not found.
    NotFound = 127,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The result of a subcommand that ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Exit(Exit),
    /// The process must kill itself with the signal that stopped the run, so that a shell or an init system recognizes
    /// the cause.
    Signal(i32),
}

/// The message and exit code of a subcommand that did not run.
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

/// Formats an error and its sources, separated by `: `.
///
/// The similar function in requeue-store cannot replace this one, because a build without stores lacks that crate, and
/// errors of kube print their source in the middle.
pub(crate) fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        // A source that the text already contains is omitted, because some errors print their source.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// Writes lines to standard output. The lines may contain text of a server or of another user, so control characters
/// are escaped. Returns false if the reader has closed the pipe.
pub(crate) fn print_output(lines: &[u8]) -> Result<bool, Refusal> {
    match std::io::stdout().write_all(&without_controls(lines)) {
        Ok(()) => Ok(true),
        // The reader may stop early, as `head` does, which is not an error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Refusal::failure(format!("standard output: {error}"))),
    }
}

/// Writes a message to standard error, while nothing else writes there. Ignores errors, because they cannot be reported
/// elsewhere.
pub(crate) fn complain(message: &str) {
    let _ = std::io::stderr().write_all(&message_line(message));
}

/// Returns a message as a line of standard error. The message may contain text of a server or of another user, so it is
/// escaped here, for all messages.
pub(crate) fn message_line(message: &str) -> Vec<u8> {
    format!("requeue: {}\n", printable(message)).into_bytes()
}

/// Writes the message of a refusal. The message about a wrong command line may have several lines, because all of its
/// text comes from the program and its user.
pub(crate) fn print_refusal(Refusal { exit, message }: &Refusal) {
    match exit {
        Exit::Usage => {
            let lines: Vec<_> = message.lines().map(printable).collect();
            let _ = writeln!(std::io::stderr(), "requeue: {}", lines.join("\n"));
        }
        _ => complain(message),
    }
}
