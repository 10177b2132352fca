//! The state machine of [`requeue`](https://docs.rs/requeue).
//!
//! **This crate is internal to `requeue`.** Its version follows that of `requeue` exactly, and any
//! release may change its interface. `requeue` re-exports the parts that users need: adds, orders,
//! limiters, counts and snapshots.
//!
//! The state machine is pure: its functions map a state, a key and a time to a new state. It reads no
//! clock, starts no thread, wakes no task and draws no random number; times and seeds are parameters.
//!
//! A module imports only modules of the lines above its own:
//!
//! | module | contents |
//! |---|---|
//! | `types` | adds, deliveries, phases, pace, slots, time |
//! | `memory` | containers whose operations are all short: slab, lists, timer heap, index |
//! | `order` | the order of ready keys: first in first out, priorities, fair groups, custom |
//! | [`wait`], [`limiter`] | backoff and jitter; delays after failures |
//! | `queue` | the queue, whose state table is in `queue::transitions` |

#![no_std]

extern crate alloc;

pub mod limiter;
mod memory;
mod order;
mod queue;
mod types;
pub mod wait;

pub use crate::limiter::RateLimiter;
pub use crate::order::{CustomOrder, Group, Order};
pub use crate::queue::{
    BUCKETS, Config, Counts, Cursor, Entry, Histogram, Operation, Page, Queue, StateCounts, Walk,
};
pub use crate::types::add::{Add, Added, Cancelled, Merge, ReAdd, When};
pub use crate::types::cancel::{CancelReason, CancelledRun, Rerun};
pub use crate::types::delivery::{Asked, Delivery, Finish, Finished, Popped, Ticket};
pub use crate::types::lifecycle::{Ending, Phase};
pub use crate::types::pace::Pace;
pub use crate::types::time::Time;
