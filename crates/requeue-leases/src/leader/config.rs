//! The configuration of an election: the name of its Lease, and its durations.

use std::time::Duration;

use kube::Client;
use serde_json::{Value, json};

use crate::error::ConfigError;

/// The configuration of an election: the name of its Lease, and its durations.
///
/// The defaults are those of client-go: a lease duration of 15 s, a renew deadline of 10 s and a retry period of 2 s.
/// The drain timeout is 30 s by default. [`LeaderElector::new`](super::LeaderElector::new) checks the values.
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
    /// True if the elector makes only one attempt to lead, which is to create the Lease.
    pub(super) only_create: bool,
    /// The metadata with which the elector creates the Lease.
    pub(super) metadata: Value,
}

impl Config {
    /// Creates the configuration of an election for the Lease `name` in `namespace`.
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

    /// Changes the configuration so that the elector only creates the Lease `name`, with these labels and annotations.
    ///
    /// If the Lease exists, or if its creation fails, the elector gives up. It never takes over an existing Lease. The
    /// Lease therefore has only one term.
    pub(crate) fn only_create(mut self, name: &str, labels: Value, annotations: Value) -> Self {
        name.clone_into(&mut self.name);
        self.metadata = json!({ "name": name, "labels": labels, "annotations": annotations });
        self.only_create = true;
        // A group publishes Events about takeovers instead of Events about the terms of its members.
        self.has_events = false;
        self
    }

    /// Permits further attempts after the first one. Only tests use this method, as a planted bug.
    #[cfg(test)]
    pub(crate) fn allow_retries(mut self) -> Self {
        self.only_create = false;
        self
    }

    /// Sets the duration of the lease. It must be whole seconds, because the Lease stores seconds.
    ///
    /// The default is 15 s.
    ///
    /// If a leader stops renewing, the other replicas wait for this time before they take over. The duration therefore
    /// determines how soon a dead leader is replaced.
    #[must_use]
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.lease_duration = duration;
        self
    }

    /// Sets the renew deadline. A leader steps down if no renewal has succeeded for this time. The time begins when the
    /// leader sends its last successful renewal.
    ///
    /// The default is 10 s. The deadline must be less than the lease duration. Otherwise, a leader would still lead
    /// when another replica takes over.
    ///
    /// The lease duration divided by this deadline is the tolerance for inaccurate clocks. With 15 s and 10 s, one
    /// machine's clock may run almost 1.5 times as fast as another's.
    #[must_use]
    pub fn renew_deadline(mut self, deadline: Duration) -> Self {
        self.renew_deadline = deadline;
        self
    }

    /// Sets the time between two attempts to acquire or renew the lease.
    ///
    /// The default is 2 s. This period times 1.2 must be less than the renew deadline. Otherwise, a leader whose first
    /// attempt fails would have no second attempt.
    ///
    /// A leader waits for exactly this period. A standby adds a random time of up to 1.2 periods.
    #[must_use]
    pub fn retry_period(mut self, period: Duration) -> Self {
        self.retry_period = period;
        self
    }

    /// Sets the maximum time for which the leader's work may continue after the leader was asked to stop. During this
    /// time, the lease is still renewed.
    ///
    /// The default is 30 s.
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// Sets the first part of the elector's identity. By default, it is the name of the host.
    ///
    /// The second part is always a UUID. Two electors therefore never have the same identity.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Disables Kubernetes Events. By default, an Event reports the beginning and the end of each term.
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.has_events = false;
        self
    }

    /// Creates a client that only the election uses, with separate connections.
    ///
    /// The timeouts of the client are half of the renew deadline, but at least 1 s. The client does not repeat a failed
    /// request, because the election decides when to repeat it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Client::try_from`].
    pub fn client(&self, config: kube::Config) -> Result<Client, kube::Error> {
        let mut config = self.limit_requests(config);
        config.read_timeout = config.write_timeout;
        // The time limit starts again with each request. An idle connection therefore does not exceed it.
        config.reset_reader_on_write = true;
        Client::try_from(config)
    }

    /// Sets the time limits of a client's requests. The limit for reads is not set, because a watch may receive nothing
    /// for a longer time.
    pub(crate) fn limit_requests(&self, mut config: kube::Config) -> kube::Config {
        config.connect_timeout = Some(self.request_limit());
        config.write_timeout = Some(self.request_limit());
        // The protocol repeats failed requests itself. Only the protocol knows when a request is outdated.
        config.default_retry = false;
        config
    }

    /// Returns the time limit of one request. The end of a leader's right can shorten it further.
    pub(crate) fn request_limit(&self) -> Duration {
        // The limit is half of the renew deadline. If one renewal hangs, a second attempt is still possible before the
        // deadline.
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    pub(crate) fn lease_seconds(&self) -> i32 {
        // `check` has verified that the number of seconds fits into an `i32`.
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
            // The Lease stores whole seconds. Other replicas would read a rounded duration.
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
