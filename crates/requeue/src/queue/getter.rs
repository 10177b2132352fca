//! The algorithm of a getter: check for a key, join the list of waiters, park.
//!
//! A getter is listed under the same hold of the lock under which it found no key, so it misses no
//! key that becomes ready later.
//! later is missed.

use std::task::Waker;
use std::time::Duration;

use requeue_core::{Delivery, Operation, Time};

use super::Item;
use super::shared::{Shared, State};
use super::waiters::{Kind, Place};
use crate::Key;
use crate::clock::Clock;
use crate::ranked_mutex::{RankedGuard, Reentered};
use crate::sync::{Ordering, SPINS, drop_quietly, park, park_timeout, park_warily, spin_loop};

/// The interval at which a parked thread checks again if the queue's clock does not follow real
/// time.
const LOOK: Duration = Duration::from_millis(10);

/// The lock, and the key that was taken under it.
type Taken<'a, K> = (RankedGuard<'a, State<K>>, Option<Delivery<K>>);

/// A getter that may wait.
pub(super) struct Wait {
    place: Option<Place>,
    kind: Kind,
    /// True if the getter waits until `None` is final.
    until_final: bool,
}

impl Wait {
    pub(super) const fn new(kind: Kind, until_final: bool) -> Self {
        Self { place: None, kind, until_final }
    }

    pub(super) const fn is_listed(&self) -> bool {
        self.place.is_some()
    }

    pub(super) const fn is_thread(&self) -> bool {
        matches!(self.kind, Kind::Thread)
    }
}

/// The result of one check.
pub(super) enum Look<K> {
    Key(Delivery<K>),
    Ended,
    /// The thread must spin, and then check again.
    Spin,
    /// The getter is listed and will be woken. A thread that keeps the time must not sleep beyond
    /// `until`.
    Wait {
        until: Time,
    },
}

impl<K: Key> Shared<K> {
    /// Takes the next key in the common case, in which no user code runs and the clock is read
    /// before. The inner result is final. `None` means that the caller must call
    /// [`take`](Self::take).
    ///
    /// The two functions do not share the memory of their results: a processor that writes a key
    /// and reads it at once in larger pieces must wait until the write is done.
    #[inline(always)]
    pub(super) fn take_plain(&self) -> Option<Option<Delivery<K>>> {
        if self.has_order {
            return None;
        }
        let now = self.tracks.then(|| self.clock.now());
        let mut state = self.lock().ok()?;
        if now.is_none() && state.core.needs_now(Operation::Get) {
            return None;
        }
        let taken = state.core.get(now.unwrap_or_default());
        // More keys may be due than one call makes ready.
        if now.is_some() && taken.is_none() {
            return None;
        }
        self.release(state);
        Some(taken)
    }

    /// Takes up to `max` keys under one hold of the lock, like `take_plain`. Returns `false`, and
    /// takes nothing, if the caller must call [`take`](Self::take).
    pub(super) fn take_many_plain<'q>(&'q self, items: &mut Vec<Item<'q, K>>, max: usize) -> bool {
        if self.has_order || self.hooks.is_some() {
            return false;
        }
        let Ok(mut state) = self.lock() else { return true };
        if state.core.needs_now(Operation::Get) {
            return false;
        }
        for _ in 0..max {
            let Some(out) = state.core.get(Time::ZERO) else { break };
            items.push(Item::lent(self, out));
            if state.core.needs_now(Operation::Get) {
                break;
            }
        }
        self.release(state);
        true
    }

    /// Takes the next ready key, if there is one, and returns it with the lock.
    pub(super) fn take(&self, hash_of: &dyn Fn(&K) -> u64) -> Result<Taken<'_, K>, Reentered> {
        let (mut state, mut now) = self.lock_for(Operation::Get, None)?;
        loop {
            let mut again = false;
            let taken = if state.core.has_order() {
                let popped = state.core.get_by_order(now, hash_of);
                again = popped.again;
                if !popped.dropped.is_empty() {
                    drop(state);
                    popped.dropped.into_iter().for_each(drop_quietly);
                    state = self.lock()?;
                }
                popped.item
            } else {
                state.core.get(now)
            };
            // More keys were due than one call makes ready, and none of them could be delivered.
            let more_due =
                || !state.core.is_paused() && state.core.next_due().is_some_and(|due| due <= now);
            if taken.is_some() || !(again || more_due()) {
                return Ok((state, taken));
            }
            self.release(state);
            now = self.clock.now();
            state = self.lock()?;
        }
    }

    /// Performs one check of a waiting getter: returns a key, or the end of the queue, or lists the
    /// getter.
    pub(super) fn look(
        &self,
        wait: &mut Wait,
        waker: &Waker,
        hash_of: &dyn Fn(&K) -> u64,
    ) -> Look<K> {
        // A waker's `clone` is user code. It runs outside the lock, and only if no key is ready.
        let mut fresh = None;
        let (mut state, old) = loop {
            let Ok((mut state, taken)) = self.take(hash_of) else {
                // The code of a key waits for a key under the lock, so none could ever be delivered
                // to it.
                return Look::Ended;
            };
            let core = &state.core;
            let ended = if wait.until_final { core.is_finished() } else { core.is_exhausted() };
            if taken.is_some() || ended {
                let old = state.waiters.leave(&mut wait.place);
                self.release(state);
                drop_quietly(old);
                drop_quietly(fresh);
                return taken.map_or(Look::Ended, Look::Key);
            }
            if state.waiters.spin(&mut wait.place, wait.kind, wait.until_final) {
                self.go.store(false, Ordering::Relaxed);
                self.release(state);
                return Look::Spin;
            }
            if state.waiters.is_listed_with(wait.place, waker) {
                break (state, None);
            }
            if let Some(waker) = fresh.take() {
                let old = state.waiters.wait(&mut wait.place, wait.kind, wait.until_final, waker);
                break (state, old);
            }
            drop(state);
            fresh = Some(waker.clone());
        };
        let due = state.core.next_due().unwrap_or(Time::NEVER);
        let leads = wait.kind == Kind::Thread && state.waiters.lead(wait.place, due);
        self.release(state);
        drop_quietly(old);
        drop_quietly(fresh);
        Look::Wait { until: if leads { due } else { Time::NEVER } }
    }

    /// Waits for less time than parking and waking a thread takes, or until there is a key. If a
    /// worker asks for the next key a moment before it is added, no thread must be woken. Waking a
    /// thread is the most expensive part of an add.
    pub(super) fn spin(&self) {
        for _ in 0..SPINS {
            if self.go.load(Ordering::Relaxed) {
                return;
            }
            spin_loop();
        }
    }

    /// Parks this thread until it is woken, or about `until`.
    pub(super) fn park(&self, until: Time) {
        if until == Time::NEVER {
            return park();
        }
        // The limit is for steps of the clock and suspended machines, so that the thread does not
        // oversleep.
        let left = until.since(self.clock.now()).min(Duration::from_secs(3600));
        if self.is_real_time {
            park_timeout(left);
        } else {
            // If time is not the machine's, the alarm wakes this thread. Nothing may be driving the
            // alarm's runtime at the moment, so the thread also checks from time to time.
            park_warily(left.max(LOOK));
        }
    }

    /// Removes a getter that no longer waits.
    pub(super) fn leave(&self, wait: &mut Wait) {
        if wait.place.is_none() {
            return;
        }
        let Ok(mut state) = self.lock() else { return };
        let old = state.waiters.leave(&mut wait.place);
        self.release(state);
        drop_quietly(old);
    }
}
