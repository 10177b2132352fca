//! The models that requeue's tests hold it against.
//!
//! [`model`] says what a queue must do, as plainly as it can be said: sets, maps and lists that
//! are scanned in full. [`Lockstep`] drives the state machine and the model side by side and
//! compares everything that can be seen of them after every step; [`faults`] does the same to the
//! queue that users have, with tasks that panic, hang and are cancelled. [`soak`] looks at its
//! memory.

pub mod faults;
mod key;
mod lockstep;
pub mod model;
mod op;
pub mod soak;

pub use crate::key::Key;
pub use crate::lockstep::{Lockstep, Mode, Setup};
pub use crate::op::{How, Op};
