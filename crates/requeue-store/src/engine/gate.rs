//! Computes the starts that a rate permits, with the generic cell rate algorithm (GCRA) of ITU-T I.371. Times are whole
//! microseconds.

use crate::engine::time::{Micros, until};
use crate::types::rate::{Rate, Throttle, as_wide};

/// A rate, and the time of its next start.
///
/// `next_at` is the time from which the rate permits the next start. In terms of the algorithm, it is the theoretical
/// arrival time less the tolerance. Each start postpones `next_at` by the interval of the rate. `next_at` is never more
/// than `burst − 1` intervals in the past. Therefore, the gate permits at most `burst` starts at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Gate {
    pub(crate) rate: Rate,
    pub(crate) next_at: Micros,
}

impl Gate {
    /// Creates the gate at the time `now`. `next_at` is the stored value, which is 0 at first. If this value is more
    /// than one interval in the future, the clock was set back or the rate was changed. In this case, the gate permits
    /// the next start after one interval.
    pub(crate) fn new(rate: Rate, next_at: Micros, now: Micros) -> Self {
        // The rounding of an interval can move a valid time by one microsecond.
        Self { rate, next_at: next_at.min(now.saturating_add(rate.time_of(1)).saturating_add(1)) }
    }

    /// Parses a text with a rate, a space and the time `next_at`.
    #[cfg(feature = "redis")]
    pub(crate) fn from_stored(text: &str, now: Micros) -> Option<Self> {
        let (rate, next_at) = text.rsplit_once(' ')?;
        Some(Self::new(Rate::from_stored(rate)?, next_at.parse().ok()?, now))
    }

    /// Returns the rate, and the time from `now` to the next permitted start.
    pub(crate) fn throttle(self, now: Micros) -> Throttle {
        Throttle { rate: self.rate, next_start: until(now, self.next_at) }
    }

    /// Returns the number of starts, up to `wanted`, that the rate permits at the time `now`.
    pub(crate) fn permitted(self, now: Micros, wanted: usize) -> usize {
        if now < self.next_at {
            return 0;
        }
        let [starts, per, burst] = self.rate.parts().map(as_wide);
        let unused = as_wide(now.saturating_sub(self.next_at)) * starts / per;
        let permitted = (unused + 1).min(burst);
        wanted.min(usize::try_from(permitted).unwrap_or(usize::MAX))
    }

    /// Records that `starts` starts have happened at the time `now`.
    pub(crate) fn use_up(&mut self, now: Micros, starts: usize) {
        if starts > 0 {
            let [of, per, burst] = self.rate.parts().map(as_wide);
            // The tolerance is rounded down and `time_of` is rounded up, so that no start is early.
            let tolerance = per * (burst - 1) / of;
            let tolerance = Micros::try_from(tolerance).unwrap_or(Micros::MAX);
            let least = now.saturating_sub(tolerance);
            self.next_at = self.next_at.max(least).saturating_add(self.rate.time_of(starts));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns the times of the starts that a rate permits. `asks` has the times at which a worker requests keys, and
    /// the number of keys of each request.
    fn starts(rate: Rate, asks: &[(i64, usize)]) -> Vec<i64> {
        let mut next_at = 0;
        let mut starts = Vec::new();
        for &(now, wanted) in asks {
            let mut gate = Gate::new(rate, next_at, now);
            let count = gate.permitted(now, wanted);
            gate.use_up(now, count);
            next_at = gate.next_at;
            starts.extend(std::iter::repeat_n(now, count));
        }
        starts
    }

    #[test]
    fn the_burst_comes_back_with_time() {
        let rate = Rate::new(1, Duration::from_micros(10)).burst(3);
        let asks = [(100, 9), (109, 9), (110, 9), (125, 9), (130, 9), (1000, 9)];
        assert_eq!(starts(rate, &asks), [100, 100, 100, 110, 125, 130, 1000, 1000, 1000]);
        let rate = rate.burst(1);
        assert_eq!(starts(rate, &[(5, 1), (14, 1), (15, 2), (100, 2)]), [5, 15, 100]);
    }

    #[test]
    fn a_rate_without_a_whole_interval_is_reached_and_not_exceeded() {
        for rate in [
            Rate::new(3, Duration::from_micros(1000)).burst(4),
            Rate::new(7, Duration::from_micros(30)).burst(500),
            Rate::new(1_000_000, SECOND).burst(u32::MAX),
        ] {
            let asks: Vec<_> = (0..2000).map(|n| ((1 << 52) + 200 * n, 100)).collect();
            let starts = starts(rate, &asks);
            let [of, per, burst] = rate.parts().map(i128::from);
            for (n, first) in starts.iter().enumerate().step_by(97) {
                for (count, last) in (1i128..).zip(&starts[n..]) {
                    let window = i128::from(last - first);
                    assert!((count - burst) * per <= window * of, "{rate}: {first} to {last}");
                }
            }
            let most = (i128::from(200 * 1999) * of / per + burst).min(2000 * 100);
            assert!(starts.len() as i128 * 100 >= 95 * most, "{rate}: {}", starts.len());
        }
    }

    #[test]
    fn a_clock_that_goes_back_neither_stops_starts_nor_gains_some() {
        let rate = Rate::new(1, Duration::from_micros(10)).burst(3);
        // At 500, the clock was set back. The first start after it is one interval later, plus one microsecond for
        // rounding: at 511. The next start is one interval after that.
        let asks = [(1000, 9), (1010, 9), (500, 9), (510, 9), (511, 9), (520, 9), (521, 9)];
        assert_eq!(starts(rate, &asks), [1000, 1000, 1000, 1010, 511, 521]);
    }
}
