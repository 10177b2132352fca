//! One test for each row of the table in `docs/reference/conformance.md`, with the row's name: the deliberate
//! differences from client-go. Each comment describes the behaviour of client-go, which the replay has observed.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use requeue::clock::{FakeClock, sleep_until};
use requeue::limiter::RateLimiter;
use requeue::limiter::{Bucket, ExponentialFailure};
use requeue::metrics::{MetricsProvider, QueueMetrics};
use requeue::wait::{Backoff, Error, JitterSource, Polling, poll_until};
use requeue::{Added, Builder, Queue, Time};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Returns a queue whose time stands still, and whose backoffs are 1 s, 2 s, 4 s, …
fn fake() -> (Queue<char>, FakeClock) {
    let clock = FakeClock::new();
    let limiter = ExponentialFailure::new(secs(1), secs(1000));
    (
        Builder::client_go().clock(clock.clone()).limiter(limiter).track_times().build().unwrap(),
        clock,
    )
}

fn take(queue: &Queue<char>) -> char {
    queue.try_get().expect("a key is ready").into_parts().0
}

fn is_ready<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    matches!(future.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}

/// client-go queues the key a second time, and two workers then have it.
#[test]
fn done_needs_a_delivery() {
    let (queue, _) = fake();
    queue.add('a');
    assert!(!queue.done(&'a'));
    assert_eq!(queue.len(), 1);
    assert_eq!(take(&queue), 'a');
    assert!(queue.try_get().is_none());
}

/// client-go never again delivers the key of a worker that panics.
#[test]
fn dropped_item_has_failed() {
    let (queue, clock) = fake();
    queue.add('a');
    drop(queue.try_get());
    assert_eq!(queue.num_requeues(&'a'), 1);
    clock.advance(secs(1));
    assert_eq!(queue.try_get().unwrap().attempt(), 2);
}

/// client-go waits only for keys in flight. requeue also waits for ready keys.
#[test]
fn drain_waits_for_what_is_ready() {
    let (queue, _) = fake();
    queue.add('a');
    let mut drain = pin!(queue.shut_down_with_drain());
    assert!(!is_ready(drain.as_mut()));
    let key = take(&queue);
    assert!(!is_ready(drain.as_mut()));
    queue.done(&key);
    assert!(is_ready(drain.as_mut()));
}

/// In client-go, the last `Done` wakes only one of the waiting drains.
#[test]
fn every_drain_is_woken() {
    let (queue, _) = fake();
    queue.add('a');
    let key = take(&queue);
    let mut drains = [(); 3].map(|()| Box::pin(queue.shut_down_with_drain()));
    assert!(drains.iter_mut().all(|drain| !is_ready(drain.as_mut())));
    queue.done(&key);
    assert!(drains.iter_mut().all(|drain| is_ready(drain.as_mut())));
}

/// In client-go, the second `ShutDown` of a delaying queue does nothing, and a drain between the two calls continues to
/// wait.
#[test]
fn shut_down_ends_every_drain() {
    let (queue, _) = fake();
    queue.add('a');
    let _key = take(&queue);
    queue.shut_down();
    let mut drain = pin!(queue.shut_down_with_drain());
    assert!(!is_ready(drain.as_mut()));
    queue.shut_down();
    assert!(is_ready(drain.as_mut()));
}

/// client-go loses waiting keys silently.
#[test]
fn what_waits_at_a_shutdown_is_returned() {
    let (queue, _) = fake();
    queue.add_after('a', secs(1));
    queue.add('b');
    assert_eq!(queue.shut_down(), ['a']);
}

/// client-go delivers keys with equal due times in the order of a heap.
#[test]
fn equal_deadlines_come_in_order_of_arrival() {
    let (queue, clock) = fake();
    let keys = ['d', 'a', 'f', 'c', 'b', 'e'];
    for key in keys {
        queue.add_after(key, secs(1));
    }
    clock.advance(secs(1));
    assert_eq!([(); 6].map(|()| take(&queue)), keys);
}

/// client-go's limiter counts and remembers a failure of a key that the queue then refuses.
#[test]
fn refused_add_is_no_failure() {
    let (queue, _) = fake();
    queue.shut_down();
    assert_eq!(queue.add_rate_limited('a'), Added::Refused);
    assert_eq!(queue.num_requeues(&'a'), 0);
}

/// client-go's limiter remembers the failures of a key whose run was dropped by a shutdown.
#[test]
fn dropped_key_is_forgotten() {
    let (queue, _) = fake();
    queue.add_rate_limited('a');
    assert_eq!(queue.shut_down(), ['a']);
    assert_eq!(queue.num_requeues(&'a'), 0);
}

/// In client-go, the longest delay is 292 years. In requeue, the longest delay is infinite, and such a key waits until
/// it is cancelled.
#[test]
fn longest_delay_is_never() {
    let mut bucket = Bucket::new(0.0, 0);
    assert_eq!(RateLimiter::<char>::delay(&mut bucket, &'a', Time::ZERO), Duration::MAX);
    let (queue, clock) = fake();
    queue.add_after('a', Duration::MAX);
    clock.advance(Duration::from_nanos(i64::MAX as u64));
    clock.advance(Duration::from_nanos(i64::MAX as u64));
    assert!(queue.try_get().is_none());
    assert!(queue.cancel(&'a').waiting);
}

/// In client-go, a goroutine sets the gauges every half second, and stops at a shutdown.
#[test]
fn gauges_are_right_when_asked() {
    let (queue, clock) = fake();
    queue.add('a');
    let _key = take(&queue);
    clock.advance(Duration::from_millis(499));
    assert_eq!(queue.sample().times.unfinished_work, Duration::from_millis(499));
    queue.shut_down();
    clock.advance(secs(1));
    assert_eq!(queue.sample().times.longest_running, Duration::from_millis(1499));
}

#[derive(Clone, Default)]
struct Queued(Arc<Mutex<Vec<Duration>>>);

impl<K> QueueMetrics<K> for Queued {
    fn get(&self, _: &K, queued: Duration) {
        self.0.lock().unwrap().push(queued);
    }
}

impl<K> MetricsProvider<K> for Queued {
    fn queue(&self, _: &str) -> Arc<dyn QueueMetrics<K>> {
        Arc::new(self.clone())
    }
}

/// In client-go, a goroutine adds a key when it is due. In requeue, a waiting getter or the next operation adds the
/// key. Before that, the key is not in the queue, and its time in the queue is not counted.
#[test]
fn queued_from_when_it_was_seen_due() {
    let (clock, seen) = (FakeClock::new(), Queued::default());
    let builder = Builder::client_go().name("q").clock(clock.clone());
    let queue = builder.metrics_provider(Arc::new(seen.clone())).build().unwrap();
    queue.add_after('a', secs(1));
    clock.advance(secs(3));
    assert_eq!(queue.len(), 1);
    clock.advance(secs(1));
    let _key = take(&queue);
    assert_eq!(*seen.0.lock().unwrap(), [secs(1)]);

    // If a getter waits, the key is added immediately.
    let mut get = Box::pin(queue.get());
    assert!(!is_ready(get.as_mut()));
    queue.add_after('b', secs(1));
    assert_eq!(clock.armed(), 1);
    clock.advance(secs(1));
    clock.advance(secs(3));
    assert!(is_ready(get.as_mut()));
    assert_eq!(*seen.0.lock().unwrap(), [secs(1), secs(3)]);
}

/// In client-go, a delay that overflows is negative or has another value, which depends on the machine.
#[test]
fn backoff_saturates() {
    let mut backoff = Backoff { duration: secs(1), factor: 1e12, steps: 9, ..Backoff::default() };
    let mut source = JitterSource::new(1);
    let delays = [(); 5].map(|()| backoff.step(&mut source));
    assert!(delays.is_sorted());
    assert_eq!(delays[4], Duration::MAX);
}

/// client-go's ticker is independent of the tries, so the next try after a late try begins at 6 s. In requeue, each
/// interval counts from the start of the previous try.
#[test]
fn poll_counts_from_its_last_try() {
    let clock = FakeClock::new();
    let began = clock.now();
    let starts = Mutex::new(Vec::new());
    let polled =
        clock.run(poll_until(&clock, Polling::every(secs(2)), pending::<()>(), async || {
            let now = clock.now();
            let tries = {
                let mut starts = starts.lock().unwrap();
                starts.push(now.since(began).as_secs());
                starts.len()
            };
            if tries == 1 {
                sleep_until(&clock, now + secs(3)).await;
            }
            Ok::<_, Infallible>(tries == 3)
        }));
    assert_eq!((polled, starts.into_inner().unwrap()), (Ok(()), vec![2, 5, 7]));
}

/// In client-go, the first of the two events during the try determines the result.
#[test]
fn stop_wins_over_a_timeout() {
    let clock = FakeClock::new();
    let stop = sleep_until(&clock, clock.now() + secs(3));
    let polling = Polling::every(secs(1)).immediate().timeout(secs(2));
    let polled = clock.run(poll_until(&clock, polling, stop, async || {
        sleep_until(&clock, clock.now() + secs(5)).await;
        Ok::<_, Infallible>(false)
    }));
    assert_eq!(polled, Err(Error::Cancelled));
}

// --- Differences that no trace can show ---------------------------------------------------------

/// In client-go, the key passes through a channel with 1,000 places, which the queue's goroutine must empty.
#[test]
fn add_after_never_blocks() {
    let (queue, _) = fake();
    for n in 0..10_000 {
        queue.add_after(char::from_u32(0x10000 + n).unwrap(), secs(1));
    }
    assert_eq!(queue.waiting(), 10_000);
}

/// In client-go, each queue has a goroutine with a heartbeat, and another one for its metrics.
#[test]
fn nothing_runs_in_the_background() {
    let (queue, clock) = fake();
    queue.add_after('a', secs(1));
    assert_eq!(clock.armed(), 0);
}

/// A drained queue of client-go keeps the memory of its largest size. Other tests measure the memory that requeue
/// returns. This test checks that no record is left.
#[test]
fn a_drained_queue_knows_nothing() {
    let (queue, clock) = fake();
    for key in 'a'..='z' {
        queue.add_after(key, secs(1));
    }
    clock.advance(secs(1));
    while let Some(item) = queue.try_get() {
        item.succeed();
    }
    assert_eq!((queue.records(), queue.len()), (0, 0));
}

/// client-go's default limiter doubles the delay up to 1000 s, and adds a token bucket that all
/// keys share.
#[test]
fn the_default_limiter_knows_one_key() {
    let clock = FakeClock::new();
    let ours = Queue::builder().clock(clock.clone()).build().unwrap();
    let theirs = Builder::client_go().clock(clock).build().unwrap();
    let delays = |queue: &Queue<u32>| {
        queue.add_all(0..200);
        let items = std::iter::from_fn(|| queue.try_get());
        items
            .map(|item| {
                let key = *item;
                item.retry();
                let due = queue.look_up(&key).and_then(|entry| entry.due);
                due.map_or(Duration::ZERO, |due| due.since(queue.now()))
            })
            .collect::<Vec<_>>()
    };
    assert!(delays(&ours).iter().all(|delay| *delay <= secs(1)));
    assert_eq!(delays(&theirs)[199], secs(10));
}

/// In client-go, only the limiter counts failures, and a token bucket counts none.
#[test]
fn attempts_are_the_record_s() {
    let queue = Queue::builder().limiter(Bucket::new(f64::INFINITY, 1)).build().unwrap();
    queue.add('a');
    queue.try_get().unwrap().retry();
    assert_eq!((queue.failures(&'a'), queue.num_requeues(&'a')), (1, 0));
    assert_eq!(queue.try_get().unwrap().attempt(), 2);
}

/// client-go sets a metrics provider once for the whole process.
#[test]
fn each_queue_has_its_own_metrics() {
    let [a, b] = [Queued::default(), Queued::default()];
    let queue = |seen: &Queued| {
        let seen = Arc::new(seen.clone());
        Queue::builder().name("q").metrics_provider(seen).build().unwrap()
    };
    let (one, _other) = (queue(&a), queue(&b));
    one.add('a');
    let _key = take(&one);
    assert_eq!([a, b].map(|seen| seen.0.lock().unwrap().len()), [1, 0]);
}
