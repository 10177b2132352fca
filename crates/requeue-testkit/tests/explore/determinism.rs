//! The same number gives the same run.

use requeue_testkit::explore::record;

use crate::website::{Bug, scenario};

/// Runs on another thread, because each thread has other random seeds for hash maps.
fn record_apart(number: u64) -> Vec<String> {
    let run = move || record(number, |world| scenario(world, Bug::None)).expect("it passes");
    std::thread::spawn(run).join().expect("no panic")
}

#[test]
fn a_seed_gives_the_same_requests_twice() {
    for seed in 0..20 {
        let number = seed << 16 | 0xffff;
        let (first, second) = (record_apart(number), record_apart(number));
        let differ = first.iter().zip(&second).position(|(first, second)| first != second);
        assert_eq!(differ, None, "{:?}", differ.map(|n| (&first[n], &second[n])));
        assert_eq!(first.len(), second.len());
    }
}
