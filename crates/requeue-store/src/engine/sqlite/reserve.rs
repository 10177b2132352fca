//! Reserves disk space for claims and completions, so that a queue on a full disk can drain.
//!
//! Each transaction needs space in the log. Each checkpoint needs space in the file for the pages that adds have
//! appended. On a full disk, claims would also fail, and SQLite could never free the log. Therefore, a reserve file
//! next to the queue's file occupies the space that claims and completions need. When an operation finds the disk full,
//! this process deletes the reserve file. Until the disk has space for a new reserve, adds can use only pages that are
//! free within the queue's file.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::place::beside;

/// The limits of the reserve's size, in bytes. No transaction or checkpoint needs more than twice the size of the file
/// and its log. With the usual log size of 4 MiB, none needs more than `MAX_SIZE`.
const MIN_SIZE: u64 = 256 << 10;
const MAX_SIZE: u64 = 8 << 20;

#[derive(Debug)]
pub(super) struct Reserve {
    file: PathBuf,
    log: PathBuf,
    reserve: PathBuf,
    /// True if a transaction has found the disk full, and there has been no space for a new reserve since.
    is_short: bool,
}

impl Reserve {
    /// Returns the reserve for a file, or `None` for a database in memory.
    pub(super) fn beside(file: &Path) -> Option<Self> {
        let (log, reserve) = (beside(file, "-wal"), beside(file, "-reserve"));
        let is_file = file != Path::new(":memory:");
        is_file.then(|| Self { file: file.to_owned(), log, reserve, is_short: false })
    }

    /// Returns true if adds may enlarge the file, because the reserve exists or this call has created it.
    pub(super) fn allows_growth(&mut self) -> bool {
        let length = |path| fs::metadata(path).map_or(0, |found| found.len());
        let size = 2 * (length(&self.file) + length(&self.log));
        let size = size.next_power_of_two().clamp(MIN_SIZE, MAX_SIZE);
        let kept = length(&self.reserve);
        if self.is_short || kept < size {
            // The reserve is created only if twice its size is free, so that it does not take the last space from
            // workers.
            let is_made =
                self.has_space(2 * size) && self.fill_space(size - kept.min(size)).is_ok();
            self.is_short = !is_made;
        }
        !self.is_short
    }

    fn has_space(&self, size: u64) -> bool {
        #[cfg(unix)]
        {
            let dir = self.file.parent().filter(|dir| !dir.as_os_str().is_empty());
            let found = rustix::fs::statvfs(dir.unwrap_or(Path::new(".")));
            // If the free space is unknown, the write itself shows whether there is enough.
            found.map_or(true, |found| found.f_bavail.saturating_mul(found.f_frsize) >= size)
        }
        #[cfg(not(unix))]
        {
            let _ = size;
            true
        }
    }

    fn fill_space(&self, mut missing: u64) -> io::Result<()> {
        let mut file = self.open()?;
        // The data is random, because some file systems use no space for zeros or duplicate data.
        let mut part = vec![0; 64 << 10];
        while missing > 0 {
            fastrand::fill(&mut part);
            let length = missing.min(part.len() as u64);
            file.write_all(&part[..length as usize])?;
            missing -= length;
        }
        Ok(())
    }

    /// Opens the reserve file with the mode of the queue's file, so that the same users can write to both. Fails if
    /// another user has put a link in its place.
    fn open(&self) -> io::Result<File> {
        let mut options = File::options();
        options.append(true).create(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

            // Without `NONBLOCK`, opening a FIFO would wait for a reader.
            let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
            let flags = flags.bits().cast_signed();
            let reserve = options.mode(0o600).custom_flags(flags).open(&self.reserve)?;
            if !reserve.metadata()?.is_file() {
                return Err(io::Error::other("not a regular file"));
            }
            if reserve.metadata()?.len() == 0 {
                let mode = fs::metadata(&self.file)?.permissions().mode() & 0o666;
                reserve.set_permissions(fs::Permissions::from_mode(mode))?;
            }
            Ok(reserve)
        }
        #[cfg(not(unix))]
        options.open(&self.reserve)
    }

    /// Records that the disk is full, so that adds do not enlarge the file.
    pub(super) const fn note_shortage(&mut self) {
        self.is_short = true;
    }

    /// Deletes the reserve file, so that claims and completions can use its space.
    pub(super) fn release(&self) {
        // If the deletion fails, no space can be freed, and the next transaction reports the full disk.
        let _ = fs::remove_file(&self.reserve);
    }
}
