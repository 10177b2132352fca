//! Extensions that use only the public API, as a user of the crate would write them.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::Duration;

use common::{Fifo, fake, ms, poll, retry, secs};
use requeue::clock::{Alarm, Clock};
use requeue::limiter::RateLimiter;
use requeue::limiter::{Bucket, ExponentialFailure, MaxOf, WithMaxWait};
use requeue::metrics::{MetricsProvider, QueueMetrics};
use requeue::{Completion, CustomOrder, Item, Order, Queue, Ticket, Time};

// --- A custom clock ------------------------------------------------------------------------------

/// A clock that the program advances. It stores the wakers of its alarms.
#[derive(Clone, Default)]
struct Stepped(Arc<Mutex<Steps>>);

#[derive(Default)]
struct Steps {
    now: Time,
    armed: BTreeMap<(Time, u64), Waker>,
    next: u64,
}

impl Stepped {
    fn step(&self, by: Duration) {
        let mut steps = self.0.lock().unwrap();
        let now = steps.now + by;
        steps.now = now;
        let rest = steps.armed.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut steps.armed, rest);
        drop(steps);
        due.into_values().for_each(Waker::wake);
    }

    fn armed(&self) -> usize {
        self.0.lock().unwrap().armed.len()
    }
}

impl Clock for Stepped {
    fn now(&self) -> Time {
        self.0.lock().unwrap().now
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        struct Disarm(Stepped, (Time, u64));

        impl Drop for Disarm {
            fn drop(&mut self) {
                let removed =
                    self.0.0.lock().unwrap_or_else(PoisonError::into_inner).armed.remove(&self.1);
                drop(removed);
            }
        }

        let mut steps = self.0.lock().unwrap();
        if at <= steps.now {
            drop(steps);
            waker.wake_by_ref();
            return Alarm::none();
        }
        let key = (at, steps.next);
        steps.next += 1;
        steps.armed.insert(key, waker.clone());
        Alarm::new(Disarm(self.clone(), key))
    }
}

#[test]
fn a_clock_of_ones_own_drives_a_queue() {
    let clock = Stepped::default();
    let queue = Queue::builder().clock(clock.clone()).build().unwrap();
    queue.add_after("a", secs(2));
    let mut get = queue.get();
    assert!(poll(&mut get, Waker::noop()).is_pending());
    assert_eq!(clock.armed(), 1);
    clock.step(secs(1));
    assert!(poll(&mut get, Waker::noop()).is_pending());
    thread::scope(|scope| {
        let thread = scope.spawn(|| queue.get().blocking().map(|item| *item));
        clock.step(secs(1));
        assert_eq!(queue.now(), Time::ZERO + secs(2));
        assert_eq!(thread.join().unwrap(), Some("a"));
    });
    drop(get);
    assert_eq!(clock.armed(), 0);
}

// --- Threads -------------------------------------------------------------------------------------

#[test]
fn plain_threads_wait_and_a_try_never_does() {
    let (queue, _clock) = fake::<u32>();
    assert!(queue.try_get().is_none());
    let (sender, receiver) = std::sync::mpsc::channel();
    let workers = [(); 4].map(|()| {
        let (queue, sender) = (queue.clone(), sender.clone());
        thread::spawn(move || {
            while let Some(item) = queue.get().blocking() {
                sender.send(*item).unwrap();
                item.succeed();
            }
        })
    });
    drop(sender);
    queue.add_all(0..100);
    queue.close();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let mut keys: Vec<_> = receiver.iter().collect();
    keys.sort_unstable();
    assert_eq!(keys, (0..100).collect::<Vec<_>>());
    assert!(queue.try_get().is_none());
}

// --- Keys without guards -------------------------------------------------------------------------

#[test]
fn tickets_and_done_by_key_work_from_any_thread() {
    let (queue, _clock) = fake::<String>();
    queue.add_all(["a", "b"].map(String::from));
    let parts: Vec<(String, Ticket)> =
        queue.get_many(2).now().into_iter().map(Item::into_parts).collect();
    assert_ne!(parts[0].1, parts[1].1);
    queue.add_ref("a");
    let other = queue.clone();
    thread::spawn(move || {
        let [(a, _), (_, ticket)] = parts.try_into().unwrap();
        assert!(other.done(&a));
        assert!(!other.done(a.as_str()), "another queue does not know the key");
        assert!(other.done_ticket(ticket));
    })
    .join()
    .unwrap();
    assert_eq!((queue.len(), queue.states().in_flight), (1, 0), "the dirty key is ready again");
}

// --- A custom order ------------------------------------------------------------------------------

/// An order that delivers the shortest key first. If keys have the same length, it delivers the key
/// that was touched most often.
#[derive(Default)]
struct Shortest(Vec<(String, u32)>);

impl CustomOrder<String> for Shortest {
    fn push(&mut self, key: String) {
        self.0.push((key, 0));
    }

    fn touch(&mut self, key: &String) {
        self.0.iter_mut().filter(|(held, _)| held == key).for_each(|(_, touched)| *touched += 1);
    }

    fn pop(&mut self) -> Option<String> {
        let rank = |(key, touched): &(String, u32)| (key.len(), u32::MAX - touched);
        let (at, _) = self.0.iter().enumerate().min_by_key(|(_, entry)| rank(entry))?;
        Some(self.0.remove(at).0)
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn a_boxed_order_decides() {
    let order: Box<dyn CustomOrder<String>> = Box::new(Shortest::default());
    let queue = common::timeless().order(Order::Custom(order)).build().unwrap();
    queue.add_all(["long", "aa", "bb", "c", "bb"].map(String::from));
    assert_eq!(common::take_all(&queue), ["c", "bb", "aa", "long"]);
}

// --- Limiters ------------------------------------------------------------------------------------

#[test]
fn boxed_limiters_go_by_the_callers_clock() {
    let clock = Stepped::default();
    let members: Vec<Box<dyn RateLimiter<u32>>> =
        vec![Box::new(ExponentialFailure::new(ms(5), secs(1000))), Box::new(Bucket::new(10.0, 2))];
    let limiter: Box<dyn RateLimiter<u32>> = Box::new(WithMaxWait::new(
        Box::new(MaxOf::new(members)) as Box<dyn RateLimiter<_>>,
        ms(150),
    ));
    let queue = Queue::builder().clock(clock.clone()).limiter(limiter).build().unwrap();
    let delay_of = |key| {
        queue.add(key);
        retry(&queue, queue.try_get().unwrap())
    };
    // The bucket delays only the third and the fourth failure. The delay of the fifth failure is
    // the maximum.
    let delays: Vec<_> = (0..5).map(delay_of).collect();
    assert_eq!(delays, [ms(5), ms(5), ms(100), ms(150), ms(150)]);
    // The bucket gains tokens only when the clock of the queue advances.
    clock.step(secs(1));
    let mut failed: Vec<_> = queue.get_many(10).now();
    assert_eq!(failed.len(), 5);
    for expected in [ms(10), ms(10), ms(100)] {
        assert_eq!(retry(&queue, failed.pop().unwrap()), expected);
    }
}

// --- Metrics -------------------------------------------------------------------------------------

/// Records each call of a hook.
#[derive(Default)]
struct Log(Mutex<Vec<String>>);

impl Log {
    fn note(&self, event: impl Into<String>) {
        self.0.lock().unwrap().push(event.into());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl<K> QueueMetrics<K> for Log {
    fn add(&self) {
        self.note("add");
    }

    fn get(&self, _: &K, queued: Duration) {
        self.note(format!("get after {queued:?}"));
    }

    fn done(&self, _: &K, worked: Duration) {
        self.note(format!("done after {worked:?}"));
    }

    fn retry(&self) {
        self.note("retry");
    }
}

struct Provider(Arc<Log>);

impl<K> MetricsProvider<K> for Provider {
    fn queue(&self, name: &str) -> Arc<dyn QueueMetrics<K>> {
        self.0.note(name);
        Arc::clone(&self.0) as Arc<dyn QueueMetrics<K>>
    }
}

#[test]
fn hooks_are_called_before_the_operation_returns() {
    let (clock, log) = (Stepped::default(), Arc::new(Log::default()));
    let queue = Queue::builder()
        .name("pods")
        .clock(clock.clone())
        .metrics_provider(Arc::new(Provider(Arc::clone(&log))))
        .build()
        .unwrap();
    assert_eq!(log.take(), ["pods"]);
    queue.add("a");
    assert_eq!(log.take(), ["add"]);
    queue.add("a");
    assert_eq!(log.take(), [""; 0]);
    clock.step(ms(3));
    let item = queue.try_get().unwrap();
    assert_eq!(log.take(), ["get after 3ms"]);
    queue.add_after("a", secs(1));
    assert_eq!(log.take(), ["retry"]);
    clock.step(secs(1));
    assert_eq!(queue.sample().depth, 1);
    assert_eq!(log.take(), ["add"], "the delayed add makes the key dirty");
    item.done();
    assert_eq!(log.take(), ["done after 1s"]);
}

// --- Due keys ------------------------------------------------------------------------------------

#[test]
fn len_has_promoted_what_is_due() {
    let clock = Stepped::default();
    let queue = Queue::builder().clock(clock.clone()).build().unwrap();
    (0..1000).for_each(|key| _ = queue.add_after(key, secs(1)));
    assert_eq!((queue.len(), queue.waiting()), (0, 1000));
    clock.step(secs(1));
    assert_eq!((queue.len(), queue.waiting()), (1000, 0));
}

// --- Copies of keys ------------------------------------------------------------------------------

/// A key of which the test counts the copies.
type Counted = Arc<str>;

fn copies(key: &Weak<str>) -> usize {
    key.strong_count()
}

#[test]
fn every_copy_of_a_key_without_a_state_is_dropped() {
    let clock = Stepped::default();
    let plain = || Queue::<Counted>::builder().clock(clock.clone());
    let custom: Box<dyn CustomOrder<Counted>> = Box::new(Fifo::default());
    let queues = [
        plain().build().unwrap(),
        plain().order(Order::Priority { oldest_every: 5 }).build().unwrap(),
        plain().limiter(ExponentialFailure::new(ms(1), secs(1))).build().unwrap(),
        plain().order(Order::Custom(custom)).build().unwrap(),
    ];
    let ways: [fn(&Queue<Counted>, &Stepped, Counted); 11] = [
        |queue, _, key| {
            queue.add(Arc::clone(&key));
            assert!(queue.cancel(&key).ready);
        },
        |queue, _, key| {
            queue.add(key);
            queue.try_get().unwrap().succeed();
        },
        |queue, _, key| {
            queue.add(Arc::clone(&key));
            queue.add(Arc::clone(&key));
            let (_, ticket) = queue.try_get().unwrap().into_parts();
            queue.add(key);
            queue.done_ticket(ticket);
            queue.try_get().unwrap().done();
        },
        |queue, clock, key| {
            queue.add_after(key, secs(1));
            clock.step(secs(1));
            queue.try_get().unwrap().succeed();
        },
        |queue, clock, key| {
            queue.add(key);
            queue.try_get().unwrap().retry();
            clock.step(secs(600));
            queue.try_get().unwrap().succeed();
        },
        |queue, _, key| {
            queue.add_rate_limited(Arc::clone(&key));
            queue.cancel(&key);
        },
        |queue, clock, key| {
            queue.add(Arc::clone(&key));
            queue.try_get().unwrap().retry();
            clock.step(secs(600));
            queue.try_get().unwrap().done();
            queue.forget(&key);
        },
        |queue, _, key| {
            queue.add(Arc::clone(&key));
            let item = queue.try_get().unwrap();
            queue.add(Arc::clone(&key));
            queue.cancel(&key);
            item.done();
        },
        |queue, _, key| {
            queue.add(key);
            let snapshot = queue.snapshot(Default::default(), 10);
            assert_eq!(snapshot.entries.len(), 1);
            queue.try_get().unwrap().succeed();
        },
        // The following operations shut the queue down.
        |queue, _, key| {
            queue.add(Arc::clone(&key));
            queue.try_get().unwrap().complete(Completion::Release);
            queue.add_after(key, secs(1));
            queue.pause();
            assert_eq!(queue.shut_down().len(), 1, "one key is dropped");
        },
        |queue, _, key| {
            assert_eq!(queue.add(key), requeue::Added::Refused);
        },
    ];
    for (at, queue) in queues.iter().enumerate() {
        for (way, run) in ways.iter().enumerate() {
            let key: Counted = "default/web".into();
            let watch = Arc::downgrade(&key);
            run(queue, &clock, key);
            assert_eq!(copies(&watch), 0, "queue {at}, way {way}");
        }
    }
}

#[test]
fn every_copy_of_a_key_is_dropped_with_its_queue() {
    let (queue, _clock) = fake::<Counted>();
    let key: Counted = "a".into();
    let watch = Arc::downgrade(&key);
    queue.add(Arc::clone(&key));
    queue.add_after(Arc::clone(&key), secs(3600));
    queue.add_rate_limited(key);
    drop(queue);
    assert_eq!(copies(&watch), 0);
}
