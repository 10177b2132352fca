//! The same number gives the same run.

use std::collections::BTreeSet;
use std::env;
use std::thread;

use requeue_testkit::explore::{World, record};

#[cfg(feature = "store")]
use super::queues;
use super::{SEEDS, website};

/// Checks that each of the first seeds gives the same requests and steps twice, byte for byte.
fn assert_repeats<F>(test: impl Fn(World) -> F + Sync)
where
    F: Future<Output = ()>,
{
    let seeds = env::var("REQUEUE_SEEDS").map_or(SEEDS, |text| text.parse().expect("a number"));
    let mut different = BTreeSet::new();
    for seed in 0..seeds {
        let run = || record(seed << 16 | 0xffff, &test).expect("it passes");
        // Threads have different random seeds for hash maps.
        let [first, second] = thread::scope(|scope| {
            let runs = [scope.spawn(run), scope.spawn(run)];
            runs.map(|run| run.join().expect("no panic"))
        });
        let differ = first.iter().zip(&second).find(|(first, second)| first != second);
        assert_eq!(differ, None, "seed {seed}");
        assert_eq!(first.len(), second.len(), "seed {seed}");
        different.insert(first);
    }
    assert_eq!(different.len() as u64, seeds, "different seeds give different runs");
}

#[test]
fn a_seed_of_the_website_example_gives_the_same_requests_twice() {
    assert_repeats(|world| website::scenario(world, website::Bug::None));
}

#[cfg(feature = "store")]
#[test]
fn a_seed_of_a_queue_in_memory_gives_the_same_steps_twice() {
    assert_repeats(|world| queues::in_memory(world, queues::Bug::None));
}
