//! Reports the keys that this process parks: after a failed run, or in a claim that finds an expired lease.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::engine::Place;
use crate::engine::row::LEASE_EXPIRED;
use crate::types::inspect::ParkedKey;
use crate::types::key::Key;

type Report = dyn Fn(&ParkedKey) + Send + Sync;

/// The user's function that is called for each key that this process parks.
#[derive(Clone, Default)]
pub(crate) struct OnParked(Option<Arc<Report>>);

impl OnParked {
    pub(crate) fn new(report: impl Fn(&ParkedKey) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(report)))
    }
}

impl fmt::Debug for OnParked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnParked").field(&self.0.is_some()).finish()
    }
}

impl ParkedKey {
    /// Returns the report about a key that a claim has parked, because its lease had expired.
    pub(crate) fn from_expired_lease(key: Key, failures: u32) -> Self {
        Self { key, failures, error: LEASE_EXPIRED.to_owned(), lease_expired: true }
    }
}

impl Place {
    /// Reports a key that this process has parked.
    pub(crate) fn report_parked(&self, parked: &ParkedKey) {
        let (queue, ParkedKey { key, failures, error, .. }) = (&self.name, parked);
        tracing::warn!(target: "requeue_store::parked", queue, %key, failures, error, "parked");
        // The event is logged before the user's function is called, so that a panic of the function does not hide the
        // event.
        if let Some(report) = &self.on_parked.0
            && catch_unwind(AssertUnwindSafe(|| report(parked))).is_err()
        {
            // The panic is caught, because this task also delivers other keys of the queue.
            tracing::error!(queue, %key, "the function `on_parked` panicked");
        }
    }
}
