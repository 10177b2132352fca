//! Receipts, with which an engine recognizes a batch of adds that was already sent.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::lock;

/// The time for which the store keeps a receipt after the deadline of its batch. A server that was suspended may
/// execute the last attempt late.
pub(crate) const GRACE: Duration = Duration::from_secs(60);

/// The attempts to send one batch of adds.
#[derive(Debug)]
pub(crate) struct Attempts {
    /// The time after which the caller does not send the batch again.
    deadline: Instant,
    receipt: Option<Receipt>,
}

impl Attempts {
    pub(crate) const fn until(deadline: Instant) -> Self {
        Self { deadline, receipt: None }
    }

    /// Returns true if no attempt to send the batch was made.
    pub(crate) const fn is_first(&self) -> bool {
        self.receipt.is_none()
    }
}

/// Identifies the store's record of a batch of adds and its answers. The store keeps the record until [`GRACE`] after
/// the batch's deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    /// The name of the record in the store. A later batch may overwrite the record.
    pub(crate) name: u64,
    /// Identifies the batch.
    pub(crate) number: u64,
    /// The time for which the store keeps the record.
    pub(crate) lasts: Duration,
}

/// The names that no batch uses now. Names are reused, which limits the number of records.
#[derive(Debug, Default)]
pub(crate) struct Receipts(Mutex<Vec<u64>>);

impl Receipts {
    /// Returns the receipt for the next attempt.
    pub(crate) fn for_attempt(&self, attempts: &mut Attempts) -> Receipt {
        let lasts = attempts.deadline.saturating_duration_since(Instant::now());
        let lasts = lasts.saturating_add(GRACE);
        let new = || {
            // Names and numbers are random, because the processes of a store do not share a counter.
            let name = lock(&self.0).pop().unwrap_or_else(|| fastrand::u64(..));
            Receipt { name, number: fastrand::u64(..), lasts }
        };
        let receipt = attempts.receipt.get_or_insert_with(new);
        // Each attempt extends the lifetime of the record, because the record must outlive the last attempt.
        receipt.lasts = lasts;
        *receipt
    }

    /// Permits other batches to use the name of `receipt`. The batch must have been answered at its first attempt. If
    /// there were several attempts, an unanswered one may still reach the store, and must find its receipt.
    pub(crate) fn put_back(&self, receipt: Receipt) {
        lock(&self.0).push(receipt.name);
    }
}
