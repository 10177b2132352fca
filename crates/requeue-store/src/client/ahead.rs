//! Claims keys before a worker asks for them, so that runs overlap the commits of claims.
//!
//! A process claims ahead the number of keys that its workers would take within the [horizon](Ahead::horizon) at their
//! recent rate. If runs are long, this number is 0. If no worker takes a key within ten horizons, the key returns to
//! its place in the order. When a claim reports that the queue is paused, all keys that were claimed ahead return to
//! the store.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::item::Item;
use crate::client::options::Options;

/// The minimum and the maximum of the horizon. With a shorter horizon, claims would cost the engine more time than they
/// save.
const HORIZON: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// A key that no worker has taken returns to the store after this number of horizons.
const OVERDUE: u32 = 10;
/// The period over which the rate of the workers is averaged.
const WINDOW: Duration = Duration::from_millis(250);
/// After the process has returned an unused key, it claims no key ahead for this time.
const PAUSE: Duration = Duration::from_secs(1);
/// The number of consecutive full claims after which the process assumes a backlog. Without a backlog, no key is
/// claimed ahead, so that a key goes to the first worker in any process that asks.
const BACKLOG: u32 = 2;

/// Claimed keys that no worker has received yet. If this value is dropped, the keys return to the store and no failure
/// is counted, because their runs never began.
#[derive(Debug, Default)]
pub(crate) struct Unstarted(VecDeque<Item>);

impl Unstarted {
    pub(crate) fn new(items: Vec<Item>) -> Self {
        Self(items.into())
    }

    pub(crate) fn items(&self) -> impl ExactSizeIterator<Item = &Item> {
        self.0.iter()
    }

    /// Takes up to `max` keys.
    pub(crate) fn take(&mut self, max: usize) -> Self {
        let rest = self.0.split_off(max.min(self.0.len()));
        Self(std::mem::replace(&mut self.0, rest))
    }

    /// Removes the keys whose leases are lost.
    pub(crate) fn remove_lost(&mut self) {
        for item in std::mem::take(&mut self.0) {
            if item.is_lost() {
                item.return_unclaimed();
            } else {
                self.0.push_back(item);
            }
        }
    }

    /// Leaves the keys to another program.
    pub(crate) fn hand_over(mut self) {
        self.0.drain(..).for_each(Item::hand_over);
    }

    /// Delivers the keys to a worker. Keys whose leases are lost are left out.
    pub(crate) fn begin(mut self) -> Vec<Item> {
        let mut begun = Vec::with_capacity(self.0.len());
        while let Some(mut item) = self.0.pop_front() {
            // The lease may have expired while the key waited for a worker.
            if item.begin_run() {
                begun.push(item);
            } else {
                item.return_unclaimed();
            }
        }
        begun
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Item::return_unclaimed);
    }
}

/// The keys that this process has claimed ahead and no worker has taken yet.
#[derive(Debug)]
pub(crate) struct Ahead {
    items: Unstarted,
    /// The maximum number of keys.
    most: usize,
    /// The maximum horizon. With this maximum, an unused key returns long before its lease must be renewed.
    longest: Duration,
    /// The average duration of recent claims.
    latency: Duration,
    /// The number of keys that workers took per second, at the time `rated`.
    rate: f64,
    rated: Instant,
    paused_until: Instant,
    /// The number of consecutive claims that each found as many keys as they asked for.
    full: u32,
    /// True if a worker has taken a key since the last claim began.
    is_used: bool,
}

impl Ahead {
    pub(crate) fn new(options: &Options) -> Self {
        let now = Instant::now();
        Self {
            items: Unstarted::default(),
            most: options.claim_ahead,
            // An unused key returns after ten horizons. With this limit, ten horizons are at most a third of the lease,
            // and the first renewal is due after a third.
            longest: (options.lease / (3 * OVERDUE)).min(HORIZON.1),
            latency: Duration::ZERO,
            rate: 0.0,
            rated: now,
            paused_until: now,
            full: 0,
            is_used: false,
        }
    }

    /// Returns the horizon: the period for which the process claims keys ahead. The horizon covers two claims, because
    /// the keys that are left when a claim begins must last until the claim completes.
    fn horizon(&self) -> Duration {
        (2 * self.latency).max(HORIZON.0).min(self.longest)
    }

    /// Returns the number of keys to claim now, in addition to the keys that workers wait for.
    pub(crate) fn wanted_keys(&self, now: Instant) -> usize {
        if self.full < BACKLOG || !self.is_used || now < self.paused_until {
            return 0;
        }
        let expected = (self.rate_at(now) * self.horizon().as_secs_f64()) as usize;
        let there = self.items.0.len();
        // The claim asks for the keys of a whole horizon, in addition to the keys that are left, so that workers rarely
        // wait for a claim. Workers that wait would take fewer keys, and the measured rate would be too low.
        if 2 * there > expected { 0 } else { expected.min(self.most.saturating_sub(there)) }
    }

    fn rate_at(&self, now: Instant) -> f64 {
        // The rate is read only when a claim begins. Therefore, this function computes its decay, and no timer is
        // needed.
        self.rate * (-(now - self.rated).as_secs_f64() / WINDOW.as_secs_f64()).exp()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.0.is_empty()
    }

    /// Records that a claim begins.
    pub(crate) const fn note_claim(&mut self) {
        self.is_used = false;
    }

    /// Records the result of a claim: its duration, its keys, and the number of requested keys. If the queue has a
    /// rate, the process claims no key ahead, because each claimed key counts as a start.
    pub(crate) fn note_claimed(
        &mut self,
        took: Duration,
        items: Vec<Item>,
        of: usize,
        is_rated: bool,
    ) {
        // The latency is an average over about four claims, so that a single slow commit has little effect on the
        // horizon.
        self.latency = if self.latency.is_zero() { took } else { (3 * self.latency + took) / 4 };
        // A claim that finds fewer keys than requested shows that there is no backlog. Workers of other processes may
        // be waiting for keys.
        self.full = if is_rated || items.len() < of { 0 } else { self.full.saturating_add(1) };
        self.items.0.extend(items);
    }

    /// Returns all keys to the store, because the queue is paused.
    pub(crate) fn return_unclaimed(&mut self) {
        drop(std::mem::take(&mut self.items));
    }

    /// Takes up to `max` keys for a worker.
    pub(crate) fn take(&mut self, max: usize, now: Instant) -> Unstarted {
        let taken = self.items.take(max);
        // The rate includes only single keys, because a getter that takes many keys in one call does not wait for each
        // of them.
        if max == 1 {
            self.rate = self.rate_at(now) + taken.0.len() as f64 / WINDOW.as_secs_f64();
            self.rated = now;
            self.is_used = true;
        }
        taken
    }

    /// Returns the time at which the next key must return to the store.
    pub(crate) fn overdue_at(&self) -> Option<Instant> {
        self.items.0.front().map(|item| item.delivered_at() + OVERDUE * self.horizon())
    }

    /// Returns keys to the store if no worker has taken them within ten horizons.
    pub(crate) fn unclaim_late(&mut self, now: Instant) {
        while self.overdue_at().is_some_and(|overdue| overdue <= now)
            && let Some(item) = self.items.0.pop_front()
        {
            item.return_unclaimed();
            // The rate was overestimated, so other processes waited for a key that this process did not use.
            self.paused_until = now + PAUSE;
        }
    }
}
