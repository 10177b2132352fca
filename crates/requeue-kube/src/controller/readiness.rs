//! Which watches have had their first list.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// Whether all watches of a [`Controller`](crate::Controller) have had their first list, for a
/// readiness probe: a controller in standby is ready, too.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use requeue_kube::Controller;
///
/// # fn serve(_: impl Fn() -> Result<(), String>) {}
/// # fn example(api: kube::Api<ConfigMap>) {
/// let controller = Controller::new(api, Default::default());
/// let readiness = controller.readiness();
/// // Whatever serves `/readyz`:
/// serve(move || match readiness.waiting_for() {
///     watches if watches.is_empty() => Ok(()),
///     watches => Err(format!("no first list yet of {}", watches.join(", "))),
/// });
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Readiness(Arc<watch::Sender<BTreeMap<usize, String>>>);

impl Readiness {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }

    /// Whether all watches have had their first list.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Which watches have not, as in `ConfigMap.v1 (owned)`.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<String> {
        self.0.borrow().values().cloned().collect()
    }

    /// Is ready when all watches have had their first list. Cancel safe.
    pub async fn ready(&self) {
        // The sender is here, so that it does not end.
        _ = self.0.subscribe().wait_for(BTreeMap::is_empty).await;
    }

    pub(super) fn expect(&self, number: usize, watch: String) {
        self.0.send_modify(|waiting| {
            waiting.insert(number, watch);
        });
    }

    /// None has begun, nor will before this is a leader.
    pub(super) fn expect_nothing(&self) {
        self.0.send_modify(BTreeMap::clear);
    }

    pub(super) fn listed(&self, number: usize) {
        self.0.send_if_modified(|waiting| waiting.remove(&number).is_some());
    }
}
