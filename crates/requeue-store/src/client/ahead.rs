//! Keys that are claimed before a worker asks for them, so that runs overlap the commits of claims.
//!
//! A process claims ahead what its workers are expected to take within the [horizon](Ahead::horizon),
//! by the rate at which they took keys just before: nothing where runs take long. A key that is not
//! taken within ten times as long is released, with the place in the order that it had.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::api::item::Item;
use crate::api::options::Options;

/// The bounds of the horizon. Claims of fewer keys would cost the engine more than they save.
const HORIZON: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// After so many horizons a key is released.
const OVERDUE: u32 = 10;
/// Over how long the rate is averaged.
const WINDOW: Duration = Duration::from_millis(250);
/// For how long nothing is claimed ahead after keys had to be released.
const PAUSE: Duration = Duration::from_secs(1);
/// After so many full claims in a row there is a backlog. Where there is none, a key is for the worker
/// that asks first, here or elsewhere.
const BACKLOG: u32 = 2;

/// Keys on their way to a worker. Those that do not arrive are released: no run of them was started.
#[derive(Debug, Default)]
pub(crate) struct Unstarted(VecDeque<Item>);

impl Unstarted {
    /// For a worker that begins now: those that are still this process's.
    pub(crate) fn begin(mut self) -> Vec<Item> {
        let mut begun = Vec::with_capacity(self.0.len());
        while let Some(mut item) = self.0.pop_front() {
            if item.begin() {
                begun.push(item);
            } else {
                item.unclaim();
            }
        }
        begun
    }
}

impl Drop for Unstarted {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Item::unclaim);
    }
}

/// The keys of this process that no worker has asked for yet.
#[derive(Debug)]
pub(crate) struct Ahead {
    items: Unstarted,
    /// How many there may be.
    most: usize,
    /// No horizon is longer, so that keys are released long before their leases have to be renewed.
    longest: Duration,
    /// What a claim takes.
    latency: Duration,
    /// How many keys a second workers took, as of then.
    rate: f64,
    rated: Instant,
    paused_until: Instant,
    /// How many claims in a row found all the keys that they looked for.
    full: u32,
    /// Whether a worker has taken a key since the last claim began.
    is_used: bool,
}

impl Ahead {
    pub(crate) fn new(options: &Options) -> Self {
        let now = Instant::now();
        Self {
            items: Unstarted::default(),
            most: options.claim_ahead,
            longest: (options.lease / (3 * OVERDUE)).min(HORIZON.1),
            latency: Duration::ZERO,
            rate: 0.0,
            rated: now,
            paused_until: now,
            full: 0,
            is_used: false,
        }
    }

    /// For how long of work keys are claimed ahead: what is left when a claim begins lasts until it
    /// has ended.
    fn horizon(&self) -> Duration {
        (2 * self.latency).max(HORIZON.0).min(self.longest)
    }

    /// How many keys more than workers wait for a claim that begins now takes.
    pub(crate) fn wanted(&self, now: Instant) -> usize {
        if self.full < BACKLOG || !self.is_used || now < self.paused_until {
            return 0;
        }
        let expected = (self.rate_at(now) * self.horizon().as_secs_f64()) as usize;
        let there = self.items.0.len();
        // All of it, whatever is there still: workers that wait for claims take fewer keys than they
        // could, and with twice as many as they take during one the rate shows that.
        if 2 * there > expected { 0 } else { expected.min(self.most.saturating_sub(there)) }
    }

    fn rate_at(&self, now: Instant) -> f64 {
        self.rate * (-(now - self.rated).as_secs_f64() / WINDOW.as_secs_f64()).exp()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.0.is_empty()
    }

    /// A claim begins.
    pub(crate) const fn claiming(&mut self) {
        self.is_used = false;
    }

    /// It has taken so long, and found so many of the keys that it looked for.
    pub(crate) fn claimed(&mut self, took: Duration, items: Vec<Item>, of: usize) {
        self.latency = if self.latency.is_zero() { took } else { (3 * self.latency + took) / 4 };
        self.full = if items.len() < of { 0 } else { self.full.saturating_add(1) };
        self.items.0.extend(items);
    }

    /// Up to `max` keys for a worker.
    pub(crate) fn take(&mut self, max: usize, now: Instant) -> Unstarted {
        let rest = self.items.0.split_off(max.min(self.items.0.len()));
        let taken = std::mem::replace(&mut self.items.0, rest);
        // Whoever takes many keys at once does not wait for each.
        if max == 1 {
            self.rate = self.rate_at(now) + taken.len() as f64 / WINDOW.as_secs_f64();
            self.rated = now;
            self.is_used = true;
        }
        Unstarted(taken)
    }

    /// When the next key has to be released.
    pub(crate) fn overdue_at(&self) -> Option<Instant> {
        self.items.0.front().map(|item| item.since() + OVERDUE * self.horizon())
    }

    /// Returns the keys to the store that no worker has taken in time.
    pub(crate) fn unclaim_late(&mut self, now: Instant) {
        while self.overdue_at().is_some_and(|overdue| overdue <= now)
            && let Some(item) = self.items.0.pop_front()
        {
            item.unclaim();
            self.paused_until = now + PAUSE;
        }
    }
}
