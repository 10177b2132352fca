//! Who leads, for Prometheus.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// `leader_election_master_status`, of all elections of a process.
///
/// Made once for a registry, and handed to each elector by
/// [`metrics`](super::LeaderElector::metrics).
///
/// ```
/// use prometheus_client::registry::Registry;
/// use requeue_kube::leader::Metrics;
///
/// let mut registry = Registry::default();
/// let metrics = Metrics::register(&mut registry);
/// # let _ = metrics;
/// ```
#[derive(Clone, Debug)]
pub struct Metrics(Family<[(&'static str, String); 1], Gauge>);

impl Metrics {
    /// Adds the gauge to the registry: 1 for the name of each Lease by which this process leads, 0
    /// for those by which it stands by.
    #[must_use = "without an elector that has it, the gauge has no series"]
    pub fn register(registry: &mut Registry) -> Self {
        let family = Family::default();
        registry.register(
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, \
             1 indicates master. 'name' is the string used to identify the lease. Please make sure \
             to group by name",
            family.clone(),
        );
        Self(family)
    }

    pub(super) fn set(&self, lease: &str, leading: bool) {
        self.0.get_or_create_owned(&[("name", lease.to_owned())]).set(leading.into());
    }
}
