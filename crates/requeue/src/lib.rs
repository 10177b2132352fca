//! A work queue of keys.

pub mod clock;
pub mod metrics;
mod queue;
mod sync;
pub mod wait;
#[cfg(feature = "tokio")]
pub mod workers;

pub use requeue_core::limiter;
pub use requeue_core::{
    Add, Added, Cancelled, Counts, Cursor, CustomOrder, EarlyAdd, Entry, Group, Merge, Order, Page,
    Phase, RateLimiter, Time, When,
};

pub use crate::clock::Clock;
pub use crate::queue::{
    BuildError, Builder, Drain, Drained, Filter, Get, GetMany, Item, Key, Queue, Ticket,
};
