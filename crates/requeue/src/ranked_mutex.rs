//! Mutexes that cannot deadlock although user code runs under them.
//!
//! The queue calls a key's `eq` and `clone` and a custom order while it holds its lock. The limiter and a scrape have
//! separate locks. This user code may call any queue. Two threads that acquired two such locks in opposite order would
//! wait for each other forever.
//!
//! Therefore each mutex has a [`Rank`], and a thread that holds a mutex may only lock a mutex of a higher rank. Any
//! other attempt immediately fails with [`Reentered`], even for a mutex of another queue.

use std::cell::Cell;

use crate::sync::{Mutex, MutexGuard, PoisonError, thread_local};

/// The order in which a thread may take locks. Lower ranks come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Rank {
    /// The rank of a thread that holds no ranked mutex.
    Nothing,
    /// A scrape of a metrics registry, which calls its queues.
    #[cfg(feature = "prometheus")]
    Scrape,
    /// A limiter, which may call a queue.
    Limiter,
    /// The state of a queue whose keys or order may run user code.
    Queue,
    /// The trace contexts of a queue's keys, which may run user code.
    #[cfg(feature = "opentelemetry")]
    Traces,
}

// The highest rank of the mutexes that this thread holds.
#[cfg(not(requeue_loom))]
thread_local!(static HELD: Cell<Rank> = const { Cell::new(Rank::Nothing) });
// loom's macro does not accept `const`.
#[cfg(requeue_loom)]
thread_local!(static HELD: Cell<Rank> = Cell::new(Rank::Nothing));

/// A mutex with a rank. The mutex ignores poison, because its users change the guarded value only after the user code
/// has returned.
pub(crate) struct RankedMutex<T>(Mutex<Ranked<T>>);

/// The error if this thread already holds a mutex of the same rank or of a higher rank.
#[derive(Debug)]
pub(crate) struct Reentered;

/// The guarded value.
struct Ranked<T> {
    value: T,
    /// The rank of the locking thread before it locked this mutex. `None` if this mutex has no rank. The rank is stored
    /// here and not in the guard, because a guard of only two words is passed in registers.
    restore: Option<Rank>,
}

/// A locked [`RankedMutex`].
pub(crate) struct RankedGuard<'a, T>(MutexGuard<'a, Ranked<T>>);

impl<T> RankedMutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Mutex::new(Ranked { value, restore: None }))
    }

    /// Locks the mutex. Each call for a mutex must pass the same rank. The rank is `None` if no user code runs under
    /// the mutex. A mutex without a rank needs no check, because its holder acquires no further lock.
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
        // The lock is refused before the mutex is touched, so this thread never waits for itself.
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

    /// Returns the value without locking, because no other thread can have this mutex.
    pub(crate) fn get_mut(&mut self) -> &mut T {
        &mut self.0.get_mut().unwrap_or_else(PoisonError::into_inner).value
    }
}

impl<T> Drop for RankedGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Some(rank) = self.0.restore {
            // The mutex is still locked here. There is no race, because only this thread reads its rank.
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
