//! The state machine of [`requeue`](https://docs.rs/requeue).
//!
//! **This crate is internal to `requeue`.** Both crates always have the same version, and any
//! release may change the interface of this crate. Users depend on `requeue`, which re-exports the
//! types that they need: adds, orders, limiters, counts and snapshots.
//!
//! The state machine is pure: each function maps a state, a key and a time to a new state. It reads
//! no clock, starts no thread, wakes no task and draws no random number. The caller passes times
//! and seeds as parameters.
//!
//! A module may import only the modules above it in this table:
//!
//! | module | contents |
//! |---|---|
//! | `types` | the types of adds, deliveries, phases, pace, slots and time |
//! | [`wait`] | backoff and jitter; with the feature `wait`, also client-go's delay managers |
//! | `rule` | pure functions that decide how each operation changes the state of a key |
//! | `memory` | containers in which no single operation takes long: slab, lists, timer heap, index |
//! | [`limiter`] | limiters, which compute the delay of a key after a failure |
//! | `order` | the order of ready keys: first in first out, priorities, fair groups, custom |
//! | `queue` | the queue, which applies the rules to its keys |

#![no_std]

extern crate alloc;

/// Recordings of a queue: the events, and the text format in which a program stores them.
pub mod history {
    pub use crate::queue::{
        AddKind, Ended, Event, InvalidRecording, Recording, Subject, Transition,
    };
    // Users do not replay recordings. The program `requeue` and the tests do.
    #[doc(hidden)]
    pub use crate::queue::{Difference, Replay, Step};
}
pub mod limiter;
mod memory;
mod order;
mod queue;
// The rules are public only because `requeue-store` applies them to the rows of its tables.
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

// The values of an `Add` and of an `Entry` are public only for the models of the tests, which
// compare their state with the state of the queue.
#[doc(hidden)]
pub use crate::queue::Circumstances;
#[doc(hidden)]
pub use crate::types::{Shown, When};
// The state machine is public only because `requeue` wraps it with a lock, a clock and wakers.
#[doc(hidden)]
pub use crate::queue::{Blocked, Config, EventWalk, KeyReasons, Operation, Queue, Walk};
#[doc(hidden)]
pub use crate::types::{Asked, Delivery, Ending, Finish, Finished, Popped, Ticket};
