//! Metrics of queues.
//!
//! A backend can use either of two interfaces, or both:
//!
//! - A backend that is *scraped* reads the queue at the time of the scrape, in constant time, with
//!   [`Queue::sample`](crate::Queue::sample). Between two scrapes, no thread updates a gauge.
//! - A backend that needs *every event* supplies [hooks](QueueMetrics) through a
//!   [`MetricsProvider`].
#![cfg_attr(
    feature = "prometheus",
    doc = "\nFor [`prometheus_client`], [`Metrics`] does all of this."
)]
//!
//! No metrics are global. Each queue is built with separate metrics.

#[cfg(feature = "prometheus")]
mod prometheus;
mod sample;

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "prometheus")]
pub use self::prometheus::{Buckets, Metrics, Value};
pub use self::sample::{AtGroupLimit, Fleet, Sample, Scrape, Times};

/// Receives the events of a queue with keys of type `K`.
///
/// A queue calls these hooks before the operation returns, and after it has released its lock. The hooks are for
/// backends that need every event, like client-go's `MetricsProvider`. A backend that is scraped does not need them.
/// The default implementation of each hook does nothing. A hook may use the queue. The queue catches and discards
/// panics of hooks.
///
/// [`get`](Self::get) and [`done`](Self::done) receive the key, for example to measure per
/// namespace. The other hooks receive no key, because the queue would have to clone it under its
/// lock. The caller of the operation learns of such an event from the result.
///
/// Hooks of operations on different threads run in any order. A gauge of the depth that the hooks
/// increment and decrement is correct whenever no operation is in progress.
///
/// # Examples
///
/// ```
/// use requeue::Queue;
/// use requeue::metrics::{MetricsProvider, QueueMetrics};
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
///
/// #[derive(Default)]
/// struct Runs(Mutex<Vec<String>>);
///
/// impl QueueMetrics<String> for Runs {
///     fn done(&self, key: &String, _worked: Duration) {
///         self.0.lock().unwrap().push(key.clone());
///     }
/// }
///
/// struct Backend(Arc<Runs>);
///
/// impl MetricsProvider<String> for Backend {
///     fn queue(&self, name: &str) -> Arc<dyn QueueMetrics<String>> {
///         assert_eq!(name, "pods");
///         self.0.clone()
///     }
/// }
///
/// let runs = Arc::new(Runs::default());
/// let provider = Arc::new(Backend(runs.clone()));
/// let queue = Queue::builder().name("pods").metrics_provider(provider).build()?;
/// queue.add_ref("default/web");
/// queue.try_get().expect("it is ready").succeed();
/// assert_eq!(*runs.0.lock().unwrap(), ["default/web"]);
/// # Ok::<(), requeue::BuildError>(())
/// ```
pub trait QueueMetrics<K>: Send + Sync {
    /// Reports that a key became ready, or was added while in flight (`workqueue_adds_total`).
    ///
    /// The depth grows by one. A delayed add counts when it is due. The hook is called by the first
    /// operation that notices the due key. If no operation does, the clock's alarm calls the hook,
    /// on the thread that drives the clock.
    fn add(&self) {}

    /// Reports that `key` was delivered, with the time `queued` since its add
    /// (`workqueue_queue_duration_seconds`).
    ///
    /// The depth shrinks by one.
    fn get(&self, key: &K, queued: Duration) {
        let _ = (key, queued);
    }

    /// Reports that the delivery of `key` was completed after the time `worked` in flight
    /// (`workqueue_work_duration_seconds`).
    fn done(&self, key: &K, worked: Duration) {
        let _ = (key, worked);
    }

    /// Reports a delayed add, of any delay (`workqueue_retries_total`). Debounced adds are not
    /// reported.
    fn retry(&self) {}

    /// Reports that an add will not lead to a separate delivery.
    ///
    /// The depth shrinks by one. The key was cancelled, was dropped by a shutdown, or failed while dirty under
    /// [`ReaddPolicy::Hold`](crate::ReaddPolicy::Hold). In the last case, one later run serves the retry and the add.
    fn withdraw(&self) {}
}

/// Creates the [`QueueMetrics`] of each queue that is built with this provider.
pub trait MetricsProvider<K>: Send + Sync {
    /// Returns the hooks of the queue with this name.
    fn queue(&self, name: &str) -> Arc<dyn QueueMetrics<K>>;
}
