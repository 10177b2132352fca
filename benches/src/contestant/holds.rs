//! Measures the longest operation of the core, during which all other threads wait for the lock.

use std::time::{Duration, Instant};

use requeue_core::{Add, Config, Finish, GroupId, Queue, Time};

use crate::keys::{Key, hash};
use crate::meter::nanos;
use crate::protocol::{Answer, Request};

/// The number of rounds, which repeat the same operations.
const ROUNDS: usize = 5;

/// The minimum time of each operation over all rounds. The operation itself needs the time that it
/// takes in every round. Further time in one round is noise of the machine.
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

/// Measures adds to a growing queue.
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

/// Measures gets and completions after all keys have fallen due at the same time.
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
    drop(queue.add(key.clone(), hash(key), add, GroupId::default(), Time::ZERO));
}
