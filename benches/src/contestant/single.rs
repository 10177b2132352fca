//! Scenarios of one thread.

use std::time::Duration;

use crate::heap::live;
use crate::keys::{Key, Ring};
use crate::meter::Meter;
use crate::protocol::{Answer, Request};

/// The number of distinct keys in addition to the queued keys.
const SPARE: usize = 65_536;
/// The least delay of `delayed` adds.
pub const HOUR: Duration = Duration::from_secs(3600);

/// A queue that one thread uses.
pub trait Subject<K> {
    /// Adds a key, which is delivered once.
    fn add(&mut self, key: &K);

    /// Adds a key that is already queued.
    fn add_again(&mut self, key: &K) {
        self.add(key);
    }

    /// Takes the next key, which exists, and completes it.
    fn take(&mut self);
}

/// A queue with operations on many keys.
pub trait Batches<K> {
    /// Adds all keys.
    fn add_all(&mut self, keys: &[K]);
    /// Takes `count` keys, which exist, and completes them.
    fn take_many(&mut self, count: usize);
}

/// A queue of delayed keys.
pub trait Delays<K> {
    /// Adds a key with a delay, which replaces an earlier delay.
    fn add_after(&mut self, key: &K, delay: Duration);
    /// Cancels a waiting key. Returns false if that is not supported.
    fn cancel(&mut self, key: &K) -> bool;
}

/// Measures cycles of add, get and done, with a constant number of queued keys.
pub fn cycle<K: Key>(mut subject: impl Subject<K>, request: &Request) -> Answer {
    let mut keys = Ring::new(request.depth + SPARE);
    (0..request.depth).for_each(|_| subject.add(keys.next()));
    let meter = Meter::start();
    for _ in 0..request.n {
        subject.add(keys.next());
        subject.take();
    }
    meter.stop(request.n)
}

/// Measures the same cycles in batches.
pub fn batch<K: Key>(mut subject: impl Batches<K> + Subject<K>, request: &Request) -> Answer {
    let mut keys = Ring::new(request.depth + SPARE);
    (0..request.depth).for_each(|_| subject.add(keys.next()));
    let mut ops = 0;
    let meter = Meter::start();
    while ops < request.n {
        let some = keys.next_many(request.batch);
        subject.add_all(some);
        subject.take_many(some.len());
        ops += some.len();
    }
    meter.stop(ops)
}

/// Measures adds of keys that are already queued.
pub fn add_queued<K: Key>(mut subject: impl Subject<K>, request: &Request) -> Answer {
    let count = request.depth.max(1);
    let mut keys = Ring::new(count);
    (0..count).for_each(|_| subject.add(keys.next()));
    let meter = Meter::start();
    (0..request.n).for_each(|_| subject.add_again(keys.next()));
    meter.stop(request.n)
}

/// Adds all keys, and then takes all keys.
pub fn fill_drain<K: Key>(mut subject: impl Subject<K>, request: &Request) -> Answer {
    let keys = K::some(request.n);
    let meter = Meter::start();
    keys.iter().for_each(|key| subject.add(key));
    (0..request.n).for_each(|_| subject.take());
    meter.stop(request.n)
}

/// Returns a random delay between one and two hours.
fn later(random: &mut fastrand::Rng) -> Duration {
    HOUR + Duration::from_nanos(random.u64(..3_600_000_000_000))
}

/// Measures adds of new keys with a delay.
pub fn delayed_add<K: Key>(mut subject: impl Delays<K>, request: &Request) -> Answer {
    let (keys, mut random) = (K::some(request.n), fastrand::Rng::with_seed(1));
    let meter = Meter::start();
    keys.iter().for_each(|key| subject.add_after(key, later(&mut random)));
    meter.stop(request.n)
}

/// Measures adds of waiting keys with another delay.
pub fn delayed_readd<K: Key>(mut subject: impl Delays<K>, request: &Request) -> Answer {
    let (keys, mut random) = (K::some(request.depth.max(1)), fastrand::Rng::with_seed(1));
    keys.iter().for_each(|key| subject.add_after(key, later(&mut random)));
    let meter = Meter::start();
    for _ in 0..request.n {
        subject.add_after(&keys[random.usize(..keys.len())], later(&mut random));
    }
    meter.stop(request.n)
}

/// Measures the bytes of a queued key, and the bytes that are still allocated after the key has
/// left.
pub fn memory<K: Key, S: Subject<K>>(make: impl FnOnce() -> S, request: &Request) -> Answer {
    let keys = K::some(request.n);
    let start = live();
    let mut subject = make();
    keys.iter().for_each(|key| subject.add(key));
    let full = live();
    (0..request.n).for_each(|_| subject.take());
    let answer = Answer {
        bytes: Some(each(start, full, request)),
        bytes_after: Some(each(start, live(), request)),
        ..Answer::default()
    };
    drop(subject);
    answer
}

/// Measures the bytes of a waiting key, and the bytes that are still allocated after the key has
/// left.
pub fn memory_delayed<K: Key, S: Delays<K>>(make: impl FnOnce() -> S, request: &Request) -> Answer {
    let (keys, mut random) = (K::some(request.n), fastrand::Rng::with_seed(1));
    let start = live();
    let mut subject = make();
    keys.iter().for_each(|key| subject.add_after(key, later(&mut random)));
    let full = live();
    let gone = keys.iter().all(|key| subject.cancel(key));
    let answer = Answer {
        bytes: Some(each(start, full, request)),
        bytes_after: gone.then(|| each(start, live(), request)),
        ..Answer::default()
    };
    drop(subject);
    answer
}

fn each(start: usize, end: usize, request: &Request) -> f64 {
    end.saturating_sub(start) as f64 / request.n as f64
}
