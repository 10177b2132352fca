//! Resolves the path of a queue's file, and finds the reason why no file can be opened at a path.

#[cfg(unix)]
mod owners;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

#[cfg(unix)]
pub(super) use self::owners::{check, prepare_path};
use crate::types::error::EngineError;

/// Returns the path of a file that SQLite or this program keeps beside the file of a store.
pub(super) fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the path unchanged, because the rules of `owners` apply only to Unix.
#[cfg(not(unix))]
pub(super) fn prepare_path(path: &Path) -> std::io::Result<PathBuf> {
    Ok(path.to_owned())
}

#[cfg(not(unix))]
pub(super) fn check(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Returns the reason why a file at this path cannot be opened, or `None` if the reason is not certain.
pub(super) fn find_obstacle(path: &Path) -> Option<EngineError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let (at, within) = (path.display(), directory.display());
    // SQLite reports the same error for all of these cases.
    if path.is_dir() {
        let file = path.join("jobs.db");
        let said = format!("{at}: it is a directory; name a file, as in sqlite:{}", file.display());
        return Some(EngineError::refused(said));
    }
    match std::fs::metadata(directory) {
        Ok(found) if found.is_dir() => forbidden_access(path, directory)
            .map(|why| EngineError::refused(format!("{at}: {why}"))),
        Ok(_) => Some(EngineError::refused(format!("{at}: {within} is not a directory"))),
        // A file system that contains the directory may be mounted later.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let said = format!("{at}: there is no directory {within}; create it");
            Some(EngineError::unable(said))
        }
        Err(error) => {
            let said = format!("{at}: {within}: {error}");
            Some(match is_lasting(error.kind()) {
                true => EngineError::refused(said),
                false => EngineError::unable(said),
            })
        }
    }
}

/// Returns true if a retry would fail with the same error. Other errors, such as those of a network file system, may be
/// temporary.
pub(super) const fn is_lasting(error: ErrorKind) -> bool {
    matches!(
        error,
        ErrorKind::PermissionDenied | ErrorKind::NotADirectory | ErrorKind::ReadOnlyFilesystem
    )
}

/// Returns a text that says that this process has no permission to write, or `None` if it has permission.
#[cfg(unix)]
fn forbidden_access(path: &Path, directory: &Path) -> Option<String> {
    use rustix::fs::{Access, access};

    let (file, within) = (Access::READ_OK | Access::WRITE_OK, Access::WRITE_OK | Access::EXEC_OK);
    let exists = |suffix| beside(path, suffix).exists();
    let file = exists("").then_some((path, file));
    // SQLite creates these files in the directory if they do not exist.
    let is_complete = ["", "-wal", "-shm"].into_iter().all(exists);
    let within = (!is_complete).then_some((directory, within));
    file.into_iter().chain(within).find_map(|(place, needed)| {
        let error = std::io::Error::from(access(place, needed).err()?);
        let why = || format!("this process may not write {}: {error}", place.display());
        is_lasting(error.kind()).then(why)
    })
}

#[cfg(not(unix))]
fn forbidden_access(_: &Path, _: &Path) -> Option<String> {
    None
}
