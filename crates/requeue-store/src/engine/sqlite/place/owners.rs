//! Checks who owns a queue's files. Other users may have permission to write to the directory of the file, or to a
//! parent directory.

use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, Error, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// The suffixes of the files that belong to a queue's file.
const BESIDE: [&str; 4] = ["-wal", "-shm", "-journal", "-reserve"];

/// Returns the path of the file without symbolic links. Creates the file, with permissions for its owner only, if it
/// does not exist.
///
/// SQLite gives its log and its shared memory the same mode, and follows no link to them. This function does not open
/// an existing file, because closing the file would release the locks of this process on it.
///
/// # Errors
///
/// Returns an error if the path contains a symbolic link of another user, or [`check`] refuses a file.
pub(in super::super) fn prepare_path(path: &Path) -> io::Result<PathBuf> {
    if is_special(path) {
        return Ok(path.to_owned());
    }
    let Some(place) = resolve_links(path)? else { return Ok(path.to_owned()) };
    check(&place)?;
    let new = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&place);
    // An error of this call has no effect: either the file exists, or SQLite reports the error later.
    drop(new);
    Ok(place)
}

/// Refuses a file that another user has put into a directory in which other users can create files, because the file
/// would receive the keys. Also refuses a FIFO or a device in the place of the queue's file.
///
/// SQLite opens the files by their names. Therefore, the caller checks them before SQLite opens them, and again
/// afterwards.
pub(in super::super) fn check(place: &Path) -> io::Result<()> {
    if is_special(place) {
        return Ok(());
    }
    // SQLite opens each of these files by its name, and would write keys into a file of another user.
    for suffix in std::iter::once("").chain(BESIDE) {
        let file = super::beside(place, suffix);
        let Ok(found) = file.symlink_metadata() else { continue };
        let kind = found.file_type();
        if suffix.is_empty() && !(kind.is_file() || kind.is_dir()) {
            return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
        }
        check_planted(&file, &found)?;
    }
    Ok(())
}

/// Returns true if the name means a database in memory. SQLite does not treat such a name as a path.
fn is_special(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    bytes.starts_with(b":") || bytes.starts_with(b"file:")
}

/// Follows the symbolic links of a path one by one, because each may belong to another user. Returns `None` if SQLite
/// cannot open the file either. SQLite then reports the reason.
fn resolve_links(path: &Path) -> io::Result<Option<PathBuf>> {
    const MOST_LINKS: usize = 40;
    let (mut at, mut links) = (PathBuf::new(), 0);
    let mut rest = reversed_components(path);
    while let Some(component) = rest.pop() {
        at.push(&component);
        if component == "/" || component == ".." {
            continue;
        }
        let found = match at.symlink_metadata() {
            Ok(found) => found,
            Err(error) if error.kind() == ErrorKind::NotFound && rest.is_empty() => break,
            Err(_) => return Ok(None),
        };
        if !found.is_symlink() {
            if !rest.is_empty() {
                check_planted(&at, &found)?;
            }
            continue;
        }
        links += 1;
        if links > MOST_LINKS {
            return Ok(None);
        }
        // The owner of a link could change its target after this check, so the owner must be trusted.
        if !is_trusted(found.uid()) {
            let what =
                format!("a symbolic link of another user (uid {}) is not followed", found.uid());
            return Err(refuse_path(&at, &what));
        }
        let Ok(to) = at.read_link() else { return Ok(None) };
        at.pop();
        rest.extend(reversed_components(&to));
    }
    // The path may be `.`, or a link to the current directory, so that no component is left. With an empty name, SQLite
    // would open a temporary database.
    Ok(Some(if at.as_os_str().is_empty() { PathBuf::from(".") } else { at }))
}

/// Returns the components of a path, the last one first.
fn reversed_components(path: &Path) -> Vec<OsString> {
    let components = path.components().rev().filter(|component| *component != Component::CurDir);
    components.map(|component| component.as_os_str().to_owned()).collect()
}

fn check_planted(at: &Path, found: &Metadata) -> io::Result<()> {
    let dir = at.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(dir) = dir.metadata() else { return Ok(()) };
    if !is_shared(dir.mode()) || is_trusted(found.uid()) || found.uid() == dir.uid() {
        return Ok(());
    }
    let uid = found.uid();
    let what =
        format!("it belongs to another user (uid {uid}), and others can write to its directory");
    Err(refuse_path(at, &what))
}

fn refuse_path(at: &Path, what: &str) -> Error {
    let why = format!("{}: {what}; choose another path", at.display());
    Error::new(ErrorKind::PermissionDenied, why)
}

/// Returns true if a directory with this mode is one in which users can put files for other users. Either all users can
/// write to it, or a group whose members cannot replace each other's files. `output/files.rs` of the program applies
/// the same rule.
const fn is_shared(mode: u32) -> bool {
    mode & 0o002 != 0 || (mode & 0o1000 != 0 && mode & 0o020 != 0)
}

/// Returns true if `owner` is this user or root.
fn is_trusted(owner: u32) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&owner)
}
