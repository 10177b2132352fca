//! The queue on threads of loom, in every interleaving that loom finds: `make loom`.
//!
//! If a wake is lost, a thread waits forever, which loom reports as a deadlock.
//! `REQUEUE_PREEMPTIONS` limits the number of preemptions in one interleaving.
#![cfg(requeue_loom)]

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize as Count, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use loom::future::block_on;
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use loom::thread;
use requeue::clock::{Alarm, Clock, FakeClock};
use requeue::{Completion, Item, Queue, Time};

const SECOND: Duration = Duration::from_secs(1);

/// Runs `scenario` in every interleaving, and prints the number of interleavings.
fn check(name: &str, scenario: impl Fn() + Sync + Send + 'static) {
    let executions = Arc::new(Count::new(0));
    let mut builder = loom::model::Builder::new();
    let preemptions = std::env::var("REQUEUE_PREEMPTIONS").ok();
    builder.preemption_bound = Some(preemptions.map_or(3, |n| n.parse().expect("a number")));
    builder.max_branches = 100_000;
    let count = Arc::clone(&executions);
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
    println!("{name}: {} executions", executions.load(Ordering::Relaxed));
}

fn queue(clock: &FakeClock) -> Arc<Queue<u64>> {
    Arc::new(Queue::builder().clock(clock.clone()).build().unwrap())
}

/// The observations of the runs of one key.
#[derive(Default)]
struct Runs {
    busy: AtomicBool,
    /// The number of adds that have started so far.
    adds: AtomicU64,
    /// The largest number of adds that had started before a run.
    seen: AtomicU64,
    count: AtomicUsize,
}

impl Runs {
    fn add(&self, queue: &Queue<u64>) {
        self.adds.fetch_add(1, Ordering::SeqCst);
        assert!(queue.add(1).is_accepted());
    }

    fn run(&self, item: Item<'_, u64>) {
        assert!(!self.busy.swap(true, Ordering::SeqCst), "two workers have the key");
        self.seen.fetch_max(self.adds.load(Ordering::SeqCst), Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
        self.busy.store(false, Ordering::SeqCst);
        item.succeed();
    }

    fn work(&self, queue: &Queue<u64>) {
        while let Some(item) = queue.get().until_final().blocking() {
            self.run(item);
        }
    }

    /// Asserts that a run followed each add.
    fn check(&self) {
        let adds = self.adds.load(Ordering::SeqCst);
        assert_eq!(self.seen.load(Ordering::SeqCst), adds, "no run followed the last add");
        assert!(self.count.load(Ordering::SeqCst) as u64 <= adds);
    }
}

#[test]
fn a_key_is_in_flight_once_at_a_time_and_no_add_is_lost() {
    check("add, get and finish", || {
        let (queue, runs) = (queue(&FakeClock::new()), Arc::new(Runs::default()));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (queue, runs) = (Arc::clone(&queue), Arc::clone(&runs));
                thread::spawn(move || runs.work(&queue))
            })
            .collect();
        runs.add(&queue);
        runs.add(&queue);
        queue.close();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        runs.check();
        assert_eq!(queue.len() + queue.states().in_flight, 0);
    });
}

#[test]
fn two_producers_and_one_worker() {
    check("two producers", || {
        let (queue, runs) = (queue(&FakeClock::new()), Arc::new(Runs::default()));
        let producer = {
            let (queue, runs) = (Arc::clone(&queue), Arc::clone(&runs));
            thread::spawn(move || runs.add(&queue))
        };
        let worker = {
            let (queue, runs) = (Arc::clone(&queue), Arc::clone(&runs));
            thread::spawn(move || runs.work(&queue))
        };
        runs.add(&queue);
        producer.join().unwrap();
        queue.close();
        worker.join().unwrap();
        runs.check();
    });
}

/// Returns a getter that was polled once and has found no key.
fn waiting(queue: &Arc<Queue<u64>>) -> Pin<Box<impl Future<Output = ()> + use<>>> {
    let queue = Arc::clone(queue);
    let mut get =
        Box::pin(async move { queue.get().await.map(Item::into_owned).unwrap().succeed() });
    assert!(get.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    get
}

/// Takes the only key. The queue is never shut down, so a lost wake is a deadlock.
fn take_one(queue: &Arc<Queue<u64>>, as_task: bool) -> thread::JoinHandle<()> {
    let queue = Arc::clone(queue);
    thread::spawn(move || {
        let item = if as_task { block_on(queue.get()) } else { queue.get().blocking() };
        item.expect("the queue is open").succeed();
    })
}

#[test]
fn a_get_that_is_dropped_at_any_point_takes_neither_a_key_nor_a_wake() {
    for as_task in [true, false] {
        check("a get that is dropped", move || {
            let queue = queue(&FakeClock::new());
            let cancelled = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    let mut get = pin!(queue.get());
                    let first = get.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                    if let Poll::Ready(item) = first {
                        item.expect("the queue is open").complete(Completion::Release);
                    }
                })
            };
            let worker = take_one(&queue, as_task);
            queue.add(1);
            worker.join().unwrap();
            cancelled.join().unwrap();
            assert_eq!(queue.len(), 0);
        });
    }
}

#[test]
fn gets_that_are_dropped_pass_their_wakes_on() {
    check("gets that are dropped", || {
        let queue = queue(&FakeClock::new());
        let getters = [waiting(&queue), waiting(&queue)];
        let worker = take_one(&queue, true);
        queue.add(1);
        drop(getters);
        worker.join().unwrap();
        assert_eq!(queue.len(), 0);
    });
}

#[test]
fn a_task_that_is_woken_and_never_polled_keeps_no_key_from_others() {
    check("woken, never polled", || {
        let queue = queue(&FakeClock::new());
        let sleeper = waiting(&queue);
        let worker = take_one(&queue, true);
        queue.add(1);
        worker.join().unwrap();
        assert_eq!(queue.len(), 0);
        drop(sleeper);
    });
    check("two woken, never polled, before a thread", || {
        let queue = queue(&FakeClock::new());
        let sleepers = [waiting(&queue), waiting(&queue)];
        let worker = take_one(&queue, false);
        queue.add(1);
        worker.join().unwrap();
        assert_eq!(queue.len(), 0);
        drop(sleepers);
    });
}

#[test]
fn an_alarm_that_is_armed_while_the_clock_moves_goes_off() {
    for as_task in [true, false] {
        check("an alarm while the clock moves", move || {
            let clock = FakeClock::new();
            let queue = queue(&clock);
            let worker = take_one(&queue, as_task);
            queue.add_after(1, SECOND);
            clock.advance(SECOND);
            worker.join().unwrap();
            assert_eq!(queue.len(), 0);
        });
    }
}

#[test]
fn a_shorter_delay_is_not_slept_through() {
    for as_task in [true, false] {
        check("a shorter delay", move || {
            let clock = FakeClock::new();
            let queue = queue(&clock);
            queue.add_after(1, 60 * SECOND);
            let worker = take_one(&queue, as_task);
            queue.add_after(2, SECOND);
            clock.advance(SECOND);
            worker.join().unwrap();
            assert_eq!(queue.waiting(), 1);
        });
    }
}

/// A clock that advances without a call, so that a parked thread can wake itself at a deadline.
#[derive(Clone, Default)]
struct Wall(Arc<AtomicU64>);

impl Clock for Wall {
    fn now(&self) -> Time {
        Time::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn arm(&self, _: Time, _: &Waker) -> Alarm {
        unreachable!("waiting threads keep the time themselves")
    }

    fn is_real_time(&self) -> bool {
        true
    }
}

#[test]
fn the_thread_that_keeps_the_time_hands_it_on() {
    check("leader", || {
        let wall = Wall::default();
        let queue = Arc::new(Queue::builder().clock(wall.clone()).build().unwrap());
        queue.add_after(1, Duration::from_nanos(1));
        queue.add_after(2, Duration::from_nanos(2));
        let taken = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (0..2)
            .map(|_| {
                let (queue, taken) = (Arc::clone(&queue), Arc::clone(&taken));
                thread::spawn(move || {
                    // Each thread takes one key and then leaves. The thread that waited for the
                    // deadline therefore leaves too.
                    let item = queue.get().blocking().expect("the queue is open");
                    taken.fetch_add(1, Ordering::SeqCst);
                    item.succeed();
                })
            })
            .collect();
        wall.0.store(1, Ordering::SeqCst);
        wall.0.store(2, Ordering::SeqCst);
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert_eq!(taken.load(Ordering::SeqCst), 2);
    });
}

#[test]
fn a_drain_ends_when_the_last_key_is_done_or_by_a_shutdown() {
    check("drain and shutdown", || {
        let queue = queue(&FakeClock::new());
        queue.add(1);
        let drain = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.shut_down_with_drain().blocking())
        };
        let worker = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                while let Some(item) = queue.get().until_final().blocking() {
                    item.succeed();
                }
            })
        };
        queue.shut_down();
        drain.join().unwrap();
        worker.join().unwrap();
        assert_eq!(queue.len(), 0);
    });
}

#[test]
fn a_drain_ends_with_the_last_key_alone() {
    check("drain", || {
        let queue = queue(&FakeClock::new());
        queue.add(1);
        let worker = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                if let Some(item) = queue.get().blocking() {
                    queue.add(1);
                    item.succeed();
                }
                while let Some(item) = queue.get().until_final().blocking() {
                    item.succeed();
                }
            })
        };
        let drained = queue.shut_down_with_drain().blocking();
        assert!(drained.finished);
        worker.join().unwrap();
        assert_eq!(queue.len(), 0);
    });
}
