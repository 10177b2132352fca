//! Compares queues. Each contestant is a separate process, and a runner lets the contestants take
//! turns. `peers-go/README.md` describes each scenario, and the protocol between the runner and the
//! contestants.

pub mod busy;
pub mod contestant;
pub mod heap;
pub mod keys;
pub mod meter;
pub mod protocol;
pub mod runner;
pub mod versions;
