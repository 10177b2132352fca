//! How long one operation of the core takes at most: so long everybody waits for the lock.

use std::time::{Duration, Instant};

use requeue_core::{Add, Config, Finish, Group, Queue, Time};

use crate::keys::{Key, hash};
use crate::meter::nanos;
use crate::protocol::{Answer, Request};

/// Rounds in which the same is done.
const ROUNDS: usize = 5;

/// Of each operation, the least of all rounds: what an operation takes in all of them is its own,
/// what it takes in one alone is the machine's.
#[derive(Default)]
struct Longest {
    least: Vec<u64>,
    at: usize,
}

impl Longest {
    fn time<R>(&mut self, operation: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = operation();
        let nanos = nanos(start.elapsed());
        match self.least.get_mut(self.at) {
            Some(least) => *least = nanos.min(*least),
            None => self.least.push(nanos),
        }
        self.at += 1;
        result
    }

    fn answer(&self) -> Answer {
        let longest = self.least.iter().max().map(|&nanos| nanos as f64);
        Answer { ops: self.least.len() as u64, longest_ns: longest, ..Answer::default() }
    }
}

/// An add, while the queue grows.
pub(super) fn growing<K: Key>(request: &Request) -> Answer {
    let (keys, mut longest) = (K::some(request.n), Longest::default());
    for _ in 0..ROUNDS {
        longest.at = 0;
        let mut queue = Queue::new(Config::default());
        for key in &*keys {
            longest.time(|| add(&mut queue, key, Add::now()));
        }
    }
    longest.answer()
}

/// A get, or the end of a run, when all keys have fallen due at once.
pub(super) fn due<K: Key>(request: &Request) -> Answer {
    let (keys, mut longest) = (K::some(request.n), Longest::default());
    for _ in 0..ROUNDS {
        longest.at = 0;
        let mut queue = Queue::new(Config::default());
        for key in &*keys {
            let delay = Duration::from_nanos(1 + hash(key) % 1_000_000);
            add(&mut queue, key, Add::after(delay));
        }
        let later = Time::from_nanos(1 << 62);
        while let Some(out) = longest.time(|| queue.get(later)) {
            drop(longest.time(|| queue.finish(&out.ticket, Finish::Succeed, later)));
        }
    }
    longest.answer()
}

fn add<K: Key>(queue: &mut Queue<K>, key: &K, add: Add) {
    drop(queue.add(key.clone(), hash(key), add, Group::default(), Time::ZERO));
}
