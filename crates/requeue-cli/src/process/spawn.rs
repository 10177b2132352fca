//! Builds the command for a run: its arguments, environment and standard streams.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;

use os_display::Quoted;
use rustix::io::Errno;
use tokio::process::Command;

use crate::key::{Key, LONGEST};
use crate::process::command;
use crate::process::guardian;
use crate::process::run_input::{Past, RunInput};
use crate::process::template::Template;

/// The environment variable with the token for actions on the dashboard. It is removed from the environment of
/// commands, because a command could use the token to change other keys.
pub(crate) const TOKEN_VARIABLE: &str = "REQUEUE_TOKEN";

/// The properties of a run that the command receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) key: &'a Key,
    pub(crate) past: Past,
    pub(crate) adds: u32,
    pub(crate) slot: usize,
    pub(crate) seq: u64,
    pub(crate) input: &'a RunInput,
}

/// A function that creates standard output or standard error for a command.
pub(crate) type NewStdio = fn() -> Stdio;

/// Returns the command for a key. The command gets its own process group.
pub(crate) fn build_command(template: &Template, stdio: NewStdio, run: Run<'_>) -> Command {
    prepare_command(Command::new(template.program_for(run.key)), template, stdio, run)
}

/// Returns the command for a key, run by `sh`. execvp runs a script without a `#!` line in the same way.
pub(crate) fn command_by_shell(template: &Template, stdio: NewStdio, run: Run<'_>) -> Command {
    let program = template.program_for(run.key);
    let mut shell = Command::new("/bin/sh");
    shell.arg("--").arg(command::locate_program(&program).unwrap_or_else(|_| program.into()));
    prepare_command(shell, template, stdio, run)
}

fn prepare_command(
    mut command: Command,
    template: &Template,
    stdio: NewStdio,
    run: Run<'_>,
) -> Command {
    let stdin = if run.input.stdin.is_some() { Stdio::piped() } else { Stdio::null() };
    // The command has no working directory and no function that runs before exec. The standard library can then start
    // it without a fork, which takes ten times as long in a process with a large heap.
    command
        .args(template.args_for(run.key))
        .env("REQUEUE_ATTEMPT", run.past.attempt.to_string())
        .env("REQUEUE_ADDS", run.adds.to_string())
        .env("REQUEUE_SLOT", run.slot.to_string())
        .env(guardian::RUN, run.seq.to_string())
        .env(guardian::PARENT, std::process::id().to_string())
        .envs(run.input.env.iter().map(|(name, value)| (name, value)))
        .stdin(stdin)
        .stdout(stdio())
        .stderr(stdio())
        .process_group(0);
    // The hidden variables are removed last. Another variable that is set before could otherwise restore a password.
    for name in template.hidden.iter().chain(&[TOKEN_VARIABLE]) {
        command.env_remove(name);
    }
    if let Some(dir) = &run.input.dir {
        command.env("REQUEUE_SNAPSHOTS", dir.path());
    }
    match run.past.last_exit {
        Some(exit) => command.env("REQUEUE_LAST_EXIT", exit.to_string()),
        // Another requeue may have started this process as its command, and set the variable.
        None => command.env_remove("REQUEUE_LAST_EXIT"),
    };
    // The system limits the length of each variable, including its name, in the same way as the length of an argument.
    match "REQUEUE_KEY=".len() + run.key.len() <= LONGEST {
        true => command.env("REQUEUE_KEY", OsStr::from_bytes(run.key)),
        false => command.env_remove("REQUEUE_KEY"),
    };
    command
}

/// Returns the command for a key as one line, quoted for a shell.
pub(crate) fn command_line(template: &Template, key: &[u8]) -> String {
    let mut line = quote_word(&template.program_for(key));
    for arg in template.args_for(key) {
        line.push(' ');
        line += &quote_word(&arg);
    }
    line
}

/// Returns a word without line breaks, quoted for a shell if it needs quotes.
pub(crate) fn quote_word(word: &OsStr) -> String {
    Quoted::native_raw(word).force(false).to_string()
}

/// Returns true if the system does not know the format of the executable file.
pub(crate) fn is_of_no_kind(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOEXEC)
}

/// Returns true if a command could not be started because the system temporarily lacks a resource.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM)
    )
}

/// Returns true if the command can never be started with this key.
pub(crate) fn is_hopeless(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
        || Errno::from_io_error(error) == Some(Errno::TOOBIG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_one_line_that_a_shell_reads() {
        let words = ["printf", "{}", "a b"].map(Into::into).to_vec();
        let template = Template::from_words(words, None).unwrap();
        for (key, shown) in [
            (&b"k"[..], "k"),
            (b"it's $(touch x)", "'it'\\''s $(touch x)'"),
            (b"two\nlines", "$'two\\nlines'"),
            (b"\xff", "$'\\xFF'"),
            (b"-rf", "-rf"),
            (b"~", "'~'"),
        ] {
            assert_eq!(command_line(&template, key), format!("printf {shown} 'a b'"));
        }
    }
}
