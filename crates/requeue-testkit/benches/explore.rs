//! The time of 1,000 seeds of the website example. `REQUEUE_SEEDS` replaces the number.

use std::time::Instant;

use requeue_testkit::explore::explore;

#[allow(dead_code, unused_imports, reason = "the tests use the rest")]
#[path = "../tests/explore/main.rs"]
mod tests;

use tests::website::{Bug, scenario};

fn main() {
    let begin = Instant::now();
    explore(1_000, |world| scenario(world, Bug::None));
    println!("all seeds of the website example: {:.2?}", begin.elapsed());
}
