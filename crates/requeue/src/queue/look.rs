//! Looking for a key, and waiting for one.

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

/// How soon a parked thread looks again that waits for a clock which does not go by real time.
const LOOK: Duration = Duration::from_millis(10);

/// The lock, and the key that was taken under it.
type Taken<'a, K> = (RankedGuard<'a, State<K>>, Option<Delivery<K>>);

/// A getter that may have to wait.
pub(super) struct Wait {
    place: Option<Place>,
    kind: Kind,
    /// Whether only a final `None` will do.
    patient: bool,
}

impl Wait {
    pub(super) const fn new(kind: Kind, patient: bool) -> Self {
        Self { place: None, kind, patient }
    }

    pub(super) const fn is_listed(&self) -> bool {
        self.place.is_some()
    }

    pub(super) const fn is_thread(&self) -> bool {
        matches!(self.kind, Kind::Thread)
    }
}

/// What a getter finds.
pub(super) enum Look<K> {
    Key(Delivery<K>),
    Ended,
    /// It is to spin, and to look again.
    Spin,
    /// It is in the list, and will be woken; a thread that keeps the time sleeps no longer than
    /// `until`.
    Wait {
        until: Time,
    },
}

impl<K: Key> Shared<K> {
    /// Takes the next key where there is nothing to be asked before, as mostly. What it finds is
    /// final; `None` leaves it to [`take`](Self::take). The two don't share their results' memory:
    /// a key that is written and read again at once, in larger pieces, waits for the first to be
    /// done.
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
        // With a time, more may be due than one look makes ready.
        if now.is_some() && taken.is_none() {
            return None;
        }
        self.release(state);
        Some(taken)
    }

    /// As `take_plain`, of up to `max` keys under one hold of the lock. `false`: it is to be left to
    /// [`take`](Self::take), and nothing was taken.
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

    /// Takes the next key, if there is one, and leaves the lock to the caller.
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
            // More keys were due than one call makes ready, and none of them could leave.
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

    /// One look of a waiting getter: a key, the end, or a place among the waiting.
    pub(super) fn look(
        &self,
        wait: &mut Wait,
        waker: &Waker,
        hash_of: &dyn Fn(&K) -> u64,
    ) -> Look<K> {
        // A waker's `clone` is the user's code: not under the lock, and not where a key is at hand.
        let mut fresh = None;
        let (mut state, old) = loop {
            let Ok((mut state, taken)) = self.take(hash_of) else {
                // A key's own code waits for a key: nobody could ever hand it one.
                return Look::Ended;
            };
            let core = &state.core;
            let ended = if wait.patient { core.is_finished() } else { core.is_exhausted() };
            if taken.is_some() || ended {
                let old = state.waiters.leave(&mut wait.place);
                self.release(state);
                drop_quietly(old);
                drop_quietly(fresh);
                return taken.map_or(Look::Ended, Look::Key);
            }
            if state.waiters.spin(&mut wait.place, wait.kind, wait.patient) {
                self.go.store(false, Ordering::Relaxed);
                self.release(state);
                return Look::Spin;
            }
            if state.waiters.is_listed_with(wait.place, waker) {
                break (state, None);
            }
            if let Some(waker) = fresh.take() {
                let old = state.waiters.wait(&mut wait.place, wait.kind, wait.patient, waker);
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

    /// Lets some time pass, so little that a thread which parked and was woken would take longer; or
    /// less, if there is a key. A worker that comes back for the next key a moment before it is
    /// added need not be woken, which costs whoever adds it more than all else.
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
        // A step of the clock, or a machine that slept, must not be slept through.
        let left = until.since(self.clock.now()).min(Duration::from_secs(3600));
        if self.is_real_time {
            park_timeout(left);
        } else {
            // Where time is not the machine's, the alarm wakes; unless its runtime is one that nobody
            // drives just now, so that the thread looks for itself now and then.
            park_warily(left.max(LOOK));
        }
    }

    /// A getter gives up waiting.
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
