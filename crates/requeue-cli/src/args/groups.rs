//! The flags for the groups of a queue in a store.

use clap::Args;
use regex::bytes::Regex;
use requeue_store::{GroupBy, Key, OpenOptions};

use crate::args::run::{Alone, Order};
use crate::args::values::parse_group_limit;
use crate::exit::Refusal;
use crate::key::escaped;

#[derive(Args, Clone, Debug, Default)]
pub(crate) struct GroupFlags {
    /// Group of a key: the first capture of REGEX, or the whole match
    ///
    /// The pattern is a setting of the queue, which its first add or worker fixes. Groups take turns within a priority.
    #[arg(long, value_name = "REGEX", help_heading = "Queue", hide_short_help = true)]
    pub(crate) group_by: Option<String>,

    /// Most keys of each group in flight, over all workers
    ///
    /// The limit is a setting of the queue, which its first add or worker fixes.
    #[arg(long, value_name = "N", help_heading = "Queue", hide_short_help = true)]
    #[arg(value_parser = parse_group_limit)]
    pub(crate) group_limit: Option<u32>,

    /// Order of ready keys: fair, which requires --group-by and is its default
    #[arg(long, value_enum, value_name = "HOW", help_heading = "Queue", hide_short_help = true)]
    #[arg(hide_possible_values = true)]
    pub(crate) order: Option<Order>,
}

/// The settings of the groups of a queue in a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct GroupSettings {
    by: Option<GroupBy>,
    limit: Option<u32>,
}

impl GroupFlags {
    /// Moves the flags that `requeue run --store` uses out of the flags for a queue in memory. The local queue then
    /// does not apply them a second time.
    pub(crate) const fn take_from(alone: &mut Alone) -> Self {
        Self {
            group_by: alone.group_by.take(),
            group_limit: alone.group_limit.take(),
            order: alone.order.take(),
        }
    }

    /// Checks the flags, and returns the settings. `named` is true if adds name their groups. clap has then refused a
    /// pattern.
    pub(crate) fn settings(self, named: bool) -> Result<GroupSettings, Refusal> {
        let Self { group_by, group_limit: limit, order } = self;
        let has_groups = named || group_by.is_some();
        let refuse = |why: &str| Err(Refusal::usage(why));
        match order {
            Some(Order::Fair) if !has_groups => {
                return refuse(
                    "--order fair requires --group-by; `requeue add` also accepts --group",
                );
            }
            None | Some(Order::Fair) => {}
            Some(_) if has_groups => {
                return refuse("--order: a queue with groups in a store always takes fair turns");
            }
            Some(_) => {
                return refuse(
                    "--order: a queue in a store always delivers by priority, and then by age",
                );
            }
        }
        if limit.is_some() && !has_groups {
            return refuse("--group-limit requires --group-by, or --group of `requeue add`");
        }
        let by = match group_by {
            Some(pattern) => {
                parse_pattern(&pattern)?;
                Some(GroupBy::Pattern(pattern))
            }
            None => named.then_some(GroupBy::Add),
        };
        Ok(GroupSettings { by, limit })
    }
}

impl GroupFlags {
    /// Checks the flags of a worker in the same way as [`settings`](Self::settings). A limit without a pattern is also
    /// valid, because the adds of the queue may name their groups.
    pub(crate) fn worker_settings(mut self) -> Result<GroupSettings, Refusal> {
        let limit = self.group_limit.take_if(|_| self.group_by.is_none());
        let settings = self.settings(false)?;
        Ok(GroupSettings { limit: limit.or(settings.limit), ..settings })
    }
}

/// Parses the value of `--group-by`.
pub(crate) fn parse_pattern(pattern: &str) -> Result<Regex, Refusal> {
    let refuse = |why: &str| {
        let pattern = escaped(pattern.as_bytes());
        Err(Refusal::usage(format!("--group-by {pattern}: {why}")))
    };
    if pattern.is_empty() {
        return refuse("the pattern is empty; use one such as ^[^/]*");
    }
    Regex::new(pattern).or_else(|error| {
        // The other lines repeat the pattern, so only the last line is shown.
        let error = error.to_string();
        let why = error.lines().last().unwrap_or_default();
        let why = why.strip_prefix("error: ").unwrap_or(why);
        refuse(&format!("not a regular expression: {why}; correct the pattern"))
    })
}

impl GroupSettings {
    /// Returns the pattern that extracts the groups. Returns `None` if the flags contain no pattern.
    pub(crate) fn pattern(&self) -> Option<Regex> {
        match &self.by {
            // The pattern has already been parsed, so this does not fail.
            Some(GroupBy::Pattern(pattern)) => Regex::new(pattern).ok(),
            _ => None,
        }
    }

    /// Checks that a new queue with these settings would accept an add. Returns the reason if it would not.
    pub(crate) fn check_add(&self, key: &[u8], group: Option<&str>) -> Result<(), String> {
        let by = self.by.clone().or(group.map(|_| GroupBy::Add));
        by.map_or(Ok(()), |by| by.check_add(&Key::from(key), group))
    }

    /// Makes a new queue take groups from its adds, if `named` is true and no flag sets another rule.
    pub(crate) fn set_named(&mut self, named: bool) {
        self.by = self.by.take().or(named.then_some(GroupBy::Add));
    }

    /// Returns the settings of a queue that `add` creates. If `named` is true, the queue takes groups from its adds.
    /// It has no other setting.
    pub(crate) fn of_adds(named: bool) -> Self {
        Self { by: named.then_some(GroupBy::Add), limit: None }
    }

    pub(crate) fn apply_to(&self, mut opening: OpenOptions) -> OpenOptions {
        if let Some(by) = &self.by {
            opening = opening.group_by(by.clone());
        }
        if let Some(limit) = self.limit {
            opening = opening.group_limit(limit);
        }
        opening
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_groups_fit_together() {
        let flags = |group_by: Option<&str>, group_limit, order| GroupFlags {
            group_by: group_by.map(str::to_owned),
            group_limit,
            order,
        };
        let pattern = Some("^[^/]*");
        let by = Some(GroupBy::from("^[^/]*"));
        for (flags, named, settings) in [
            (flags(None, None, None), false, Ok((None, None))),
            (flags(pattern, Some(2), Some(Order::Fair)), false, Ok((by.clone(), Some(2)))),
            (flags(pattern, None, None), false, Ok((by, None))),
            (flags(None, Some(2), None), true, Ok((Some(GroupBy::Add), Some(2)))),
            (flags(None, None, Some(Order::Fair)), false, Err("fair requires --group-by")),
            (flags(None, Some(2), None), false, Err("--group-limit requires --group-by")),
            (flags(pattern, None, Some(Order::Fifo)), false, Err("always takes fair turns")),
            (flags(None, None, Some(Order::Priority)), false, Err("delivers by priority")),
            (
                flags(Some("("), None, None),
                false,
                Err(r#"--group-by "(": not a regular expression: unclosed group; correct"#),
            ),
            (flags(Some(""), None, None), false, Err(r#"--group-by "": the pattern is empty"#)),
        ] {
            match (flags.settings(named), settings) {
                (Ok(found), Ok((by, limit))) => assert_eq!(found, GroupSettings { by, limit }),
                (Err(refusal), Err(why)) => {
                    assert!(refusal.message.contains(why), "{}", refusal.message);
                }
                (found, settings) => panic!("{found:?} instead of {settings:?}"),
            }
        }
    }
}
