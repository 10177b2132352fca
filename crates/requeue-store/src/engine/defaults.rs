//! Default values that the library and the SQL functions share.

use std::time::Duration;

pub(crate) const LEASE: Duration = Duration::from_secs(30);
/// The interval at which an idle process polls.
pub(crate) const POLL: Duration = Duration::from_secs(1);
/// Among this many consecutive deliveries, at least one is the key that has been ready longest.
pub(crate) const OLDEST_EVERY: u32 = 10;
/// The maximum number of requests in a batch, and of keys in a claim.
pub(crate) const MAX_BATCH: usize = 256;
/// The maximum interval between two signs of life of a worker.
pub(crate) const SIGN: Duration = Duration::from_secs(10);
