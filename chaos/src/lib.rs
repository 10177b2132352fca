//! Processes that add keys to one queue of a store and work on them, while they are killed and
//! frozen, and the server is killed; what each says it saw; and whether all that together is a history that the store promises.
//!
//! What is shared is time, as the machine counts it, and the store. Nobody asks the store what
//! happened: who has a key is what its holders say.

mod check;
mod driver;
mod event;
mod worker;

pub use crate::driver::{Plan, Report, run};
pub use crate::worker::work;
