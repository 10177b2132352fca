//! Add, get, succeed: the way of a key, while others are queued.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, Hash};
use std::time::Duration;

use foldhash::fast::RandomState;
use prometheus_client::registry::Registry;
use requeue::clock::SystemClock;
use requeue::metrics::Metrics;
use requeue::{BuildError, Queue};
use requeue_core::{Add, Config, Finish, Group, Time};

use crate::Scale;
use crate::keys::{Name, Ring, names, numbers};
use crate::rounds::Match;

/// How long a key waits that is not to come in time.
pub const LONG: Duration = Duration::from_secs(3600);
/// How many keys there are besides those that are queued.
const SPARE: usize = 65_536;

/// All tables of cycles.
///
/// # Errors
///
/// None, as far as is known.
pub fn run(scale: &Scale) -> Result<(), BuildError> {
    for queued in [0, 65_536, scale.million] {
        let title = format!("add, get, succeed: u64 keys, {queued} queued");
        cycle(title, &numbers(queued + SPARE), u64::MAX, queued)?.run(scale.rounds, scale.turn);
    }
    for queued in [0, 65_536, scale.million] {
        let title = format!("add, get, succeed: (namespace, name) keys, {queued} queued");
        let other = ("another".into(), "one".into());
        cycle(title, &names(queued + SPARE), other, queued)?.run(scale.rounds, scale.turn);
    }
    for queued in [65_536, scale.million] {
        known(queued)?.run(scale.rounds, scale.turn);
    }
    Ok(())
}

/// `other` is no key of the ring.
fn cycle<K>(
    title: String,
    keys: &Ring<K>,
    other: K,
    queued: usize,
) -> Result<Match<'static>, BuildError>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    let waiting = plain()?;
    waiting.add_after(other, LONG);
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let seen = Queue::builder().clock(SystemClock).name("seen").metrics(&metrics).build()?;
    Ok(Match::new(title)
        .with("HashSet and VecDeque", floor(keys.clone(), queued))
        .with("requeue-core", core(keys.clone(), queued))
        .with("Queue", shell(plain()?, keys.clone(), queued))
        .with("Queue, a key waits for an hour", shell(waiting, keys.clone(), queued))
        .with("Queue, with metrics", shell(seen, keys.clone(), queued)))
}

/// A queue with all defaults, whatever runtime there is.
///
/// # Errors
///
/// None, as far as is known.
pub fn plain<K>() -> Result<Queue<K>, BuildError>
where
    K: Hash + Eq + Clone + Send + 'static,
{
    Queue::builder().clock(SystemClock).build()
}

/// What a queue can't do without, and nothing of what it is for: every key once, in order.
fn floor<K: Hash + Eq + Clone>(mut keys: Ring<K>, queued: usize) -> impl FnMut() -> bool {
    let mut known = HashSet::with_hasher(RandomState::default());
    let mut order = VecDeque::new();
    let mut add = move |known: &mut HashSet<K, RandomState>, order: &mut VecDeque<K>| {
        let key = keys.copy();
        if known.insert(key.clone()) {
            order.push_back(key);
        }
    };
    (0..queued).for_each(|_| add(&mut known, &mut order));
    move || {
        add(&mut known, &mut order);
        order.pop_front().is_some_and(|key| known.remove(&key))
    }
}

fn core<K: Hash + Eq + Clone>(mut keys: Ring<K>, queued: usize) -> impl FnMut() -> bool {
    let mut queue = requeue_core::Queue::new(Config::default());
    let hasher = RandomState::default();
    let mut add = move |queue: &mut requeue_core::Queue<K>| {
        let key = keys.copy();
        let hash = hasher.hash_one(&key);
        queue.add(key, hash, Add::now(), Group::default(), Time::ZERO).1
    };
    (0..queued).for_each(|_| drop(add(&mut queue)));
    move || {
        drop(add(&mut queue));
        let out = queue.get(Time::ZERO);
        out.and_then(|out| queue.finish(&out.ticket, Finish::Succeed, Time::ZERO)).is_some()
    }
}

fn shell<K>(queue: Queue<K>, mut keys: Ring<K>, queued: usize) -> impl FnMut() -> bool
where
    K: Hash + Eq + Clone + Send + 'static,
{
    (0..queued).for_each(|_| {
        queue.add(keys.copy());
    });
    move || {
        queue.add(keys.copy());
        queue.try_get().map(requeue::Item::succeed).is_some()
    }
}

/// Adds of keys that are queued already.
fn known(queued: usize) -> Result<Match<'static>, BuildError> {
    let keys = names(queued);
    let all = |mut keys: Ring<Name>| (0..queued).map(move |_| keys.copy());
    let set: HashSet<Name, RandomState> = all(keys.clone()).collect();
    let (by_ref, by_value) = (plain()?, plain()?);
    by_ref.add_all(all(keys.clone()));
    by_value.add_all(all(keys.clone()));
    let (mut first, mut second, mut third) = (keys.clone(), keys.clone(), keys);
    Ok(Match::new(format!("add of a key that is queued: (namespace, name) keys, {queued} queued"))
        .with("HashSet::contains", move || set.contains(first.lend()))
        .with("Queue::add_ref", move || by_ref.add_ref(second.lend()))
        .with("Queue::add", move || by_value.add(third.copy())))
}
