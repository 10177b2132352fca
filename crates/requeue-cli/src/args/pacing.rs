//! In what order, how often and how far apart commands start: the flags for it, checked.

use std::time::Duration;

use regex::bytes::Regex;
use requeue::metrics::Metrics;
use requeue::{BuildError, EarlyAdd, Group, Order, Queue};

use crate::args::{self, Alone, Common};
use crate::exit::Refusal;
use crate::input::Key;
use crate::pace::{Debounce, Times};
use crate::rate::Every;

/// How commands are spaced and ordered.
#[derive(Debug)]
pub(crate) struct Pacing {
    pub(crate) times: Times,
    /// And how many may start at once after a pause.
    pub(crate) rate: Option<(Every, u32)>,
    order: args::Order,
    /// Whether keys can have priorities.
    has_priorities: bool,
    groups: Option<Regex>,
    group_jobs: Option<u32>,
}

/// With priorities, one start in so many is that of the key that has been ready longest.
const OLDEST_EVERY: u32 = 10;

impl Pacing {
    pub(crate) fn check(
        common: &Common,
        flags: &Alone,
        has_priorities: bool,
    ) -> Result<Self, Refusal> {
        let needs = |is_given, flag, other| match is_given {
            true => Err(Refusal::usage(format!("{flag} needs {other}"))),
            false => Ok(()),
        };
        needs(common.burst.is_some() && common.rate.is_none(), "--burst", "--rate")?;
        let without_debounce = flags.debounce.is_none();
        needs(flags.debounce_max.is_some() && without_debounce, "--debounce-max", "--debounce")?;
        let without_groups = flags.group_by.is_none();
        let is_fair = flags.order == Some(args::Order::Fair);
        needs(is_fair && without_groups, "--order fair", "--group-by")?;
        needs(flags.group_jobs.is_some() && without_groups, "--group-jobs", "--group-by")?;

        let debounce = match (flags.debounce, flags.debounce_max) {
            (Some(quiet), Some(most)) if most < quiet => {
                return Err(Refusal::usage("--debounce is longer than --debounce-max"));
            }
            (Some(quiet), most) => {
                let most = most.unwrap_or_else(|| quiet.saturating_mul(10));
                Some(Debounce { quiet, most })
            }
            (None, _) => None,
        };
        let some = |time: Option<Duration>| time.filter(|time| !time.is_zero());
        let groups = match &flags.group_by {
            None => None,
            Some(pattern) => Some(
                Regex::new(pattern)
                    .map_err(|error| Refusal::usage(format!("--group-by: {error}")))?,
            ),
        };
        Ok(Self {
            times: Times {
                delay: some(flags.delay),
                debounce: debounce.filter(|debounce| !debounce.quiet.is_zero()),
                min_interval: some(flags.min_interval),
            },
            rate: common.rate.map(|every| (every, common.burst.unwrap_or(1))),
            // Where there are priorities, they are meant.
            order: flags.order.unwrap_or(match has_priorities {
                false => args::Order::Fifo,
                true => args::Order::Priority,
            }),
            has_priorities,
            groups,
            group_jobs: flags.group_jobs,
        })
    }

    /// A queue of this order. Needs a runtime.
    pub(crate) fn queue(
        &self,
        name: &str,
        early_add: EarlyAdd,
        metrics: Option<&Metrics>,
    ) -> Result<Queue<Key>, BuildError> {
        let mut queue = Queue::builder().name(name).early_add(early_add);
        if let Some(metrics) = metrics {
            queue = queue.metrics(metrics);
        }
        // Where there are none, groups take turns and nothing else.
        if self.order == args::Order::Priority
            || (self.order == args::Order::Fair && self.has_priorities)
        {
            queue = queue.order(Order::Priority { oldest_every: OLDEST_EVERY });
        }
        if self.order == args::Order::Fair {
            queue = queue.fair();
        }
        if let Some(pattern) = self.groups.clone() {
            queue = queue.group_by(move |key: &Key| group(&pattern, key));
        }
        if let Some(limit) = self.group_jobs {
            queue = queue.group_limit(limit);
        }
        queue.build()
    }
}

/// The group of a key: what the pattern's first capture matches, or else what all of it does; that
/// of keys which it doesn't match has an empty name.
pub(crate) fn group(pattern: &Regex, key: &[u8]) -> Group {
    Group::of(name(pattern, key))
}

fn name<'k>(pattern: &Regex, key: &'k [u8]) -> &'k [u8] {
    let whole = |key| pattern.find(key).map(|found| found.as_bytes());
    let found = match pattern.captures_len() {
        1 => whole(key),
        _ => pattern
            .captures(key)
            .and_then(|captures| captures.get(1).or(captures.get(0)))
            .map(|found| found.as_bytes()),
    };
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
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
            let found = name(&Regex::new(pattern).unwrap(), key.as_bytes());
            assert_eq!(found, group.as_bytes(), "{pattern}");
        }
        let bytes = Regex::new(r"(?-u)^(\xff.)").unwrap();
        assert_eq!(name(&bytes, b"\xffab"), b"\xffa");
    }
}
