//! Opens the watched files and directories. Without `-L`, each component of a path below a root is opened relative to
//! the component before it, and a link is an error. An attacker who replaces a directory with a link thus gains no
//! access.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, DirEntry, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;

use crate::output::files::SEARCH;

/// Without `NONBLOCK`, the open of a FIFO would wait for a writer.
const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
const READ_DIRECTORY: OFlags = READ.union(OFlags::DIRECTORY);

/// The treatment of symbolic links to files and directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Links {
    Ignored,
    Followed,
}

/// The device and the inode of a file or directory. A rename changes neither of them.
pub(super) type Id = (u64, u64);

/// The metadata of a file or directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meta {
    kind: FileType,
    pub(super) stamp: Stamp,
}

/// The metadata of a file that change with its content. Times are in nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    pub(super) id: Id,
    pub(super) size: u64,
    pub(super) modified: i64,
    pub(super) changed: i64,
}

impl Meta {
    fn from_stat(stat: &Stat) -> Self {
        // The types of the fields differ between systems, so they are converted.
        let number = |number: i128| number as u64;
        let nanos = |seconds: i128, nanos: i128| (seconds * 1_000_000_000 + nanos) as i64;
        let stamp = Stamp {
            id: (number(stat.st_dev.into()), number(stat.st_ino.into())),
            size: number(stat.st_size.into()),
            modified: nanos(stat.st_mtime.into(), stat.st_mtime_nsec.into()),
            changed: nanos(stat.st_ctime.into(), stat.st_ctime_nsec.into()),
        };
        Self { kind: FileType::from_raw_mode(stat.st_mode), stamp }
    }

    pub(super) fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }
}

/// An open directory.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    fd: OwnedFd,
    links: Links,
}

impl Links {
    /// Opens the directory at the path `inside` in `root`. Links in `root` itself are followed, because the user named
    /// it. Returns `NotFound` if another kind of file has replaced a directory of the path.
    pub(super) fn open_dir(self, root: &Path, inside: &Path) -> io::Result<Directory> {
        let path: PathBuf = root.components().chain(inside.components()).collect();
        let at =
            |at: &OwnedFd, name: &OsStr| openat(at, name, SEARCH | self.open_flag(), Mode::empty());
        let open = |path: &Path| rustix::fs::open(path, SEARCH, Mode::empty());
        let fd = match self {
            Self::Followed => open(&path),
            Self::Ignored => inside
                .iter()
                .try_fold(open(root).map_err(as_not_found)?, |dir, name| at(&dir, name)),
        };
        Ok(Directory { path, fd: fd.map_err(as_not_found)?, links: self })
    }

    fn open_flag(self) -> OFlags {
        match self {
            Self::Ignored => OFlags::NOFOLLOW,
            Self::Followed => OFlags::empty(),
        }
    }
}

impl Directory {
    /// Returns the metadata of the directory.
    pub(super) fn meta(&self) -> io::Result<Meta> {
        Ok(Meta::from_stat(&fstat(&self.fd)?))
    }

    /// Returns the metadata of the entry with this name.
    pub(super) fn meta_of(&self, name: &OsStr) -> Option<Meta> {
        let flags = match self.links {
            Links::Ignored => AtFlags::SYMLINK_NOFOLLOW,
            Links::Followed => AtFlags::empty(),
        };
        Some(Meta::from_stat(&statat(&self.fd, name, flags).ok()?))
    }

    /// Opens the file with this name. Returns `NotFound` if a link or another kind of file has replaced it.
    pub(super) fn open_file(&self, name: &OsStr) -> io::Result<File> {
        let opened = openat(&self.fd, name, READ | self.links.open_flag(), Mode::empty());
        let file = File::from(opened.map_err(as_not_found)?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(ErrorKind::NotFound.into()) }
    }

    /// Returns the names of the directory's entries.
    pub(super) fn entry_names(&self) -> io::Result<HashSet<OsString>> {
        // `fd` may be a descriptor that permits only searches. A second descriptor is opened to list the entries.
        let listed = openat(&self.fd, c".", READ_DIRECTORY, Mode::empty())?;
        let name = |entry: rustix::io::Result<DirEntry>| {
            entry.map(|entry| OsStr::from_bytes(entry.file_name().to_bytes()).to_owned())
        };
        let names = Dir::new(listed)?.map(name);
        Ok(names
            .filter(|name| !name.as_ref().is_ok_and(|name| name == "." || name == ".."))
            .collect::<Result<_, _>>()?)
    }
}

/// Converts the error of an open that found a link or another kind of file. The error differs between systems, so all
/// its forms become `NotFound`.
fn as_not_found(error: Errno) -> io::Error {
    match error {
        Errno::LOOP | Errno::MLINK | Errno::NOTDIR | Errno::NXIO => ErrorKind::NotFound.into(),
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_at_any_place_below_the_root_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(dir.path().join("outside/b")).unwrap();
        fs::write(root.join("a/b/file"), "").unwrap();
        symlink(&root, dir.path().join("link")).unwrap();
        symlink("../outside", root.join("parent")).unwrap();
        symlink("../../outside/b", root.join("a/last")).unwrap();
        let open = |links: Links, inside: &str| {
            links
                .open_dir(&dir.path().join("link"), Path::new(inside))
                .map_err(|error| error.kind())
        };
        for inside in ["", "a", "a/b"] {
            open(Links::Ignored, inside).unwrap();
        }
        for inside in ["parent", "parent/b", "a/last", "a/b/file"] {
            assert_eq!(open(Links::Ignored, inside).unwrap_err(), ErrorKind::NotFound, "{inside}");
        }
        for inside in ["parent/b", "a/last"] {
            assert!(open(Links::Followed, inside).unwrap().entry_names().unwrap().is_empty());
        }
    }
}
