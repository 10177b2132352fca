//! Keys that an attacker has chosen so that their hashes are equal. With SipHash, an operation must
//! compare only few keys.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use std::any::type_name;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::time::Duration;

use foldhash::fast::FixedState;
use requeue::clock::FakeClock;
use requeue::limiter::RateLimiter;
use requeue::limiter::{BackoffLimiter, ExponentialFailure, FastSlow};
use requeue::{Completion, Queue, Time};

/// The seed, which the attacker knows. It determines the initial state of foldhash.
const SEED: u64 = 7;
const BEGIN: u64 = SEED ^ 0x082e_fa98_ec4e_6c89;

const KEYS: u64 = 300;
/// The minimum number of comparisons if each key is compared with all others that have the same
/// hash.
const QUADRATIC: u64 = KEYS * (KEYS - 1) / 2;

thread_local! {
    static COMPARISONS: Cell<u64> = const { Cell::new(0) };
    static HASHERS: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

/// A key of two words. foldhash combines the first word with its initial state, and then multiplies
/// the result by the second word.
#[derive(Clone, Debug, Eq)]
struct Key(u64, u64);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        HASHERS.with_borrow_mut(|hashers| hashers.insert(type_name::<H>()));
        self.0.hash(state);
        self.1.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        COMPARISONS.set(COMPARISONS.get() + 1);
        (self.0, self.1) == (other.0, other.1)
    }
}

/// The attacker knows the seed, and chooses the first word so that the first factor of the product
/// is zero.
fn colliding() -> impl Iterator<Item = Key> {
    (0..KEYS).map(|n| Key(BEGIN, n))
}

fn comparisons(work: impl FnOnce()) -> u64 {
    COMPARISONS.set(0);
    work();
    COMPARISONS.get()
}

/// Adds the keys, and makes each of them fail once. Returns the number of comparisons.
fn flood<S: BuildHasher>(queue: &Queue<Key, S>) -> u64 {
    comparisons(|| {
        for key in colliding() {
            queue.add(key);
        }
        assert_eq!(queue.len() as u64, KEYS);
        while let Some(item) = queue.try_get() {
            item.complete(Completion::RetryAfter(Duration::from_secs(60)));
        }
    })
}

#[test]
fn keys_that_collide_under_a_known_seed_do_not_under_siphash() {
    let fixed = FixedState::with_seed(SEED);
    assert_eq!(colliding().map(|key| fixed.hash_one(&key)).collect::<BTreeSet<_>>().len(), 1);
    let queue = Queue::builder().clock(FakeClock::new()).hasher(fixed).build().unwrap();
    assert!(flood(&queue) >= QUADRATIC, "the attack does not work: {}", COMPARISONS.get());

    let queue =
        Queue::builder().clock(FakeClock::new()).hasher(RandomState::new()).build().unwrap();
    let comparisons = flood(&queue);
    // A delivery may compare its key with itself, once or twice, but not with another key.
    assert!(comparisons <= 4 * KEYS, "{comparisons}");
}

#[test]
fn limiters_separate_these_keys_with_siphash_too() {
    fn delays(mut limiter: impl RateLimiter<Key>) -> u64 {
        comparisons(|| {
            for key in colliding() {
                limiter.delay(&key, Time::default());
            }
        })
    }
    let second = Duration::from_secs(1);
    let fixed = || FixedState::with_seed(SEED);
    assert!(delays(BackoffLimiter::with_hasher(second, second, fixed())) >= QUADRATIC);
    for comparisons in [
        delays(BackoffLimiter::with_hasher(second, second, RandomState::new())),
        delays(ExponentialFailure::with_hasher(second, second, RandomState::new())),
        delays(FastSlow::with_hasher(second, second, 3, RandomState::new())),
    ] {
        assert!(comparisons <= 4 * KEYS, "{comparisons}");
    }
}

/// If the default limiter used another hasher, an attacker could choose keys that have the same
/// hash in the limiter.
#[test]
fn a_queue_with_siphash_hashes_keys_with_nothing_else() {
    let queue =
        Queue::builder().clock(FakeClock::new()).hasher(RandomState::new()).build().unwrap();
    queue.add(Key(1, 2));
    queue.try_get().unwrap().retry();
    queue.forget(&Key(1, 2));
    let hashers = HASHERS.take();
    assert_eq!(hashers.into_iter().collect::<Vec<_>>(), [type_name::<DefaultHasher>()]);

    // A queue with the default hasher uses only foldhash.
    let queue = Queue::new();
    queue.add(Key(1, 2));
    queue.try_get().unwrap().retry();
    let hashers = HASHERS.take();
    assert!(hashers.iter().all(|name| name.contains("foldhash")), "{hashers:?}");
}
