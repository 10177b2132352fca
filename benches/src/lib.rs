//! Compares queues: contestants, each in its own process, and a runner that lets them take
//! turns. `peers-go/README.md` describes the protocol between them and each scenario.

pub mod busy;
pub mod contestant;
pub mod heap;
pub mod keys;
pub mod meter;
pub mod protocol;
pub mod runner;
pub mod versions;
