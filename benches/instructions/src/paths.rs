//! The main paths.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use requeue::{GroupId, Item, Order};
use requeue_core::{Add, Config, Finish, Time};

use crate::fixture::{
    Deaf, Key, Name, QUEUED, Queue, Ring, Still, WAITING, build, builder, delay, hash, plain,
};

/// The name of a path, and a function that runs it a number of times.
pub(crate) type Path = (&'static str, fn(usize));

/// All paths.
pub(crate) const ALL: &[Path] = &[
    ("u64/core", |times| core::<u64>(0, times)),
    ("u64/core-65536", |times| core::<u64>(QUEUED, times)),
    ("u64/cycle", |times| cycle::<u64>(&plain(), 0, times)),
    ("u64/cycle-65536", |times| cycle::<u64>(&plain(), QUEUED, times)),
    ("u64/cycle-in-one-go", in_one_go),
    ("u64/cycle-awaited", awaited),
    ("u64/cycle-one-waits", one_waits),
    ("u64/cycle-with-times", with_times),
    ("u64/cycle-in-one-go-with-times", in_one_go_with_times),
    ("u64/cycle-with-events", with_events),
    ("u64/cycle-with-hooks", with_hooks),
    ("u64/cycle-priorities", |times| priorities(5, times)),
    ("u64/cycle-many-priorities", |times| priorities(50_000, times)),
    ("u64/cycle-fair", fair),
    ("u64/cycle-group-limit", group_limit),
    ("u64/batch-32", batch::<u64>),
    ("u64/fill-and-drain", fill_and_drain),
    ("u64/add-queued", add_queued::<u64>),
    ("u64/add-and-cancel", add_and_cancel),
    ("u64/add-after", add_after::<u64>),
    ("u64/add-after-again", add_after_again::<u64>),
    ("u64/fire", fire),
    ("u64/fail-and-retry", fail_and_retry::<u64>),
    ("u64/rate-limit-and-forget", rate_limit_and_forget),
    ("name/core", |times| core::<Name>(0, times)),
    ("name/cycle", |times| cycle::<Name>(&plain(), 0, times)),
    ("name/cycle-65536", |times| cycle::<Name>(&plain(), QUEUED, times)),
    ("name/batch-32", batch::<Name>),
    ("name/add-queued", add_queued::<Name>),
    ("name/add-after", add_after::<Name>),
    ("name/add-after-again", add_after_again::<Name>),
    ("name/fail-and-retry", fail_and_retry::<Name>),
];

/// Runs `path` a number of times. Only the instructions in this function are counted, because the
/// script passes its name to callgrind.
#[inline(never)]
fn counted(times: usize, mut path: impl FnMut(usize)) {
    for time in 0..times {
        path(time);
    }
}

/// Runs the state machine alone: add, get, succeed, with `queued` other keys.
fn core<K: Key>(queued: usize, times: usize) {
    let mut queue = requeue_core::Queue::new(Config::default());
    let mut keys = Ring::<K>::beyond(queued);
    let mut add = move |queue: &mut requeue_core::Queue<K>| {
        let key = keys.copy();
        let hash = hash(&key);
        queue.add(key, hash, Add::now(), GroupId::default(), Time::ZERO).1
    };
    (0..queued).for_each(|_| drop(add(&mut queue)));
    counted(times, |_| {
        drop(black_box(add(&mut queue)));
        let out = black_box(queue.get(Time::ZERO));
        drop(out.map(|out| queue.finish(&out.ticket, Finish::Succeed, Time::ZERO)));
    });
}

/// Runs get, succeed.
fn serve<K: Key>(queue: &Queue<K>) {
    if let Some(item) = black_box(queue.try_get()) {
        item.succeed();
    }
}

/// Runs add, get, succeed.
fn cycle<K: Key>(queue: &Queue<K>, queued: usize, times: usize) {
    let mut keys = Ring::beyond(queued);
    (0..queued).for_each(|_| _ = queue.add(keys.copy()));
    counted(times, |_| {
        black_box(queue.add(keys.copy()));
        serve(queue);
    });
}

/// Runs cycles in which one call completes a key and takes the next key.
fn worker(queue: &Queue<u64>, times: usize) {
    queue.add(u64::MAX);
    let mut item = queue.try_get();
    counted(times, |key| {
        black_box(queue.add(key as u64));
        item = black_box(item.take().and_then(|item| queue.succeed_and_try_get(item)));
    });
}

fn in_one_go(times: usize) {
    worker(&plain(), times);
}

fn in_one_go_with_times(times: usize) {
    worker(&build(builder(Still::new()).track_times()), times);
}

/// Runs cycles in which a task takes the key.
fn awaited(times: usize) {
    let queue = plain::<u64>();
    let mut context = Context::from_waker(Waker::noop());
    counted(times, |key| {
        black_box(queue.add(key as u64));
        if let Poll::Ready(Some(item)) = pin!(queue.get()).poll(&mut context) {
            item.succeed();
        }
    });
}

/// Runs cycles while a key waits, so that the queue must read the clock.
fn one_waits(times: usize) {
    let queue = plain();
    queue.add_after(u64::MAX, delay(0));
    cycle(&queue, 0, times);
}

/// Runs cycles in a queue that records times, as for metrics.
fn with_times(times: usize) {
    cycle::<u64>(&build(builder(Still::new()).track_times()), 0, times);
}

/// Runs cycles in a queue that records times and events. The recording is full.
fn with_events(times: usize) {
    let queue = build(builder(Still::new()).track_times().record_events(1 << 12));
    (0..100).for_each(|_| _ = queue.add(u64::MAX));
    serve(&queue);
    cycle::<u64>(&queue, 0, times);
}

/// Runs cycles with a metrics backend that is called for every event.
fn with_hooks(times: usize) {
    let hooked = builder(Still::new()).name("told").metrics_provider(Arc::new(Deaf));
    cycle::<u64>(&build(hooked), 0, times);
}

/// Runs cycles in a queue with `count` priorities and many queued keys.
fn priorities(count: usize, times: usize) {
    let queue = build(builder(Still::new()).order(Order::Priority { oldest_every: 10 }));
    let mut keys = Ring::<u64>::beyond(QUEUED);
    let mut add = |number: usize| {
        // Neighbours have different priorities.
        let add = Add::now().priority((number * 7_919 % count) as i32);
        black_box(queue.add_with(keys.copy(), add));
    };
    (0..QUEUED).for_each(&mut add);
    counted(times, |time| {
        add(time);
        serve(&queue);
    });
}

/// Runs cycles with 300 groups, each limited to two keys in flight.
fn group_limit(times: usize) {
    let limited = builder(Still::new()).group_by(|key| GroupId::new(key % 300)).group_limit(2);
    cycle::<u64>(&build(limited), QUEUED, times);
}

/// Runs cycles in which the groups take turns.
fn fair(times: usize) {
    let fair = builder(Still::new()).group_by(|key| GroupId::new(key % 300)).fair().group_limit(2);
    cycle::<u64>(&build(fair), QUEUED, times);
}

/// Runs cycles in batches of 32. The count is per key.
fn batch<K: Key>(times: usize) {
    let queue = plain();
    let mut keys = Ring::<K>::beyond(32);
    counted(times / 32, |_| {
        black_box(queue.add_all((0..32).map(|_| keys.copy())));
        Item::succeed_all(black_box(queue.get_many(32).now()));
    });
}

/// Adds `times` keys, and then takes all keys.
fn fill_and_drain(times: usize) {
    let queue = plain::<u64>();
    counted(times, |key| _ = black_box(queue.add(key as u64)));
    counted(times, |_| serve(&queue));
}

/// Adds keys by reference that are already queued.
fn add_queued<K: Key>(times: usize) {
    let queue = plain();
    let mut keys = Ring::<K>::of(QUEUED);
    (0..QUEUED).for_each(|_| _ = queue.add(keys.copy()));
    counted(times, |_| _ = black_box(queue.add_ref(keys.lend())));
}

/// Adds and cancels keys.
fn add_and_cancel(times: usize) {
    let queue = plain::<u64>();
    counted(times, |key| {
        black_box(queue.add(key as u64));
        let _ = black_box(queue.cancel(&(key as u64)));
    });
}

/// Adds new keys with a delay, while many keys wait.
fn add_after<K: Key>(times: usize) {
    let queue = plain();
    let mut keys = Ring::<K>::beyond(WAITING);
    let mut add = |number| _ = black_box(queue.add_after(keys.copy(), delay(number)));
    (0..WAITING).for_each(&mut add);
    counted(times, |time| add(WAITING + time));
}

/// Adds waiting keys again with a shorter delay.
fn add_after_again<K: Key>(times: usize) {
    let queue = plain();
    let mut keys = Ring::<K>::of(WAITING);
    (0..WAITING).for_each(|number| _ = queue.add_after(keys.copy(), delay(number)));
    counted(times, |time| _ = black_box(queue.add_after(keys.copy(), delay(time) / 2)));
}

/// Runs keys that become due, are delivered, and succeed.
fn fire(times: usize) {
    const STEP: Duration = Duration::from_millis(1);
    let clock = Still::new();
    let queue = build(builder(Arc::clone(&clock)));
    for number in 0..WAITING {
        // Each key is due at a different millisecond, in an arbitrary order.
        let at = number * 7_919 % WAITING + 1;
        queue.add_after(number as u64, STEP * at as u32);
    }
    counted(times, |_| {
        clock.advance(STEP);
        serve(&queue);
    });
}

/// Runs keys that fail, are delivered again after their backoff, and succeed.
fn fail_and_retry<K: Key>(times: usize) {
    let clock = Still::new();
    let queue = build(builder(Arc::clone(&clock)));
    let mut keys = Ring::<K>::beyond(0);
    counted(times, |_| {
        black_box(queue.add(keys.copy()));
        if let Some(item) = black_box(queue.try_get()) {
            item.retry();
        }
        clock.advance(Duration::from_millis(5));
        serve(&queue);
    });
}

/// Counts a failure and forgets it, while the key continues to wait.
fn rate_limit_and_forget(times: usize) {
    let queue = plain();
    counted(times, |key| {
        black_box(queue.add_rate_limited(key as u64));
        queue.forget(&(key as u64));
    });
}
