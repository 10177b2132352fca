//! What an election is about, and its times.

use std::fmt;
use std::time::Duration;

use kube::Client;

/// Of which Lease, with which times.
///
/// The defaults are client-go's: a lease of 15 s, 10 s to renew it, a try every 2 s; and 30 s to
/// drain. [`LeaderElector::new`](super::LeaderElector::new) checks them.
///
/// ```
/// use std::time::Duration;
/// use requeue_kube::leader::Config;
///
/// let config = Config::new("default", "web-controller")
///     .lease_duration(Duration::from_secs(30))
///     .renew_deadline(Duration::from_secs(20));
/// # let _ = config;
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) lease_duration: Duration,
    pub(super) renew_deadline: Duration,
    pub(super) retry_period: Duration,
    pub(super) drain_timeout: Duration,
    pub(super) host: Option<String>,
    pub(super) events: bool,
}

impl Config {
    /// An election by the Lease `name` in `namespace`, which is created when there is none.
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
            events: true,
        }
    }

    /// For how long the others leave a leader alone that is not heard of, in whole seconds: the
    /// Lease counts in them. It is the time to take over from a leader that has died.
    #[must_use]
    pub fn lease_duration(mut self, duration: Duration) -> Self {
        self.lease_duration = duration;
        self
    }

    /// How long after the last good renewal was sent a leader steps down.
    ///
    /// What lies between this and the lease's duration is what may go wrong with clocks: at 10 s of
    /// 15 s, one may run half as fast again as another.
    #[must_use]
    pub fn renew_deadline(mut self, deadline: Duration) -> Self {
        self.renew_deadline = deadline;
        self
    }

    /// How long after one try the next is made: exactly this by a leader, and up to 1.2 of it more
    /// by those who wait, at random.
    #[must_use]
    pub fn retry_period(mut self, period: Duration) -> Self {
        self.retry_period = period;
        self
    }

    /// For how long the lease is still renewed once leading has been told to stop, while what is
    /// under way ends.
    #[must_use]
    pub fn drain_timeout(mut self, timeout: Duration) -> Self {
        self.drain_timeout = timeout;
        self
    }

    /// What the identity begins with, in place of the host's name; a UUID follows in any case, so
    /// that no two electors have the same.
    #[must_use]
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Whether Kubernetes Events tell of the beginning and the end of leading; they do by default.
    #[must_use]
    pub fn events(mut self, events: bool) -> Self {
        self.events = events;
        self
    }

    /// A client for the election alone, with connections of its own.
    ///
    /// It gives up when a request of the election does, and does not try again by itself: that is
    /// the election's to say.
    ///
    /// # Errors
    ///
    /// As [`Client::try_from`] has them.
    pub fn client(&self, mut config: kube::Config) -> Result<Client, kube::Error> {
        let limit = Some(self.request_limit());
        (config.connect_timeout, config.read_timeout, config.write_timeout) = (limit, limit, limit);
        config.reset_reader_on_write = true;
        config.default_retry = false;
        Client::try_from(config)
    }

    /// How long a request may take. A leader's ends with its lease, should that be earlier.
    pub(super) fn request_limit(&self) -> Duration {
        (self.renew_deadline / 2).max(Duration::from_secs(1))
    }

    pub(super) fn lease_seconds(&self) -> i32 {
        // It was checked to fit.
        i32::try_from(self.lease_duration.as_secs()).unwrap_or(i32::MAX)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
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

/// A [`Config`] with which no election can be safe.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// The Lease has no namespace, or no name.
    Unnamed {
        /// The namespace that was given.
        namespace: String,
        /// The name that was given.
        name: String,
    },
    /// The Lease counts whole seconds, from 1 to `i32::MAX`: others would read another duration.
    LeaseDuration {
        /// The duration that was given.
        lease_duration: Duration,
    },
    /// A leader would still lead when the others take over.
    RenewDeadline {
        /// The deadline that was given.
        renew_deadline: Duration,
        /// The duration that it is no less than.
        lease_duration: Duration,
    },
    /// A leader would have no second try, or the retry period is zero.
    RetryPeriod {
        /// The period that was given.
        retry_period: Duration,
        /// What 1.2 of it is no less than.
        renew_deadline: Duration,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnamed { namespace, name } => {
                write!(f, "a Lease needs a namespace and a name, not {namespace:?} and {name:?}")
            }
            Self::LeaseDuration { lease_duration } => write!(
                f,
                "the lease's duration has to be in whole seconds, from 1 to {}, not {lease_duration:?}",
                i32::MAX
            ),
            Self::RenewDeadline { renew_deadline, lease_duration } => write!(
                f,
                "the renew deadline, {renew_deadline:?}, has to be less than the lease's duration, \
                 {lease_duration:?}"
            ),
            Self::RetryPeriod { retry_period, renew_deadline } => write!(
                f,
                "1.2 of the retry period, {retry_period:?}, has to be more than zero and less than \
                 the renew deadline, {renew_deadline:?}"
            ),
        }
    }
}

impl std::error::Error for ConfigError {}
