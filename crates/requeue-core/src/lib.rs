//! The state machine of requeue: pure functions of (state, key, `now`).
//!
//! Nothing here reads a clock, starts a thread, wakes a task or draws a random number: time and
//! seeds are parameters.

#![no_std]

extern crate alloc;

mod add;
mod chunked;
mod depths;
mod ending;
mod hand_out;
mod hold;
mod index;
pub mod limiter;
mod list;
mod order;
mod page;
mod plain;
mod prefetch;
mod queue;
mod record;
mod slab;
mod sparse;
mod stats;
mod time;
mod timers;
mod upkeep;
pub mod wait;

pub use crate::add::{Add, Added, Cancelled, EarlyAdd, Merge, When};
pub use crate::ending::Ending;
pub use crate::hand_out::{Asked, Finish, Finished, HandOut, Popped, Ticket};
pub use crate::limiter::RateLimiter;
pub use crate::order::{CustomOrder, Group, Order};
pub use crate::page::{Cursor, Entry, Page};
pub use crate::queue::{Config, Queue};
pub use crate::record::Phase;
pub use crate::stats::{BUCKETS, Counts, Histogram};
pub use crate::time::Time;

/// How many waiting keys one operation makes ready, at most, before its own work: many falling due
/// at once must not hold everybody up.
const PROMOTE: usize = 256;
