//! Metrics of queues.
//!
//! A metrics backend can use one of two interfaces, or both:
//!
//! - A backend that is *scraped* calls [`Queue::sample`](crate::Queue::sample) at each scrape. The
//!   call takes constant time. Between two scrapes, no thread updates a gauge.
//! - A backend that needs *every event* implements [hooks](QueueMetrics) and passes them through a
//!   [`MetricsProvider`].
#![cfg_attr(
    feature = "prometheus",
    doc = "\nFor [`prometheus_client`], [`Metrics`] does all of this."
)]
//!
//! There are no global metrics: each queue reports to the metrics with which it was built.

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
/// The hooks are for backends that need every event, like client-go's `MetricsProvider`. A backend
/// that is scraped does not need them. The queue calls a hook before the operation returns, and
/// after it has released its lock. A hook may therefore use the queue. The default implementation
/// of each hook does nothing. The queue catches and discards a panic of a hook.
///
/// [`get`](Self::get) and [`done`](Self::done) receive the key, for example to measure each
/// namespace separately. The other hooks receive no key, because the queue would have to clone it
/// under its lock. The caller of the operation knows the key, and gets the event as the result of
/// the operation.
///
/// If operations run on different threads, their hooks run in any order. A gauge of the depth that
/// the hooks increment and decrement is correct whenever no operation is in progress.
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
    /// Reports that a key became ready, or was added while it was in flight
    /// (`workqueue_adds_total`).
    ///
    /// The depth grows by one. For a delayed add, the first operation that notices the due key
    /// calls the hook. If no operation does, the alarm of the clock calls it, on the thread that
    /// drives the clock.
    fn add(&self) {}

    /// Reports that `key` was delivered. `queued` is the time since the key became ready
    /// (`workqueue_queue_duration_seconds`).
    ///
    /// The depth shrinks by one.
    fn get(&self, key: &K, queued: Duration) {
        let _ = (key, queued);
    }

    /// Reports that the delivery of `key` was completed. `worked` is the time for which the key was
    /// in flight (`workqueue_work_duration_seconds`).
    fn done(&self, key: &K, worked: Duration) {
        let _ = (key, worked);
    }

    /// Reports an add with a delay, even a delay of zero (`workqueue_retries_total`). Debounced
    /// adds are not reported.
    fn retry(&self) {}

    /// Reports that a key that was ready or dirty will not be delivered for its add.
    ///
    /// The depth shrinks by one. There are three causes: the key was cancelled, a shutdown has
    /// dropped it, or it failed while it was dirty under
    /// [`ReaddPolicy::Hold`](crate::ReaddPolicy::Hold). In the last case, one later run serves both
    /// the retry and the add.
    fn withdraw(&self) {}
}

/// Creates the [`QueueMetrics`] for each queue that is built with this provider.
pub trait MetricsProvider<K>: Send + Sync {
    /// Returns the hooks for the queue called `name`.
    fn queue(&self, name: &str) -> Arc<dyn QueueMetrics<K>>;
}
