//! The metrics of elections and shard groups, for a Prometheus registry.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeExemplarValue, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;

/// The elections and shard groups in a Prometheus registry.
///
/// Create it once for a registry, and pass it to each elector and each group. The metrics of
/// requeue-kube contain one, so a program with controllers passes those.
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
/// | `shard_group_moves_total` | `name`, `reason` | shards that this process has received: by a `handover` of a live member, by a `takeover` from a dead one, or `first` without a former holder |
/// | `shard_group_unheld_seconds_total` | `name` | the sum over all shards of the times without a holder: counted by the former holder at a handover, and by the new one at a takeover |
#[derive(Clone, Default)]
pub struct LeaseMetrics(Arc<Shown>);

#[derive(Default)]
struct Shown {
    leaders: Mutex<BTreeMap<String, bool>>,
    groups: Mutex<BTreeMap<String, Arc<GroupMeters>>>,
}

impl LeaseMetrics {
    /// Registers one collector in `registry`.
    ///
    /// Call it once for each registry: two collectors would both write the headers of all families.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_collector(Box::new(metrics.clone()));
        metrics
    }

    /// Returns the gauge `leader_election_master_status` of the lease named `lease`.
    ///
    /// Its value is 0 until it is set. It remains in the registry permanently.
    pub(crate) fn leader(&self, lease: &str) -> LeaderGauge {
        lock(&self.0.leaders).entry(lease.to_owned()).or_default();
        LeaderGauge { shown: Arc::clone(&self.0), lease: lease.to_owned() }
    }

    /// Returns the metrics of the shard group with this name.
    pub(crate) fn group(&self, group: &str) -> Arc<GroupMeters> {
        Arc::clone(lock(&self.0.groups).entry(group.to_owned()).or_default())
    }
}

impl AsRef<Self> for LeaseMetrics {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl fmt::Debug for LeaseMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseMetrics").finish_non_exhaustive()
    }
}

/// A gauge that shows whether this process holds a lease.
pub(crate) struct LeaderGauge {
    shown: Arc<Shown>,
    lease: String,
}

impl LeaderGauge {
    pub(crate) fn set(&self, leads: bool) {
        lock(&self.shown.leaders).insert(self.lease.clone(), leads);
    }
}

/// The counters of a shard group.
#[derive(Debug, Default)]
pub(crate) struct GroupMeters {
    pub(crate) held: AtomicUsize,
    /// Indexed as [`REASONS`].
    pub(crate) moves: [AtomicU64; REASONS.len()],
    pub(crate) unheld_nanos: AtomicU64,
}

const REASONS: [&str; 3] = ["handover", "takeover", "first"];

impl Collector for LeaseMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let leaders = lock(&self.0.leaders).clone();
        let groups = lock(&self.0.groups).clone();
        if !leaders.is_empty() {
            let help = "Gauge of if the reporting system is master of the relevant lease, 0 indicates \
                        backup, 1 indicates master. 'name' is the string used to identify the lease. \
                        Please make sure to group by name.";
            let mut to = encoder.encode_descriptor(
                "leader_election_master_status",
                help,
                None,
                MetricType::Gauge,
            )?;
            for (lease, leads) in &leaders {
                to.encode_family(&[("name", &**lease)])?.encode_gauge(&u32::from(*leads))?;
            }
        }
        if groups.is_empty() {
            return Ok(());
        }
        let help = "Number of shards that this process holds";
        let mut to =
            encoder.encode_descriptor("shard_group_shards_held", help, None, MetricType::Gauge)?;
        for (group, meters) in &groups {
            to.encode_family(&[("name", &**group)])?.encode_gauge(&meters.held.load(Relaxed))?;
        }
        let help = "Total number of shards that this process has received";
        let mut to =
            encoder.encode_descriptor("shard_group_moves", help, None, MetricType::Counter)?;
        for (group, meters) in &groups {
            for (reason, count) in REASONS.iter().zip(&meters.moves) {
                let labels = [("name", &**group), ("reason", *reason)];
                encode_count(to.encode_family(&labels)?, count.load(Relaxed))?;
            }
        }
        let help = "Total time of shards without a holder";
        let mut to = encoder.encode_descriptor(
            "shard_group_unheld_seconds",
            help,
            None,
            MetricType::Counter,
        )?;
        for (group, meters) in &groups {
            let seconds = meters.unheld_nanos.load(Relaxed) as f64 / 1e9;
            encode_count(to.encode_family(&[("name", &**group)])?, seconds)?;
        }
        Ok(())
    }
}

fn encode_count<V>(mut to: MetricEncoder<'_>, count: V) -> fmt::Result
where
    V: EncodeCounterValue + EncodeExemplarValue,
{
    to.encode_counter(&count, None::<&Exemplar<NoLabelSet, V>>)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
