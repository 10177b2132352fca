//! The configuration of an election: its Lease, durations and deadlines.

use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};

use crate::error::ConfigError;

/// The Lease, durations and deadlines of an election.
///
/// The defaults are client-go's: a lease duration of 15 s, a renew deadline of 10 s and a retry period of 2 s. The
/// drain timeout is 30 s. [`LeaderElector::new`](super::LeaderElector::new) checks the values.
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
    pub(crate) has_events: bool,
    /// True if the elector makes only one attempt, to create the Lease.
    pub(super) only_create: bool,
    /// The metadata of a Lease that the elector creates.
    pub(super) metadata: Value,
}

impl Config {
    /// Creates the configuration for the Lease `name` in `namespace`.
    ///
    /// If the Lease does not exist, the elector creates it.
    #[must_use]
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            namespace: namespace.into(),
            metadata: json!({ "name": name }),
            name,
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
            drain_timeout: Duration::from_secs(30),
            host: None,
            has_events: true,
            only_create: false,
        }
    }

    /// Makes an elector for the Lease `name`, which must not exist yet, with these labels and annotations.
    ///
    /// The elector creates the Lease, or gives up. It never takes an existing Lease over, so the Lease has only one
    /// term.
    pub(crate) fn only_create(mut self, name: &str, labels: Value, annotations: Value) -> Self {
        name.clone_into(&mut self.name);
        self.metadata = json!({ "name": name, "labels": labels, "annotations": annotations });
        self.only_create = true;
        // The Events of a group report takeovers instead of the terms of its members.
        self.has_events = false;
        self
    }

    /// Permits further attempts, as a planted bug.
    #[cfg(test)]
    pub(crate) fn allow_retries(mut self) -> Self {
        self.only_create = false;
        self
    }

    /// Sets the duration of the lease, in whole seconds, because the Lease counts in seconds.
    ///
    /// The default is 15 s.
    ///
    /// Other replicas wait for this time before they take over from a leader that does not renew. The duration
    /// therefore determines how soon another replica replaces a leader that has died.
    #[must_use]
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.lease_duration = duration;
        self
    }

    /// Sets the time after which a leader steps down, measured from the time at which its last
    /// successful renewal was sent.
    ///
    /// The default is 10 s. The deadline must be less than the lease's duration. Otherwise a leader would still lead
    /// when another replica takes over.
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
    /// The default is 2 s. 1.2 times this period must be less than the renew deadline. Otherwise, a leader would have
    /// no second attempt.
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
    /// The second part is always a UUID, so no two electors have the same identity.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Publishes no Kubernetes Events. By default, Events report the start and the end of each
    /// term.
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.has_events = false;
        self
    }

    /// Creates a client for the election alone, with separate connections.
    ///
    /// The timeouts of the client are the timeouts of the election's requests. The client does not retry requests,
    /// because the election decides about retries.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Client::try_from`].
    pub fn client(&self, config: kube::Config) -> Result<Client, kube::Error> {
        let mut config = self.limit_requests(config);
        config.read_timeout = config.write_timeout;
        // The time limit begins with each request, so an idle connection does not exceed it.
        config.reset_reader_on_write = true;
        Client::try_from(config)
    }

    /// Sets the time limits of a client's requests, except the limit for reads, because a watch can be silent for
    /// longer.
    pub(crate) fn limit_requests(&self, mut config: kube::Config) -> kube::Config {
        config.connect_timeout = Some(self.request_limit());
        config.write_timeout = Some(self.request_limit());
        // The protocol decides about retries, because it knows when a request is outdated.
        config.default_retry = false;
        config
    }

    /// Returns the time limit of a request. A request of a leader ends no later than its lease.
    pub(crate) fn request_limit(&self) -> Duration {
        // The limit is half of the renew deadline, so that a renewal whose request hangs still has
        // a second attempt.
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    pub(crate) fn lease_seconds(&self) -> i32 {
        // `check` has ensured that the duration fits.
        i32::try_from(self.lease_duration.as_secs()).unwrap_or(i32::MAX)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self { namespace, name, lease_duration, renew_deadline, retry_period, .. } = self;
        let error = if namespace.is_empty() || name.is_empty() {
            format!("a Lease needs a namespace and a name, not {namespace:?} and {name:?}")
        } else if lease_duration.is_zero()
            || lease_duration.subsec_nanos() != 0
            || i32::try_from(lease_duration.as_secs()).is_err()
        {
            // The Lease stores whole seconds, so other replicas would read another duration.
            let most = i32::MAX;
            format!(
                "the lease's duration must be whole seconds, from 1 to {most}, not {lease_duration:?}"
            )
        } else if renew_deadline >= lease_duration {
            format!(
                "the renew deadline, {renew_deadline:?}, has to be less than the lease's duration, \
                 {lease_duration:?}"
            )
        } else if retry_period.is_zero() || retry_period.saturating_mul(6) >= *renew_deadline * 5 {
            format!(
                "1.2 of the retry period, {retry_period:?}, must be more than zero and less than the \
                 renew deadline, {renew_deadline:?}"
            )
        } else {
            return Ok(());
        };
        Err(ConfigError(error))
    }
}
