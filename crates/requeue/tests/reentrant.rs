//! User code that calls queues, while user code on another thread does the same.
//!
//! The queue runs many kinds of user code, and some of them under a lock. Each run of a test stops
//! two threads inside such code at the same time. Both threads then call every method of two
//! queues. Both must return, whichever locks they hold.
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::borrow::Borrow;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use common::{poll, secs};
use requeue::clock::{Alarm, Clock, FakeClock};
use requeue::limiter::RateLimiter;
use requeue::metrics::{MetricsProvider, QueueMetrics};
use requeue::{Add, Added, Completion, CustomOrder, GroupId, Item, Merge, Order, Queue, Time};

/// The kinds of user code that a queue runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    KeyHash,
    KeyEq,
    KeyClone,
    KeyDrop,
    OwnOrder,
    OwnLimiter,
    GroupOf,
    Hook,
    Bell,
    OwnClock,
}

use Kind::*;

const KINDS: [Kind; 10] =
    [KeyHash, KeyEq, KeyClone, KeyDrop, OwnOrder, OwnLimiter, GroupOf, Hook, Bell, OwnClock];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lock {
    Queue,
    Limiter,
}

impl Kind {
    /// Returns the lock that a queue holds while it runs this code.
    const fn holds(self) -> Option<Lock> {
        match self {
            KeyEq | KeyClone | OwnOrder => Some(Lock::Queue),
            OwnLimiter => Some(Lock::Limiter),
            KeyHash | KeyDrop | GroupOf | Hook | Bell | OwnClock => None,
        }
    }

    /// Returns the lock that a thread must acquire before it reaches this code.
    const fn needs(self) -> Option<Lock> {
        match self {
            KeyEq | KeyClone | OwnOrder | KeyDrop | Hook | Bell => Some(Lock::Queue),
            OwnLimiter => Some(Lock::Limiter),
            KeyHash | GroupOf | OwnClock => None,
        }
    }
}

type Action = Box<dyn FnOnce()>;

thread_local! {
    /// The kind of code in which this thread stops, and the function that it calls there.
    static ACTION: RefCell<Option<(Kind, Action)>> = const { RefCell::new(None) };
    static ENTERED: Cell<bool> = const { Cell::new(false) };
}

/// All user code of this test calls this function.
fn user_code(kind: Kind) {
    // A key may be dropped while the thread ends, when the thread-local value no longer exists.
    let action = ACTION.try_with(|action| match &mut *action.borrow_mut() {
        Some((wanted, _)) if *wanted != kind => None,
        action => action.take(),
    });
    if let Ok(Some((_, action))) = action {
        ENTERED.set(true);
        action();
    }
}

#[derive(Debug)]
struct Key(u32);

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        user_code(KeyHash);
        self.0.hash(state);
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        user_code(KeyEq);
        self.0 == other.0
    }
}

impl Eq for Key {}

impl Clone for Key {
    fn clone(&self) -> Self {
        user_code(KeyClone);
        Self(self.0)
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        user_code(KeyDrop);
    }
}

impl Borrow<u32> for Key {
    fn borrow(&self) -> &u32 {
        &self.0
    }
}

#[derive(Default)]
struct Fifo(VecDeque<Key>);

impl CustomOrder<Key> for Fifo {
    fn push(&mut self, key: Key) {
        user_code(OwnOrder);
        self.0.push_back(key);
    }

    fn touch(&mut self, _: &Key) {
        user_code(OwnOrder);
    }

    fn pop(&mut self) -> Option<Key> {
        user_code(OwnOrder);
        self.0.pop_front()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

struct Second;

impl RateLimiter<Key> for Second {
    fn delay(&mut self, _: &Key, _: Time) -> Duration {
        user_code(OwnLimiter);
        secs(1)
    }

    fn forget(&mut self, _: &Key) {
        user_code(OwnLimiter);
    }

    fn num_requeues(&self, _: &Key) -> u32 {
        user_code(OwnLimiter);
        7
    }

    fn longest_delay(&self) -> Duration {
        secs(30)
    }
}

struct Hooks;

impl<K> QueueMetrics<K> for Hooks {
    fn add(&self) {
        user_code(Hook);
    }

    fn get(&self, _: &K, _: Duration) {
        user_code(Hook);
    }

    fn done(&self, _: &K, _: Duration) {
        user_code(Hook);
    }

    fn retry(&self) {
        user_code(Hook);
    }

    fn withdraw(&self) {
        user_code(Hook);
    }
}

impl<K> MetricsProvider<K> for Hooks {
    fn queue(&self, _: &str) -> Arc<dyn QueueMetrics<K>> {
        Arc::new(Self)
    }
}

#[derive(Clone)]
struct Hands(FakeClock);

impl Clock for Hands {
    fn now(&self) -> Time {
        user_code(OwnClock);
        self.0.now()
    }

    fn arm(&self, at: Time, waker: &Waker) -> Alarm {
        user_code(OwnClock);
        self.0.arm(at, waker)
    }

    fn is_real_time(&self) -> bool {
        user_code(OwnClock);
        false
    }
}

struct Rings;

impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        user_code(Bell);
    }
}

/// A queue that runs user code of every kind.
#[derive(Clone)]
struct Subject {
    queue: Queue<Key>,
    clock: FakeClock,
    #[cfg(feature = "prometheus")]
    registry: Arc<prometheus_client::registry::Registry>,
}

impl Subject {
    fn new(has_order: bool) -> Self {
        let clock = FakeClock::new();
        let builder = Queue::builder()
            .name("subject")
            .clock(Hands(clock.clone()))
            .limiter(Second)
            .group_by(|_| {
                user_code(GroupOf);
                GroupId::default()
            })
            .metrics_provider(Arc::new(Hooks));
        let builder = match has_order {
            true => builder.order(Order::Custom(Box::new(Fifo::default()))),
            false => builder,
        };
        #[cfg(feature = "prometheus")]
        let (builder, registry) = {
            let mut registry = prometheus_client::registry::Registry::default();
            let metrics = requeue::metrics::Metrics::register(&mut registry);
            (builder.metrics(&metrics), Arc::new(registry))
        };
        Self {
            queue: builder.build().unwrap(),
            clock,
            #[cfg(feature = "prometheus")]
            registry,
        }
    }

    /// Returns items for all ways of completion. Their keys start at `first`.
    fn items(&self, first: u32) -> Vec<Item<'static, Key>> {
        self.queue.add_all((first..first + 16).map(Key));
        self.queue.get_many(16).now().into_iter().map(Item::into_owned).collect()
    }

    /// Calls every method that does not wait for another thread. The last call shuts the queue
    /// down.
    fn call_every_method(&self, mut items: Vec<Item<'static, Key>>, free: u32) {
        let (queue, key) = (&self.queue, Key(free));
        let known = Key(items[0].0);
        let mut item = || items.pop().unwrap();

        queue.add(Key(free));
        queue.add_ref_with(&(free + 1), Add::now(), |id| Key(*id));
        queue.add_after(Key(free + 2), secs(1));
        queue.add_rate_limited(Key(free + 3));
        queue.add_with(Key(free + 4), Add::now().priority(1).merge(Merge::Exactly));
        queue.add_all([Key(free + 5), Key(free + 5)]);
        queue.add(Key(known.0));
        queue.cancel(&key);
        queue.forget(&known);
        queue.num_requeues(&known);
        queue.done(&known);

        item().succeed();
        Item::succeed_all([item(), item()]);
        item().retry();
        item().complete(Completion::RetryAfter(secs(1)));
        item().complete(Completion::RequeueAfter(secs(1)));
        item().complete(Completion::Release);
        item().complete(Completion::GiveUp);
        item().done();
        let (_, ticket) = item().into_parts();
        queue.done_ticket(ticket);
        drop(queue.succeed_and_try_get(item()));
        drop(poll(&mut queue.succeed_and_get(item()), Waker::noop()));
        drop(item());

        drop(queue.try_get());
        drop(queue.try_get().map(Item::into_owned));
        drop(queue.get_many(3).now());
        drop(poll(&mut queue.get(), Waker::noop()));
        drop(poll(&mut queue.get_many(3), Waker::noop()));
        drop(poll(&mut Box::pin(queue.get()), Waker::noop()));
        drop(poll(&mut Box::pin(queue.get().until_final()), Waker::noop()));
        drop(poll(&mut Box::pin(queue.get().timeout(secs(1))), Waker::noop()));
        drop(queue.get().timeout(Duration::ZERO).blocking());

        let _ = (queue.len(), queue.waiting(), queue.states());
        let _ = (queue.records(), queue.totals(), queue.sample());
        let _ = (queue.failures(&key), queue.explain(&key));
        drop(queue.snapshot(Default::default(), 10));
        drop(queue.entries_in_flight(0, 10));
        drop(queue.look_up(&known));
        let _ = (queue.now(), queue.name(), format!("{queue:?}"));
        #[cfg(feature = "prometheus")]
        prometheus_client::encoding::text::encode(&mut String::new(), &self.registry).unwrap();

        queue.pause();
        queue.resume();
        let _ = (queue.is_paused(), queue.is_closed(), queue.shutting_down());
        self.clock.advance(secs(2));
        drop(Self::new(true));
        queue.close();
        drop(poll(&mut queue.shut_down_with_drain().timeout(secs(1)), Waker::noop()));
        drop(queue.shut_down());
        drop(queue.take_dropped());
        drop(queue.shut_down_with_drain().timeout(Duration::ZERO).blocking());
        drop(poll(&mut queue.shut_down_with_drain(), Waker::noop()));
        drop(queue.get().blocking());
        drop(queue.get_many(3).blocking());
        drop(queue.get().blocking().map(Item::into_owned));
    }
}

/// The synchronization of the two threads. The first thread enters its user code, then the second
/// thread does, and then both continue.
struct Meeting {
    prepared: Barrier,
    entered: Mutex<[bool; 2]>,
    changed: Condvar,
}

impl Meeting {
    fn new() -> Self {
        Self { prepared: Barrier::new(2), entered: Mutex::default(), changed: Condvar::new() }
    }

    fn enter(&self, who: usize) {
        self.entered.lock().unwrap()[who] = true;
        self.changed.notify_all();
    }

    fn wait_for(&self, who: usize) {
        let entered = self.entered.lock().unwrap();
        drop(self.changed.wait_while(entered, |entered| !entered[who]).unwrap());
    }
}

/// A thread that enters user code of one kind. In this code, it calls every method of two queues.
struct Caller {
    kind: Kind,
    own: Subject,
    other: Subject,
    /// Two sets of items of the thread's own queue, and one set of items of the other queue.
    items: [Vec<Item<'static, Key>>; 3],
    /// The lowest number of this thread's keys.
    ids: u32,
}

impl Caller {
    /// Runs the thread, which calls `arrive` in the user code. Returns true if the queue has run
    /// such code.
    fn run(self, start: impl FnOnce(), arrive: impl FnOnce() + 'static) -> bool {
        let Self { kind, own, other, items: [mine, mut last, theirs], ids } = self;
        let queue = own.queue.clone();
        let mut get = queue.get();
        if kind == Bell {
            let waker = Waker::from(Arc::new(Rings));
            assert!(poll(&mut get, &waker).is_pending());
        }
        start();
        let action = {
            let own = own.clone();
            move || {
                arrive();
                own.call_every_method(mine, ids);
                other.call_every_method(theirs, ids + 10);
            }
        };
        ACTION.set(Some((kind, Box::new(action))));
        match kind {
            KeyHash | GroupOf | KeyDrop | OwnOrder | Hook | Bell => drop(queue.add(Key(ids + 30))),
            KeyEq => drop(queue.add(Key(last[0].0))),
            KeyClone => drop(queue.look_up(&*last[0])),
            OwnLimiter => last.pop().unwrap().retry(),
            OwnClock => drop(queue.add_after(Key(ids + 30), secs(1))),
        }
        if kind == KeyDrop {
            // The queue already has this key, so it drops this copy.
            queue.add(Key(ids + 30));
        }
        drop(ACTION.take());
        ENTERED.get()
    }
}

/// Only a deadlock takes this long, even on a clock that jumps ahead.
const WATCHDOG: Duration = Duration::from_secs(3600);

/// Lets two threads enter user code of these kinds. The second thread enters while the first is in
/// its user code. Both must return.
fn meet(first: Kind, second: Kind, same: bool, has_order: bool) {
    let subjects = [Subject::new(has_order), Subject::new(has_order)];
    // Two threads that hold no lock cannot block each other. The second thread cannot enter its
    // user code if it needs the lock that the first thread holds.
    let reachable = !same || first.holds().is_none() || first.holds() != second.needs();
    let meets = reachable && [first, second].iter().any(|kind| kind.holds().is_some());
    let meeting = Arc::new(Meeting::new());
    let (done, finished) = channel();
    let callers = [(0, first), (1, second)].map(|(who, kind)| {
        let own = if same { 0 } else { who };
        let [own, other] = [own, 1 - own].map(|at| subjects[at].clone());
        let ids = 1000 * (1 + who as u32);
        let items = [own.items(ids), own.items(ids + 20), other.items(ids + 40)];
        Caller { kind, own, other, items, ids: ids + 60 }
    });
    for (who, caller) in callers.into_iter().enumerate() {
        let (meeting, done) = (Arc::clone(&meeting), done.clone());
        thread::spawn(move || {
            let start = || {
                meeting.prepared.wait();
                if who == 1 {
                    meeting.wait_for(0);
                }
            };
            let arrive = {
                let meeting = Arc::clone(&meeting);
                move || {
                    meeting.enter(who);
                    if meets {
                        meeting.wait_for(1 - who);
                    }
                }
            };
            let entered = caller.run(start, arrive);
            assert!(entered || !meets, "thread {who} of {first:?}, {second:?} ran no such code");
            let _ = done.send(());
        });
    }
    drop(done);
    let context = format!("{first:?}, then {second:?}, same queue: {same}, order: {has_order}");
    for _ in 0..2 {
        match finished.recv_timeout(WATCHDOG) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => panic!("deadlock: {context}"),
            Err(RecvTimeoutError::Disconnected) => panic!("a thread panicked: {context}"),
        }
    }
}

#[test]
fn user_code_of_every_kind_may_call_every_method_beside_another_thread() {
    for has_order in [false, true] {
        for first in KINDS {
            for second in KINDS {
                if !has_order && [first, second].contains(&OwnOrder) {
                    continue;
                }
                for same in [true, false] {
                    meet(first, second, same, has_order);
                }
            }
        }
    }
}

#[test]
fn a_limiter_that_cannot_be_called_waits_for_its_own_longest_delay() {
    let queue = Subject::new(false).queue;
    queue.add(Key(1));
    let item = queue.try_get().map(Item::into_owned).unwrap();
    let seen = Arc::new(Mutex::new(None));
    let action = {
        let (queue, seen) = (queue.clone(), Arc::clone(&seen));
        move || {
            item.retry();
            *seen.lock().unwrap() = Some((
                queue.num_requeues(&Key(1)),
                queue.add_rate_limited(Key(2)),
                queue.add(Key(3)),
            ));
        }
    };
    ACTION.set(Some((OwnLimiter, Box::new(action))));
    assert_eq!(queue.num_requeues(&Key(1)), 7);
    let seen = seen.lock().unwrap().take();
    assert_eq!(seen, Some((0, Added::New, Added::New)));
    let due = queue.look_up(&Key(1)).unwrap().due.unwrap();
    let left = due.since(queue.now());
    assert!(secs(20) < left && left <= secs(30), "{left:?}");
    assert_eq!((queue.len(), queue.waiting()), (1, 2));
}

#[test]
fn under_the_lock_of_a_queue_its_limiter_refuses_as_the_queue_does() {
    let queue = Subject::new(false).queue;
    queue.add(Key(1));
    let seen = Arc::new(Mutex::new(None));
    let action = {
        let (queue, seen) = (queue.clone(), Arc::clone(&seen));
        move || {
            queue.forget(&Key(1));
            *seen.lock().unwrap() = Some((
                queue.num_requeues(&Key(1)),
                queue.add_rate_limited(Key(2)),
                queue.len(),
                queue.try_get().is_none(),
            ));
        }
    };
    ACTION.set(Some((KeyEq, Box::new(action))));
    assert_eq!(queue.add(Key(1)), Added::Coalesced);
    assert_eq!(seen.lock().unwrap().take(), Some((0, Added::Refused, 0, true)));
}
