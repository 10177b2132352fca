//! Files that the program writes. Their directories may be open to other users. Therefore links of other users are not
//! followed, new files are readable only by their owner, and a file is replaced in one step.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::output::blocking_file::BlockingFile;

/// The device and inode of a file.
pub(crate) type Identity = (u64, u64);

/// Returns the identity of a regular file. `None` for terminals and other devices, which several flags may share.
pub(crate) fn identity(of: &Metadata) -> Option<Identity> {
    of.is_file().then(|| (of.dev(), of.ino()))
}

/// Duplicates the handle of the standard stream with this name. A newly opened handle would have a position of its own,
/// and the two handles would overwrite each other's output.
pub(crate) fn standard(path: &Path) -> Option<io::Result<BlockingFile>> {
    match descriptor(path)? {
        "1" => Some(BlockingFile::own(io::stdout())),
        "2" => Some(BlockingFile::own(io::stderr())),
        _ => None,
    }
}

/// Returns the descriptor that a path such as `/dev/stdout` names.
fn descriptor(path: &Path) -> Option<&str> {
    match path.to_str()? {
        "/dev/stdout" => Some("1"),
        "/dev/stderr" => Some("2"),
        path => path.strip_prefix("/dev/fd/").or_else(|| path.strip_prefix("/proc/self/fd/")),
    }
}

/// Opens a file to append to. Creates the file if it does not exist.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().append(true).create(true))
}

/// Opens a file to write from its start. Creates the file if it does not exist. Its content is deleted by
/// [`empty`].
pub(crate) fn overwrite(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().write(true).create(true).truncate(false))
}

/// Deletes the content of a regular file.
pub(crate) fn empty(file: &File) -> io::Result<()> {
    if file.metadata()?.is_file() { file.set_len(0) } else { Ok(()) }
}

/// Follows symbolic links one at a time, because each may belong to another user.
fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        // The link of an open file need not lead to a name, and it belongs to this process.
        let flags = if descriptor(&path).is_some() { OFlags::empty() } else { OFlags::NOFOLLOW };
        match options.mode(0o600).custom_flags(flags.bits().cast_signed()).open(&path) {
            Err(error) if error.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {}
            opened => return opened,
        }
        let owner = path.symlink_metadata()?.uid();
        if !follows(owner, geteuid().as_raw()) {
            let why = format!("not followed: a symbolic link of another user (uid {owner})");
            return Err(io::Error::new(ErrorKind::PermissionDenied, why));
        }
        path = path.parent().unwrap_or(Path::new("")).join(path.read_link()?);
    }
    Err(Errno::LOOP.into())
}

/// Returns true if a symbolic link of `owner` is followed for `user`.
const fn follows(owner: u32, user: u32) -> bool {
    owner == user || owner == 0
}

/// A file that is replaced at the end. Devices and open files are appended to.
#[derive(Debug)]
pub(crate) struct Replaced {
    file: File,
    /// The canonical path of a regular file; `None` for any other file.
    path: Option<PathBuf>,
}

impl Replaced {
    /// Opens the file at once, so that errors are reported before the run.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = append(path)?;
        let is_regular = file.metadata()?.is_file() && descriptor(path).is_none();
        let path = is_regular.then(|| path.canonicalize()).transpose()?;
        Ok(Self { file, path })
    }

    pub(crate) fn identity(&self) -> io::Result<Option<Identity>> {
        Ok(identity(&self.file.metadata()?))
    }

    /// Replaces the file in one step with the output of `write`. The mode and the owner stay the same. If this process
    /// may not set the owner, only this user can read the new file. A file that is not regular is appended to.
    pub(crate) fn replace(
        &self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(path) = &self.path else {
            return write(&mut BlockingFile::new(self.file.try_clone()?));
        };
        let dir = path.parent().unwrap_or(Path::new("/"));
        let was = self.file.metadata()?;
        // The name is random, the file is created exclusively, and its mode is 0600.
        let mut new = tempfile::Builder::new().prefix(".requeue-").tempfile_in(dir)?;
        write(new.as_file_mut())?;
        let is = new.as_file().metadata()?;
        let same = (is.uid(), is.gid()) == (was.uid(), was.gid());
        let given = same || fchown(new.as_file(), Some(was.uid()), Some(was.gid())).is_ok();
        let mode = was.mode() & if given { 0o7777 } else { 0o700 };
        new.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
        new.as_file().sync_all()?;
        // If a link has taken the place of the file in the meantime, this replaces the link.
        new.persist(path).map_err(|error| error.error)?;
        File::open(dir)?.sync_all()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    fn mode(of: &File) -> u32 {
        of.metadata().unwrap().mode() & 0o7777
    }

    #[test]
    fn a_new_file_is_readable_by_its_owner_alone_and_an_old_one_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        for open in [append, overwrite] {
            assert_eq!(mode(&open(&path).unwrap()) & 0o177, 0);
            fs::remove_file(&path).unwrap();
        }
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let replaced = Replaced::open(&path).unwrap();
        let secret = |out: &mut dyn Write| {
            out.write_all(b"new")?;
            for entry in fs::read_dir(dir.path())? {
                let entry = entry?;
                let is_new = entry.file_name() != "f";
                assert!(!is_new || entry.metadata()?.mode() & 0o177 == 0, "{entry:?}");
            }
            Ok(())
        };
        replaced.replace(secret).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(mode(&File::open(&path).unwrap()), 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_that_cannot_be_written_to_the_end_stays_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, "old").unwrap();
        let replaced = Replaced::open(&path).unwrap();
        let fail = |out: &mut dyn Write| {
            out.write_all(b"new")?;
            Err(io::Error::other("full"))
        };
        assert_eq!(replaced.replace(fail).unwrap_err().to_string(), "full");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// The link is created before the file is opened, or while the program runs.
    #[test]
    fn a_planted_link_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let [victim, path] = ["victim", "f"].map(|name| dir.path().join(name));
        fs::write(&victim, "precious").unwrap();
        let replaced = Replaced::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        replaced.replace(|out| out.write_all(b"keys")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"keys");
        assert!(!path.symlink_metadata().unwrap().is_symlink());

        assert!(follows(1000, 1000) && follows(0, 1000) && follows(0, 0));
        assert!(!follows(1001, 1000) && !follows(1000, 0));
        fs::remove_file(&path).unwrap();
        symlink(&victim, &path).unwrap();
        // Only root can change the owner of a link.
        if lchown(&path, Some(65534), None).is_ok() {
            for open in [append, overwrite] {
                let error = open(&path).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            }
            assert!(Replaced::open(&path).is_err());
            // A link of another user is not followed behind a link of ours either.
            let ours = dir.path().join("ours");
            symlink("f", &ours).unwrap();
            assert_eq!(append(&ours).unwrap_err().kind(), ErrorKind::PermissionDenied);
        }
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn a_link_of_ours_is_followed_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [target, path] = ["target", "f"].map(|name| dir.path().join(name));
        symlink(&target, &path).unwrap();
        append(&path).unwrap().write_all(b"old").unwrap();
        Replaced::open(&path).unwrap().replace(|out| out.write_all(b"new")).unwrap();
        assert!(path.symlink_metadata().unwrap().is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
        let first = dir.path().join("first");
        symlink("f", &first).unwrap();
        append(&first).unwrap().write_all(b"er").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"newer");
        // The standard streams may belong to another user.
        let stream = fs::File::create(dir.path().join("of the stream")).unwrap();
        let descriptor = format!("/dev/fd/{}", stream.as_raw_fd());
        symlink(descriptor, dir.path().join("stream")).unwrap();
        append(&dir.path().join("stream")).unwrap();
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(append(&dir.path().join("loop")).is_err());
    }
}
