//! Marks a thread whose time is that of a tokio runtime.

use std::cell::Cell;

thread_local! {
    static SIMULATES: Cell<bool> = const { Cell::new(false) };
}

/// Ends a simulation when it is dropped.
#[derive(Debug)]
pub struct Simulation {
    before: bool,
}

/// Begins a simulation of several processes on this thread.
///
/// In it, elections and shard groups use the clock of the runtime, and several controllers can have the same name.
#[must_use]
pub fn simulate() -> Simulation {
    Simulation { before: SIMULATES.replace(true) }
}

/// Returns true during a simulation.
#[must_use]
pub fn is_simulated() -> bool {
    SIMULATES.get()
}

impl Drop for Simulation {
    fn drop(&mut self) {
        SIMULATES.set(self.before);
    }
}
