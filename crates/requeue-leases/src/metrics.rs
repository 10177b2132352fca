//! The Prometheus metrics of elections and shard groups.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type ByName = [(&'static str, String); 1];
type ByReason = [(&'static str, String); 2];

/// The metrics of the elections and shard groups that are in one Prometheus registry.
///
/// Create one value for each registry, and pass it to each elector and each group. The metrics of requeue-kube already
/// include these metrics. A program that uses requeue-kube therefore passes the metrics of requeue-kube.
///
/// ```
/// use prometheus_client::registry::Registry;
/// use requeue_leases::LeaseMetrics;
///
/// let mut registry = Registry::default();
/// let metrics = LeaseMetrics::register(&mut registry);
/// # drop(metrics);
/// ```
///
/// # Series
///
/// | series | labels | value |
/// |---|---|---|
/// | `leader_election_master_status` | `name` | 1 if this process holds the lease, otherwise 0 |
/// | `shard_group_shards_held` | `name` | shards of the [group](crate::membership) that this process holds |
/// | `shard_group_moves_total` | `name`, `reason` | shards that this process has received: by a `handover` of a live member, by a `takeover` from a dead member, or `first` without a former holder |
/// | `shard_group_unheld_seconds_total` | `name` | the sum over all shards of the times without a holder: counted by the former holder at a handover, and by the new holder at a takeover |
#[derive(Clone, Debug, Default)]
pub struct LeaseMetrics {
    leaders: Family<ByName, Gauge>,
    held: Family<ByName, Gauge>,
    moves: Family<ByReason, Counter>,
    unheld_seconds: Family<ByName, Counter<f64, AtomicU64>>,
}

impl LeaseMetrics {
    /// Creates the metrics, and registers them in `registry`.
    ///
    /// Call this function once for each registry. A second value in the same registry would write the headers of all
    /// families again.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_collector(Box::new(metrics.clone()));
        metrics
    }

    /// Returns the gauge `leader_election_master_status` for the Lease with the name `lease`.
    ///
    /// The gauge is 0 until it is set. It stays in the registry after the election has ended.
    pub(crate) fn leader_gauge(&self, lease: &str) -> Gauge {
        self.leaders.get_or_create_owned(&[("name", lease.to_owned())])
    }

    /// Returns the metrics of the shard group with this name.
    pub(crate) fn group_meters(&self, group: &str) -> GroupMeters {
        let name = [("name", group.to_owned())];
        let moves = |reason: &str| {
            let labels = [("name", group.to_owned()), ("reason", reason.to_owned())];
            self.moves.get_or_create_owned(&labels)
        };
        GroupMeters {
            held: self.held.get_or_create_owned(&name),
            moves: REASONS.map(moves),
            unheld_seconds: self.unheld_seconds.get_or_create_owned(&name),
        }
    }
}

impl AsRef<Self> for LeaseMetrics {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// The metrics of one shard group. All clones share the same values.
#[derive(Clone, Debug, Default)]
pub(crate) struct GroupMeters {
    pub(crate) held: Gauge,
    /// The number of moves for each reason, in the order of [`REASONS`].
    pub(crate) moves: [Counter; REASONS.len()],
    // The sum is a floating-point number of seconds. It is exact to about a microsecond, which suffices.
    pub(crate) unheld_seconds: Counter<f64, AtomicU64>,
}

const REASONS: [&str; 3] = ["handover", "takeover", "first"];

/// The help text of this gauge in client-go.
const LEADER_HELP: &str = "Gauge of if the reporting system is master of the relevant lease, 0 indicates \
    backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group \
    by name.";

impl Collector for LeaseMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let families: [(&str, &str, &dyn EncodeMetric); 4] = [
            ("leader_election_master_status", LEADER_HELP, &self.leaders),
            ("shard_group_shards_held", "Number of shards that this process holds", &self.held),
            (
                "shard_group_moves",
                "Total number of shards that this process has received",
                &self.moves,
            ),
            (
                "shard_group_unheld_seconds",
                "Total time of shards without a holder",
                &self.unheld_seconds,
            ),
        ];
        // If the program has no shard group, the families of shard groups are empty, and their headers are omitted.
        for (name, help, family) in families.into_iter().filter(|(.., it)| !it.is_empty()) {
            family.encode(encoder.encode_descriptor(name, help, None, family.metric_type())?)?;
        }
        Ok(())
    }
}
