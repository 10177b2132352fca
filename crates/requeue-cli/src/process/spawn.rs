//! Builds the process of a run: its arguments, environment and streams.

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

/// The variable with the token of the dashboard's actions. It is hidden from commands, because a command could change
/// other keys.
pub(crate) const TOKEN_VARIABLE: &str = "REQUEUE_TOKEN";

/// The properties of a run that are passed to its command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) key: &'a Key,
    pub(crate) past: Past,
    pub(crate) adds: u32,
    pub(crate) slot: usize,
    pub(crate) seq: u64,
    pub(crate) input: &'a RunInput,
}

/// Creates the standard output or error of a command.
pub(crate) type NewStdio = fn() -> Stdio;

/// Returns the command for a key, in a separate process group.
pub(crate) fn build_command(template: &Template, stdio: NewStdio, run: Run<'_>) -> Command {
    prepare_command(Command::new(template.program_for(run.key)), template, stdio, run)
}

/// Returns the command for a key, run by `sh`. This is how execvp runs a script without a `#!` line.
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
    // The command has neither a working directory nor a hook before exec, so that the standard library need not fork.
    // With a large heap, a fork takes ten times as long.
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
    // Hidden variables are removed last, because the other variables could restore a password.
    for name in template.hidden.iter().chain(&[TOKEN_VARIABLE]) {
        command.env_remove(name);
    }
    if let Some(dir) = &run.input.dir {
        command.env("REQUEUE_SNAPSHOTS", dir.path());
    }
    match run.past.last_exit {
        Some(exit) => command.env("REQUEUE_LAST_EXIT", exit.to_string()),
        // The variable may be that of another requeue, whose command this process is.
        None => command.env_remove("REQUEUE_LAST_EXIT"),
    };
    // The limit on arguments also applies to variables, including their names.
    match "REQUEUE_KEY=".len() + run.key.len() <= LONGEST {
        true => command.env("REQUEUE_KEY", OsStr::from_bytes(run.key)),
        false => command.env_remove("REQUEUE_KEY"),
    };
    command
}

/// Formats the command line for a key on one line, quoted for a shell.
pub(crate) fn command_line(template: &Template, key: &[u8]) -> String {
    let mut line = quote_word(&template.program_for(key));
    for arg in template.args_for(key) {
        line.push(' ');
        line += &quote_word(&arg);
    }
    line
}

/// Formats a word on one line, quoted for a shell if it needs quotes.
pub(crate) fn quote_word(word: &OsStr) -> String {
    Quoted::native_raw(word).force(false).to_string()
}

/// Returns true if the file has no known executable format.
pub(crate) fn is_of_no_kind(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOEXEC)
}

/// Returns true if a command could not be started because of a temporary lack of resources.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM)
    )
}

/// Returns true if a command can never be started with its key.
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
