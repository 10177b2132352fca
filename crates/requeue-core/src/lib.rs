//! The state machine of [`requeue`](https://docs.rs/requeue).
//!
//! **This crate is internal to `requeue`.** Its version always equals the version of `requeue`, and any release may
//! change its interface. `requeue` re-exports the parts that users need: adds, orders, limiters, counts and snapshots.
//!
//! The state machine is pure: its functions map a state, a key and a time to a new state. The state machine reads no
//! clock, starts no thread, wakes no task and draws no random number; times and seeds are parameters.
//!
//! A module imports only modules that are above it in this table:
//!
//! | module | contents |
//! |---|---|
//! | `types` | adds, deliveries, phases, pace, slots, time |
//! | [`wait`] | backoff and jitter; with the feature `wait`, the managers of delays |
//! | `rule` | what happens to a key at each operation: pure functions |
//! | `memory` | containers whose operations are all short: slab, lists, timer heap, index |
//! | [`limiter`] | delays after failures |
//! | `order` | the order of ready keys: first in first out, priorities, fair groups, custom |
//! | `queue` | the queue, which applies the rules |

#![no_std]

extern crate alloc;

/// The recorded transitions.
pub mod history {
    pub use crate::queue::{
        AddKind, Ended, Event, InvalidRecording, Recording, Subject, Transition,
    };
    // Only the program and tests replay a recording.
    #[doc(hidden)]
    pub use crate::queue::{Difference, Replay, Step};
}
pub mod limiter;
mod memory;
mod order;
mod queue;
// The rules are public only for `requeue-store`, which applies them to its rows.
#[doc(hidden)]
pub mod rule;
mod types;
pub mod wait;

pub use crate::order::{CustomOrder, GroupId, Order};
pub use crate::queue::{ConsecutiveFailures, Cursor, Entry, Histogram, Page, StateCounts, Totals};
pub use crate::types::{
    Add, Added, CancelReason, Cancelled, CancelledRun, InFlightPolicy, Merge, Pace, Phase,
    ReaddPolicy, Reason, ReasonCount, Reasons, Time,
};

// The values of an `Add` and of an `Entry` are public only for the models with which the tests
// compare the queue.
#[doc(hidden)]
pub use crate::queue::Circumstances;
#[doc(hidden)]
pub use crate::types::{Shown, When};
// The state machine itself is public only for `requeue`, which has the lock, the clock and the wakers.
#[doc(hidden)]
pub use crate::queue::{Blocked, Config, EventWalk, KeyReasons, Operation, Queue, Walk};
#[doc(hidden)]
pub use crate::types::{Asked, Delivery, Ending, Finish, Finished, Popped, Ticket};
