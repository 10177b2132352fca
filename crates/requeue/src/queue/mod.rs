//! The queue, shared by threads and tasks.
//!
//! All handles refer to one [`Shared`] value, whose lock guards the state machine of
//! `requeue-core`. User code runs without that lock, except as the docs of [`Queue`] say.

mod batch_add;
mod builder;
mod drainers;
mod dropped_keys;
mod get;
mod getter;
mod hooks;
mod inspect;
mod item;
mod lifecycle;
mod limiter;

mod shared;
mod waiters;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::time::Duration;

use foldhash::fast::RandomState;
use requeue_core::{Add, Added, Cancelled, Group, Operation, Time};

use self::batch_add::BatchAdd;
pub use self::builder::{BuildError, Builder};
pub use self::get::{Get, GetMany, SucceedAndGet};
pub use self::inspect::{Filter, Histograms};
pub use self::item::{Item, Ticket};
pub use self::lifecycle::{Drain, Drained};

use self::shared::LOCK_BATCH;
pub(crate) use self::shared::Shared;
use crate::clock::Clock;
use crate::sync::{Arc, drop_quietly};

/// A type whose values can be keys: they can be hashed, compared, cloned and sent.
///
/// It is implemented for every such type. Each delivery clones its key once, so use a type such as
/// `Arc<str>` if a clone is expensive.
///
/// A key's hash must not change while the queue has the key: with another hash it is another key.
/// Good hashes matter, because an operation compares its key with all others of the same hash. If
/// untrusted users choose the keys, the queue needs another hasher than the default: see
/// [`Builder::hasher`].
pub trait Key: Hash + Eq + Clone + Send + 'static {}

impl<T: Hash + Eq + Clone + Send + 'static> Key for T {}

/// A work queue of keys. Handles are cheap to clone, and share one queue.
///
/// # Examples
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
/// // It is added again while it is in flight.
/// assert_eq!(queue.add("a"), Added::Dirty);
/// item.succeed();
/// assert_eq!(queue.len(), 2);
/// ```
///
/// # User code
///
/// The queue calls a key's `eq` and `clone` under its lock. With a [custom
/// order](crate::CustomOrder), it also calls that order and a key's `hash` under its lock. It calls
/// the [limiter](crate::RateLimiter) under a separate lock. All other user code runs without a
/// lock: wakers, metrics hooks, group functions, the clock, and the drop of keys.
///
/// All of this code may call any queue, and never deadlocks:
///
/// - Code without a lock may do anything, unless it was called from code that runs under one.
/// - A limiter may use any queue. But while it runs, no other limiter is called: a key that fails
///   then waits for the [longest delay](crate::RateLimiter::longest) of the limiter that was not
///   called, and `forget` and `num_requeues` find nothing.
/// - Calls from code that runs under a queue's lock are refused: adds return [`Added::Refused`],
///   gets and counts find nothing, and an item that is completed there stays in flight. This
///   applies to all queues whose keys or order run user code.
///
/// If a key's `eq` or `clone` panics, the panic reaches the caller and the queue is unchanged.
/// After a custom order has panicked, the queue delivers by age and does not call it again. The
/// queue discards a panic of a limiter, a hook, or the drop of a key or waker.
pub struct Queue<K: Key, S = RandomState> {
    shared: Arc<Shared<K>>,
    hasher: Arc<S>,
    group_of: Option<builder::GroupOf<K>>,
}

impl<K: Key> Queue<K> {
    /// Creates a queue with all defaults: see [`Builder`].
    #[must_use]
    pub fn new() -> Self {
        match Self::builder().build() {
            Ok(queue) => queue,
            Err(error) => unreachable!("the defaults are valid: {error}"),
        }
    }

    /// Creates a queue that treats re-adds and failures as client-go does: see
    /// [`Builder::client_go`].
    #[must_use]
    pub fn client_go() -> Self {
        match Builder::client_go().build() {
            Ok(queue) => queue,
            Err(error) => unreachable!("the defaults are valid: {error}"),
        }
    }

    /// Returns a builder that configures a queue.
    pub fn builder() -> Builder<K> {
        Builder::new()
    }
}

impl<K: Key> Default for Queue<K> {
    fn default() -> Self {
        Self::new()
    }
}

/// A panic leaves the queue unchanged.
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

    /// Adds `key`, which is then delivered once, however often it was added before its delivery.
    ///
    /// This is client-go's `Add`.
    ///
    /// # Examples
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
    /// # Examples
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

    /// Adds `key` with all options of an [`Add`], and calls `own` to make an owned key if the queue
    /// has no record of it.
    ///
    /// It is [`add_ref`](Self::add_ref) for keys without `ToOwned`, such as `Arc<str>`.
    ///
    /// # Examples
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
        let locked = self.shared.lock_for(Operation::Add(&add), None);
        let Ok((mut state, now)) = locked else { return Added::Refused };
        let known = state.core.add_known(key, hash, &add, now);
        self.shared.release(state);
        // Another thread may add the key in between. This is then one more add for the same run.
        known.unwrap_or_else(|| self.add_with(own(key), add))
    }

    /// Adds `key` after `delay`. A delay of zero adds it now.
    ///
    /// This is client-go's `AddAfter`, and never blocks. Delays saturate at about 584 years; a key
    /// with a delay of [`Duration::MAX`] is never due.
    ///
    /// # Examples
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

    /// Counts a failure of `key`, and adds it after the delay that the limiter computes.
    ///
    /// This is client-go's `AddRateLimited`, for keys without an [`Item`] at hand. [`Item::retry`]
    /// does this and completes the delivery. Under [`ReAdd::Hold`](crate::ReAdd::Hold), the
    /// default, every pending run of the key then waits for that delay, even if the key is still in
    /// flight.
    pub fn add_rate_limited(&self, key: K) -> Added {
        // The queue is asked first, because the limiter would remember a key that the queue
        // refuses.
        let hash = self.hash(&key);
        {
            let Ok(state) = self.shared.lock() else { return Added::Refused };
            if state.core.refuses(&key, hash) {
                return Added::Refused;
            }
            // The memory is fetched while the limiter reads its own table.
            state.core.prefetch(hash);
        }
        let now = self.shared.clock.now();
        let delay = self.shared.limiter.delay(&key, now);
        // The limiter and the queue use one time, so that they compute the same due time.
        self.add_at(key, hash, Add::after(delay).failed(), Some(now))
    }

    /// Adds `key` with all options of an [`Add`]: delay, debounce, merge rule, priority, reasons.
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
            self.shared.limiter.forget(&key);
        }
        let locked = self.shared.lock_for(Operation::Add(&add), now);
        let Ok((mut state, now)) = locked else { return Added::Refused };
        let (added, unused) = state.core.add(key, hash, add, group, now);
        self.shared.release(state);
        drop_quietly(unused);
        added
    }

    /// Adds all `keys` in order, and returns the number of adds that were accepted.
    ///
    /// It takes the lock once per 256 keys.
    ///
    /// # Examples
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
            // The iterator, the hasher and the group function are user code, so they run outside
            // the lock.
            let slice = keys.by_ref().take(LOCK_BATCH).map(|key| {
                let (hash, group) = (self.hash(&key), self.group(&key));
                (key, hash, group)
            });
            let mut batch = BatchAdd::new(&self.shared, slice.collect());
            if batch.is_empty() {
                return count;
            }
            let Some(accepted) = batch.add_all() else { return count };
            count += accepted;
        }
    }

    // --- Removing and completing ----------------------------------------------------------------

    /// Cancels the pending runs of `key`, clears its failures, and returns what was cancelled.
    ///
    /// A run in flight goes on.
    ///
    /// # Examples
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
        state.core.promote(now, LOCK_BATCH);
        // The limiter needs a reference to an owned key; the record has one.
        let known = state.core.look_up(key, hash).map(|entry| entry.key);
        let cancelled = state.core.cancel(key, hash);
        let unordered = state.core.drain_order(LOCK_BATCH);
        self.shared.release(state);
        unordered.into_iter().for_each(drop_quietly);
        if let Some(key) = known {
            self.shared.limiter.forget(&key);
            drop_quietly(key);
        }
        let (cancelled, freed) = cancelled.unwrap_or_default();
        drop_quietly(freed);
        cancelled
    }

    /// Clears the failures of `key`, in its record and in the limiter.
    ///
    /// This is client-go's `Forget`. [`Item::succeed`] does this and completes the delivery.
    pub fn forget(&self, key: &K) {
        let hash = self.hash(key);
        if self.shared.limiter.forgets() {
            // The memory is fetched while the limiter reads its own table.
            if let Ok(state) = self.shared.lock() {
                state.core.prefetch(hash);
            }
            self.shared.limiter.forget(key);
        }
        let Ok(mut state) = self.shared.lock() else { return };
        let freed = state.core.forget(key, hash);
        self.shared.release(state);
        drop_quietly(freed);
    }

    /// Returns the number of failures of `key` that the limiter counts, as client-go's
    /// `NumRequeues` does.
    ///
    /// # Examples
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
        self.shared.limiter.num_requeues(key)
    }

    /// Completes the delivery of `key` as client-go's `Done` does, if [`Item::into_parts`] detached
    /// it.
    ///
    /// Returns `false`, and has no effect, if the key is not in flight or its item still exists.
    ///
    /// # Examples
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
        // Like every operation, this one makes due keys ready.
        if let Ok((mut state, now)) = self.shared.lock_for(Operation::Promote, None) {
            state.core.promote(now, LOCK_BATCH);
            self.shared.release(state);
        }
        false
    }

    /// Completes the delivery of `ticket` as client-go's `Done` does.
    ///
    /// Returns `false`, and has no effect, if it was completed before, or is a delivery of another
    /// queue.
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

    /// Returns the queue's clock.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.shared.clock
    }

    /// Returns the current time of the queue's clock.
    #[must_use]
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Returns the queue's name, if [`Builder::name`] set one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.shared.name.as_deref()
    }

    #[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "for Workers"))]
    pub(crate) fn shared(&self) -> &Arc<Shared<K>> {
        &self.shared
    }
}
