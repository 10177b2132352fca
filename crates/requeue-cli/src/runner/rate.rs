//! How often commands start, all keys together.

use std::str::FromStr;
use std::time::Duration;

use requeue::{Queue, Time};
use tokio::sync::{Mutex, MutexGuard, Notify};

use crate::input::Key;

/// A start each so often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Every(pub(crate) Duration);

impl FromStr for Every {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "a number above 0, of a second or as in 10/s, 90/m, 1000/h";
        let (number, unit) = match text.split_once('/') {
            None | Some((_, "s")) => (text.strip_suffix("/s").unwrap_or(text), 1.0),
            Some((number, "m")) => (number, 60.0),
            Some((number, "h")) => (number, 3600.0),
            Some(_) => return Err(WRONG),
        };
        let number: f64 = number.parse().map_err(|_| WRONG)?;
        if !(number > 0.0 && number.is_finite()) {
            return Err(WRONG);
        }
        Duration::try_from_secs_f64(unit / number).map(Self).map_err(|_| WRONG)
    }
}

/// Lets one start at a time wait for its turn. What waits meanwhile waits in the queue.
#[derive(Debug)]
pub(crate) struct Rate {
    every: Duration,
    burst: u32,
    /// When the starts so far would have been over at an even pace.
    paid_until: Mutex<Time>,
    /// The queue may have come to its end.
    look: Notify,
}

/// The right to start a command, from when it is there.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    every: Duration,
    paid_until: MutexGuard<'a, Time>,
}

impl Rate {
    pub(crate) fn new(Every(every): Every, burst: u32) -> Self {
        Self { every, burst, paid_until: Mutex::new(Time::ZERO), look: Notify::new() }
    }

    /// Waits until a command may start. Nobody else gets a turn before this one has been taken or
    /// dropped: a turn that waits for a key is not given away a second time. `None` once no key is
    /// left that could take one.
    pub(crate) async fn turn(&self, queue: &Queue<Key>) -> Option<Turn<'_>> {
        let paid_until = self.paid_until.lock().await;
        loop {
            let now = queue.now();
            let wait = wait(*paid_until, now, self.every, self.burst);
            if wait.is_zero() {
                return Some(Turn { every: self.every, paid_until });
            }
            if queue.is_closed() && queue.known() == 0 {
                return None;
            }
            // Whoever changes that between the look and here has left word.
            let _ = tokio::time::timeout(wait, self.look.notified()).await;
        }
    }

    /// A key has left the queue, or the queue is closed.
    pub(crate) fn changed(&self) {
        self.look.notify_one();
    }
}

impl Turn<'_> {
    /// A command starts.
    pub(crate) fn take(mut self, now: Time) {
        *self.paid_until = (*self.paid_until).max(now) + self.every;
    }
}

/// How long it is until one more may start.
fn wait(paid_until: Time, now: Time, every: Duration, burst: u32) -> Duration {
    paid_until.since(now + every.saturating_mul(burst.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_minute_or_hour() {
        for (text, every) in
            [("4", 250), ("4/s", 250), ("0.5", 2000), ("90/m", 666), ("3600/h", 1000), ("1e1", 100)]
        {
            let parsed = text.parse::<Every>().map(|Every(every)| every.as_millis());
            assert_eq!(parsed, Ok(every), "{text}");
        }
        for text in ["", "0", "-1", "NaN", "inf", "/s", "1/d", "1/", "1/s/s", "x"] {
            assert!(text.parse::<Every>().is_err(), "{text}");
        }
    }

    /// When starts come that are wanted at these seconds, at one every ten seconds.
    fn starts(burst: u32, wanted: &[u64]) -> Vec<u64> {
        let second = Duration::from_secs(1);
        let (mut paid_until, mut now) = (Time::ZERO, Time::ZERO);
        let start = |&wanted: &u64| {
            now = now.max(Time::ZERO + second * u32::try_from(wanted).unwrap());
            now = now + wait(paid_until, now, second * 10, burst);
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
