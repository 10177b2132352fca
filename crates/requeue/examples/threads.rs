//! Threads that work on keys, without a runtime: however often a key is added, no two have it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use requeue::Queue;

const KEYS: usize = 5;
const WORKERS: usize = 4;
const ADDS: usize = 10_000;

fn main() {
    let queue: Queue<usize> = Queue::new();
    let busy: [AtomicBool; KEYS] = Default::default();
    let seen: [AtomicU64; KEYS] = Default::default();
    let runs = AtomicU64::new(0);

    thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(item) = queue.get_blocking() {
                    let key = *item;
                    assert!(!busy[key].swap(true, Ordering::SeqCst), "two workers have {key}");
                    seen[key].fetch_add(item.adds().into(), Ordering::SeqCst);
                    runs.fetch_add(1, Ordering::SeqCst);
                    busy[key].store(false, Ordering::SeqCst);
                    item.succeed();
                }
            });
        }
        let producers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    for n in 0..ADDS {
                        queue.add(n % KEYS);
                    }
                })
            })
            .collect();
        // The end of the input: what is ready is worked on, then each `get_blocking` is `None`.
        producers.into_iter().for_each(|producer| producer.join().expect("it does not panic"));
        queue.close();
    });

    let seen: u64 = seen.iter().map(|count| count.load(Ordering::SeqCst)).sum();
    assert_eq!(seen, 2 * ADDS as u64, "every add is part of some run");
    println!(
        "{} adds of {KEYS} keys, {} runs, none of a key twice at once",
        2 * ADDS,
        runs.load(Ordering::SeqCst)
    );
}
