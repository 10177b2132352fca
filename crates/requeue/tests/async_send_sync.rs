//! Checks at compile time which types can be sent to other threads and shared with them.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use requeue::clock::{Alarm, Clock, FakeClock, Sleep, SystemClock};
use requeue::limiter::RateLimiter;
use requeue::limiter::{BackoffLimiter, Bucket, ExponentialFailure, FastSlow, MaxOf, WithMaxWait};
use requeue::{
    Add, Added, BuildError, Builder, Cancelled, Cursor, Drain, Drained, Entry, Get, GetMany,
    GroupId, Item, Merge, Order, Page, Phase, Queue, ReaddPolicy, Ticket, Time, Totals,
};

const fn send<T: Send>() {}
const fn sync<T: Sync>() {}
const fn unpin<T: Unpin>() {}
const fn is_static<T: 'static>() {}

fn send_value<T: Send>(_: &T) {}

/// A key that is `Send` but not `Sync`. A key need not be more than that.
type Lone = CellKey;

#[derive(Clone, PartialEq, Eq)]
struct CellKey(Cell<u32>);

impl std::hash::Hash for CellKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.get().hash(state);
    }
}

macro_rules! all {
    ($check:ident: $($of:ty),* $(,)?) => { $($check::<$of>();)* };
}

/// Shows if a type implements a trait, without requiring it: `Probe::<T>::IS_SYNC` for `Sync`.
struct Probe<T>(std::marker::PhantomData<T>);

trait Not {
    const IS_SYNC: bool = false;
}

impl<T> Not for Probe<T> {}

#[allow(dead_code, reason = "found before the trait's, where the bound holds")]
impl<T: Sync> Probe<T> {
    const IS_SYNC: bool = true;
}

const _: () = {
    // A queue can be shared between threads, for any type of key.
    all!(send: Queue<u32>, Queue<Lone>, Builder<u32>, Builder<Lone>);
    all!(sync: Queue<u32>, Queue<Lone>);
    all!(is_static: Queue<u32>, Item<'static, u32>);
    // An item can be sent to another thread if its key can be sent.
    all!(send: Item<'static, u32>, Item<'static, Lone>, Ticket);
    all!(sync: Item<'static, u32>, Ticket);
    assert!(Probe::<Item<'static, u32>>::IS_SYNC);
    assert!(!Probe::<Item<'static, Lone>>::IS_SYNC);

    all!(send: Get<'static, u32>, Get<'static, Lone>, GetMany<'static, Lone>, Drain<'static, Lone>);
    all!(sync: Get<'static, u32>, GetMany<'static, u32>, Drain<'static, u32>);
    all!(unpin: Get<'static, Lone>, GetMany<'static, Lone>, Drain<'static, Lone>, Queue<Lone>);

    all!(send: Drained<u32>, BuildError, Add, Added, Cancelled, Totals, Cursor, ReaddPolicy,
        Entry<u32>, GroupId, Merge, Order<u32>, Page<u32>, Phase, Time);
    all!(sync: Drained<u32>, BuildError, Add, Added, Cancelled, Totals, Cursor, ReaddPolicy,
        Entry<u32>, GroupId, Merge, Page<u32>, Phase, Time);

    all!(send: Alarm, FakeClock, SystemClock, Sleep<'static, FakeClock>, Box<dyn Clock>);
    all!(sync: Alarm, FakeClock, SystemClock, Sleep<'static, FakeClock>, Box<dyn Clock>);

    all!(send: BackoffLimiter<u32>, Bucket, ExponentialFailure<u32>, FastSlow<u32>, MaxOf<u32>,
        WithMaxWait<Bucket>, Box<dyn RateLimiter<Lone>>);
};

#[cfg(feature = "tokio")]
const _: () = {
    all!(send: requeue::clock::TokioClock, requeue::workers::Context, requeue::workers::Action,
        requeue::workers::Error);
    all!(sync: requeue::clock::TokioClock, requeue::workers::Context, requeue::workers::Action);
};

#[cfg(feature = "tsc")]
const _: () = {
    all!(send: requeue::clock::TscClock);
    all!(sync: requeue::clock::TscClock);
};

/// The futures of `async fn`s have no names, so they are passed as values.
#[test]
fn every_future_of_a_queue_can_be_sent() {
    let queue: Queue<CellKey> = Queue::new();
    send_value(&queue.get());
    send_value(&queue.get_many(2));
    send_value(&queue.get().timeout(Duration::ZERO));
    send_value(&queue.shut_down_with_drain().timeout(Duration::ZERO));
    send_value(&queue.shut_down_with_drain());
    send_value(&async {
        let item = queue.get().await;
        std::future::ready(()).await;
        drop(item);
    });
}

/// A future that stays on its thread may contain values that cannot be sent. It may also contain
/// futures of the queue.
#[test]
fn a_local_future_may_use_a_queue() {
    let queue: Queue<u32> = Queue::new();
    let local = Rc::new(());
    let future = async move {
        let item = queue.get().await;
        drop((local, item));
    };
    is_a_future(&future);
}

fn is_a_future(_: &impl Future) {}
