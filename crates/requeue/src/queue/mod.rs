//! The queue that threads and tasks share.

mod adding;
mod builder;
mod ending;
mod get;
mod hooks;
mod inspect;
mod item;
mod limits;
mod look;
mod lost;
mod next;
#[cfg(feature = "prometheus")]
pub(crate) mod sample;
mod shared;
mod waiters;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use foldhash::fast::RandomState;
use requeue_core::{Add, Added, Cancelled, Group, Operation, Time};

use self::adding::Adding;
pub use self::builder::{BuildError, Builder};
pub use self::ending::{Drain, Drained};
pub use self::get::{Get, GetMany};
pub use self::inspect::{Filter, Histograms};
pub use self::item::{Item, Ticket};
pub use self::next::SucceedAndGet;
use self::shared::SLICE;
pub(crate) use self::shared::Shared;
use crate::clock::Clock;
use crate::sync::{Arc, drop_quietly};

/// A type whose values can be keys: they can be hashed, compared, cloned and sent.
///
/// Implemented for every such type. Each delivery clones its key once, so use an `Arc<str>` or the
/// like where a clone is expensive. A key's hash must not change while the queue has the key: under
/// another hash it is another key. Good hashes matter, because an operation compares its key with all
/// others of the same hash. If strangers choose the keys, the queue needs another hasher than the
/// default: see [`Builder::hasher`].
pub trait Key: Hash + Eq + Clone + Send + 'static {}

impl<T: Hash + Eq + Clone + Send + 'static> Key for T {}

/// A work queue of keys. Handles are cheap to clone and share one queue.
///
/// ```
/// use requeue::{Added, Queue};
///
/// let queue = Queue::new();
/// queue.add("a");
/// queue.add("b");
/// assert_eq!(queue.add("a"), Added::Coalesced);
///
/// let item = queue.try_get().expect("two keys are ready");
/// assert_eq!((*item, item.adds()), ("a", 2));
///
/// // While it is being worked on, it changes once more.
/// assert_eq!(queue.add("a"), Added::Dirty);
/// item.succeed();
/// assert_eq!(queue.len(), 2);
/// ```
///
/// # User code
///
/// The queue calls a key's `eq` and `clone` under its lock, and with a
/// [custom order](requeue_core::CustomOrder) that order and a key's `hash`, too. It calls the
/// [limiter](crate::RateLimiter) under a lock of its own. Everything else runs without a lock:
/// wakers, metrics hooks, group functions, the clock, and the drop of keys.
///
/// All of this code may call any queue, and never deadlocks:
///
/// - Code without a lock may do anything, unless it was called from code that runs under one.
/// - A limiter may use any queue. But no other limiter answers it: a failure then waits for the
///   [longest delay](crate::RateLimiter::longest) of the limiter that was not asked, and `forget` and
///   `num_requeues` find nothing.
/// - Code that runs under a queue's lock is refused: adds return [`Added::Refused`], gets and counts
///   find nothing, and an item that is finished there stays in flight. This applies to all queues
///   whose keys or order have code of their own.
///
/// If a key's `eq` or `clone` panics, the caller sees the panic and the queue is unchanged. After a
/// custom order has panicked, the queue delivers by age and does not ask it again. The queue discards
/// a panic of a limiter, a hook, or the drop of a key or waker.
pub struct Queue<K: Key, S = RandomState> {
    shared: Arc<Shared<K>>,
    hasher: Arc<S>,
    group_of: Option<builder::GroupOf<K>>,
}

impl<K: Key> Queue<K> {
    /// A queue with all defaults: see [`Builder`].
    #[must_use]
    pub fn new() -> Self {
        match Self::builder().build() {
            Ok(queue) => queue,
            Err(error) => unreachable!("the defaults make sense: {error}"),
        }
    }

    /// Returns a queue that treats re-adds and failures as client-go does: see [`Builder::client_go`].
    #[must_use]
    pub fn client_go() -> Self {
        match Builder::client_go().build() {
            Ok(queue) => queue,
            Err(error) => unreachable!("the defaults make sense: {error}"),
        }
    }

    /// A queue of one's own making.
    pub fn builder() -> Builder<K> {
        Builder::new()
    }
}

impl<K: Key> Default for Queue<K> {
    fn default() -> Self {
        Self::new()
    }
}

/// A panic leaves the queue as it was.
impl<K: Key, S> UnwindSafe for Queue<K, S> {}
impl<K: Key, S> RefUnwindSafe for Queue<K, S> {}

impl<K: Key, S> Clone for Queue<K, S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
            hasher: Arc::clone(&self.hasher),
            group_of: self.group_of.clone(),
        }
    }
}

impl<K: Key, S> fmt::Debug for Queue<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Queue");
        debug.field("name", &self.shared.name);
        if let Ok(state) = self.shared.lock() {
            let (core, ending) = (&state.core, state.core.ending());
            debug
                .field("ready", &core.len())
                .field("waiting", &core.waiting())
                .field("processing", &core.processing())
                .field("ending", &ending);
        }
        debug.finish_non_exhaustive()
    }
}

impl<K: Key, S: BuildHasher> Queue<K, S> {
    // --- Adding ---------------------------------------------------------------------------------

    /// Adds `key`: it will be handed out, once, however often it was added.
    ///
    /// client-go's `Add`.
    ///
    /// ```
    /// use requeue::{Added, Queue};
    ///
    /// let queue = Queue::new();
    /// assert_eq!(queue.add(7), Added::New);
    /// assert_eq!(queue.add(7), Added::Coalesced);
    /// assert_eq!(queue.len(), 1);
    /// ```
    #[inline]
    pub fn add(&self, key: K) -> Added {
        let hash = self.hash(&key);
        self.add_at(key, hash, Add::now(), None)
    }

    /// Adds `key`, and makes an owned key of it only if the queue has no record of it.
    ///
    /// ```
    /// use requeue::{Added, Queue};
    ///
    /// let queue: Queue<String> = Queue::new();
    /// assert_eq!(queue.add_ref("default/web"), Added::New);
    /// assert_eq!(queue.add_ref("default/web"), Added::Coalesced);
    /// ```
    pub fn add_ref<Q>(&self, key: &Q) -> Added
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ToOwned<Owned = K> + ?Sized,
    {
        self.add_ref_with(key, Add::now(), Q::to_owned)
    }

    /// As [`add_ref`](Self::add_ref), with all that can be asked, and with one's own way to make a
    /// key, as for `Arc<str>`.
    ///
    /// ```
    /// use requeue::{Add, Added, Queue};
    /// use std::sync::Arc;
    ///
    /// let queue: Queue<Arc<str>> = Queue::new();
    /// assert_eq!(queue.add_ref_with("default/web", Add::now(), |key| key.into()), Added::New);
    /// ```
    pub fn add_ref_with<Q>(&self, key: &Q, add: Add, own: impl FnOnce(&Q) -> K) -> Added
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        if add.is_delayed() || add.merging() == requeue_core::Merge::Exactly {
            return self.add_with(own(key), add);
        }
        let hash = self.hash(key);
        let now = self.shared.hinted_now();
        let locked = self.shared.lock_for(Operation::Add(&add), now);
        let Ok((mut state, now)) = locked else { return Added::Refused };
        let known = state.core.add_known(key, hash, &add, now);
        self.shared.release(state);
        // Somebody may add it in between: then this is one add more to the same run.
        known.unwrap_or_else(|| self.add_with(own(key), add))
    }

    /// Adds `key` after `delay`. A delay of zero adds it now.
    ///
    /// client-go's `AddAfter`; it never blocks. Far times saturate: [`Duration::MAX`] is never.
    ///
    /// ```
    /// use requeue::{Queue, clock::FakeClock};
    /// use std::time::Duration;
    ///
    /// let clock = FakeClock::new();
    /// let queue = Queue::builder().clock(clock.clone()).build()?;
    /// queue.add_after("later", Duration::from_secs(60));
    /// assert!(queue.try_get().is_none());
    /// clock.advance(Duration::from_secs(60));
    /// assert_eq!(queue.try_get().as_deref(), Some(&"later"));
    /// # Ok::<(), requeue::BuildError>(())
    /// ```
    pub fn add_after(&self, key: K, delay: Duration) -> Added {
        self.add_with(key, Add::after(delay))
    }

    /// Adds `key` after the delay that the limiter says, and counts a failure of it.
    ///
    /// client-go's `AddRateLimited`, for keys whose [`Item`] is not at hand: [`Item::retry`] does
    /// this and completes the delivery. Under [`ReAdd::Hold`](crate::ReAdd::Hold), the default, every
    /// pending run of the key then waits for as long, also while the key is still in flight.
    pub fn add_rate_limited(&self, key: K) -> Added {
        // A limiter that has counted would remember a key that the queue never had.
        let hash = self.hash(&key);
        {
            let Ok(state) = self.shared.lock() else { return Added::Refused };
            if state.core.refuses(&key, hash) {
                return Added::Refused;
            }
            // While the limiter looks in its own table.
            state.core.prefetch(hash);
        }
        let now = self.shared.clock.now();
        let delay = self.shared.limits.delay(&key, now);
        // One time for both, so that what the limiter holds back is what the queue holds back.
        self.add_at(key, hash, Add::after(delay).failed(), Some(now))
    }

    /// Adds `key` with all that can be asked: delay, debounce, merging, priority, reasons.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Add, Queue};
    /// use std::time::Duration;
    ///
    /// let queue = Queue::new();
    /// queue.add_with("urgent", Add::now().priority(10).reason(0b10));
    /// // 300 ms after the last of its adds, and 3 s after the first at the latest.
    /// let debounced = Add::debounce(Duration::from_millis(300)).at_most(Duration::from_secs(3));
    /// queue.add_with("typing", debounced);
    /// assert_eq!(queue.try_get().unwrap().reasons(), 0b10);
    /// ```
    pub fn add_with(&self, key: K, add: Add) -> Added {
        let hash = self.hash(&key);
        self.add_at(key, hash, add, None)
    }

    #[inline(always)]
    fn add_at(&self, key: K, hash: u64, add: Add, now: Option<Time>) -> Added {
        let group = self.group(&key);
        if add.merging() == requeue_core::Merge::Exactly
            && self.shared.lock().is_ok_and(|state| !state.core.refuses(&key, hash))
        {
            self.shared.limits.forget(&key);
        }
        let now = now.or_else(|| self.shared.hinted_now());
        let locked = self.shared.lock_for(Operation::Add(&add), now);
        let Ok((mut state, now)) = locked else { return Added::Refused };
        let (added, unused) = state.core.add(key, hash, add, group, now);
        self.shared.release(state);
        drop_quietly(unused);
        added
    }

    /// Adds all `keys`, in order, under few holds of the lock; says how many it took.
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// assert_eq!(queue.add_all(["a", "b", "a"]), 3);
    /// assert_eq!(queue.len(), 2);
    /// ```
    pub fn add_all(&self, keys: impl IntoIterator<Item = K>) -> usize {
        let mut keys = keys.into_iter();
        let mut count = 0;
        loop {
            // The iterator, hashing and grouping are the user's code: outside the lock.
            let slice = keys.by_ref().take(SLICE).map(|key| {
                let (hash, group) = (self.hash(&key), self.group(&key));
                (key, hash, group)
            });
            let mut adding = Adding::new(&self.shared, slice.collect());
            if adding.is_empty() {
                return count;
            }
            let Some(accepted) = adding.add_all() else { return count };
            count += accepted;
        }
    }

    // --- Taking back ----------------------------------------------------------------------------

    /// Takes `key` out of what is ready, waiting and to be run again, never out of a run, and
    /// clears its failures. Says what it took.
    ///
    /// ```
    /// use requeue::Queue;
    /// use std::time::Duration;
    ///
    /// let queue = Queue::new();
    /// queue.add_after("a", Duration::from_secs(60));
    /// assert!(queue.cancel(&"a").waiting);
    /// assert!(!queue.cancel(&"a").any());
    /// ```
    pub fn cancel<Q>(&self, key: &Q) -> Cancelled
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let locked = self.shared.lock_for(Operation::Promote, None);
        let Ok((mut state, now)) = locked else { return Cancelled::default() };
        state.core.promote(now, SLICE);
        // The limiter wants an owned key's reference; the record's is one.
        let known = state.core.look_up(key, hash).map(|entry| entry.key);
        let cancelled = state.core.cancel(key, hash);
        let unordered = state.core.drain_order(SLICE);
        self.shared.release(state);
        unordered.into_iter().for_each(drop_quietly);
        if let Some(key) = known {
            self.shared.limits.forget(&key);
            drop_quietly(key);
        }
        let (cancelled, freed) = cancelled.unwrap_or_default();
        drop_quietly(freed);
        cancelled
    }

    /// Clears the failures of `key`: the record's count and the limiter's.
    ///
    /// client-go's `Forget`. [`Item::succeed`] does this and ends the hand-out.
    pub fn forget(&self, key: &K) {
        let hash = self.hash(key);
        if self.shared.limits.forgets() {
            // What is read next is fetched while the limiter looks in its own table.
            if let Ok(state) = self.shared.lock() {
                state.core.prefetch(hash);
            }
            self.shared.limits.forget(key);
        }
        let Ok(mut state) = self.shared.lock() else { return };
        let freed = state.core.forget(key, hash);
        self.shared.release(state);
        drop_quietly(freed);
    }

    /// How many failures of `key` the limiter counts (client-go's `NumRequeues`).
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// queue.add_rate_limited("a");
    /// assert_eq!(queue.num_requeues(&"a"), 1);
    /// queue.forget(&"a");
    /// assert_eq!(queue.num_requeues(&"a"), 0);
    /// ```
    pub fn num_requeues(&self, key: &K) -> u32 {
        self.shared.limits.num_requeues(key)
    }

    /// Completes the delivery of `key` as client-go's `Done` does, if [`Item::into_parts`] detached it. Returns
    /// `false`, and has no effect, if the key is not in flight or its item still exists.
    ///
    /// ```
    /// use requeue::Queue;
    ///
    /// let queue = Queue::new();
    /// queue.add("a");
    /// assert!(!queue.done(&"a"));
    /// let (key, _ticket) = queue.try_get().unwrap().into_parts();
    /// assert!(queue.done(&key));
    /// assert!(!queue.done(&key));
    /// ```
    pub fn done<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash(key);
        let detached = self.shared.lock().ok().and_then(|state| state.core.detached(key, hash));
        if let Some(ticket) = detached {
            return self.shared.finish_detached(&ticket);
        }
        // As every operation, this one makes keys ready that are due.
        if let Ok((mut state, now)) = self.shared.lock_for(Operation::Promote, None) {
            state.core.promote(now, SLICE);
            self.shared.release(state);
        }
        false
    }

    /// Completes the delivery of `ticket` as client-go's `Done` does. Returns `false`, and has no effect, if it
    /// was completed before, or is a delivery of another queue.
    pub fn done_ticket(&self, ticket: Ticket) -> bool {
        ticket.finish(&self.shared)
    }

    // --- Parts ----------------------------------------------------------------------------------

    #[inline]
    fn hash<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    #[inline]
    fn group(&self, key: &K) -> Group {
        self.group_of.as_ref().map_or_else(Group::default, |group_of| group_of(key))
    }

    /// The clock that the queue goes by.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    /// The time by that clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// What the queue is called.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.shared.name.as_deref()
    }

    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "for Workers"))]
    pub(crate) fn shared(&self) -> &Arc<Shared<K>> {
        &self.shared
    }
}
