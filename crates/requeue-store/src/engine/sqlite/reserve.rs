//! Disk space for claims and completions, so that a queue on a full disk can drain.
//!
//! Each transaction needs space in the log, and each checkpoint needs space in the file for the pages
//! that adds have appended. On a disk without a free byte claims fail, too, and nothing would ever free
//! the log. So a file beside the queue's takes up the space that claims and completions need. When one
//! of them finds the disk full, that file is removed. From then on adds may use the pages that are free
//! within the queue's file, and no others, until the disk has space for a new reserve.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// No transaction and no checkpoint needs more than twice what the file and its log have, and with the
/// log at its usual 4 MiB none needs more than `MOST`.
const LEAST: u64 = 256 << 10;
const MOST: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct Reserve {
    file: PathBuf,
    log: PathBuf,
    reserve: PathBuf,
    /// A transaction has found the disk full, and there has not been space for a reserve since.
    is_short: bool,
}

impl Reserve {
    /// None for a queue in memory.
    pub(super) fn of(file: &Path) -> Option<Self> {
        let beside = |suffix: &str| {
            let mut name = file.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        let (log, reserve) = (beside("-wal"), beside("-reserve"));
        let is_file = file != Path::new(":memory:");
        is_file.then(|| Self { file: file.to_owned(), log, reserve, is_short: false })
    }

    /// Whether the file may grow: whether the reserve is there, or could be made.
    pub(super) fn allows_growth(&mut self) -> bool {
        let length = |path| fs::metadata(path).map_or(0, |found| found.len());
        let size = 2 * (length(&self.file) + length(&self.log));
        let size = size.next_power_of_two().clamp(LEAST, MOST);
        let kept = length(&self.reserve);
        if self.is_short || kept < size {
            // Twice as much, so that the new reserve does not take the last of it from the workers.
            let is_made = self.has_space(2 * size) && self.fill(size - kept.min(size)).is_ok();
            self.is_short = !is_made;
        }
        !self.is_short
    }

    fn has_space(&self, size: u64) -> bool {
        #[cfg(unix)]
        {
            let dir = self.file.parent().filter(|dir| !dir.as_os_str().is_empty());
            let found = rustix::fs::statvfs(dir.unwrap_or(Path::new(".")));
            // Where it is not known, the attempt shows it.
            found.map_or(true, |found| found.f_bavail.saturating_mul(found.f_frsize) >= size)
        }
        #[cfg(not(unix))]
        {
            let _ = size;
            true
        }
    }

    fn fill(&self, mut missing: u64) -> io::Result<()> {
        let mut file = self.open()?;
        // Some file systems store zeros, or what is in a file twice, in no space.
        let mut part = vec![0; 64 << 10];
        while missing > 0 {
            fastrand::fill(&mut part);
            let length = missing.min(part.len() as u64);
            file.write_all(&part[..length as usize])?;
            missing -= length;
        }
        Ok(())
    }

    /// With the mode of the queue's file: whoever may write to the one may write to the other. A link
    /// that another user has put in its place is not followed.
    fn open(&self) -> io::Result<File> {
        let mut options = File::options();
        options.append(true).create(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

            let no_follow = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
            let reserve = options.mode(0o600).custom_flags(no_follow).open(&self.reserve)?;
            if reserve.metadata()?.len() == 0 {
                let mode = fs::metadata(&self.file)?.permissions().mode() & 0o666;
                reserve.set_permissions(fs::Permissions::from_mode(mode))?;
            }
            Ok(reserve)
        }
        #[cfg(not(unix))]
        options.open(&self.reserve)
    }

    /// The disk is full: the file is not to grow.
    pub(super) const fn note_shortage(&mut self) {
        self.is_short = true;
    }

    /// Frees the space, for claims and completions.
    pub(super) fn release(&self) {
        // If that fails, it was not there, or does not take up any space that can be had.
        let _ = fs::remove_file(&self.reserve);
    }
}
