//! Receipts, by which an engine recognizes a batch of adds that is sent again.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::lock;

/// The time for which the store keeps a receipt after the deadline of its batch. A suspended server may execute the
/// last attempt late.
pub(crate) const GRACE: Duration = Duration::from_secs(60);

/// The attempts to send a batch of adds.
#[derive(Debug)]
pub(crate) struct Attempts {
    /// The time after which the batch is not sent again.
    deadline: Instant,
    receipt: Option<Receipt>,
}

impl Attempts {
    pub(crate) const fn until(deadline: Instant) -> Self {
        Self { deadline, receipt: None }
    }

    /// Returns true if no attempt was made.
    pub(crate) const fn is_first(&self) -> bool {
        self.receipt.is_none()
    }
}

/// The record that a batch of adds has taken effect, and its answers. The store keeps the record until a minute after
/// the batch's deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receipt {
    /// The name under which the store keeps the record. A later batch may overwrite it.
    pub(crate) name: u64,
    /// The number that identifies the batch.
    pub(crate) number: u64,
    /// The time for which the store keeps the record.
    pub(crate) lasts: Duration,
}

/// The names of receipts that no batch uses. Names are reused to limit the number of records.
#[derive(Debug, Default)]
pub(crate) struct Receipts(Mutex<Vec<u64>>);

impl Receipts {
    /// Returns the receipt of the next attempt.
    pub(crate) fn for_attempt(&self, attempts: &mut Attempts) -> Receipt {
        let lasts = attempts.deadline.saturating_duration_since(Instant::now());
        let lasts = lasts.saturating_add(GRACE);
        let new = || {
            // Names and numbers are random, because the processes of a store share no counter.
            let name = lock(&self.0).pop().unwrap_or_else(|| fastrand::u64(..));
            Receipt { name, number: fastrand::u64(..), lasts }
        };
        let receipt = attempts.receipt.get_or_insert_with(new);
        // Each attempt extends the lifetime of the record, which must outlive the last attempt.
        receipt.lasts = lasts;
        *receipt
    }

    /// Allows other batches to use the name, after the first attempt was answered. If there were several attempts, one
    /// without an answer may still arrive, and must find its receipt.
    pub(crate) fn put_back(&self, receipt: Receipt) {
        lock(&self.0).push(receipt.name);
    }
}
