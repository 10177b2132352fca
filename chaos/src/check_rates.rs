//! Checks the rates of the queue and of its groups.
//!
//! The engines count the starts by the times of the claims. The check only knows when a process got each key, which is
//! at most two leases after the claim. The claims of the keys that arrived in a window therefore lie in the window or
//! in the two leases before it. The check allows each window the starts of that longer time, and the burst. All times
//! are from the clock that all processes share, so neither a wrong clock nor a frozen process makes a correct history a
//! violation. If the machine's clock is set ahead, the servers permit more starts. `Losses::clock_gain` is therefore
//! added.
//!
//! Only windows with one setting are checked. A start that a server may have lost does not count, because the server
//! does not remember it. The other starts of a window still count after that loss.

use std::time::Duration;

use crate::check::{Losses, Violation};
use crate::check_groups::Start;
use crate::groups::Rate;

/// A series of starts under the same rate.
struct Series {
    rate: Rate,
    starts: Vec<Start>,
    /// The start at which a window begins. Among the windows that end with the last start, this
    /// window exceeds its permitted starts most.
    first: usize,
}

impl Series {
    /// Returns the excess of the starts from the `n`th to the last over the rate without a burst, in starts times
    /// nanoseconds. `longer` is the time by which the window is extended.
    fn excess(&self, n: usize, longer: u64) -> i128 {
        let Rate { starts: of, per, burst: _ } = self.rate;
        let count = (self.starts.len() - n) as i128;
        let window = self.starts.last().map_or(0, |last| last.at - self.starts[n].at) + longer;
        count * nanos(per) - i128::from(window) * i128::from(of)
    }

    /// Adds a start. Returns true if no window then exceeds the rate and its burst.
    fn add(&mut self, start: Start, longer: u64) -> bool {
        self.starts.push(start);
        let last = self.starts.len() - 1;
        if self.excess(last, 0) > self.excess(self.first, 0) {
            self.first = last;
        }
        self.excess(self.first, longer) <= self.burst()
    }

    fn burst(&self) -> i128 {
        nanos(self.rate.per) * i128::from(self.rate.burst)
    }
}

fn nanos(time: Duration) -> i128 {
    time.as_nanos().cast_signed()
}

/// Checks the starts of a group, or of the queue if the group is `None`. The starts are in ascending order. Returns the
/// number of starts that used up the burst, so that without the extension of the windows no further start was
/// permitted.
pub(crate) fn check_rate(
    group: Option<u32>,
    starts: &[Start],
    losses: &Losses,
    violations: &mut Vec<Violation>,
) -> u64 {
    let claims = 2 * losses.lease;
    let longer = claims + losses.clock_gain;
    let mut at_rate = 0;
    let mut series: Option<Series> = None;
    for &start in starts {
        let claimed = (start.at.saturating_sub(claims), start.at);
        if losses.has_moment(claimed) {
            continue;
        }
        let rate_since = |from: u64| {
            let since = from.saturating_sub(claims);
            losses.settings.certain_rate(group, (since, start.at), losses)
        };
        let before = series.take().filter(|series| {
            let last = series.starts.last();
            last.and_then(|last| rate_since(last.at)) == Some(series.rate)
        });
        let Some(mut current) = before.or_else(|| {
            let rate = rate_since(start.at)?;
            Some(Series { rate, starts: Vec::new(), first: 0 })
        }) else {
            continue;
        };
        let is_sound = current.add(start, longer);
        let next = nanos(current.rate.per);
        at_rate += u64::from(current.excess(current.first, 0) + next > current.burst());
        if is_sound {
            series = Some(current);
        } else {
            let Series { rate, starts, first } = current;
            let started = starts[first..].iter().map(|start| (start.key, start.epoch)).collect();
            let (from, to) = (starts[first].at, start.at);
            violations.push(Violation::OverRate { group, from, to, rate, started });
        }
    }
    at_rate
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Death;
    use crate::groups::{Change, Changes, Setting};

    const SECOND: u64 = 1_000_000_000;
    const LEASE: u64 = SECOND / 2;
    /// A time after the settings were made.
    const T: u64 = 100 * SECOND;

    const RATE: Rate = Rate { starts: 2, per: Duration::from_secs(1), burst: 5 };

    fn losses(settings: &[(u64, Option<Rate>)]) -> Losses {
        let change =
            |&(at, rate)| Change { group: Some(2), begun: at, at, setting: Setting::Rate(rate) };
        let settings = Changes(settings.iter().map(change).collect());
        Losses { lease: LEASE, moment: 3 * SECOND, settings, ..Losses::default() }
    }

    /// Returns the windows that exceed a rate, as numbers of starts, if keys start at these tenths of a second.
    fn exceeded(tenths: impl IntoIterator<Item = u64>, losses: &Losses) -> Vec<usize> {
        let start =
            |(epoch, tenth)| Start { at: T + tenth * SECOND / 10, process: 1, key: 2, epoch };
        let starts: Vec<_> = (1..).zip(tenths).map(start).collect();
        let mut violations = Vec::new();
        check_rate(Some(2), &starts, losses, &mut violations);
        let count = |violation| match violation {
            Violation::OverRate { started, .. } => started.len(),
            other => panic!("{other:?}"),
        };
        violations.into_iter().map(count).collect()
    }

    #[test]
    fn a_window_has_the_starts_of_its_time_and_of_two_leases_and_the_burst() {
        let losses = losses(&[(1, Some(RATE))]);
        // The leases of one second permit two more starts.
        assert_eq!(exceeded([0; 7], &losses), [0; 0]);
        assert_eq!(exceeded([0; 8], &losses), [8]);
        // All windows count, including a window in the middle.
        let steady =
            |more: u64| (0..40).map(|n| n * 5).chain(std::iter::repeat_n(195, more as usize));
        assert_eq!(exceeded(steady(6), &losses), [0; 0]);
        assert_eq!(exceeded(steady(7), &losses).len(), 1);
        // A rate that is exceeded by a tenth is detected after some time.
        assert_eq!(exceeded((0..80).map(|n| n * 9 / 2), &losses).len(), 1);
        let ahead = Losses { clock_gain: SECOND, ..losses };
        assert_eq!(exceeded([0; 9], &ahead), [0; 0]);
        assert_eq!(exceeded([0; 10], &ahead), [10]);
    }

    #[test]
    fn a_window_ends_with_its_setting() {
        let slow = Rate { starts: 1, ..RATE };
        let at = T + 2 * SECOND;
        let starts = [0, 0, 0, 0, 0, 40, 40, 40, 40, 40, 40];
        assert_eq!(exceeded(starts, &losses(&[(1, Some(slow))])), [11]);
        for other in [None, Some(RATE)] {
            let settings = [(1, Some(slow)), (at, other), (at + 1, Some(slow))];
            assert_eq!(exceeded(starts, &losses(&settings)), [0; 0], "{other:?}");
        }
        // A repetition of the same setting is no change.
        let settings = [(1, Some(slow)), (at, Some(slow))];
        assert_eq!(exceeded(starts, &losses(&settings)), [11]);
        // A key may have been claimed up to two leases before it arrived.
        for (since, is_checked) in [(T - 2 * LEASE - 1, true), (T - 2 * LEASE, false)] {
            let exceeded = exceeded([0; 20], &losses(&[(since, Some(RATE))]));
            assert_eq!(!exceeded.is_empty(), is_checked);
        }
    }

    #[test]
    fn starts_that_a_server_may_have_lost_do_not_count() {
        let deaths = vec![Death { from: T + 5 * SECOND, to: T + 6 * SECOND }];
        let losses = Losses { deaths, ..losses(&[(1, Some(RATE))]) };
        // These keys were claimed between the third second and the sixth second.
        let lost = 20..=70;
        assert_eq!(exceeded(lost.clone().chain([71; 7]), &losses), [0; 0]);
        assert_eq!(exceeded(lost.clone().chain([71; 8]), &losses), [8]);
        // The starts before and after the loss count together: 10 starts, or 21, in 7.1 seconds and the leases.
        let both = |after| {
            std::iter::repeat_n(0, 7).chain(lost.clone()).chain(std::iter::repeat_n(71, after))
        };
        let slow = Rate { starts: 1, per: Duration::from_secs(4), burst: 6 };
        let slow = Losses { settings: self::losses(&[(1, Some(slow))]).settings, ..losses.clone() };
        assert_eq!(exceeded([0; 6].into_iter().chain(lost.clone()).chain([71; 2]), &slow), [0; 0]);
        assert_eq!(exceeded([0; 6].into_iter().chain(lost.clone()).chain([71; 3]), &slow), [9]);
        assert_eq!(exceeded(both(7), &losses), [0; 0]);
    }

    #[test]
    fn a_server_that_evicts_may_forget_the_starts() {
        let deaths = vec![Death { from: T + 5 * SECOND, to: T + 6 * SECOND }];
        let slow = Rate { starts: 1, per: Duration::from_secs(4), burst: 6 };
        let settings = [(1, Some(slow)), (T + 65 * SECOND / 10, Some(slow))];
        let losses = Losses { deaths, ..losses(&settings) };
        let starts = [0, 0, 0, 0, 0, 0, 80, 80, 80, 80, 80, 80];
        assert_eq!(exceeded(starts, &losses), [9]);
        assert_eq!(exceeded(starts, &Losses { evicts: true, ..losses }), [0; 0]);
    }
}
