//! The native half of the Python package `requeue`.
//!
//! This module converts values, and turns Rust futures into futures of asyncio. The public classes, with their
//! documentation and types, are in `python/requeue`. They are the only callers of this module.

mod bridge;
mod clock;
mod convert;
mod errors;
mod held;
mod log;
mod memory;
mod store;
mod workers;

/// The module `requeue._native`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::clock::FakeClock;
    #[pymodule_export]
    use super::log::set_log_level;
    #[pymodule_export]
    use super::memory::{MemoryItem, MemoryQueue};
    #[pymodule_export]
    use super::store::{Store, StoreItem, StoreQueue};
    #[pymodule_export]
    use super::workers::{Run, Runs};

    #[pymodule_init]
    fn init() {
        super::log::install();
    }
}
