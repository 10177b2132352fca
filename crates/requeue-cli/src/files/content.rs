//! The content of a file, in the detail that is needed to detect a change.

use std::ffi::OsStr;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Read};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::files::open::{Directory, Meta, Stamp};

/// The maximum size of a file that is read, in bytes. For a larger file, only the size and the time are compared.
pub(super) const LARGEST: u64 = 16 << 20;

/// A file system may store times in steps of this length. Two changes within one step can then have the same time.
const TICK: Duration = Duration::from_secs(2);

/// The content of a file when it was last examined.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Content {
    stamp: Stamp,
    /// The hash of the content. `None` if the file is too large or cannot be read.
    hash: Option<u64>,
    /// True if the file was unchanged for longer than [`TICK`] when it was examined. Each later change then also
    /// changes its stamp.
    is_settled: bool,
}

impl Content {
    /// Reads a file. The caller must have read the metadata immediately before. Returns `None` if the file no longer
    /// exists, or if another file or directory has replaced it. The hash depends on a secret, so that an attacker
    /// cannot construct a change with an equal hash.
    pub(super) fn read_file(
        dir: &Directory,
        name: &OsStr,
        meta: &Meta,
        secret: &RandomState,
        now: SystemTime,
    ) -> Option<Self> {
        let stamp = meta.stamp;
        // If the time of the file is in the future, the content is not settled either.
        let is_settled = now.duration_since(changed_at(meta)).is_ok_and(|age| age > TICK);
        let hash = match stamp.size {
            ..=LARGEST => match hash_file(dir, name, secret) {
                Ok(hash) => Some(hash),
                Err(error) if error.kind() == ErrorKind::NotFound => return None,
                Err(_) => None,
            },
            _ => None,
        };
        Some(Self { stamp, hash, is_settled })
    }

    /// Returns true if the metadata prove that the content has not changed.
    pub(super) fn is_certainly(&self, meta: &Meta) -> bool {
        self.is_settled && self.stamp == meta.stamp
    }

    pub(super) fn differs_from(&self, from: &Self) -> bool {
        match (self.hash, from.hash) {
            (Some(one), Some(other)) => one != other,
            _ => {
                let of = |stamp: Stamp| (stamp.size, stamp.modified);
                of(self.stamp) != of(from.stamp)
            }
        }
    }
}

/// Returns the time at which the file's content or metadata last changed. Programs cannot set this time.
pub(super) fn changed_at(meta: &Meta) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(u64::try_from(meta.stamp.changed).unwrap_or(0))
}

fn hash_file(dir: &Directory, name: &OsStr, secret: &RandomState) -> io::Result<u64> {
    const PIECE: u64 = 64 << 10;
    // The file is opened relative to its directory. A link that replaces a part of the path then has no effect.
    let mut file = dir.open_file(name)?;
    let mut hasher = secret.build_hasher();
    let mut piece = Vec::new();
    // The limit also ends the read of a file that grows. Such a file is read again after its next change.
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
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::files::open::Links;

    /// Returns the directory, and the metadata of the file in it.
    fn look(dir: &Path) -> (Directory, Meta) {
        let dir = Links::Ignored.open_dir(dir, Path::new("")).unwrap();
        let meta = dir.meta_of(OsStr::new("file")).unwrap();
        (dir, meta)
    }

    #[test]
    fn metadata_are_trusted_only_when_they_are_older_than_a_tick() {
        let (dir, secret) = (tempfile::tempdir().unwrap(), RandomState::new());
        let path = dir.path().join("file");
        fs::write(&path, "one").unwrap();
        let read = |age| {
            let (dir, meta) = look(dir.path());
            let now = changed_at(&meta) + age;
            (Content::read_file(&dir, OsStr::new("file"), &meta, &secret, now).unwrap(), meta)
        };
        for age in [Duration::ZERO, TICK] {
            let (content, meta) = read(age);
            assert!(!content.is_certainly(&meta));
        }
        let (before, meta) = read(TICK * 2);
        assert!(before.is_certainly(&meta));

        // The new content has the same size as the old one.
        fs::write(&path, "two").unwrap();
        assert!(read(TICK * 2).0.differs_from(&before));
        fs::write(&path, "one").unwrap();
        assert!(!read(TICK * 2).0.differs_from(&before));
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_not_read() {
        let (dir, secret) = (tempfile::tempdir().unwrap(), RandomState::new());
        let [path, other] = ["file", "other"].map(|name| dir.path().join(name));
        fs::write(&path, "one").unwrap();
        fs::write(&other, "two").unwrap();
        let meta = look(dir.path()).1;
        let read = |links: Links| {
            let dir = links.open_dir(dir.path(), Path::new("")).unwrap();
            Content::read_file(&dir, OsStr::new("file"), &meta, &secret, SystemTime::now())
        };
        let before = read(Links::Ignored).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        assert_eq!(read(Links::Ignored), None);
        assert!(read(Links::Followed).unwrap().differs_from(&before));
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(read(Links::Ignored), None);
    }

    #[test]
    fn of_a_large_file_size_and_time_count() {
        let (dir, secret) = (tempfile::tempdir().unwrap(), RandomState::new());
        let file = fs::File::create(dir.path().join("file")).unwrap();
        file.set_len(LARGEST + 1).unwrap();
        let at = |seconds| {
            file.set_modified(UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
            let (dir, meta) = look(dir.path());
            Content::read_file(&dir, OsStr::new("file"), &meta, &secret, SystemTime::now()).unwrap()
        };
        let before = at(1);
        assert!(!at(1).differs_from(&before));
        assert!(at(2).differs_from(&before));
        file.set_len(LARGEST + 2).unwrap();
        assert!(at(1).differs_from(&before));
    }
}
