//! The queue, which threads and tasks share.
//!
//! All handles refer to one [`Shared`] value. Its lock guards the state machine of `requeue-core`.
//! User code runs without this lock, with a few exceptions that the docs of [`Queue`] list.

mod add;
mod builder;
mod cancelling;
mod drainers;
mod dropped_keys;
mod get;
mod getter;
mod groups;
mod hooks;
mod inspect;
mod item;
mod lifecycle;
mod limiter;
mod shared;
#[cfg(feature = "opentelemetry")]
mod traced;
mod waiters;
mod watchers;

use std::borrow::Borrow;
use std::fmt;
use std::hash::{BuildHasher, Hash};
use std::panic::{RefUnwindSafe, UnwindSafe};

use foldhash::fast::RandomState;
use requeue_core::{Cancelled, GroupId, Operation, Time};

pub use self::builder::{BuildError, Builder};
pub use self::get::{Get, GetMany, SucceedAndGet};
pub use self::groups::{GroupHandle, NoGroups};
pub use self::item::{Item, Ticket};
pub use self::lifecycle::{Drain, Drained};

use self::shared::LOCK_BATCH;
pub(crate) use self::shared::Shared;
use crate::clock::Clock;
use crate::sync::{Arc, drop_quietly};

/// The requirements for the type of keys: values can be hashed, compared, cloned and sent.
///
/// The trait is implemented for every type that meets them. Each delivery clones the key once. If a
/// clone is expensive, use a type such as `Arc<str>`.
///
/// The hash of a key must not change while the queue has the key, because the queue would not find
/// the key again. Hashes should rarely be equal, because an operation compares its key with all
/// other keys that have the same hash. If untrusted users choose the keys, replace the default
/// hasher: see [`Builder::hasher`].
pub trait Key: Hash + Eq + Clone + Send + 'static {}

impl<T: Hash + Eq + Clone + Send + 'static> Key for T {}

/// A work queue of keys. A `Queue` is a handle: cloning it is cheap, and all clones share one
/// queue.
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
/// // The key is added again while it is in flight.
/// assert_eq!(queue.add("a"), Added::Dirty);
/// item.succeed();
/// assert_eq!(queue.len(), 2);
/// ```
///
/// # User code
///
/// The queue calls the `eq` and `clone` of a key under its lock. With a [custom
/// order](crate::CustomOrder), it also calls the order, and the `hash` of a key, under its lock. It
/// calls the [limiter](crate::limiter::RateLimiter) under another lock. All other user code runs
/// without a lock: wakers, metrics hooks, functions for groups, the clock, and the `drop` of keys.
///
/// All user code may call any queue. Such calls never deadlock:
///
/// - Code that runs without a lock may make any call, unless code that runs under a lock has called
///   it.
/// - A limiter may call any queue, but while it runs, no other limiter is called on its thread. If
///   a key fails in such a call, it waits for the [longest
///   delay](crate::limiter::RateLimiter::longest_delay) of the limiter that was not called.
///   `forget` and `num_requeues` find no failures.
/// - If code that runs under the lock of a queue calls a queue, the call is refused. Adds then
///   return [`Added::Refused`](crate::Added::Refused), gets and counts find no keys, and an item
///   that is completed stays in flight. The refusal applies to all queues whose keys or order run
///   user code.
///
/// If the `eq` or `clone` of a key panics, the panic reaches the caller, and the queue is
/// unchanged. If a custom order panics, the queue does not call it again, and delivers the keys by
/// age. The queue discards a panic of a limiter, a hook, or the `drop` of a key or waker.
pub struct Queue<K: Key, S = RandomState> {
    pub(crate) shared: Arc<Shared<K>>,
    hasher: Arc<S>,
    group_of: Option<builder::GroupOf<K>>,
}

impl<K: Key> Queue<K> {
    /// Creates a queue with the default settings: see [`Builder`].
    #[must_use]
    pub fn new() -> Self {
        Self::builder().build_valid()
    }

    /// Creates a queue that handles re-adds and failures as client-go does: see
    /// [`Builder::client_go`].
    #[must_use]
    pub fn client_go() -> Self {
        Builder::client_go().build_valid()
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

/// After a panic, the queue is unchanged.
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
                .field("in_flight", &core.in_flight())
                .field("ending", &ending);
        }
        debug.finish_non_exhaustive()
    }
}

impl<K: Key, S: BuildHasher> Queue<K, S> {
    // --- Removing and completing ----------------------------------------------------------------

    /// Cancels the pending runs of `key`, and forgets its failures in the queue and in the limiter.
    /// Returns the states that the key has lost.
    ///
    /// A run in flight continues. [`cancel_running`](Self::cancel_running) cancels it.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::Queue;
    /// use std::time::Duration;
    ///
    /// let queue = Queue::new();
    /// queue.add_after("a", Duration::from_secs(3600));
    /// assert!(queue.cancel(&"a").waiting);
    /// assert!(!queue.cancel(&"a").any());
    /// ```
    pub fn cancel<Q>(&self, key: &Q) -> Cancelled
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.hash_key(key);
        let locked = self.shared.lock_for(Operation::Promote, None);
        let Ok((mut state, now)) = locked else { return Cancelled::default() };
        state.core.promote(now, LOCK_BATCH);
        // The limiter needs a reference to an owned key, which the record contains. If the queue
        // has no record of the key, the limiter has no failures of it.
        let forgets = self.shared.limiter.may_forget();
        let known = if forgets { state.core.look_up(key, hash) } else { None };
        let cancelled = state.core.cancel(key, hash);
        #[cfg(feature = "opentelemetry")]
        self.shared.forget_traces(key, hash);
        let unordered = state.core.drain_order(LOCK_BATCH);
        self.shared.release_lock(state);
        unordered.into_iter().for_each(drop_quietly);
        if let Some(known) = known {
            self.shared.limiter.forget_key(&known.key);
            drop_quietly(known.key);
        }
        let (cancelled, freed) = cancelled.unwrap_or_default();
        drop_quietly(freed);
        cancelled
    }

    /// Forgets the failures of `key`, in the queue and in the limiter.
    ///
    /// This is client-go's `Forget`. [`Item::succeed`] also forgets the failures, and completes the
    /// delivery.
    pub fn forget(&self, key: &K) {
        let hash = self.hash_key(key);
        if self.shared.limiter.may_forget() {
            // The processor loads this memory while the limiter reads its table.
            if let Ok(state) = self.shared.lock() {
                state.core.prefetch(hash);
            }
            self.shared.limiter.forget_key(key);
        }
        let Ok(mut state) = self.shared.lock_to_change() else { return };
        let freed = state.core.forget(key, hash);
        self.shared.release_lock(state);
        drop_quietly(freed);
    }

    /// Returns the number of failures of `key` that the limiter has counted, like client-go's
    /// `NumRequeues`.
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

    /// Completes the delivery of `key` as client-go's `Done` does, if [`Item::into_parts`] has
    /// detached the delivery.
    ///
    /// If the key is not in flight, or its item still exists, returns `false` and changes nothing.
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
        let hash = self.hash_key(key);
        let detached = self.shared.lock().ok().and_then(|state| state.core.detached(key, hash));
        if let Some(ticket) = detached {
            return self.shared.finish_detached(&ticket);
        }
        // Like every operation, this call makes due keys ready, up to the limit of one batch.
        if let Ok((mut state, now)) = self.shared.lock_for(Operation::Promote, None) {
            state.core.promote(now, LOCK_BATCH);
            self.shared.release_lock(state);
        }
        false
    }

    /// Completes the delivery of `ticket` as client-go's `Done` does.
    ///
    /// If the delivery was already completed, or belongs to another queue, returns `false` and
    /// changes nothing.
    pub fn done_ticket(&self, ticket: Ticket) -> bool {
        ticket.queue == self.shared.number && self.shared.finish_detached(&ticket.ticket)
    }

    // --- Parts ----------------------------------------------------------------------------------

    #[inline]
    fn hash_key<Q: Hash + ?Sized>(&self, key: &Q) -> u64 {
        self.hasher.hash_one(key)
    }

    #[inline]
    fn group_of_key(&self, key: &K) -> GroupId {
        self.group_of.as_ref().map_or_else(GroupId::default, |group_of| group_of(key))
    }

    /// Returns the current time of the clock of this queue.
    #[must_use]
    pub fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Returns the name that [`Builder::name`] has set, if any.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.shared.name.as_deref()
    }
}
