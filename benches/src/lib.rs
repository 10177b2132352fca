//! What the benchmarks and the tests of memory stand on.

pub mod bulk;
pub mod cycles;
pub mod heap;
pub mod holds;
pub mod keys;
pub mod machine;
pub mod rounds;
pub mod sizes;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// How often each contender has its turn.
    pub rounds: usize,
    /// Operations in a turn, of those that take tens of nanoseconds.
    pub turn: usize,
    /// What stands for a million keys.
    pub million: usize,
}

impl Scale {
    /// For numbers to be quoted: some minutes.
    pub const FULL: Self = Self { rounds: 15, turn: 200_000, million: 1_000_000 };
    /// To see that all of it runs.
    pub const QUICK: Self = Self { rounds: 3, turn: 20_000, million: 100_000 };
}
