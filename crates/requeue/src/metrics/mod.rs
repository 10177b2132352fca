//! Metrics: hooks for backends, and what a queue can be asked for.
//!
//! There are two ways, and a backend may take both:
//!
//! - A backend that is *scraped* asks the queue, at that moment, in constant time:
//!   [`counts`](crate::Queue::counts), [`depth`](crate::Queue::depth),
//!   [`histograms`](crate::Queue::histograms), [`unfinished_work`](crate::Queue::unfinished_work)
//!   and their neighbours. No thread keeps a gauge up to date in between.
//! - A backend that wants *every event* gives [hooks](QueueMetrics) by a [`MetricsProvider`].
#![cfg_attr(
    feature = "prometheus",
    doc = "\nFor [`prometheus_client`] all of this is done: see [`Metrics`]."
)]
//!
//! Neither is set for the whole process: each queue is built with its own.

#[cfg(feature = "prometheus")]
mod prometheus;
mod sample;

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "prometheus")]
pub use self::prometheus::{Buckets, Metrics};
pub use self::sample::{Sample, Scrape};

/// Receives the events of a queue with keys of type `K`.
///
/// A queue calls these hooks before the operation returns, and without a lock. They are for backends
/// that want every event, as client-go's `MetricsProvider`; a backend that is scraped asks the queue.
/// All hooks do nothing unless overridden. A hook may use the queue. The queue discards its panics.
///
/// [`get`](Self::get) and [`done`](Self::done) receive the key, for example to measure per
/// namespace. The other hooks receive no key, because the queue would have to clone it under its lock.
/// The operation that causes such an event returns its result.
///
/// Hooks of operations on different threads run in any order. A gauge of the depth that goes up and
/// down by them is correct whenever no operation is under way.
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
    /// A key has become ready, or was added while in flight (`workqueue_adds_total`; the depth is one
    /// more). A delayed add counts when it falls due. The first operation that notices this reports
    /// it, or the alarm of the clock, on the thread that drives the clock.
    fn add(&self) {}

    /// `key` was delivered, `queued` after it was added (`workqueue_queue_duration_seconds`; the
    /// depth is one less).
    fn get(&self, key: &K, queued: Duration) {
        let _ = (key, queued);
    }

    /// The delivery of `key` has ended after `worked` (`workqueue_work_duration_seconds`).
    fn done(&self, key: &K, worked: Duration) {
        let _ = (key, worked);
    }

    /// A delayed add, of any delay (`workqueue_retries_total`). A debounced add is none.
    fn retry(&self) {}

    /// An add will not lead to a delivery of its own (the depth is one less): the key was cancelled or
    /// dropped by a shutdown, or it has failed while dirty under
    /// [`ReAdd::Hold`](crate::ReAdd::Hold), where one later run replaces both.
    fn withdraw(&self) {}
}

/// Makes the [`QueueMetrics`] of each queue that is built with it.
pub trait MetricsProvider<K>: Send + Sync {
    /// The hooks of the queue called `name`.
    fn queue(&self, name: &str) -> Arc<dyn QueueMetrics<K>>;
}
