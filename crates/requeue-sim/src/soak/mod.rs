//! Whether memory comes back: an hour of a controller's life on a clock that is moved, and threads
//! and tasks for as long as one likes.
//!
//! Every request to the allocator is counted, and what is allowed is not "about the same": an idle
//! queue holds no piece of memory more after an hour than it did when it was warm, and once it is
//! dropped not a byte of it is left.

mod controller;
mod crowd;
mod kinds;

use std::fmt;

use stats_alloc::INSTRUMENTED_SYSTEM;

pub use self::controller::{Hour, hour};
pub use self::crowd::{Crowd, crowd};

/// What is allocated and not freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Memory {
    /// As they were asked for.
    pub bytes: usize,
    /// How many allocations that is.
    pub pieces: usize,
}

impl Memory {
    /// What this process holds, of which the global allocator has to be stats_alloc's
    /// `INSTRUMENTED_SYSTEM`.
    ///
    /// # Panics
    ///
    /// If it is another.
    #[must_use]
    pub fn now() -> Self {
        let stats = INSTRUMENTED_SYSTEM.stats();
        assert!(stats.allocations > 0, "the global allocator of this program does not count");
        Self {
            bytes: stats.bytes_allocated - stats.bytes_deallocated,
            pieces: stats.allocations - stats.deallocations,
        }
    }

    /// Whether this is what was held `before`, with no more than `late` pieces besides. Room in
    /// them is another matter: a table may have kept some for a few dozen keys, or not, depending
    /// on how it came to be empty.
    const fn is_back(self, before: Self, late: usize) -> bool {
        self.bytes <= before.bytes + 4096 && self.pieces <= before.pieces + late
    }

    /// How much more this is than `before`.
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
