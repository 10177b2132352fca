//! The same number gives the same run.

use std::collections::BTreeSet;
use std::thread;

use requeue_testkit::explore::record;

use super::website;

/// Returns the requests of two runs, byte for byte.
///
/// Each run has its own thread, because threads have different random seeds for hash maps.
fn record_twice(number: u64) -> [Vec<String>; 2] {
    let run = || record(number, |world| website::scenario(world, website::Bug::None));
    thread::scope(|scope| {
        let runs = [scope.spawn(run), scope.spawn(run)];
        runs.map(|run| run.join().expect("no panic").expect("it passes"))
    })
}

#[test]
fn a_seed_of_the_website_example_gives_the_same_requests_twice() {
    let mut different = BTreeSet::new();
    for seed in 0..50 {
        let [first, second] = record_twice(seed << 16 | 0xffff);
        let differ = first.iter().zip(&second).find(|(first, second)| first != second);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(first.len(), second.len(), "seed {seed}");
        different.insert(first);
    }
    assert_eq!(different.len(), 50, "different seeds give different runs");
}
