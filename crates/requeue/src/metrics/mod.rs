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

/// What a queue tells a metrics backend, before the operation returns and outside every lock.
///
/// Counts and ages that a backend reads when it is scraped are asked of the queue itself; these
/// hooks are for those that want every event, as client-go's `MetricsProvider` does. All of them
/// do nothing unless overridden. A hook may use the queue. One that panics is as good as one that
/// does nothing.
///
/// Hooks of operations on different threads are called in any order. A gauge of the depth that goes
/// up and down by them is right whenever no operation is under way.
///
/// ```
/// use requeue::Queue;
/// use requeue::metrics::{MetricsProvider, QueueMetrics};
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// #[derive(Default)]
/// struct Adds(AtomicU64);
///
/// impl QueueMetrics for Adds {
///     fn add(&self) {
///         self.0.fetch_add(1, Relaxed);
///     }
/// }
///
/// struct Backend(Arc<Adds>);
///
/// impl MetricsProvider for Backend {
///     fn queue(&self, name: &str) -> Arc<dyn QueueMetrics> {
///         assert_eq!(name, "pods");
///         self.0.clone()
///     }
/// }
///
/// let adds = Arc::new(Adds::default());
/// let provider = Arc::new(Backend(adds.clone()));
/// let queue = Queue::builder().name("pods").metrics_provider(provider).build()?;
/// queue.add("default/web");
/// queue.add("default/web");
/// assert_eq!(adds.0.load(Relaxed), 1);
/// # Ok::<(), requeue::BuildError>(())
/// ```
pub trait QueueMetrics: Send + Sync {
    /// A key has become ready, or dirty while with a worker (`workqueue_adds_total`; the depth is
    /// one more). A delayed add is told when it falls due, by the first operation that sees it so,
    /// or by the alarm of the clock, in the thread that drives it.
    fn add(&self) {}

    /// A key was handed out, `queued` after it was added (`workqueue_queue_duration_seconds`; the
    /// depth is one less).
    fn get(&self, queued: Duration) {
        let _ = queued;
    }

    /// A worker is done with a key that it had for `worked` (`workqueue_work_duration_seconds`).
    fn done(&self, worked: Duration) {
        let _ = worked;
    }

    /// A delayed add, of any delay (`workqueue_retries_total`).
    fn retry(&self) {}

    /// A key that was added will not be handed out for it: it was cancelled, dropped by an ending,
    /// or has failed while dirty under [`EarlyAdd::Hold`](crate::EarlyAdd::Hold), where a run that
    /// waits takes its place (the depth is one less).
    fn withdraw(&self) {}
}

/// Makes the [`QueueMetrics`] of each queue that is built with it, by the queue's name.
pub trait MetricsProvider: Send + Sync {
    /// The hooks of the queue called `name`.
    fn queue(&self, name: &str) -> Arc<dyn QueueMetrics>;
}
