//! Many keys: filling, draining, waiting, falling due.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::hint::black_box;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use requeue::{BuildError, Queue};
use requeue_core::{Add, Config, Finish, Group, Time};

use crate::Scale;
use crate::cycles::{LONG, plain};
use crate::keys::hash;
use crate::rounds::Match;

/// Keys that go in or come out under one hold of the lock.
const BATCH: usize = 32;

/// All tables of many keys.
///
/// # Errors
///
/// None, as far as is known.
pub fn run(scale: &Scale) -> Result<(), BuildError> {
    fill_and_drain(scale);
    batches(scale)?;
    delayed(scale)?;
    promotion(scale);
    rate_limited(scale)
}

fn timed<R>(work: impl FnOnce() -> R) -> Duration {
    let start = Instant::now();
    black_box(work());
    start.elapsed()
}

fn fill_and_drain(scale: &Scale) {
    let keys = scale.million as u64;
    for (what, fills) in [("fill", true), ("drain", false)] {
        Match::new(format!("{what}, per key: {keys} u64 keys"))
            .with_turn("HashSet and VecDeque", move |_| {
                let mut known = HashSet::with_hasher(RandomState::default());
                let mut order = VecDeque::new();
                let fill = timed(|| {
                    for key in 0..keys {
                        if known.insert(key) {
                            order.push_back(key);
                        }
                    }
                });
                let drain = timed(|| while order.pop_front().is_some_and(|k| known.remove(&k)) {});
                if fills { fill } else { drain }
            })
            .with_turn("requeue-core", move |_| {
                let mut queue = requeue_core::Queue::new(Config::default());
                let fill = timed(|| {
                    for key in 0..keys {
                        let _ =
                            queue.add(key, hash(&key), Add::now(), Group::default(), Time::ZERO);
                    }
                });
                let drain = timed(|| {
                    while let Some(out) = queue.get(Time::ZERO) {
                        let _ = queue.finish(&out.ticket, Finish::Succeed, Time::ZERO);
                    }
                });
                if fills { fill } else { drain }
            })
            .with_turn("Queue", move |_| {
                let queue = Queue::new();
                let fill = timed(|| queue_up(&queue, keys));
                let drain =
                    timed(|| while queue.try_get().map(requeue::Item::succeed).is_some() {});
                if fills { fill } else { drain }
            })
            .run(scale.rounds.min(7), scale.million);
    }
}

fn queue_up(queue: &Queue<u64>, keys: u64) {
    for key in 0..keys {
        queue.add(key);
    }
}

fn batches(scale: &Scale) -> Result<(), BuildError> {
    let (one, many, mut from, mut key) = (plain()?, plain()?, 0, 0);
    Match::new(format!("add, get, succeed, per key: in batches of {BATCH}"))
        .with_turn("Queue, add and try_get", move |keys| {
            timed(|| {
                for _ in 0..keys / BATCH {
                    for _ in 0..BATCH {
                        key += 1;
                        one.add(key);
                    }
                    while one.try_get().map(requeue::Item::succeed).is_some() {}
                }
            })
        })
        .with_turn("Queue, add_all and try_get_many", move |keys| {
            timed(|| {
                for _ in 0..keys / BATCH {
                    many.add_all(from..from + BATCH as u64);
                    many.try_get_many(BATCH).into_iter().for_each(requeue::Item::succeed);
                    from += BATCH as u64;
                }
            })
        })
        .run(scale.rounds, scale.turn);
    Ok(())
}

/// Some time within the hour.
fn delay(key: u64) -> Duration {
    LONG + Duration::from_nanos(hash(&key) % LONG.as_nanos() as u64)
}

fn delayed(scale: &Scale) -> Result<(), BuildError> {
    let million = scale.million as u64;
    let (mut known, mut heap) = (HashSet::with_hasher(RandomState::default()), BinaryHeap::new());
    let queue = plain()?;
    for key in 0..million {
        known.insert(key);
        heap.push((Reverse(delay(key)), key));
        queue.add_after(key, delay(key));
    }
    let (again, waiting) = (queue.clone(), known.clone());
    let (mut first, mut second, mut third, mut fourth) = (million, million, 0, 0);
    Match::new(format!("add_after of a new key: u64 keys, {million} waiting"))
        .with("HashSet and BinaryHeap", move || {
            first += 1;
            known.insert(first);
            heap.push((Reverse(delay(first)), first));
        })
        .with("Queue", move || {
            second += 1;
            queue.add_after(second, delay(second))
        })
        .run(scale.rounds, scale.turn / 10);
    Match::new(format!("add_after of a key that waits, to be sooner: {million} waiting"))
        .with("HashSet::contains", move || {
            third = (third + 7919) % million;
            waiting.contains(&third)
        })
        .with("Queue", move || {
            fourth = (fourth + 7919) % million;
            again.add_after(fourth, delay(fourth) / 2)
        })
        .run(scale.rounds, scale.turn / 10);
    Ok(())
}

fn promotion(scale: &Scale) {
    let million = scale.million as u64;
    let at = |key: u64| Time::ZERO + delay(key);
    let (mut heap, mut order) = (BinaryHeap::new(), VecDeque::new());
    let mut queue = requeue_core::Queue::new(Config::default());
    for key in 0..million {
        heap.push((Reverse(at(key)), key));
        let add = Add::after(delay(key));
        let _ = queue.add(key, hash(&key), add, Group::default(), Time::ZERO);
    }
    // Each round promotes a part of them.
    let keys = scale.million / (scale.rounds + 1);
    Match::new(format!("promotion, per key: {million} waiting at first, in steps of 256"))
        .with("BinaryHeap and VecDeque", move || {
            let due = heap.pop();
            order.extend(due);
        })
        .with_turn("requeue-core", move |keys| {
            timed(|| {
                let mut left = keys;
                while left > 0 {
                    left -= queue.promote(Time::ZERO + 2 * LONG, left.min(256)).max(1);
                }
            })
        })
        .run(scale.rounds, keys);
}

fn rate_limited(scale: &Scale) -> Result<(), BuildError> {
    const KEYS: u64 = 1024;
    let mut failures: HashMap<u64, u32, RandomState> = HashMap::default();
    let (mut known, mut heap) = (HashSet::with_hasher(RandomState::default()), BinaryHeap::new());
    let queue = plain()?;
    Match::new("add_rate_limited and forget")
        .with_turn("two hash tables and a BinaryHeap", move |keys| {
            let mut took = Duration::ZERO;
            for _ in 0..keys as u64 / KEYS {
                took += timed(|| {
                    for key in 0..KEYS {
                        *failures.entry(key).or_default() += 1;
                        known.insert(key);
                        heap.push((Reverse(delay(key)), key));
                        failures.remove(&key);
                    }
                });
                known.clear();
                heap.clear();
            }
            took
        })
        .with_turn("Queue", move |keys| {
            let mut took = Duration::ZERO;
            for _ in 0..keys as u64 / KEYS {
                took += timed(|| {
                    for key in 0..KEYS {
                        queue.add_rate_limited(key);
                        queue.forget(&key);
                    }
                });
                for key in 0..KEYS {
                    queue.cancel(&key);
                }
            }
            took
        })
        .run(scale.rounds, scale.turn / KEYS as usize * KEYS as usize);
    Ok(())
}
