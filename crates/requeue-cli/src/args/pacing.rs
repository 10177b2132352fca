//! The order of the starts of commands, and their distance in time.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use regex::bytes::Regex;
use requeue::clock::TokioClock;
use requeue::{BuildError, GroupId, InFlightPolicy, Order, Pace, Queue, ReaddPolicy};

use crate::args::groups::parse_pattern;
use crate::args::run::{self as args, Alone, Common};
use crate::duration::Debounce;
use crate::exit::Refusal;
use crate::key::{Key, KeyQueue};
use crate::serve::Metrics;
#[cfg(feature = "opentelemetry")]
use crate::traces::Export;

/// The order of the starts of commands, and their distance in time.
#[derive(Debug)]
pub(crate) struct Pacing {
    pub(crate) times: Times,
    /// The interval between two starts, and the number of commands that can start at the same time after a period
    /// without starts.
    pub(crate) rate: Option<(Duration, u32)>,
    pace: Option<Pace>,
    rerun: InFlightPolicy,
    order: args::Order,
    has_priorities: bool,
    groups: Option<Regex>,
    group_limit: Option<u32>,
}

/// The times that a key waits between its add and its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Times {
    /// The time from the first add of a key to its start.
    pub(crate) delay: Option<Duration>,
    pub(crate) debounce: Option<Debounce>,
}

impl Times {
    /// Returns the quiet time and the bound of an add. Returns `None` if the key does not have to wait. If the key is
    /// already waiting for further adds, `waits` returns the remaining time.
    ///
    /// A delay is a debounce whose bound is equal to its quiet time. If both a delay and a debounce are set, the key
    /// waits until both have passed.
    pub(crate) fn debounce_window(
        self,
        waits: impl FnOnce() -> Option<Duration>,
    ) -> Option<Debounce> {
        match (self.delay, self.debounce) {
            (None, debounce) => debounce,
            (Some(delay), None) => Some(Debounce { quiet: delay, most: delay }),
            (Some(delay), Some(Debounce { quiet, most })) => {
                let quiet = quiet.max(waits().unwrap_or(delay));
                Some(Debounce { quiet, most: delay.max(most) })
            }
        }
    }
}

/// With priorities, one of ten starts takes the key that has been ready for the longest time.
const OLDEST_EVERY: u32 = 10;

impl Pacing {
    pub(crate) fn from_flags(
        common: &Common,
        flags: &Alone,
        has_priorities: bool,
    ) -> Result<Self, Refusal> {
        let needs = |is_given, flag, other| match is_given {
            true => Err(Refusal::usage(format!("{flag} requires {other}"))),
            false => Ok(()),
        };
        needs(common.burst.is_some() && common.rate.is_none(), "--burst", "--rate")?;
        let without_groups = flags.group_by.is_none();
        let is_fair = flags.order == Some(args::Order::Fair);
        needs(is_fair && without_groups, "--order fair", "--group-by")?;
        needs(flags.group_limit.is_some() && without_groups, "--group-limit", "--group-by")?;

        let some = |time: Option<Duration>| time.filter(|time| !time.is_zero());
        let groups = flags.group_by.as_deref().map(parse_pattern).transpose()?;
        Ok(Self {
            times: Times {
                delay: some(flags.delay),
                debounce: flags.debounce.filter(|debounce| !debounce.quiet.is_zero()),
            },
            pace: flags.pace.or(some(flags.min_interval).map(Pace::min_interval)),
            rate: common.rate.as_ref().map(|rate| (rate.every, common.burst.unwrap_or(1))),
            rerun: flags.on_readd.unwrap_or_default(),
            order: flags.order.unwrap_or(match has_priorities {
                false => args::Order::Fifo,
                true => args::Order::Priority,
            }),
            has_priorities,
            groups,
            group_limit: flags.group_limit,
        })
    }

    /// Creates a queue with these settings. If `recording` is set, the queue records events in this number of bytes.
    /// The queue uses the clock of the runtime.
    ///
    /// # Panics
    ///
    /// Panics outside a Tokio runtime.
    pub(crate) fn build_queue(
        &self,
        name: &str,
        re_add: ReaddPolicy,
        metrics: Option<&Metrics>,
        recording: Option<usize>,
    ) -> Result<KeyQueue, BuildError> {
        let clock = TokioClock::current();
        let mut queue = Queue::builder()
            .name(name)
            .clock(clock)
            .readd_policy(re_add)
            .in_flight_policy(self.rerun)
            // An attacker may choose keys, so the hasher is random. See `KeyQueue`.
            .hasher(RandomState::new());
        if let Some(recording) = recording {
            queue = queue.record_events(recording);
        }
        #[cfg(feature = "opentelemetry")]
        if Export::is_on() {
            queue = queue.traces();
        }
        if let Some(metrics) = metrics {
            queue = queue.metrics(metrics);
        }
        if let Some(pace) = self.pace {
            queue = queue.pace(pace);
        }
        // In a fair queue without priorities, the groups only take turns. An order by priority would have no effect.
        if self.order == args::Order::Priority
            || (self.order == args::Order::Fair && self.has_priorities)
        {
            queue = queue.order(Order::Priority { oldest_every: OLDEST_EVERY });
        }
        if self.order == args::Order::Fair {
            queue = queue.fair();
        }
        if let Some(pattern) = self.groups.clone() {
            let hasher = RandomState::new();
            queue = queue.group_by(move |key: &Key| group_id(&hasher, &pattern, key));
        }
        if let Some(limit) = self.group_limit {
            queue = queue.group_limit(limit);
        }
        queue.build()
    }
}

/// Returns the group of a key. Its number depends on a secret of this process. Otherwise, an attacker could find keys
/// whose group has the same number as another group, and use the turns of that group.
fn group_id(hasher: &RandomState, pattern: &Regex, key: &[u8]) -> GroupId {
    GroupId::new(hasher.hash_one(group_name(pattern, key)))
}

/// Returns the name of the group of a key. The name is the first capture of the pattern, or the whole match if the
/// pattern has no captures. It is empty if the pattern does not match.
fn group_name<'k>(pattern: &Regex, key: &'k [u8]) -> &'k [u8] {
    let found = pattern.captures(key).and_then(|captures| captures.get(1).or(captures.get(0)));
    found.map(|found| found.as_bytes()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use requeue::Add;
    use requeue::clock::FakeClock;

    use super::*;

    #[test]
    fn a_group_is_the_first_capture_or_the_match_or_nothing() {
        for (pattern, key, group) in [
            ("^[^/]*", "a/b/c", "a"),
            ("^([^/]*)/([^/]*)", "a/b/c", "a"),
            ("x(y)?", "wxz", "x"),
            ("(?:a)(b)", "ab", "b"),
            ("x", "abc", ""),
            ("(?-u)\\xff(.)", "abc", ""),
        ] {
            let found = group_name(&Regex::new(pattern).unwrap(), key.as_bytes());
            assert_eq!(found, group.as_bytes(), "{pattern}");
        }
        let bytes = Regex::new(r"(?-u)^(\xff.)").unwrap();
        assert_eq!(group_name(&bytes, b"\xffab"), b"\xffa");
    }

    #[test]
    fn a_delay_counts_from_the_first_add_and_a_debounce_from_the_last() {
        let second = Duration::from_secs(1);
        let debounce = |quiet, most| Some(Debounce { quiet: quiet * second, most: most * second });
        for (delay, debounce, adds, start) in [
            (Some(5), None, &[0, 2, 4][..], 5),
            (None, debounce(5, 50), &[0, 2, 4], 9),
            (None, debounce(5, 12), &[0, 3, 6, 9], 12),
            // The key waits until both times have passed.
            (Some(9), debounce(5, 50), &[0, 1], 9),
            (Some(9), debounce(5, 50), &[0, 3, 6], 11),
            (Some(3), debounce(5, 50), &[0, 1], 6),
            (Some(9), debounce(5, 7), &[0, 3, 6], 9),
        ] {
            let times = Times { delay: delay.map(|n| n * second), debounce };
            let clock = FakeClock::new();
            let queue = Queue::builder().clock(clock.clone()).build().unwrap();
            let origin = queue.now();
            for &add in adds {
                clock.advance((add * second).checked_sub(queue.now().since(origin)).unwrap());
                let waits = || Some(queue.look_up("a")?.due?.since(queue.now()));
                let Debounce { quiet, most } = times.debounce_window(waits).unwrap();
                queue.add_with("a", Add::debounce(quiet).at_most(most));
            }
            let due = queue.look_up("a").unwrap().due.unwrap();
            assert_eq!(due.since(origin), start * second, "{delay:?} {debounce:?} {adds:?}");
            assert_eq!(queue.flush_debounced(), 1);
        }
    }

    /// With `GroupId::of`, an attacker could search for a name whose number is that of another group.
    #[test]
    fn the_numbers_of_groups_are_secrets_of_the_run() {
        let pattern = Regex::new("^[^/]*").unwrap();
        let [one, other] = [RandomState::new(), RandomState::new()];
        let group = |hasher, key: &str| group_id(hasher, &pattern, key.as_bytes());
        assert_eq!(group(&one, "a/1"), group(&one, "a/2"));
        assert_ne!(group(&one, "a/1"), group(&one, "b/1"));
        assert_ne!(group(&one, "a/1"), group(&other, "a/1"));
        assert_ne!(group(&one, "a/1"), GroupId::of(&b"a"[..]));
    }
}
