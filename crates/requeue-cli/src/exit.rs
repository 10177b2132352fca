//! Exit codes, refusals, and the messages of subcommands that do not run commands.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use crate::key::{printable, without_controls};

/// The exit codes. `--help` lists them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Exit {
    /// All keys succeeded.
    Done = 0,
    /// At least one key was given up.
    GivenUp = 1,
    /// The command line is wrong. clap uses the same code.
    Usage = 2,
    /// At least one record of the input was not a valid key.
    BadInput = 3,
    /// The program stopped because the limit of `--halt` was reached.
    Halted = 4,
    /// The API server does not have the resource, or denies access to it.
    #[cfg(feature = "kube")]
    Denied = 5,
    /// The program itself failed, for a reason that is neither a command nor the user.
    Failure = 125,
    /// The command's program cannot be executed.
    NotExecutable = 126,
    /// The command's program was not found.
    NotFound = 127,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The result of a subcommand that has run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Exit(Exit),
    /// The process must kill itself with this signal, which stopped the program. A shell or an init system then
    /// recognizes the cause.
    Signal(i32),
}

/// The message and the exit code of a subcommand that could not run.
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
/// requeue-store has a similar function, which cannot replace this one. A build without stores does not contain that
/// crate, and errors of kube print their source in the middle of their text.
pub(crate) fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let more = error.to_string();
        // Some errors print their source. A source that the text already contains is left out.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = error.source();
    }
    text
}

/// Writes lines to standard output. The lines may contain text from a server or from another user, so control
/// characters are escaped. Returns false if the reader of standard output has closed it.
pub(crate) fn print_output(lines: &[u8]) -> Result<bool, Refusal> {
    match std::io::stdout().write_all(&without_controls(lines)) {
        Ok(()) => Ok(true),
        // The reader may close the pipe early, as `head` does. This is not an error.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Refusal::failure(format!("standard output: {error}"))),
    }
}

/// Writes a message to standard error. The caller must ensure that no other task writes there. If the write fails, the
/// error is ignored, because it cannot be reported anywhere.
pub(crate) fn complain(message: &str) {
    let _ = std::io::stderr().write_all(&message_line(message));
}

/// Returns a message as a line for standard error. The message may contain text from a server or from another user.
/// All messages pass through this function, so it escapes them.
pub(crate) fn message_line(message: &str) -> Vec<u8> {
    format!("requeue: {}\n", printable(message)).into_bytes()
}

/// Writes the message of a refusal. The message about a wrong command line may have several lines. Its text comes only
/// from this program and its user, so its newlines are not escaped.
pub(crate) fn print_refusal(Refusal { exit, message }: &Refusal) {
    match exit {
        Exit::Usage => {
            let lines: Vec<_> = message.lines().map(printable).collect();
            let _ = writeln!(std::io::stderr(), "requeue: {}", lines.join("\n"));
        }
        _ => complain(message),
    }
}
