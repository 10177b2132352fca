//! Finds the file of the command before any input is read, and limits the number of commands at once.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::process::{Resource, getrlimit};

use crate::exit::{Exit, Refusal};
use crate::key::escaped;
use crate::process::template::Template;

/// Checks that the command can be found, as exec does. Skips the check if its name depends on the key.
pub(crate) fn find(template: &Template) -> Result<(), Refusal> {
    let Some(program) = template.fixed_program() else { return Ok(()) };
    let Err(exit) = locate(&program) else { return Ok(()) };
    let why = if exit == Exit::NotExecutable { "cannot be executed" } else { "not found" };
    Err(Refusal { exit, message: format!("{}: {why}", escaped(program.as_bytes())) })
}

/// Returns the file of a program, as exec finds it.
pub(crate) fn locate(program: &OsStr) -> Result<PathBuf, Exit> {
    if program.as_bytes().contains(&b'/') {
        return look(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut why = Exit::NotFound;
    for directory in std::env::split_paths(&path) {
        match look(&directory.join(program)) {
            Err(Exit::NotExecutable) => why = Exit::NotExecutable,
            Err(_) => {}
            found => return found,
        }
    }
    Err(why)
}

/// Returns the path if it is an executable file.
fn look(program: &Path) -> Result<PathBuf, Exit> {
    match std::fs::metadata(program) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Exit::NotExecutable),
        Err(_) => Err(Exit::NotFound),
        Ok(metadata)
            if metadata.is_file() && rustix::fs::access(program, Access::EXEC_OK).is_ok() =>
        {
            Ok(program.to_owned())
        }
        Ok(_) => Err(Exit::NotExecutable),
    }
}

/// Returns the number of jobs for `--jobs 0`. A command takes up to six descriptors of this process, and four more
/// while it is being started.
pub(crate) fn most_at_once() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    (files.saturating_sub(64) / 6).clamp(1, 1000)
}
