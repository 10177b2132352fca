//! Mutexes that cannot deadlock even though user code runs under them.
//!
//! The queue calls the `eq` and `clone` of a key, and a custom order, while it holds its lock. The
//! limiter and a scrape have other locks. All this user code may call any queue. If two threads
//! acquired two of these locks in opposite orders, they would wait for each other forever.
//!
//! Each mutex therefore has a [`Rank`]. A thread that holds a mutex can only acquire a mutex of a
//! higher rank. Any other attempt fails immediately with [`Reentered`], even if the mutex belongs
//! to another queue.

use std::cell::Cell;

use crate::sync::{Mutex, MutexGuard, PoisonError, thread_local};

/// The order in which a thread may acquire locks. A lock of a lower rank must be acquired first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rank {
    /// The rank of a thread that holds no mutex with a rank.
    Nothing,
    /// The lock of a scrape of a metrics registry. The scrape calls its queues.
    #[cfg(feature = "prometheus")]
    Scrape,
    /// The lock of a limiter. The limiter may call a queue.
    Limiter,
    /// The lock of a queue whose keys or order may run user code.
    Queue,
    /// The lock of the trace contexts of keys, which may run user code.
    #[cfg(feature = "opentelemetry")]
    Traces,
}

// The highest rank of all mutexes that this thread holds.
#[cfg(not(requeue_loom))]
thread_local!(static HELD: Cell<Rank> = const { Cell::new(Rank::Nothing) });
// The macro of loom does not accept `const`.
#[cfg(requeue_loom)]
thread_local!(static HELD: Cell<Rank> = Cell::new(Rank::Nothing));

/// A mutex with a rank. It ignores poisoning: its users change the guarded value only after the
/// user code has returned.
pub(crate) struct RankedMutex<T>(Mutex<Ranked<T>>);

/// The error of a thread that already holds a mutex of the same or a higher rank.
#[derive(Debug)]
pub(crate) struct Reentered;

/// The guarded value, with the rank to restore.
struct Ranked<T> {
    value: T,
    /// The rank of the locking thread before it acquired this mutex. `None` if this mutex has no
    /// rank. It is not stored in the guard: a guard of two words is passed in registers.
    restore: Option<Rank>,
}

/// A guard of a locked [`RankedMutex`].
pub(crate) struct RankedGuard<'a, T>(MutexGuard<'a, Ranked<T>>);

impl<T> RankedMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(Ranked { value, restore: None }))
    }

    /// Acquires the mutex. All calls for one mutex must pass the same rank. If no user code runs
    /// under the mutex, the rank is `None`. There is then nothing to check, because the holder
    /// acquires no further lock.
    #[inline(always)]
    pub(crate) fn lock(&self, rank: Option<Rank>) -> Result<RankedGuard<'_, T>, Reentered> {
        match rank {
            None => Ok(RankedGuard(self.lock_value())),
            Some(rank) => self.lock_in_order(rank),
        }
    }

    #[inline(always)]
    fn lock_in_order(&self, rank: Rank) -> Result<RankedGuard<'_, T>, Reentered> {
        let held = HELD.with(Cell::get);
        // The check precedes the access to the mutex, so a thread never waits for itself.
        if held >= rank {
            return Err(Reentered);
        }
        let mut guard = self.lock_value();
        guard.restore = Some(held);
        HELD.with(|held| held.set(rank));
        Ok(RankedGuard(guard))
    }

    #[inline(always)]
    fn lock_value(&self) -> MutexGuard<'_, Ranked<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the value without locking. The exclusive reference shows that no other thread uses
    /// the mutex.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        &mut self.0.get_mut().unwrap_or_else(PoisonError::into_inner).value
    }
}

impl<T> Drop for RankedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(rank) = self.0.restore {
            // The mutex is still locked at this point. There is no race, because only this thread
            // reads its own rank.
            HELD.with(|held| held.set(rank));
        }
    }
}

impl<T> std::ops::Deref for RankedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> std::ops::DerefMut for RankedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0.value
    }
}
