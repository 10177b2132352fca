//! Checks before any input is read that the command's program can be executed. Also computes how many commands can run
//! at the same time.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::process::{Resource, getrlimit};

use crate::exit::{Exit, Refusal};
use crate::key::escaped;
use crate::process::template::Template;

/// Checks that exec will find the command's program. If the program depends on the key, only checks that the first
/// word is not a whole command line. GNU parallel accepts a whole command line as one word, and requeue does not.
pub(crate) fn find_program(template: &Template) -> Result<(), Refusal> {
    let exit = match template.fixed_program() {
        Some(program) => locate_program(&program).err(),
        None if is_command_line(template.given_program().as_bytes()) => Some(Exit::NotFound),
        None => None,
    };
    match exit {
        None => Ok(()),
        Some(exit) => Err(Refusal { exit, message: why_not(template.given_program(), exit) }),
    }
}

/// Returns the error message for a program that does not exist or cannot be executed, with the next step.
pub(crate) fn why_not(program: &OsStr, exit: Exit) -> String {
    let name = escaped(program.as_bytes());
    match exit {
        Exit::NotExecutable => format!("{name}: cannot be executed"),
        _ if program.as_bytes().iter().any(is_of_shell) => format!(
            "{name}: not found; a command is a program and its arguments as separate words. Use -c 'SCRIPT' \
             for a command line in one word: a shell runs it, with the key as \"$1\""
        ),
        _ => format!("{name}: not found"),
    }
}

/// Returns true if the word seems to be a program with arguments, because the text before its first space is an
/// existing program.
fn is_command_line(word: &[u8]) -> bool {
    let end = word.iter().position(u8::is_ascii_whitespace);
    end.is_some_and(|end| end > 0 && locate_program(OsStr::from_bytes(&word[..end])).is_ok())
}

/// Returns true for a whitespace character, and for a character that a shell interprets.
fn is_of_shell(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || b"|&;<>()$`\\\"'*?".contains(byte)
}

/// Returns the path of a program, as exec finds it.
pub(crate) fn locate_program(program: &OsStr) -> Result<PathBuf, Exit> {
    if program.as_bytes().contains(&b'/') {
        return check_executable(Path::new(program));
    }
    // If `PATH` is not set, execvp searches these directories.
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut why = Exit::NotFound;
    for directory in std::env::split_paths(&path) {
        match check_executable(&directory.join(program)) {
            Err(Exit::NotExecutable) => why = Exit::NotExecutable,
            Err(_) => {}
            found => return found,
        }
    }
    Err(why)
}

/// Returns the path if it is an executable file. Returns the exit code of requeue otherwise.
fn check_executable(program: &Path) -> Result<PathBuf, Exit> {
    match std::fs::metadata(program) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(Exit::NotExecutable),
        Err(_) => Err(Exit::NotFound),
        Ok(metadata)
            if metadata.is_file() && rustix::fs::access(program, Access::EXEC_OK).is_ok() =>
        {
            Ok(program.to_owned())
        }
        Ok(_) => Err(Exit::NotExecutable),
    }
}

/// Returns the exit code of requeue if `error` says that the program does not exist or cannot be executed. Shells use
/// the same codes.
pub(crate) fn exit_of(error: &io::Error) -> Option<Exit> {
    match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => Some(Exit::NotFound),
        ErrorKind::PermissionDenied => Some(Exit::NotExecutable),
        _ => None,
    }
}

/// Returns the number of slots for `--jobs 0`. For each command, this process has up to six file descriptors open, and
/// four more while the command starts.
pub(crate) fn most_at_once() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    (files.saturating_sub(64) / 6).clamp(1, 1000)
}
