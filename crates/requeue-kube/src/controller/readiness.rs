//! The readiness of a controller. It is ready when all of its watches have received their first list.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

/// Tells whether all watches of a [`Controller`](crate::Controller), or of all controllers of a
/// [`Manager`](crate::Manager), have received their first list.
///
/// Use this value for a readiness probe. A process that waits for its election can also be ready.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use requeue_kube::Controller;
///
/// # fn serve(_: impl Fn() -> Result<(), String>) {}
/// # let _ = |api: kube::Api<ConfigMap>| {
/// let controller = Controller::new(api, Default::default());
/// let readiness = controller.readiness();
/// // In the handler of `/readyz`:
/// serve(move || match readiness.waiting_for() {
///     watches if watches.is_empty() => Ok(()),
///     watches => Err(format!("waiting for the first list of {}", watches.join(", "))),
/// });
/// # };
/// ```
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<Mutex<Vec<(String, Lists)>>>);

impl Readiness {
    /// Creates the readiness of one controller.
    pub(super) fn new(lists: Lists) -> Self {
        Self(Arc::new(Mutex::new(vec![(String::new(), lists)])))
    }

    /// Adds the watches of a controller to the readiness of its manager.
    pub(crate) fn add_controller(&self, controller: &str, added: &Self) {
        let named = |(_, lists)| (format!("{controller}: "), lists);
        self.0.lock().extend(added.lists().into_iter().map(named));
    }

    /// Returns the lists of each controller, and the prefix for the names of its watches.
    fn lists(&self) -> Vec<(String, Lists)> {
        self.0.lock().clone()
    }

    /// Returns true if all watches have received their first list.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.lists().iter().all(|(_, lists)| lists.0.borrow().is_empty())
    }

    /// Returns the names of the watches that have not received their first list, such as `ConfigMap.v1 (owned)`. In a
    /// manager, the name of the controller comes first: `website: ConfigMap.v1 (owned)`.
    #[must_use]
    pub fn waiting_for(&self) -> Vec<String> {
        let mut waiting = Vec::new();
        for (controller, lists) in self.lists() {
            waiting.extend(lists.0.borrow().values().map(|watch| format!("{controller}{watch}")));
        }
        waiting
    }

    /// Waits until all watches have received their first list.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost, and the method can be called again.
    pub async fn ready(&self) {
        for (_, lists) in self.lists() {
            // The wait fails only if the sender is dropped, and `lists` owns the sender.
            _ = lists.0.subscribe().wait_for(BTreeMap::is_empty).await;
        }
    }
}

/// The watches of one controller that have not received their first list: the number and the name of each watch.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists(Arc<watch::Sender<BTreeMap<usize, String>>>);

impl Lists {
    pub(super) fn expect_list(&self, number: usize, watch: String) {
        self.0.send_modify(|waiting| {
            waiting.insert(number, watch);
        });
    }

    /// Removes all watches, because they start only when this process leads, and readiness must not wait for that.
    pub(super) fn expect_nothing(&self) {
        self.0.send_modify(BTreeMap::clear);
    }

    pub(super) fn awaits_list(&self, number: usize) -> bool {
        self.0.borrow().contains_key(&number)
    }

    pub(super) fn mark_listed(&self, number: usize) {
        // Only the first list of a watch removes the watch's number. The closure returns false at a later list, so no
        // waiting task is woken.
        self.0.send_if_modified(|waiting| waiting.remove(&number).is_some());
    }
}
