//! The settings with which a process opens a queue, and their defaults.

use std::sync::Arc;
use std::time::Duration;

use requeue::limiter::DEFAULT_BACKOFF;

use crate::engine::defaults::{LEASE, MAX_BATCH, OLDEST_EVERY, POLL};
use crate::engine::parked::OnParked;
use crate::engine::{Backoff, Failing, Place};
use crate::types::add::{Add, ParkedAdd, ReaddPolicy};
use crate::types::group::{GroupBy, Grouping};
use crate::types::rate::Rate;
use crate::types::worker::invalid_worker;

/// The options that `open` uses once, when it opens the queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opening {
    /// True if `open` fails for a missing queue.
    pub(crate) must_exist: bool,
    pub(crate) readd_policy: Option<ReaddPolicy>,
    pub(crate) parked_add: Option<ParkedAdd>,
    pub(crate) group_by: Option<GroupBy>,
    pub(crate) group_limit: Option<u32>,
    pub(crate) rate: Option<Rate>,
    pub(crate) worker: Option<String>,
    pub(crate) on_parked: OnParked,
    /// True if this process does not add runs to the past of keys.
    pub(crate) drops_past: bool,
    #[cfg(feature = "prometheus")]
    pub(crate) metrics: Option<requeue::metrics::Metrics>,
}

impl Opening {
    /// Checks the options. Returns the rule that assigns keys to groups, if the options contain one. The error is the
    /// reason why an option is invalid.
    pub(crate) fn check(&self) -> Result<Option<Grouping>, String> {
        match self.readd_policy {
            None | Some(ReaddPolicy::Hold | ReaddPolicy::Replace) => {}
            Some(other) => {
                return Err(format!(
                    "stores do not support the re-add policy {}; use hold or replace",
                    readd_policy_name(other)
                ));
            }
        }
        if let Some(why) = self.worker.as_deref().and_then(invalid_worker) {
            return Err(why);
        }
        if let Some(rate) = self.rate {
            rate.check()?;
        }
        let grouping = self.group_by.as_ref().map(Grouping::new).transpose()?;
        match self.group_limit {
            Some(0) => Err("invalid limit 0 of its groups: use at least 1".to_owned()),
            _ => Ok(grouping),
        }
    }

    /// Returns true if the options can open only an existing queue with groups. Such options have a limit for groups,
    /// but no rule that creates groups.
    pub(crate) const fn needs_groups(&self) -> bool {
        self.group_limit.is_some() && self.group_by.is_none()
    }

    /// Compares the options with the stored settings of the queue. Returns the rule that assigns its keys to groups, if
    /// it has groups. The error says which setting differs. `wanted` is the result of [`check`](Self::check).
    pub(crate) fn check_stored(
        &self,
        place: &Place,
        wanted: Option<&Grouping>,
    ) -> Result<Option<Grouping>, String> {
        if let Some(wanted) = self.readd_policy.filter(|&wanted| wanted != place.readd_policy) {
            return Err(format!(
                "its re-add policy is {}, not {}; omit the option, or use another queue",
                readd_policy_name(place.readd_policy),
                readd_policy_name(wanted)
            ));
        }
        if let Some(wanted) = self.parked_add.filter(|&wanted| wanted != place.parked_add) {
            return Err(format!(
                "its adds {} parked keys, and the option says {}; omit the option, or use another queue",
                parked_add_name(place.parked_add),
                parked_add_name(wanted)
            ));
        }
        let stored = place.group_by.as_deref().map(GroupBy::from_stored);
        let stored = stored.as_ref().map(Grouping::new).transpose();
        let stored = stored.map_err(|why| format!("{why}; drop the queue, and create it again"))?;
        if let Some(wanted) = wanted.filter(|&wanted| stored.as_ref() != Some(wanted)) {
            let has = match &stored {
                Some(stored) => format!("its groups are {stored}"),
                None => "it has no groups".to_owned(),
            };
            return Err(format!(
                "{has}, and the option says groups {wanted}; omit the option, or use another queue"
            ));
        }
        if let Some(wanted) = self.group_limit.filter(|&limit| Some(limit) != place.group_limit) {
            if stored.is_none() {
                return Err(format!(
                    "it has no groups, and the option says a limit of {wanted} for each; omit the option, or use \
                     another queue"
                ));
            }
            let has = match place.group_limit {
                Some(limit) => format!("the limit of its groups is {limit}, not {wanted}"),
                None => format!("its groups have no limit, and the option says {wanted}"),
            };
            return Err(format!(
                "{has}; omit the option, or call `Queue::set_group_limit` or `requeue groups default-limit {wanted}`"
            ));
        }
        self.check_rate(place.rate)?;
        Ok(stored)
    }

    /// Returns an error if the stored rate differs from the rate of the options.
    pub(crate) fn check_rate(&self, stored: Option<Rate>) -> Result<(), String> {
        match (self.rate, stored) {
            (Some(wanted), Some(rate)) if wanted != rate => Err(format!(
                "its rate is {rate}, not {wanted}; omit the option, or call `Queue::set_rate` or `requeue queues rate`"
            )),
            _ => Ok(()),
        }
    }
}

/// Returns the name of a re-add policy, as in the options of the program and in SQL.
const fn readd_policy_name(readd_policy: ReaddPolicy) -> &'static str {
    match readd_policy {
        ReaddPolicy::Hold => "hold",
        ReaddPolicy::Replace => "replace",
        _ => "keep-both",
    }
}

const fn parked_add_name(parked_add: ParkedAdd) -> &'static str {
    match parked_add {
        ParkedAdd::Keep => "keep",
        ParkedAdd::Revive => "revive",
    }
}

/// The settings of an open queue that apply to this process only.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) backoff: (Duration, Duration),
    pub(crate) max_failures: Option<u32>,
    pub(crate) oldest_every: u32,
    pub(crate) poll: Duration,
    pub(crate) claim_ahead: usize,
    pub(crate) add_timeout: Duration,
    /// True if this process creates spans, and its adds carry trace contexts.
    #[cfg(feature = "opentelemetry")]
    pub(crate) traces: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: LEASE,
            backoff: DEFAULT_BACKOFF,
            max_failures: None,
            oldest_every: OLDEST_EVERY,
            poll: POLL,
            claim_ahead: MAX_BATCH,
            add_timeout: Duration::from_secs(30),
            #[cfg(feature = "opentelemetry")]
            traces: false,
        }
    }
}

impl Options {
    /// Returns the current trace context for `add`, if the queue has traces.
    pub(crate) fn current_trace(&self, add: &Add) -> Option<Arc<str>> {
        #[cfg(feature = "opentelemetry")]
        if self.traces {
            let is_debounced = add.longest_wait().is_some();
            let line = requeue::trace::current_line(!add.after.is_zero(), is_debounced);
            return line.map(Arc::from);
        }
        let _ = add;
        None
    }

    /// Returns the rules for a key whose run fails. The random part of the backoff differs at each call.
    pub(crate) fn failing_rules(&self) -> Failing {
        let (base, cap) = self.backoff;
        let backoff = Backoff { base, cap, share: fastrand::f64() };
        Failing { backoff, max_failures: self.max_failures }
    }
}
