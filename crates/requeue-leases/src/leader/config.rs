//! The configuration of an election: its Lease and its times.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};

/// The Lease and the times of an election.
///
/// The defaults are client-go's: a lease of 15 s, a renew deadline of 10 s and a retry period of
/// 2 s. The drain timeout is 30 s. [`LeaderElector::new`](super::LeaderElector::new) checks the
/// values.
///
/// ```
/// use std::time::Duration;
/// use requeue_leases::leader::Config;
///
/// let config = Config::new("default", "web-controller")
///     .lease_duration(Duration::from_secs(30))
///     .renew_deadline(Duration::from_secs(20));
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) lease_duration: Duration,
    pub(crate) renew_deadline: Duration,
    pub(crate) retry_period: Duration,
    pub(super) drain_timeout: Duration,
    pub(super) host: Option<String>,
    pub(super) has_events: bool,
    /// The elector has one attempt: to create the Lease.
    pub(super) only_create: bool,
    /// The labels and annotations with which the Lease is created.
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl Config {
    /// Creates the configuration for the Lease `name` in `namespace`.
    ///
    /// If there is no such Lease, the elector creates it.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(30),
            host: None,
            has_events: true,
            only_create: false,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
        }
    }

    /// Makes an elector for this Lease, which must not exist yet, with these labels and annotations.
    ///
    /// The elector creates the Lease, or gives up. It never takes it over, so the Lease has one
    /// term only.
    pub(crate) fn only_create(
        mut self,
        name: &str,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
    ) -> Self {
        name.clone_into(&mut self.name);
        self.only_create = true;
        self.labels = labels;
        self.annotations = annotations;
        self
    }

    /// Lets the elector try again: a planted bug.
    #[cfg(test)]
    pub(crate) fn retries(mut self) -> Self {
        self.only_create = false;
        self
    }

    pub(super) fn metadata(&self) -> Value {
        let mut metadata = json!({ "name": self.name });
        if !self.labels.is_empty() {
            metadata["labels"] = json!(self.labels);
        }
        if !self.annotations.is_empty() {
            metadata["annotations"] = json!(self.annotations);
        }
        metadata
    }

    /// Sets the duration of the lease, in whole seconds, because the Lease counts in seconds.
    ///
    /// The default is 15 s.
    ///
    /// For this time, other replicas wait for a leader that does not renew. It determines the time
    /// to take over from a leader that has died.
    #[must_use]
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.lease_duration = duration;
        self
    }

    /// Sets the time after which a leader steps down, measured from the moment at which its last
    /// successful renewal was sent.
    ///
    /// The default is 10 s.
    ///
    /// The ratio of the lease's duration to this deadline is the margin for inaccurate clocks. With
    /// 15 s and 10 s, one clock may run almost 1.5 times as fast as another.
    #[must_use]
    pub fn renew_deadline(mut self, deadline: Duration) -> Self {
        self.renew_deadline = deadline;
        self
    }

    /// Sets the time between two attempts.
    ///
    /// The default is 2 s.
    ///
    /// A leader waits for exactly this time. Standbys add a random part of up to 1.2 times this
    /// time.
    #[must_use]
    pub fn retry_period(mut self, period: Duration) -> Self {
        self.retry_period = period;
        self
    }

    /// Sets the time for which the lease is still renewed after the leader was asked to stop, so
    /// that its work can complete.
    ///
    /// The default is 30 s.
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets the first part of the identity, which is the host's name by default.
    ///
    /// A UUID follows in each case, so no two electors have the same identity.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Publishes no Kubernetes Events. By default, they report the start and the end of each term.
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.has_events = false;
        self
    }

    /// Creates a client for the election only, with its own connections.
    ///
    /// Its timeouts are those of the election's requests. It does not retry: the election decides
    /// about retries.
    ///
    /// # Errors
    ///
    /// As [`Client::try_from`].
    pub fn client(&self, mut config: kube::Config) -> Result<Client, kube::Error> {
        let limit = Some(self.request_limit());
        config.connect_timeout = limit;
        config.read_timeout = limit;
        config.write_timeout = limit;
        config.reset_reader_on_write = true;
        config.default_retry = false;
        Client::try_from(config)
    }

    /// Returns the time limit of a request. A leader's request ends with its lease, if that is
    /// earlier.
    pub(crate) fn request_limit(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    pub(crate) fn lease_seconds(&self) -> i32 {
        // `check` has ensured that it fits.
        i32::try_from(self.lease_duration.as_secs()).unwrap_or(i32::MAX)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self { lease_duration, renew_deadline, retry_period, .. } = *self;
        if self.namespace.is_empty() || self.name.is_empty() {
            return Err(ConfigError::Unnamed {
                namespace: self.namespace.clone(),
                name: self.name.clone(),
            });
        }
        if lease_duration.is_zero()
            || lease_duration.subsec_nanos() != 0
            || i32::try_from(lease_duration.as_secs()).is_err()
        {
            return Err(ConfigError::LeaseDuration { lease_duration });
        }
        if renew_deadline >= lease_duration {
            return Err(ConfigError::RenewDeadline { renew_deadline, lease_duration });
        }
        if retry_period.is_zero() || retry_period.saturating_mul(6) >= renew_deadline * 5 {
            return Err(ConfigError::RetryPeriod { retry_period, renew_deadline });
        }
        Ok(())
    }
}

/// The reason why a [`Config`] is not safe.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The Lease has no namespace, or no name.
    #[error("a Lease needs a namespace and a name, not {namespace:?} and {name:?}")]
    Unnamed {
        /// The namespace.
        namespace: String,
        /// The name.
        name: String,
    },
    /// The duration is not a whole number of seconds from 1 to `i32::MAX`. The Lease stores whole
    /// seconds, so other replicas would read another duration.
    #[error(
        "the lease's duration must be whole seconds, from 1 to {}, not {lease_duration:?}",
        i32::MAX
    )]
    LeaseDuration {
        /// The duration.
        lease_duration: Duration,
    },
    /// The deadline is not less than the lease's duration. A leader would still lead when another
    /// takes over.
    #[error(
        "the renew deadline, {renew_deadline:?}, has to be less than the lease's duration, \
         {lease_duration:?}"
    )]
    RenewDeadline {
        /// The deadline.
        renew_deadline: Duration,
        /// The lease's duration.
        lease_duration: Duration,
    },
    /// The retry period is zero, or 1.2 times its value is not less than the renew deadline. A
    /// leader would have no second attempt.
    #[error(
        "1.2 of the retry period, {retry_period:?}, must be more than zero and less than the renew \
         deadline, {renew_deadline:?}"
    )]
    RetryPeriod {
        /// The retry period.
        retry_period: Duration,
        /// The renew deadline.
        renew_deadline: Duration,
    },
}
