//! The moments at which hooks are called. A queue without hooks does no work for them.

#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::Waker;
use std::time::Duration;

use proptest::prelude::*;
use requeue::clock::{Alarm, Clock, FakeClock};
use requeue::metrics::{MetricsProvider, QueueMetrics};
use requeue::{BuildError, Completion, Item, Queue, ReaddPolicy, Time};

#[derive(Default)]
struct Counters {
    depth: AtomicI64,
    adds: AtomicU64,
    gets: AtomicU64,
    done: AtomicU64,
    retries: AtomicU64,
}

impl<K> QueueMetrics<K> for Counters {
    fn add(&self) {
        self.adds.fetch_add(1, Relaxed);
        self.depth.fetch_add(1, Relaxed);
    }

    fn get(&self, _: &K, _: Duration) {
        self.gets.fetch_add(1, Relaxed);
        self.depth.fetch_sub(1, Relaxed);
    }

    fn done(&self, _: &K, _: Duration) {
        self.done.fetch_add(1, Relaxed);
    }

    fn retry(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    fn withdraw(&self) {
        self.depth.fetch_sub(1, Relaxed);
    }
}

struct Provider<T>(Arc<T>);

impl<K, T: QueueMetrics<K> + 'static> MetricsProvider<K> for Provider<T> {
    fn queue(&self, _: &str) -> Arc<dyn QueueMetrics<K>> {
        self.0.clone()
    }
}

fn queue_with<T: QueueMetrics<u8> + 'static>(
    hooks: &Arc<T>,
    clock: &FakeClock,
    policy: ReaddPolicy,
) -> Queue<u8> {
    let provider = Arc::new(Provider(hooks.clone()));
    let builder = Queue::builder().name("q").clock(clock.clone()).readd_policy(policy);
    builder.metrics_provider(provider).build().unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Add(u8),
    AddAll,
    After(u8, u64),
    Advance(u64),
    Get,
    End(u8),
    Cancel(u8),
    Pause,
    Look,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..4u8).prop_map(Op::Add),
        1 => Just(Op::AddAll),
        3 => (0..4u8, 0..3u64).prop_map(|(key, delay)| Op::After(key, delay)),
        3 => (1..4u64).prop_map(Op::Advance),
        5 => Just(Op::Get),
        5 => (0..6u8).prop_map(Op::End),
        1 => (0..4u8).prop_map(Op::Cancel),
        1 => Just(Op::Pause),
        1 => Just(Op::Look),
    ]
}

fn policies() -> impl Strategy<Value = ReaddPolicy> {
    prop_oneof![Just(ReaddPolicy::KeepBoth), Just(ReaddPolicy::Replace), Just(ReaddPolicy::Hold)]
}

proptest! {
    /// The queue reports each change of a key before the operation returns, even if the operation
    /// was on another key.
    #[test]
    fn hooks_and_counts_agree_after_every_operation(
        policy in policies(),
        ops in proptest::collection::vec(op(), 1..60),
    ) {
        let (clock, hooks) = (FakeClock::new(), Arc::new(Counters::default()));
        let queue = queue_with(&hooks, &clock, policy);
        let mut items = Vec::new();
        let mut ends = 0;
        let mut check = |ended: u64| {
            ends += ended;
            // The totals are read first, because `depth` makes due keys ready.
            let counts = queue.totals();
            prop_assert_eq!(hooks.adds.load(Relaxed), counts.enqueued);
            prop_assert_eq!(hooks.gets.load(Relaxed), counts.deliveries);
            prop_assert_eq!(hooks.retries.load(Relaxed), counts.retries);
            prop_assert_eq!(hooks.done.load(Relaxed), ends);
            let depth = queue.sample().depth;
            prop_assert_eq!(hooks.depth.load(Relaxed), depth as i64);
            Ok(())
        };
        for op in ops {
            let mut ended = 0;
            match op {
                Op::Add(key) => drop(queue.add_ref(&key)),
                Op::AddAll => drop(queue.add_all([0, 1, 2, 0])),
                Op::After(key, ms) => drop(queue.add_after(key, Duration::from_millis(ms))),
                Op::Advance(ms) => clock.advance(Duration::from_millis(ms)),
                Op::Get => items.extend(queue.try_get()),
                Op::End(how) => if !items.is_empty() {
                    let item = items.remove(0);
                    ended = 1;
                    match how {
                        0 => item.succeed(),
                        1 => item.retry(),
                        2 => item.complete(Completion::RequeueAfter(Duration::from_millis(1))),
                        3 => item.complete(Completion::Release),
                        4 => drop(item.into_parts().1),
                        _ => item.complete(Completion::RetryAfter(Duration::ZERO)),
                    }
                    // Completes a key whose item was detached, if there is one.
                    if how == 4 && !(0..4).any(|key| queue.done(&key)) {
                        ended = 0;
                    }
                },
                Op::Cancel(key) => drop(queue.cancel(&key)),
                Op::Pause => if queue.is_paused() { queue.resume() } else { queue.pause() },
                Op::Look => drop(queue.explain(&0)),
            }
            check(ended)?;
        }
        queue.shut_down();
        check(0)?;
        let left = items.len() as u64;
        for item in items {
            item.retry();
        }
        check(left)?;
    }
}

#[test]
fn a_delayed_add_is_reported_by_the_operation_that_finds_it_due() {
    let (clock, hooks) = (FakeClock::new(), Arc::new(Counters::default()));
    let queue = queue_with(&hooks, &clock, ReaddPolicy::KeepBoth);
    queue.add_all([7, 8]);
    let (_, ticket) = queue.try_get().unwrap().into_parts();
    for key in 0..5 {
        queue.add_after(key, Duration::from_secs(1));
    }
    assert_eq!((hooks.adds.load(Relaxed), hooks.retries.load(Relaxed)), (2, 5));
    clock.advance(Duration::from_secs(1));
    assert!(!queue.done(&99), "it completes nothing, but makes five due keys ready");
    assert_eq!(hooks.adds.load(Relaxed), 7);
    assert!(queue.done_ticket(ticket));
}

#[test]
fn a_hook_may_use_the_queue() {
    #[derive(Default)]
    struct Curious {
        queue: OnceLock<Queue<u8>>,
        seen: AtomicU64,
    }

    impl Curious {
        fn look(&self) {
            let queue = self.queue.get().unwrap();
            queue.add_after(9, Duration::from_secs(60));
            self.seen.fetch_add(1 + queue.states().in_flight as u64, Relaxed);
        }
    }

    impl<K> QueueMetrics<K> for Curious {
        fn add(&self) {
            self.look();
        }

        fn get(&self, _: &K, _: Duration) {
            self.look();
        }

        fn done(&self, _: &K, _: Duration) {
            self.look();
        }
    }

    let (clock, hooks) = (FakeClock::new(), Arc::new(Curious::default()));
    let queue = queue_with(&hooks, &clock, ReaddPolicy::KeepBoth);
    hooks.queue.set(queue.clone()).unwrap();
    queue.add(1);
    assert_eq!(hooks.seen.load(Relaxed), 1, "called before `add` returns");
    let item = queue.try_get().unwrap();
    assert_eq!(hooks.seen.load(Relaxed), 3, "called before `try_get` returns");
    item.succeed();
    assert_eq!(hooks.seen.load(Relaxed), 4, "called before `succeed` returns");
    assert_eq!(queue.waiting(), 1);
}

#[test]
fn a_hook_that_panics_does_nothing() {
    struct Broken;

    impl<K> QueueMetrics<K> for Broken {
        fn add(&self) {
            panic!("a hook's own");
        }

        fn get(&self, _: &K, _: Duration) {
            panic!("a hook's own");
        }

        fn done(&self, _: &K, _: Duration) {
            panic!("a hook's own");
        }

        fn retry(&self) {
            panic!("a hook's own");
        }

        fn withdraw(&self) {
            panic!("a hook's own");
        }
    }

    let clock = FakeClock::new();
    let queue = queue_with(&Arc::new(Broken), &clock, ReaddPolicy::KeepBoth);
    queue.add_all([1, 2]);
    queue.cancel(&2);
    drop(queue.try_get().unwrap());
    assert_eq!((queue.waiting(), queue.totals().retries), (1, 1));
    clock.advance(Duration::from_secs(1));
    queue.try_get().unwrap().succeed();
    assert_eq!(queue.sample().depth, 0);
}

#[test]
fn hooks_need_a_name_to_report_under() {
    let provider = Arc::new(Provider(Arc::new(Counters::default())));
    for builder in [Queue::<u8>::builder(), Queue::builder().name("")] {
        let built = builder.metrics_provider(provider.clone()).build();
        assert_eq!(built.unwrap_err(), BuildError::Unnamed);
    }
}

/// A clock that counts how often the queue reads it.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicU64>);

impl Clock for Counting {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.fetch_add(1, Relaxed))
    }

    fn arm(&self, _: Time, _: &Waker) -> Alarm {
        Alarm::none()
    }
}

#[test]
fn without_metrics_no_clock_is_read() {
    let clock = Counting::default();
    let queue = Queue::builder().name("q").clock(clock.clone()).build().unwrap();
    for key in 0..10 {
        queue.add(key);
        queue.add(key);
        let item = queue.try_get().unwrap();
        queue.add(key);
        item.done();
        queue.get().blocking().unwrap().succeed();
        assert_eq!((queue.len(), queue.sample().depth, queue.states().in_flight), (0, 0, 0));
    }
    assert_eq!(clock.0.load(Relaxed), 0);

    let tracked = Queue::builder().clock(clock.clone()).track_times().build().unwrap();
    tracked.add(1);
    tracked.try_get().unwrap().done();
    assert_eq!(clock.0.load(Relaxed), 3, "with hooks, each operation reads the clock once");
}

/// The test includes all ways to take a key, and all ways to complete its delivery.
#[test]
fn get_and_done_receive_the_key_however_it_is_taken_and_however_it_ends() {
    #[derive(Default)]
    struct Keys(Mutex<Vec<(&'static str, u8)>>);

    impl QueueMetrics<u8> for Keys {
        fn get(&self, key: &u8, _: Duration) {
            self.0.lock().unwrap().push(("get", *key));
        }

        fn done(&self, key: &u8, _: Duration) {
            self.0.lock().unwrap().push(("done", *key));
        }
    }

    type Take = fn(&Queue<u8>) -> Option<Item<'static, u8>>;
    type End = fn(&Queue<u8>, Item<'static, u8>);

    let takes: [Take; 4] = [
        |queue| queue.try_get().map(Item::into_owned),
        |queue| queue.get_many(1).now().pop().map(Item::into_owned),
        |queue| queue.get().blocking().map(Item::into_owned),
        |queue| queue.get().timeout(Duration::ZERO).blocking().map(Item::into_owned),
    ];
    let ends: [End; 12] = [
        |_, item| item.succeed(),
        |_, item| item.retry(),
        |_, item| item.complete(Completion::RetryAfter(Duration::from_secs(1))),
        |_, item| item.complete(Completion::RequeueAfter(Duration::from_secs(1))),
        |_, item| item.complete(Completion::Release),
        |_, item| item.complete(Completion::GiveUp),
        |_, item| item.done(),
        |_, item| drop(item),
        |_, item| Item::succeed_all([item]),
        |queue, item| drop(queue.succeed_and_try_get(item)),
        |queue, item| {
            let (_, ticket) = item.into_parts();
            assert!(queue.done_ticket(ticket));
        },
        |queue, item| {
            let (key, _) = item.into_parts();
            assert!(queue.done(&key));
        },
    ];
    for policy in [ReaddPolicy::KeepBoth, ReaddPolicy::Hold] {
        for dirty in [false, true] {
            for (key, take) in (0..).zip(takes) {
                for end in ends {
                    let (keys, clock) = (Arc::new(Keys::default()), FakeClock::new());
                    let queue = queue_with(&keys, &clock, policy);
                    queue.add(key);
                    let item = take(&queue).unwrap();
                    if dirty {
                        queue.add(key);
                    }
                    end(&queue, item);
                    let seen = keys.0.lock().unwrap().clone();
                    assert_eq!(seen[..2], [("get", key), ("done", key)]);
                }
            }
        }
    }
}
