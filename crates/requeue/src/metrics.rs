//! Metrics: hooks for backends, and what a queue can be asked for.

use std::sync::Arc;
use std::time::Duration;

/// What a queue tells a metrics backend, before the operation returns and outside every lock.
///
/// Counts and ages that a backend reads when it is scraped are asked of the queue itself; these
/// hooks are for those that want every event, as client-go's `MetricsProvider` does. All of them
/// do nothing unless overridden. A hook that panics is as good as one that does nothing.
pub trait QueueMetrics: Send + Sync {
    /// A key has become ready, or dirty while with a worker (`workqueue_adds_total`; a backend
    /// that keeps a gauge of the depth adds one).
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
}

/// Makes the [`QueueMetrics`] of each queue that is built with it, by the queue's name.
pub trait MetricsProvider: Send + Sync {
    /// The hooks of the queue called `name`.
    fn queue(&self, name: &str) -> Arc<dyn QueueMetrics>;
}
