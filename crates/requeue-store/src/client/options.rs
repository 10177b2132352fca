//! The settings with which a process opens a queue, and their defaults.

use std::time::Duration;

use requeue::limiter::DEFAULT_BACKOFF;

use crate::client::batcher::MAX_BATCH;
use crate::engine::parked::OnParked;
use crate::engine::{Backoff, Failing};
use crate::types::add::{ParkedAdd, ReaddPolicy};
use crate::types::group::GroupBy;

/// The options that matter only while the queue is opened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Opening {
    /// True if a missing queue is an error.
    pub(crate) must_exist: bool,
    pub(crate) readd_policy: Option<ReaddPolicy>,
    pub(crate) parked_add: Option<ParkedAdd>,
    pub(crate) group_by: Option<GroupBy>,
    pub(crate) group_limit: Option<u32>,
    pub(crate) worker: Option<String>,
    pub(crate) on_parked: OnParked,
    #[cfg(feature = "prometheus")]
    pub(crate) metrics: Option<requeue::metrics::Metrics>,
}

/// The settings of an open queue in this process.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) lease: Duration,
    pub(crate) backoff: (Duration, Duration),
    pub(crate) max_failures: Option<u32>,
    pub(crate) oldest_every: u32,
    pub(crate) poll: Duration,
    pub(crate) claim_ahead: usize,
    pub(crate) add_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            backoff: DEFAULT_BACKOFF,
            max_failures: None,
            oldest_every: 10,
            poll: Duration::from_secs(1),
            claim_ahead: MAX_BATCH,
            add_timeout: Duration::from_secs(30),
        }
    }
}

impl Options {
    /// Returns the rules for a key that fails now, with a new random share of the backoff.
    pub(crate) fn failing_rules(&self) -> Failing {
        let (base, cap) = self.backoff;
        let backoff = Backoff { base, cap, share: fastrand::f64() };
        Failing { backoff, max_failures: self.max_failures }
    }
}
