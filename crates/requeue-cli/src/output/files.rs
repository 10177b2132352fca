//! Opens the files that the program writes. Other users may be able to write to the directories of these files. Links
//! of other users are therefore not followed, and files that other users planted are refused. Only the owner can read
//! a new file.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawMode, Stat, fcntl_getfl, fcntl_setfl, fstat, openat,
    readlinkat, statat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::exit::Refusal;
use crate::key::escaped;
use crate::output::blocking_file::BlockingFile;

/// The flags to open a parent directory. They permit only searches, because this process may have no right to list the
/// directory.
#[cfg(any(target_os = "android", target_os = "freebsd", target_os = "linux"))]
pub(crate) const SEARCH: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
#[cfg(not(any(target_os = "android", target_os = "freebsd", target_os = "linux")))]
pub(crate) const SEARCH: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);

/// The device and the inode of a file.
pub(crate) type Identity = (u64, u64);

/// Returns the identity of a regular file. Returns `None` for a terminal or another device, because several flags may
/// name the same device.
pub(crate) fn identity(of: &Metadata) -> Option<Identity> {
    of.is_file().then(|| (of.dev(), of.ino()))
}

/// Opens the file of a flag, or duplicates the standard stream that the flag names. Refuses a file that is also the
/// input.
pub(crate) fn open_file(
    flag: &str,
    path: &Path,
    open: fn(&Path) -> io::Result<File>,
    input: Option<Identity>,
) -> Result<(BlockingFile, Option<Identity>), Refusal> {
    let failed = |error| open_failure(flag, path, &error);
    if let Some(stream) = standard_stream(path) {
        return Ok((stream.map_err(failed)?, None));
    }
    let file = open(path).map_err(failed)?;
    let identity = identity(&file.metadata().map_err(failed)?);
    if identity.is_some() && identity == input {
        return Err(Refusal::usage(format!("{flag}: the file is the input; name another file")));
    }
    Ok((BlockingFile(file), identity))
}

/// Returns the message to the user about a file that could not be opened. The message names the flag and the file.
pub(crate) fn open_failure(flag: &str, path: &Path, error: &io::Error) -> Refusal {
    let name = escaped(path.as_os_str().as_bytes());
    Refusal::failure(format!("{flag} {name}: {error}"))
}

/// Duplicates the descriptor of the standard stream that the path names. If the stream were opened again, it would
/// have a second position, and the two outputs would overwrite each other.
fn standard_stream(path: &Path) -> Option<io::Result<BlockingFile>> {
    match named_descriptor(path)? {
        "1" => Some(BlockingFile::of_stream(io::stdout())),
        "2" => Some(BlockingFile::of_stream(io::stderr())),
        _ => None,
    }
}

/// Returns the number of the descriptor that a path such as `/dev/stdout` names.
fn named_descriptor(path: &Path) -> Option<&str> {
    match path.to_str()? {
        "/dev/stdout" => Some("1"),
        "/dev/stderr" => Some("2"),
        path => path.strip_prefix("/dev/fd/").or_else(|| path.strip_prefix("/proc/self/fd/")),
    }
}

/// Opens a file to append to it. Creates the file if it does not exist.
pub(crate) fn open_to_append(path: &Path) -> io::Result<File> {
    open_by_components(path, OFlags::APPEND)
}

/// Opens a file to write from its start. Creates the file if it does not exist.
pub(crate) fn open_to_overwrite(path: &Path) -> io::Result<File> {
    open_by_components(path, OFlags::empty())
}

/// Opens each component of a path relative to the component before it. This function follows links itself, because it
/// must check the owner of each link.
fn open_by_components(path: &Path, how: OFlags) -> io::Result<File> {
    const MOST_LINKS: usize = 40;
    if path.as_os_str().as_bytes().ends_with(b"/") {
        return Err(Errno::ISDIR.into());
    }
    let start = |root: &str| rustix::fs::open(root, SEARCH, Mode::empty());
    let mut dir = start(if path.is_absolute() { "/" } else { "." })?;
    let mut at = PathBuf::new();
    let mut rest = reversed_components(path);
    let mut links = 0;
    while let Some(component) = rest.pop() {
        at.push(&component);
        if component == "/" {
            dir = start("/")?;
            continue;
        }
        // `..` names a directory, so it cannot be the file.
        let is_last = rest.is_empty() && component != "..";
        let found = match statat(&dir, &component, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) if is_last => None,
            found => Some(found?),
        };
        if let Some(found) = &found {
            let is_link = FileType::from_raw_mode(found.st_mode) == FileType::Symlink;
            if component != ".." {
                check_owner(&fstat(&dir)?, found, &at)?;
            }
            if is_link && !(is_last && is_of_proc(&dir)) {
                links += 1;
                if links > MOST_LINKS {
                    return Err(Errno::LOOP.into());
                }
                let to = readlinkat(&dir, &component, Vec::new())?;
                // The target of a link is relative to the directory that contains the link.
                at.pop();
                rest.extend(reversed_components(Path::new(OsStr::from_bytes(to.to_bytes()))));
                continue;
            }
        }
        if is_last {
            let file = open_last(&dir, &component, how, found.as_ref())?;
            // The first check used the name of the file, and another user may have replaced the file since then. The
            // open file is therefore checked too.
            check_owner(&fstat(&dir)?, &fstat(&file)?, &at)?;
            return Ok(file);
        }
        let next = openat(&dir, &component, SEARCH | OFlags::NOFOLLOW, Mode::empty())?;
        if component != ".." {
            // The first check used the name of the directory, and another user may have replaced it since then. The
            // open directory is therefore checked too.
            check_owner(&fstat(&dir)?, &fstat(&next)?, &at)?;
        }
        dir = next;
    }
    Err(if path.as_os_str().is_empty() { Errno::NOENT } else { Errno::ISDIR }.into())
}

/// Returns the components of a path in reverse order.
fn reversed_components(path: &Path) -> Vec<OsString> {
    let components = path.components().rev().filter(|component| *component != Component::CurDir);
    components.map(|component| component.as_os_str().to_owned()).collect()
}

/// Opens the last component of a path. Waits for the reader of a FIFO only if this user or root owns the FIFO.
fn open_last(dir: &OwnedFd, name: &OsStr, how: OFlags, found: Option<&Stat>) -> io::Result<File> {
    let is_a = |kind| found.is_some_and(|found| FileType::from_raw_mode(found.st_mode) == kind);
    // A link of the proc file system to an open file need not contain a path, so the system follows it.
    let links = if is_a(FileType::Symlink) { OFlags::empty() } else { OFlags::NOFOLLOW };
    let how = how | links | OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOCTTY;
    let mode = Mode::RUSR | Mode::WUSR;
    let is_trusted = found.is_some_and(|found| trusts_owner(found.st_uid, geteuid().as_raw()));
    // The open does not wait. Otherwise, a FIFO of another user would block the program at this point.
    match openat(dir, name, how | OFlags::NONBLOCK, mode) {
        Err(Errno::NXIO) if is_a(FileType::Fifo) && is_trusted => {
            Ok(openat(dir, name, how, mode)?.into())
        }
        opened => {
            let file = opened?;
            fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
            Ok(file.into())
        }
    }
}

/// Returns true if `dir` is a directory of the proc file system. Its links lead directly to open files, and their text
/// need not be a path.
fn is_of_proc(dir: &OwnedFd) -> bool {
    #[cfg(any(target_os = "android", target_os = "linux"))]
    {
        use rustix::fs::{PROC_SUPER_MAGIC, fstatfs};
        fstatfs(dir).is_ok_and(|system| system.f_type == PROC_SUPER_MAGIC)
    }
    #[cfg(not(any(target_os = "android", target_os = "linux")))]
    {
        let _ = dir;
        false
    }
}

/// Refuses a symbolic link of another user. In a directory where other users can create files, such as `/tmp`, also
/// refuses a directory or file of another user. That user may have put it there for this program.
fn check_owner(dir: &Stat, found: &Stat, at: &Path) -> io::Result<()> {
    let (owner, user) = (found.st_uid, geteuid().as_raw());
    let why = if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
        (!trusts_owner(owner, user)).then_some("a symbolic link of another user")
    } else {
        let is_planted =
            is_shared(dir.st_mode) && !trusts_owner(owner, user) && owner != dir.st_uid;
        is_planted.then_some("it belongs to another user, and others can write to its directory")
    };
    let Some(why) = why else { return Ok(()) };
    let at = escaped(at.as_os_str().as_bytes());
    let why = format!("{at} is not used: {why} (uid {owner}); choose another path");
    Err(io::Error::new(ErrorKind::PermissionDenied, why))
}

/// Returns true if `user` follows the links of `owner`.
const fn trusts_owner(owner: u32, user: u32) -> bool {
    owner == user || owner == 0
}

/// Returns true if a user can plant files for other users in a directory with this mode. Such a directory is writable
/// for all users, or for a group whose members cannot replace each other's files. `engine/sqlite/place/owners.rs` of
/// the stores has the same rule.
const fn is_shared(mode: RawMode) -> bool {
    mode & 0o002 != 0 || (mode & 0o1000 != 0 && mode & 0o020 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    fn mode(of: &File) -> u32 {
        of.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn a_new_file_is_readable_by_its_owner_alone_and_an_old_one_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for open in [open_to_append, open_to_overwrite] {
            assert_eq!(mode(&open(&path).unwrap()) & 0o177, 0);
            fs::remove_file(&path).unwrap();
        }
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(mode(&open_to_append(&path).unwrap()), 0o640);
    }

    #[test]
    fn a_planted_link_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let [victim, path] = ["victim", "f"].map(|name| dir.path().join(name));
        fs::write(&victim, "precious").unwrap();
        assert!(trusts_owner(1000, 1000) && trusts_owner(0, 1000) && trusts_owner(0, 0));
        assert!(!trusts_owner(1001, 1000) && !trusts_owner(1000, 0));
        symlink(&victim, &path).unwrap();
        // Only root can change the owner of a link.
        if lchown(&path, Some(65534), None).is_ok() {
            for open in [open_to_append, open_to_overwrite] {
                let error = open(&path).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            }
            // A link of another user is not followed, even if a link of this user leads to it.
            let ours = dir.path().join("ours");
            symlink("f", &ours).unwrap();
            assert_eq!(open_to_append(&ours).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    /// Only root can create files of other users, so the test does nothing for other users.
    #[test]
    fn a_directory_that_is_a_link_of_another_user_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("theirs/inner")).unwrap();
        symlink("theirs", at("link")).unwrap();
        symlink("link/inner", at("ours")).unwrap();
        if lchown(at("link"), Some(65534), None).is_err() {
            return;
        }
        for path in ["link/f", "link/inner/f", "theirs/../link/f", "ours/f"] {
            for open in [open_to_append, open_to_overwrite] {
                let error = open(&at(path)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{path}: {error}");
                assert!(
                    error.to_string().contains("link\" is not used: a symbolic link"),
                    "{error}"
                );
            }
        }
        for path in ["theirs/f", "theirs/inner/f"] {
            assert!(!at(path).exists(), "{path}");
        }
    }

    /// The kernel may also refuse some of these files, if its own protection is enabled.
    #[test]
    fn what_another_user_planted_in_a_shared_directory_receives_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let shared = dir.path().join("shared");
        let at = |name: &str| shared.join(name);
        fs::create_dir_all(at("dir")).unwrap();
        fs::write(at("file"), "theirs").unwrap();
        mkfifo(&at("fifo"));
        let paths = [at("file"), at("fifo"), at("dir/f")];
        let open_all = || {
            paths.iter().flat_map(|path| {
                [open_to_append(path).map(drop), open_to_overwrite(path).map(drop)]
            })
        };
        for name in ["dir", "file", "fifo"] {
            if std::os::unix::fs::chown(at(name), Some(65534), None).is_err() {
                return;
            }
        }
        for mode in [0o1777, 0o777, 0o1770] {
            fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
            for error in open_all().map(Result::unwrap_err) {
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{mode:o}: {error}");
                let why = "it belongs to another user, and others can write to its directory";
                assert!(error.to_string().contains(why), "{mode:o}: {error}");
            }
        }
        assert!(!at("dir/f").exists());
        // In a directory that only its owner or a group can write to, files of other users are permitted.
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o775)).unwrap();
        open_to_append(&at("file")).unwrap().write_all(b" and ours").unwrap();
        assert_eq!(fs::read(at("file")).unwrap(), b"theirs and ours");
        open_to_append(&at("dir/f")).unwrap();
        // The FIFO must not be opened, because its owner could then block the program.
        let error = open_to_append(&at("fifo")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::NXIO.raw_os_error()));
    }

    fn mkfifo(path: &Path) {
        let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
        assert!(made.success());
    }

    #[test]
    fn a_fifo_of_ours_is_written_when_a_reader_comes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        mkfifo(&path);
        for reader_is_first in [true, false] {
            let reader = || {
                let path = path.clone();
                std::thread::spawn(move || fs::read(path).unwrap())
            };
            let early = reader_is_first.then(reader);
            let late = std::thread::spawn({
                let path = path.clone();
                move || open_to_append(&path).unwrap()
            });
            let reader = early.unwrap_or_else(reader);
            let mut file = late.join().unwrap();
            assert!(!fcntl_getfl(&file).unwrap().contains(OFlags::NONBLOCK));
            file.write_all(b"key").unwrap();
            drop(file);
            assert_eq!(reader.join().unwrap(), b"key");
        }
    }

    #[test]
    fn usual_paths_lead_where_the_system_would_follow_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).unwrap();
        symlink(at("a"), at("absolute")).unwrap();
        symlink("../a/./b", at("a/relative")).unwrap();
        symlink("..", at("a/b/up")).unwrap();
        for (n, path) in
            ["a/f", "./a//b/f", "absolute/f", "a/relative/f", "a/b/up/f", "a/b/../f", "a/b/up/../f"]
                .into_iter()
                .enumerate()
        {
            open_to_append(&at(path)).unwrap().write_all(n.to_string().as_bytes()).unwrap();
            assert!(fs::read_to_string(at(path)).unwrap().ends_with(&n.to_string()), "{path}");
        }
        for path in ["a", "a/", "a/f/", "a/b/..", "none/f", "a/f/g"] {
            assert!(open_to_append(&at(path)).is_err(), "{path}");
        }
        assert!(open_to_append(Path::new("")).is_err() && open_to_append(Path::new("/")).is_err());
        open_to_append(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn a_link_of_ours_is_followed_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [target, path] = ["target", "f"].map(|name| dir.path().join(name));
        symlink(&target, &path).unwrap();
        open_to_append(&path).unwrap().write_all(b"new").unwrap();
        assert!(path.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
        let first = dir.path().join("first");
        symlink("f", &first).unwrap();
        open_to_append(&first).unwrap().write_all(b"er").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"newer");
        // Another user may own the files of the standard streams.
        let stream = fs::File::create(dir.path().join("of the stream")).unwrap();
        let descriptor = format!("/dev/fd/{}", stream.as_raw_fd());
        symlink(descriptor, dir.path().join("stream")).unwrap();
        open_to_append(&dir.path().join("stream")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(open_to_append(&dir.path().join("loop")).is_err());
    }
}
