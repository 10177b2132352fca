//! Taking keys: at once, in a task, or on a thread.
//!
//! All waiting getters share one implementation, [`Shared::look`]. A future calls it when it is
//! polled, and a thread parks between two calls.

use std::future::Future;
use std::hash::BuildHasher;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::Duration;

use requeue_core::{Delivery, Operation, Time};

use super::getter::{Look, Wait};
use super::next::SucceedAndGet;
use super::shared::LOCK_BATCH;
use super::waiters::Kind;
use super::{Item, Queue, Shared};
use crate::Key;
use crate::clock::{Alarm, Clock};
use crate::sync::{Arc, Thread, current, quietly, thread_local};

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Takes the next ready key, or returns `None` if no key is ready.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// assert!(queue.try_get().is_none());
    /// queue.add(1);
    /// assert_eq!(queue.try_get().as_deref(), Some(&1));
    /// ```
    #[must_use = "an item that is dropped unfinished counts as failed"]
    #[inline(always)]
    pub fn try_get(&self) -> Option<Item<'_, K>> {
        match self.shared.take_plain() {
            Some(taken) => Some(Item::lent(&self.shared, taken?)),
            None => self.try_get_any(),
        }
    }

    #[inline(never)]
    fn try_get_any(&self) -> Option<Item<'_, K>> {
        Some(Item::lent(&self.shared, self.take_now()?))
    }

    /// Takes the next ready key as [`try_get`](Self::try_get) does.
    ///
    /// The item can be sent to other threads and tasks.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn try_get_owned(&self) -> Option<Item<'static, K>> {
        Some(Item::owned(Arc::clone(&self.shared), self.take_now()?))
    }

    /// Takes up to `max` ready keys, without waiting.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn try_get_many(&self, max: usize) -> Vec<Item<'_, K>> {
        self.take_more(Vec::new(), max)
    }

    /// Waits for a key. Returns `None` when the queue was closed or shut down and has no more keys.
    ///
    /// Each key uses a unit of tokio's cooperative budget, so a loop over a full queue lets other
    /// tasks run.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped has taken no key, and passes on its wake. A future that is woken
    /// and not polled takes no key either. Every two such futures delay a task that waits behind
    /// them by 5 to 10 ms.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue::Queue;
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// let queue = Queue::new();
    /// queue.add("a");
    /// queue.close();
    /// while let Some(item) = queue.get().await {
    ///     assert_eq!(*item, "a");
    ///     item.succeed();
    /// }
    /// # });
    /// ```
    pub fn get(&self) -> Get<'_, K, S> {
        Get { inner: Waiting::new(self, Kind::Task, false) }
    }

    /// Waits for a key as [`get`](Self::get) does. The item can be sent to other tasks.
    ///
    /// # Cancel safety
    ///
    /// The same as of [`get`](Self::get).
    pub async fn get_owned(&self) -> Option<Item<'static, K>> {
        let out = Waiting::new(self, Kind::Task, false).await?;
        Some(Item::owned(Arc::clone(&self.shared), out))
    }

    /// Waits for a key as [`get_owned`](Self::get_owned) does, but `None` is final: no key is
    /// ready, and no key in flight will become ready again.
    ///
    /// After `shut_down`, `get` returns `None` as soon as no key is ready, as client-go's does. It
    /// may find a key later that was dirty while in flight. A loop that must also process those
    /// keys calls this method, as `Workers` do.
    ///
    /// # Cancel safety
    ///
    /// The same as of [`get`](Self::get).
    pub async fn get_until_final(&self) -> Option<Item<'static, K>> {
        let out = Waiting::new(self, Kind::Task, true).await?;
        Some(Item::owned(Arc::clone(&self.shared), out))
    }

    /// Waits as [`get_until_final`](Self::get_until_final) does, and blocks this thread.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn get_until_final_blocking(&self) -> Option<Item<'static, K>> {
        let out = self.block(None, true)?;
        Some(Item::owned(Arc::clone(&self.shared), out))
    }

    /// Waits for a key for at most `timeout`, by the queue's clock.
    ///
    /// Returns `None` if the timeout has passed, or if the queue was closed or shut down and has no
    /// more keys.
    ///
    /// # Cancel safety
    ///
    /// The same as of [`get`](Self::get).
    pub async fn get_timeout(&self, timeout: Duration) -> Option<Item<'_, K>> {
        let mut waiting = Waiting::new(self, Kind::Task, false);
        waiting.deadline = Some(self.now() + timeout);
        Some(Item::lent(&self.shared, waiting.await?))
    }

    /// Waits for a key, then takes up to `max` ready keys in all.
    ///
    /// The result is empty if the queue was closed or shut down and has no more keys, or if `max`
    /// is 0.
    ///
    /// # Cancel safety
    ///
    /// The same as of [`get`](Self::get).
    pub fn get_many(&self, max: usize) -> GetMany<'_, K, S> {
        GetMany { inner: Waiting::new(self, Kind::Task, false), max }
    }

    /// Blocks this thread until there is a key.
    ///
    /// Returns `None` when the queue was closed or shut down and has no more keys.
    ///
    /// It needs no runtime. This call, like every other one whose name ends with `_blocking`,
    /// blocks the thread while it waits. In async code use [`get`](Self::get), or call it in
    /// `tokio::task::spawn_blocking`: on a runtime with one thread, nothing else runs meanwhile,
    /// not even the task that would add a key. To find such calls in tests, wrap them in
    /// `tokio::task::block_in_place`, which panics on a runtime with one thread.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue: Queue<&str> = Queue::new();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         while let Some(item) = queue.get_blocking() {
    ///             item.succeed();
    ///         }
    ///     });
    ///     queue.add("a");
    ///     queue.close();
    /// });
    /// assert_eq!(queue.len(), 0);
    /// ```
    #[must_use = "an item that is dropped unfinished counts as failed"]
    #[inline(always)]
    pub fn get_blocking(&self) -> Option<Item<'_, K>> {
        if let Some(Some(taken)) = self.shared.take_plain() {
            return Some(Item::lent(&self.shared, taken));
        }
        self.get_after_waiting()
    }

    #[inline(never)]
    fn get_after_waiting(&self) -> Option<Item<'_, K>> {
        Some(Item::lent(&self.shared, self.block(None, false)?))
    }

    /// Waits as [`get_blocking`](Self::get_blocking) does. The item can be sent to other threads.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn get_owned_blocking(&self) -> Option<Item<'static, K>> {
        let out = self.block(None, false)?;
        Some(Item::owned(Arc::clone(&self.shared), out))
    }

    /// Waits as [`get_blocking`](Self::get_blocking) does, for at most `timeout`, by the queue's
    /// clock.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn get_timeout_blocking(&self, timeout: Duration) -> Option<Item<'_, K>> {
        let out = self.block(Some(self.now() + timeout), false)?;
        Some(Item::lent(&self.shared, out))
    }

    /// Waits as [`get_many`](Self::get_many) does, and blocks this thread.
    #[must_use = "an item that is dropped unfinished counts as failed"]
    pub fn get_many_blocking(&self, max: usize) -> Vec<Item<'_, K>> {
        let Some(first) = (max > 0).then(|| self.block(None, false)).flatten() else {
            return Vec::new();
        };
        self.take_more(vec![Item::lent(&self.shared, first)], max)
    }

    fn take_now(&self) -> Option<Delivery<K>> {
        let (state, taken) = self.shared.take(&|key| self.hash(key)).ok()?;
        self.shared.release(state);
        taken
    }

    /// Takes ready keys until there are `max` items, or no more ready keys.
    fn take_more<'q>(&'q self, items: Vec<Item<'q, K>>, max: usize) -> Vec<Item<'q, K>> {
        let mut taken = Slice { shared: &self.shared, items, outs: Vec::new() };
        taken.items.reserve(max.saturating_sub(taken.items.len()).min(32));
        while taken.items.len() < max {
            let before = taken.items.len();
            let room = (max - before).min(LOCK_BATCH);
            if !self.shared.take_many_plain(&mut taken.items, room) {
                let Ok((mut state, one)) = self.shared.take(&|key| self.hash(key)) else { break };
                taken.outs.extend(one);
                while (1..room).contains(&taken.outs.len())
                    && !state.core.has_order()
                    && !state.core.needs_now(Operation::Get)
                    && let Some(out) = state.core.get(Time::ZERO)
                {
                    taken.outs.push(out);
                }
                self.shared.release(state);
                let Slice { shared, items, outs } = &mut taken;
                items.extend(outs.drain(..).map(|out| Item::lent(*shared, out)));
            }
            if taken.items.len() == before {
                break;
            }
        }
        std::mem::take(&mut taken.items)
    }

    fn block(&self, deadline: Option<Time>, until_final: bool) -> Option<Delivery<K>> {
        let mut waiting = Waiting::new(self, Kind::Thread, until_final);
        waiting.deadline = deadline;
        THREAD.with(|waker| {
            loop {
                match waiting.look(waker) {
                    Ok(answer) => return answer,
                    Err(Pause::Spin) => self.shared.spin(),
                    Err(Pause::Until(until)) => self.shared.park(until),
                }
            }
        })
    }
}

/// Deliveries that are being taken under the lock. If a key's `clone` panics there, the lock is
/// released first, and then these deliveries are released.
struct Slice<'q, K: Key> {
    shared: &'q Shared<K>,
    items: Vec<Item<'q, K>>,
    /// Deliveries of a queue with hooks, which are notified of items outside the lock.
    outs: Vec<Delivery<K>>,
}

impl<K: Key> Drop for Slice<'_, K> {
    fn drop(&mut self) {
        let outs = self.outs.drain(..).map(|out| Item::lent(self.shared, out));
        for item in self.items.drain(..).chain(outs) {
            quietly(|| item.release());
        }
    }
}

thread_local! {
    /// Unparks this thread.
    pub(super) static THREAD: Waker = Waker::from(Arc::new(Unpark(current())));
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// The way in which a thread waits before its next check.
enum Pause {
    Spin,
    /// Until it is woken, or until this time.
    Until(Time),
}

/// The common part of all waiting getters.
struct Waiting<'q, K: Key, S: BuildHasher> {
    queue: &'q Queue<K, S>,
    wait: Wait,
    deadline: Option<Time>,
    /// The alarm of a deadline that no parked thread keeps.
    alarm: Option<Alarm>,
}

impl<'q, K: Key, S: BuildHasher> Waiting<'q, K, S> {
    const fn new(queue: &'q Queue<K, S>, kind: Kind, until_final: bool) -> Self {
        Self { queue, wait: Wait::new(kind, until_final), deadline: None, alarm: None }
    }

    /// Returns the result, or how to wait for it.
    fn look(&mut self, waker: &Waker) -> Result<Option<Delivery<K>>, Pause> {
        let (queue, shared) = (self.queue, &self.queue.shared);
        match shared.look(&mut self.wait, waker, &|key| queue.hash(key)) {
            Look::Key(out) => Ok(Some(out)),
            Look::Ended => Ok(None),
            Look::Spin => Err(Pause::Spin),
            Look::Wait { until } => match self.deadline {
                None | Some(Time::NEVER) => Err(Pause::Until(until)),
                Some(deadline) if shared.clock.now() >= deadline => {
                    shared.leave(&mut self.wait);
                    Ok(None)
                }
                Some(deadline) if shared.is_real_time && self.wait.is_thread() => {
                    Err(Pause::Until(until.min(deadline)))
                }
                Some(deadline) => {
                    self.alarm = quietly(|| shared.clock.arm(deadline, waker));
                    Err(Pause::Until(until.min(deadline)))
                }
            },
        }
    }
}

impl<K: Key, S: BuildHasher> Future for Waiting<'_, K, S> {
    type Output = Option<Delivery<K>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        #[cfg(feature = "tokio")]
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        match self.look(cx.waker()) {
            Ok(answer) => {
                #[cfg(feature = "tokio")]
                budget.made_progress();
                Poll::Ready(answer)
            }
            Err(_) => Poll::Pending,
        }
    }
}

impl<K: Key, S: BuildHasher> Drop for Waiting<'_, K, S> {
    fn drop(&mut self) {
        self.queue.shared.leave(&mut self.wait);
    }
}

/// Waits for a key: see [`Queue::get`].
#[must_use = "a future does nothing unless it is polled"]
pub struct Get<'q, K: Key, S: BuildHasher = foldhash::fast::RandomState> {
    inner: Waiting<'q, K, S>,
}

impl<'q, K: Key, S: BuildHasher> Future for Get<'q, K, S> {
    type Output = Option<Item<'q, K>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = self.shared();
        if self.inner.wait.is_listed() {
            return self.poll_again(cx);
        }
        #[cfg(feature = "tokio")]
        let budget = ready!(tokio::task::coop::poll_proceed(cx));
        if let Some(Some(out)) = shared.take_plain() {
            #[cfg(feature = "tokio")]
            budget.made_progress();
            return Poll::Ready(Some(Item::lent(shared, out)));
        }
        #[cfg(feature = "tokio")]
        drop(budget);
        self.poll_again(cx)
    }
}

impl<'q, K: Key, S: BuildHasher> Get<'q, K, S> {
    pub(super) fn shared(&self) -> &'q Shared<K> {
        &self.inner.queue.shared
    }

    #[inline(never)]
    fn poll_again(&mut self, cx: &mut Context<'_>) -> Poll<Option<Item<'q, K>>> {
        let shared = self.shared();
        let out = ready!(Pin::new(&mut self.inner).poll(cx));
        Poll::Ready(out.map(|out| Item::lent(shared, out)))
    }
}

/// Waits for keys: see [`Queue::get_many`].
#[must_use = "a future does nothing unless it is polled"]
pub struct GetMany<'q, K: Key, S: BuildHasher = foldhash::fast::RandomState> {
    inner: Waiting<'q, K, S>,
    max: usize,
}

impl<'q, K: Key, S: BuildHasher> Future for GetMany<'q, K, S> {
    type Output = Vec<Item<'q, K>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.max == 0 {
            return Poll::Ready(Vec::new());
        }
        let out = ready!(Pin::new(&mut self.inner).poll(cx));
        let queue: &'q Queue<K, S> = self.inner.queue;
        let first = out.map(|out| Item::lent(&queue.shared, out));
        Poll::Ready(first.map_or_else(Vec::new, |first| queue.take_more(vec![first], self.max)))
    }
}

macro_rules! debug {
    ($($name:ident),*) => {$(
        impl<K: Key, S: BuildHasher> std::fmt::Debug for $name<'_, K, S> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

debug!(Get, GetMany, SucceedAndGet);
