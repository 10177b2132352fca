//! Models of requeue, and the tests that compare requeue with these models.
//!
//! [`model`] implements a queue as simply as possible, with sets, maps and lists that are scanned
//! in full. [`Lockstep`] runs the state machine and the model side by side, and compares everything
//! visible after every step. [`faults`] does the same with the queue of the public API, and with
//! tasks that panic, hang and are cancelled. [`soak`] checks the memory of that queue.

pub mod faults;
mod key;
mod lockstep;
pub mod model;
mod op;
pub mod soak;

pub use crate::key::Key;
pub use crate::lockstep::{Lockstep, Mode, Setup};
pub use crate::op::{How, Op};
