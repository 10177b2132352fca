//! What queues cost: contestants, each in a process of its own, and the runner that has them take
//! turns. `peers-go/README.md` has the protocol between the two, and what each scenario is.

pub mod busy;
pub mod contestant;
pub mod heap;
pub mod keys;
pub mod meter;
pub mod protocol;
pub mod runner;
pub mod versions;
