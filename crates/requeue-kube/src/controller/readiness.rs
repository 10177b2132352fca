//! The readiness of a controller: the watches that have not received their first list.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;

/// Reports whether all watches of a [`Controller`](crate::Controller) have received their first
/// list.
///
/// Use it for a readiness probe. A controller in standby is ready, too.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use requeue_kube::Controller;
///
/// # fn serve(_: impl Fn() -> Result<(), String>) {}
/// # fn example(api: kube::Api<ConfigMap>) {
/// let controller = Controller::new(api, Default::default());
/// let readiness = controller.readiness();
/// // In the handler of `/readyz`:
/// serve(move || match readiness.waiting_for() {
///     watches if watches.is_empty() => Ok(()),
///     watches => Err(format!("waiting for the first list of {}", watches.join(", "))),
/// });
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Readiness(Arc<watch::Sender<BTreeMap<usize, String>>>);

impl Readiness {
    pub(super) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(BTreeMap::new())))
    }

    /// Returns true if all watches have received their first list.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.borrow().is_empty()
    }

    /// Returns the watches that have not received their first list, as in `ConfigMap.v1 (owned)`.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<String> {
        self.0.borrow().values().cloned().collect()
    }

    /// Waits until all watches have received their first list.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped and called again.
    pub async fn ready(&self) {
        // It cannot fail: the sender is in `self`.
        _ = self.0.subscribe().wait_for(BTreeMap::is_empty).await;
    }

    pub(super) fn expect(&self, number: usize, watch: String) {
        self.0.send_modify(|waiting| {
            waiting.insert(number, watch);
        });
    }

    /// Expects no list: the watches start only when this process leads.
    pub(super) fn expect_nothing(&self) {
        self.0.send_modify(BTreeMap::clear);
    }

    pub(super) fn awaits(&self, number: usize) -> bool {
        self.0.borrow().contains_key(&number)
    }

    pub(super) fn listed(&self, number: usize) {
        self.0.send_if_modified(|waiting| waiting.remove(&number).is_some());
    }
}
