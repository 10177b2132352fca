//! What the benchmarks and the tests of memory stand on.

pub mod heap;
