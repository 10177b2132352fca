//! Limiters that return absurd delays, panic, or call the queue. The queue must stay usable, and
//! lose no key.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::panic::resume_unwind;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::{retry, secs, take_all};
use requeue::clock::FakeClock;
use requeue::limiter::RateLimiter;
use requeue::{Completion, Phase, Queue, Time};

fn with(limiter: impl RateLimiter<&'static str> + 'static) -> (Queue<&'static str>, FakeClock) {
    let clock = FakeClock::new();
    (Queue::builder().clock(clock.clone()).limiter(limiter).build().unwrap(), clock)
}

/// A limiter that returns the delays with which the test has created it.
struct Says(Vec<Duration>);

impl RateLimiter<&'static str> for Says {
    fn delay(&mut self, _: &&'static str, _: Time) -> Duration {
        self.0.pop().unwrap_or(Duration::ZERO)
    }

    fn forget(&mut self, _: &&'static str) {}

    fn num_requeues(&self, _: &&'static str) -> u32 {
        u32::MAX
    }
}

#[test]
fn any_delay_is_honoured() {
    let (queue, clock) = with(Says(vec![Duration::MAX, Duration::from_nanos(1), Duration::ZERO]));
    queue.add("a");
    assert_eq!(retry(&queue, queue.try_get().unwrap()), Duration::ZERO);
    assert_eq!(queue.len(), 1, "without a delay, the key is ready now");
    queue.try_get().unwrap().retry();
    assert_eq!(queue.len(), 0);
    clock.advance(Duration::from_nanos(1));
    queue.try_get().unwrap().retry();
    clock.advance(secs(1_000_000_000));
    assert!(queue.try_get().is_none());
    assert_eq!(queue.num_requeues(&"a"), u32::MAX);
    assert_eq!(queue.failures("a"), 3, "the record's count is not the limiter's");
}

/// The payload of a panic, which panics when it is dropped.
struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            resume_unwind(Box::new("dropped"));
        }
    }
}

/// A limiter that panics in each call, and when it is dropped.
struct Panics(Option<Duration>);

impl RateLimiter<&'static str> for Panics {
    fn delay(&mut self, _: &&'static str, _: Time) -> Duration {
        resume_unwind(Box::new(Payload));
    }

    fn forget(&mut self, _: &&'static str) {
        resume_unwind(Box::new(Payload));
    }

    fn num_requeues(&self, _: &&'static str) -> u32 {
        resume_unwind(Box::new(Payload));
    }

    fn longest_delay(&self) -> Duration {
        self.0.unwrap_or_else(|| resume_unwind(Box::new(Payload)))
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        resume_unwind(Box::new(Payload));
    }
}

#[test]
fn a_limiter_that_panics_yields_its_longest_delay() {
    for (longest, expected) in [(Some(secs(7)), secs(7)), (None, secs(300))] {
        let (queue, clock) = with(Panics(longest));
        queue.add("a");
        assert_eq!(retry(&queue, queue.try_get().unwrap()), expected);
        clock.advance(expected);
        drop(queue.try_get().unwrap());
        clock.advance(expected);
        queue.try_get().unwrap().succeed();
        assert!(queue.add_rate_limited("a").is_accepted());
        queue.forget(&"a");
        assert_eq!(queue.num_requeues(&"a"), 0);
        assert!(queue.cancel("a").waiting);
        drop(queue);
    }
}

/// A limiter whose methods make every possible call of the queue.
struct Calls(Arc<OnceLock<Queue<&'static str>>>);

impl Calls {
    fn call(&self) {
        let Some(queue) = self.0.get() else { return };
        queue.add("from the limiter");
        queue.add_rate_limited("limited from the limiter");
        queue.forget(&"a");
        let _ = (queue.len(), queue.num_requeues(&"a"), queue.failures("a"));
        queue.cancel("limited from the limiter");
        queue.get_many(1).now().into_iter().for_each(|item| item.complete(Completion::Release));
    }
}

impl RateLimiter<&'static str> for Calls {
    fn delay(&mut self, _: &&'static str, _: Time) -> Duration {
        self.call();
        secs(1)
    }

    fn forget(&mut self, key: &&'static str) {
        // For the success of key "a" itself, the limiter makes no calls, because they would recurse
        // without end.
        if *key == "a" {
            self.call();
        }
    }

    fn num_requeues(&self, _: &&'static str) -> u32 {
        self.call();
        0
    }
}

#[test]
fn a_limiter_may_call_the_queue() {
    let handle = Arc::new(OnceLock::new());
    let (queue, clock) = with(Calls(Arc::clone(&handle)));
    let _ = handle.set(queue.clone());
    queue.add("a");
    assert_eq!(retry(&queue, queue.try_get().unwrap()), secs(1));
    assert_eq!(queue.look_up("a").unwrap().phase, Phase::Idle);
    assert_eq!(queue.num_requeues(&"a"), 0);
    queue.forget(&"a");
    clock.advance(secs(600));
    let mut keys = take_all(&queue);
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys, ["a", "from the limiter"]);
}
