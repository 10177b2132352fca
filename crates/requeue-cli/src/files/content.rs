//! The content of a file, as much of it as shows a change.

use std::fs::{self, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The size of the largest file that is read, in bytes. For a larger file, only the size and the time count.
pub(super) const LARGEST: u64 = 16 << 20;

/// The age from which the time of a file shows each later change. A file system may store times in steps of this
/// length.
const TICK: Duration = Duration::from_secs(2);

/// The treatment of symbolic links to files and directories.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Links {
    Ignored,
    Followed,
}

impl Links {
    /// Returns the metadata of a path.
    pub(super) fn metadata(self, path: &Path) -> Option<Metadata> {
        match self {
            Self::Followed => fs::metadata(path).ok(),
            Self::Ignored => fs::symlink_metadata(path).ok(),
        }
    }
}

/// The content of a file when it was last looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Content {
    stamp: Stamp,
    /// `None` if the file is too large, or cannot be read.
    hash: Option<u64>,
    /// The file was older than [`TICK`], so that its stamp shows each later change.
    is_settled: bool,
}

/// The metadata of a file that a change of its content changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            file: (meta.dev(), meta.ino()),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

impl Content {
    /// Reads a file, whose metadata the caller has just read. Returns `None` if it no longer exists, or if something else
    /// has taken its place. The hash depends on a secret, so that no one can construct a change with the same hash.
    pub(super) fn read(
        path: &Path,
        meta: &Metadata,
        secret: &RandomState,
        links: Links,
        now: SystemTime,
    ) -> Option<Self> {
        let stamp = Stamp::of(meta);
        let is_settled = now.duration_since(changed_at(meta)).is_ok_and(|age| age > TICK);
        let hash = match stamp.size {
            ..=LARGEST => match hash(path, secret, links) {
                Ok(hash) => Some(hash),
                Err(error) if error.kind() == ErrorKind::NotFound => return None,
                Err(_) => None,
            },
            _ => None,
        };
        Some(Self { stamp, hash, is_settled })
    }

    /// Returns true if the metadata show that the content is still the same.
    pub(super) fn is_certainly(&self, meta: &Metadata) -> bool {
        self.is_settled && self.stamp == Stamp::of(meta)
    }

    pub(super) fn differs(&self, from: &Self) -> bool {
        match (self.hash, from.hash) {
            (Some(one), Some(other)) => one != other,
            _ => {
                let of = |stamp: Stamp| (stamp.size, stamp.modified);
                of(self.stamp) != of(from.stamp)
            }
        }
    }
}

/// Returns the time at which the content or the metadata of a file changed last. Programs cannot set it.
pub(super) fn changed_at(meta: &Metadata) -> SystemTime {
    let seconds = Duration::from_secs(u64::try_from(meta.ctime()).unwrap_or(0));
    let nanos = Duration::from_nanos(u64::try_from(meta.ctime_nsec()).unwrap_or(0));
    UNIX_EPOCH + seconds + nanos
}

fn hash(path: &Path, secret: &RandomState, links: Links) -> io::Result<u64> {
    const PIECE: u64 = 64 << 10;
    // Another process may have put a FIFO in its place, whose opening would wait for a writer, or a link.
    let flags = match links {
        Links::Ignored => OFlags::NONBLOCK | OFlags::NOFOLLOW,
        Links::Followed => OFlags::NONBLOCK,
    };
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    let mut file = opened.map_err(|error| match Errno::from_io_error(&error) {
        // It is a link now. Some systems have an error of their own for that.
        Some(Errno::LOOP | Errno::MLINK) => ErrorKind::NotFound.into(),
        _ => error,
    })?;
    if !file.metadata()?.is_file() {
        return Err(ErrorKind::NotFound.into());
    }
    let mut hasher = secret.build_hasher();
    let mut piece = Vec::new();
    // A file that grows while it is read changes again, and is then read again.
    for _ in 0..=LARGEST / PIECE {
        piece.clear();
        file.by_ref().take(PIECE).read_to_end(&mut piece)?;
        if piece.is_empty() {
            break;
        }
        hasher.write(&piece);
    }
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn metadata_are_trusted_only_when_they_are_older_than_a_tick() {
        let (dir, secret) = (tempfile::tempdir().unwrap(), RandomState::new());
        let path = dir.path().join("file");
        fs::write(&path, "one").unwrap();
        let meta = fs::metadata(&path).unwrap();
        let read = |meta: &Metadata, age| {
            Content::read(&path, meta, &secret, Links::Ignored, changed_at(meta) + age).unwrap()
        };
        assert!(!read(&meta, Duration::ZERO).is_certainly(&meta));
        assert!(!read(&meta, TICK).is_certainly(&meta));
        let before = read(&meta, TICK * 2);
        assert!(before.is_certainly(&meta));

        // The size stays the same.
        fs::write(&path, "two").unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert!(read(&meta, TICK * 2).differs(&before));
        fs::write(&path, "one").unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert!(!read(&meta, TICK * 2).differs(&before));
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_not_read() {
        let (dir, secret) = (tempfile::tempdir().unwrap(), RandomState::new());
        let [path, other] = ["file", "other"].map(|name| dir.path().join(name));
        fs::write(&path, "one").unwrap();
        fs::write(&other, "two").unwrap();
        let meta = Links::Ignored.metadata(&path).unwrap();
        let read = |links| Content::read(&path, &meta, &secret, links, SystemTime::now());
        let before = read(Links::Ignored).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        assert_eq!(read(Links::Ignored), None);
        assert!(read(Links::Followed).unwrap().differs(&before));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(read(Links::Ignored), None);
    }

    #[test]
    fn of_a_large_file_size_and_time_count() {
        let (dir, secret) = (tempfile::tempdir().unwrap(), RandomState::new());
        let path = dir.path().join("file");
        let file = fs::File::create(&path).unwrap();
        file.set_len(LARGEST + 1).unwrap();
        let at = |seconds| {
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
            let meta = fs::metadata(&path).unwrap();
            Content::read(&path, &meta, &secret, Links::Ignored, SystemTime::now()).unwrap()
        };
        let before = at(1);
        assert!(!at(1).differs(&before));
        assert!(at(2).differs(&before));
        file.set_len(LARGEST + 2).unwrap();
        assert!(at(1).differs(&before));
    }
}
