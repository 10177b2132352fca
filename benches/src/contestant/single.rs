//! Scenarios of one thread.

use std::time::Duration;

use crate::heap::live;
use crate::keys::{Key, Ring};
use crate::meter::Meter;
use crate::protocol::{Answer, Request};

/// How many keys there are besides those that are queued.
const SPARE: usize = 65_536;
/// What `delayed` adds wait at least.
pub const HOUR: Duration = Duration::from_secs(3600);

/// What keys go into and come out of.
pub trait Subject<K> {
    /// The key comes out once, later.
    fn add(&mut self, key: &K);

    /// Adds a key that is there already.
    fn add_again(&mut self, key: &K) {
        self.add(key);
    }

    /// Takes the next key, of which there is one, and is done with it.
    fn take(&mut self);
}

/// What takes and gives many at once.
pub trait Batches<K> {
    /// Adds them all.
    fn add_all(&mut self, keys: &[K]);
    /// Takes so many, which there are, and is done with them.
    fn take_many(&mut self, count: usize);
}

/// What keys wait in for their time.
pub trait Delays<K> {
    /// The key comes out after that, or after what it was added with before.
    fn add_after(&mut self, key: &K, delay: Duration);
    /// Takes out a key that waits; whether that can be done.
    fn cancel(&mut self, key: &K) -> bool;
}

/// Add, get, done, with some queued all the time.
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

/// The same, so many at once.
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

/// Adds of keys that are queued.
pub fn add_queued<K: Key>(mut subject: impl Subject<K>, request: &Request) -> Answer {
    let count = request.depth.max(1);
    let mut keys = Ring::new(count);
    (0..count).for_each(|_| subject.add(keys.next()));
    let meter = Meter::start();
    (0..request.n).for_each(|_| subject.add_again(keys.next()));
    meter.stop(request.n)
}

/// All in, all out.
pub fn fill_drain<K: Key>(mut subject: impl Subject<K>, request: &Request) -> Answer {
    let keys = K::some(request.n);
    let meter = Meter::start();
    keys.iter().for_each(|key| subject.add(key));
    (0..request.n).for_each(|_| subject.take());
    meter.stop(request.n)
}

/// Some time between one and two hours, in no order.
fn later(random: &mut fastrand::Rng) -> Duration {
    HOUR + Duration::from_nanos(random.u64(..3_600_000_000_000))
}

/// Keys that come to wait.
pub fn delayed_add<K: Key>(mut subject: impl Delays<K>, request: &Request) -> Answer {
    let (keys, mut random) = (K::some(request.n), fastrand::Rng::with_seed(1));
    let meter = Meter::start();
    keys.iter().for_each(|key| subject.add_after(key, later(&mut random)));
    meter.stop(request.n)
}

/// Keys that wait, and then for another time.
pub fn delayed_readd<K: Key>(mut subject: impl Delays<K>, request: &Request) -> Answer {
    let (keys, mut random) = (K::some(request.depth.max(1)), fastrand::Rng::with_seed(1));
    keys.iter().for_each(|key| subject.add_after(key, later(&mut random)));
    let meter = Meter::start();
    for _ in 0..request.n {
        subject.add_after(&keys[random.usize(..keys.len())], later(&mut random));
    }
    meter.stop(request.n)
}

/// Bytes of a key that is queued, and what is left of them.
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

/// Bytes of a key that waits, and what is left of them.
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
