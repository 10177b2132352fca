//! Checks that all memory is freed: over an hour of a controller's life on a fake clock, and while
//! threads and tasks run for a given time.
//!
//! Every request to the allocator is counted, and the limits are exact. After an hour, an idle queue has no more
//! allocations than after its warm-up. After the queue is dropped, all its memory is freed.

mod controller;
mod crowd;
mod kinds;

use std::fmt;

use stats_alloc::INSTRUMENTED_SYSTEM;

pub use self::controller::{Hour, hour};
pub use self::crowd::{Crowd, crowd};

/// Memory that is allocated and not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// The number of bytes that were requested.
    pub bytes: usize,
    /// The number of allocations.
    pub pieces: usize,
}

impl Memory {
    /// Returns the memory of this process, whose global allocator must be stats_alloc's
    /// `INSTRUMENTED_SYSTEM`.
    ///
    /// # Panics
    ///
    /// Panics if the process has another global allocator.
    #[must_use]
    pub fn now() -> Self {
        let stats = INSTRUMENTED_SYSTEM.stats();
        assert!(stats.allocations > 0, "the global allocator of this program does not count");
        Self {
            bytes: stats.bytes_allocated - stats.bytes_deallocated,
            pieces: stats.allocations - stats.deallocations,
        }
    }

    /// Returns true if no more memory is held than `before`, apart from `late` more allocations. The number of bytes
    /// may differ by up to 4096. Depending on how a table became empty, it may have kept the capacity for a few dozen
    /// keys.
    const fn is_back(self, before: Self, late: usize) -> bool {
        self.bytes <= before.bytes + 4096 && self.pieces <= before.pieces + late
    }

    /// Returns the memory that is held in addition to `before`.
    fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            pieces: self.pieces.saturating_sub(before.pieces),
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} pieces", self.bytes, self.pieces)
    }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}
