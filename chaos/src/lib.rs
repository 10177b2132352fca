//! Processes that add keys to one queue of a store and work on them, while they are killed and frozen, their connections cut
//! and held up, and servers killed; some have clocks that are an hour off, and somebody else keeps transactions open.
//! What each says it saw; and whether all that together is a history that the store promises.
//!
//! What is shared is time, as the machine counts it, and the store. Nobody asks the store what
//! happened: who has a key is what its holders say.

mod check;
mod driver;
mod elsewhere;
mod event;
mod process;
mod report;
mod subject;
mod worker;

pub use crate::driver::{Plan, run};
pub use crate::report::{Report, table};
pub use crate::subject::Subject;
pub use crate::worker::work;
