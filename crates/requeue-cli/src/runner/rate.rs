//! `--rate`: limits how often commands start, for all keys together.

use std::time::Duration;

use requeue::Time;
use tokio::sync::{Mutex, MutexGuard, Notify};

use crate::key::KeyQueue;

/// Grants slots the right to start a command, one slot at a time. While a slot waits, the key that it will take is
/// still in the queue.
#[derive(Debug)]
pub(crate) struct Rate {
    every: Duration,
    burst: u32,
    /// The sum of the starts so far, as a time: each start moves this time forward by `every`. A start is permitted
    /// while this time is at most `burst - 1` intervals ahead of now.
    paid_until: Mutex<Time>,
    /// Notified when the queue may be empty and closed.
    look: Notify,
}

/// The right of a slot to start one command now.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    every: Duration,
    paid_until: MutexGuard<'a, Time>,
}

impl Rate {
    pub(crate) fn new(every: Duration, burst: u32) -> Self {
        Self { every, burst, paid_until: Mutex::new(Time::ZERO), look: Notify::new() }
    }

    /// Waits until a command may start. The next caller gets a turn after this turn is used or dropped. Returns `None`
    /// when no key is left that could use a turn.
    pub(crate) async fn wait_for_turn(&self, queue: &KeyQueue) -> Option<Turn<'_>> {
        // The holder of the lock has the turn. The lock is fair, so slots get turns in the order of their requests.
        let paid_until = self.paid_until.lock().await;
        loop {
            let now = queue.now();
            let wait = time_to_turn(*paid_until, now, self.every, self.burst);
            if wait.is_zero() {
                return Some(Turn { every: self.every, paid_until });
            }
            if queue.is_closed() && queue.records() == 0 {
                return None;
            }
            // If the queue changed after the check above, the notification is stored, and this wait returns
            // immediately.
            let _ = tokio::time::timeout(wait, self.look.notified()).await;
        }
    }

    /// Wakes the slot that waits for a turn. The caller must call this after a key has left the queue, and when the
    /// queue is closed.
    pub(crate) fn notify_changed(&self) {
        self.look.notify_one();
    }
}

impl Turn<'_> {
    /// Records that a command starts at `now`.
    pub(crate) fn use_up(mut self, now: Time) {
        // A time in the past is raised to `now`. Otherwise, a long period without starts would permit more starts than
        // the burst.
        *self.paid_until = (*self.paid_until).max(now) + self.every;
    }
}

/// Returns the time until one more command may start.
fn time_to_turn(paid_until: Time, now: Time, every: Duration, burst: u32) -> Duration {
    paid_until.since(now + every.saturating_mul(burst.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times of the permitted starts, in seconds, at a rate of one start per ten seconds. `wanted`
    /// contains the times at which the starts are requested, in seconds.
    fn starts(burst: u32, wanted: &[u64]) -> Vec<u64> {
        let second = Duration::from_secs(1);
        let (mut paid_until, mut now) = (Time::ZERO, Time::ZERO);
        let start = |&wanted: &u64| {
            now = now.max(Time::ZERO + second * u32::try_from(wanted).unwrap());
            now = now + time_to_turn(paid_until, now, second * 10, burst);
            paid_until = paid_until.max(now) + second * 10;
            now.since(Time::ZERO).as_secs()
        };
        wanted.iter().map(start).collect()
    }

    #[test]
    fn starts_are_evenly_spaced_but_for_a_burst_that_comes_back_with_time() {
        assert_eq!(starts(1, &[0, 0, 0, 100, 100]), [0, 10, 20, 100, 110]);
        assert_eq!(starts(3, &[0, 0, 0, 0, 0]), [0, 0, 0, 10, 20]);
        assert_eq!(
            starts(3, &[0, 0, 0, 15, 15, 200, 200, 200, 200]),
            [0, 0, 0, 15, 20, 200, 200, 200, 210]
        );
    }
}
