//! Tests stores under faults. Processes add keys to one queue and work on them. Meanwhile,
//! processes are killed and frozen, their connections are cut and delayed, and servers are killed.
//!
//! Some processes have clocks that are an hour off, and other clients keep transactions open. Each
//! process reports its observations. The check determines whether the store has kept its promises
//! in the history of all observations.
//!
//! The processes share only the machine's clock and the store. The check never asks the store for
//! its history, because the reports of the processes show the holder of each key.

mod check;
mod check_groups;
mod check_rates;
mod driver;
mod elsewhere;
mod event;
mod groups;
mod process;
mod report;
mod settings;
mod subject;
mod worker;

pub use crate::driver::{Plan, run};
pub use crate::report::{Report, table};
pub use crate::subject::Subject;
pub use crate::worker::work;
