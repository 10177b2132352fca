//! The configuration of a shard group.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;

use super::assignment::Layout;
use super::error::MembershipError;
use crate::clock::Clock;
use crate::leader::Config;
use crate::metrics::LeaseMetrics;
use crate::range::ShardBy;

/// The maximum number of shards. A group object with this many shards is a few kilobytes large.
const MAX_SHARDS: u32 = 1024;

/// The user's function, which returns the shard of the object with this namespace and name.
type ShardOf = Arc<dyn Fn(Option<&str>, &str) -> u32 + Send + Sync>;

/// The configuration of a shard group that this process can join.
///
/// By default, a group has 64 shards by uid, and the durations of [`leader::Config`](Config). Runs in flight may
/// continue for 30 s at a handover. [`join`](Self::join) checks the values.
///
/// ```
/// use requeue_leases::range::ShardBy;
/// use requeue_leases::membership::ShardGroup;
///
/// let group = ShardGroup::new("website", "default").count(128).by(ShardBy::Namespace);
/// # let _ = group;
/// ```
#[derive(Clone)]
#[must_use = "a group is joined by `join`"]
pub struct ShardGroup {
    pub(super) name: String,
    // These fields are public, but hidden. Only requeue-kube reads them.
    #[doc(hidden)]
    pub count: u32,
    #[doc(hidden)]
    pub by: ShardBy,
    #[doc(hidden)]
    pub shard_of: Option<ShardOf>,
    #[doc(hidden)]
    pub client: Option<Client>,
    pub(super) objects: String,
    pub(super) handover_timeout: Duration,
    pub(super) metrics: Option<LeaseMetrics>,
    /// The namespace, the durations and the other options of the member Lease.
    pub(super) lease: Config,
    pub(super) clock: Clock,
}

impl ShardGroup {
    /// Creates the configuration of the group with the name `name`. Its Leases are in `namespace`.
    ///
    /// If the group does not exist, the first member creates it. Each controller needs a separate group. If two
    /// controllers of the same kind were in one group, each would reconcile only a part of the objects.
    pub fn new(name: impl Into<String>, namespace: impl Into<String>) -> Self {
        let name = name.into();
        let lease = Config::new(namespace, &name);
        Self {
            name,
            count: 64,
            by: ShardBy::default(),
            shard_of: None,
            client: None,
            objects: String::new(),
            handover_timeout: Duration::from_secs(30),
            metrics: None,
            lease,
            clock: Clock::new(),
        }
    }

    /// Sets the number of shards. It must be a power of two, and at most 1,024.
    ///
    /// The default is 64.
    ///
    /// If there are more members than shards, some members have no shard. To change the number later, stop all members,
    /// and delete the Lease of the group.
    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// Sets the field from whose hash the shard of an object is computed.
    pub fn by(mut self, by: ShardBy) -> Self {
        self.by = by;
        self
    }

    /// Sets a function that returns the number of an object's shard, from the object's namespace and name. The number
    /// must be less than [`count`](Self::count).
    ///
    /// The function replaces the hash of the uid or namespace. All members must use the same function. The API server
    /// cannot apply it. Each replica therefore receives all objects, and drops those of other shards. The controller
    /// calls the function for each event and each run, while it holds locks. The function must return quickly, and must
    /// not use the controller. If the function panics, or returns a number that is too large, the controller ends with
    /// `RunnerError::Config`.
    ///
    /// ```
    /// use requeue_leases::membership::ShardGroup;
    ///
    /// let group = ShardGroup::new("tenant", "default").count(4).shard_of(|namespace, _name| match namespace {
    ///     Some("large-tenant") => 0,
    ///     namespace => 1 + namespace.map_or(0, |namespace| namespace.len() as u32 % 3),
    /// });
    /// # let _ = group;
    /// ```
    pub fn shard_of(
        mut self,
        shard_of: impl Fn(Option<&str>, &str) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.shard_of = Some(Arc::new(shard_of));
        self
    }

    /// Sets the client for the group's requests, such as a client from [`client`](Self::client).
    ///
    /// If this method is not called, the group of a controller uses the client of the controller's `Api`.
    /// [`join`](Self::join) ignores this setting, because it has a parameter for the client.
    pub fn with_client(mut self, client: Client) -> Self {
        self.client = Some(client);
        self
    }

    /// Sets the kind of the objects that the group divides, such as `websites.example.com`.
    ///
    /// All members of a group must set the same kind. Two programs with different kinds then cannot share a group by
    /// mistake. For a controller, the default is its kind. If two programs reconcile the same kind, set different
    /// texts, such as the names of the programs.
    pub fn objects(mut self, objects: impl Into<String>) -> Self {
        self.objects = objects.into();
        self
    }

    /// Sets how long runs in flight may continue at a handover. They are then cancelled.
    ///
    /// The default is 30 s.
    ///
    /// During a handover, no other run of the shard begins. A run that never completes must therefore not delay the
    /// handover forever. The new holder reconciles the object of a cancelled run again.
    pub fn handover_timeout(mut self, timeout: Duration) -> Self {
        self.handover_timeout = timeout;
        self
    }

    /// Changes the durations, the host and the Events of the member Lease.
    ///
    /// - [`renew_deadline`](Config::renew_deadline): if a member cannot renew its Lease for this time, it leaves the
    ///   group.
    /// - [`retry_period`](Config::retry_period): the time between two renewals. If the members of a group do not
    ///   change, renewals are its only requests.
    /// - [`without_events`](Config::without_events): by default, a Kubernetes Event reports each takeover.
    ///
    /// The [`drain_timeout`](Config::drain_timeout) has no effect. [`handover_timeout`](Self::handover_timeout)
    /// replaces it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use requeue_leases::membership::ShardGroup;
    ///
    /// let seconds = Duration::from_secs;
    /// let group = ShardGroup::new("website", "default")
    ///     .lease(|lease| lease.lease_duration(seconds(30)).renew_deadline(seconds(20)));
    /// # let _ = group;
    /// ```
    pub fn lease(mut self, configure: impl FnOnce(Config) -> Config) -> Self {
        self.lease = configure(self.lease);
        self
    }

    /// Sets the metrics in which this process shows its shards. The label `name` is the name of the group.
    pub fn metrics(mut self, metrics: impl AsRef<LeaseMetrics>) -> Self {
        self.metrics = Some(metrics.as_ref().clone());
        self
    }

    /// Creates a client that only the group uses, with separate connections.
    ///
    /// A separate client is necessary, because renewals must not wait behind other requests of the process.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Client::try_from`].
    pub fn client(&self, config: kube::Config) -> Result<Client, kube::Error> {
        Client::try_from(self.lease.limit_requests(config))
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    pub(super) fn layout(&self) -> Layout {
        Layout {
            count: self.count as usize,
            by: match self.shard_of {
                Some(_) => "a function".to_owned(),
                None => self.by.field().to_owned(),
            },
            objects: self.objects.clone(),
        }
    }
}

// These methods are hidden, because only requeue-kube uses them.
#[doc(hidden)]
impl ShardGroup {
    /// Sets the kind of the objects and the metrics to those of a controller, if the user has not set them.
    pub fn for_controller(mut self, objects: String, metrics: Option<&LeaseMetrics>) -> Self {
        if self.objects.is_empty() {
            self.objects = objects;
        }
        self.metrics = self.metrics.or_else(|| metrics.cloned());
        self
    }

    /// Returns the time between two renewals of the member Lease.
    pub const fn period(&self) -> Duration {
        self.lease.retry_period
    }

    /// # Errors
    ///
    /// Returns the error with which [`join`](Self::join) refuses an invalid configuration.
    pub fn check(&self) -> Result<(), MembershipError> {
        let is_label = |name: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
            name.starts_with(plain)
                && name.ends_with(plain)
                && name.chars().all(|c| plain(c) || c == '-')
        };
        if !is_label(&self.name) || self.name.len() > 63 {
            return Err(MembershipError::from_text(format!(
                "invalid name of a shard group {:?}: use at most 63 lower-case letters, digits and \
                 hyphens, with no hyphen at the start or the end",
                self.name
            )));
        }
        if !self.count.is_power_of_two() || self.count > MAX_SHARDS {
            return Err(MembershipError::from_text(format!(
                "{} shards: use a power of two from 1 to {MAX_SHARDS}",
                self.count
            )));
        }
        self.lease.check().map_err(MembershipError::Config)
    }
}

impl fmt::Debug for ShardGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShardGroup")
            .field("name", &self.name)
            .field("count", &self.count)
            .field("by", &self.layout().by)
            .field("objects", &self.objects)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_and_counts_are_refused() {
        let check = |group: ShardGroup| group.check().map_err(|error| error.to_string());
        assert_eq!(check(ShardGroup::new("website", "default")), Ok(()));
        for count in [0, 3, 63, 1025, 2048] {
            let error = check(ShardGroup::new("website", "default").count(count)).unwrap_err();
            assert!(error.contains(&count.to_string()) && error.contains("1024"), "{error}");
        }
        for name in ["", "Website", "web site", "-web", "web-", "web.site", &"w".repeat(64)] {
            let error = check(ShardGroup::new(name, "default")).unwrap_err();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
        assert!(check(ShardGroup::new("website", "")).is_err());
        let late = ShardGroup::new("website", "default")
            .lease(|lease| lease.renew_deadline(Duration::from_secs(15)));
        assert!(check(late).is_err());
    }
}
