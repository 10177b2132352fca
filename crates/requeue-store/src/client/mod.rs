//! The part of a queue that runs in this process. It batches and retries requests, claims keys, and renews leases.

pub(crate) mod activity;
pub(crate) mod adding;
pub(crate) mod ahead;
pub(crate) mod batcher;
pub(crate) mod cache;
pub(crate) mod claim_loop;
pub(crate) mod finishing;
pub(crate) mod fleet;
pub(crate) mod item;
pub(crate) mod leases;
pub(crate) mod locked_keys;
pub(crate) mod look;
pub(crate) mod options;
pub(crate) mod schedules;
pub(crate) mod shared;
pub(crate) mod store_clock;
