//! Workers on threads, without a runtime. Two workers never have the same key at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use requeue::Queue;
use requeue::workers::{Action, Context, ThreadWorkers};

const KEYS: usize = 5;
const WORKERS: usize = 4;
const ADDS: usize = 10_000;

fn main() {
    let queue: Queue<usize> = Queue::new();
    let busy: [AtomicBool; KEYS] = Default::default();
    let seen = Arc::new(AtomicU64::new(0));
    let handler = {
        let seen = Arc::clone(&seen);
        move |key: usize, context: Context| {
            assert!(!busy[key].swap(true, Ordering::SeqCst), "two workers have {key}");
            seen.fetch_add(context.adds().into(), Ordering::SeqCst);
            busy[key].store(false, Ordering::SeqCst);
            Ok(Action::succeed())
        }
    };
    let producers: Vec<_> = (0..2)
        .map(|_| {
            let queue = queue.clone();
            thread::spawn(move || (0..ADDS).for_each(|n| _ = queue.add(n % KEYS)))
        })
        .collect();
    // At the end of the input, the workers process the remaining keys, and return.
    let input = {
        let queue = queue.clone();
        thread::spawn(move || {
            producers.into_iter().for_each(|producer| producer.join().expect("no panic"));
            queue.close();
        })
    };
    ThreadWorkers::new(queue.clone(), handler).threads(WORKERS).run();
    input.join().expect("no panic");

    assert_eq!(queue.sample().panics, 0, "no key is in flight twice");
    assert_eq!(seen.load(Ordering::SeqCst), 2 * ADDS as u64, "every add is part of some run");
    let runs = queue.totals().deliveries;
    println!("{} adds of {KEYS} keys, {runs} runs, no two of one key at the same time", 2 * ADDS);
}
