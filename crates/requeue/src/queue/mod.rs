//! The queue, shared by threads and tasks.
//!
//! All handles refer to one [`Shared`] value, whose lock guards the state machine of
//! `requeue-core`. User code runs without that lock. The docs of [`Queue`] list the exceptions.

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

/// A type of keys: its values can be hashed, compared, cloned and sent.
///
/// The trait is implemented for every such type. Each delivery clones its key one time, so use a type such as
/// `Arc<str>` if a clone is expensive.
///
/// The hash of a key must not change while the queue has the key, because the queue would treat it
/// as another key. Good hashes matter, because an operation compares its key with all other keys
/// that have the same hash. If untrusted users choose the keys, the default hasher is not safe: see
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
/// The queue calls a key's `eq` and `clone` under its lock. With a [custom order](crate::CustomOrder), it also calls
/// the order and a key's `hash` under its lock. The queue calls the [limiter](crate::limiter::RateLimiter) under a
/// separate lock. All other user code runs without a lock: wakers, metrics hooks, group functions, the clock, and the
/// drop of keys.
///
/// All user code may call any queue. Such calls never deadlock:
///
/// - Code that runs without a lock may make any call, unless code that runs under a lock has called it.
/// - A limiter may use any queue. While it runs, its thread calls no other limiter. A key that fails then waits for the
///   [longest delay](crate::limiter::RateLimiter::longest_delay) of the limiter that was not called, and `forget` and
///   `num_requeues` find no failures.
/// - Calls from code that runs under a queue's lock are refused: adds return [`Added::Refused`](crate::Added::Refused),
///   gets and counts find no keys, and an item that is completed in such a call stays in flight. The refusal applies to
///   all queues whose keys or order run user code.
///
/// If a key's `eq` or `clone` panics, the panic reaches the caller and the queue is unchanged.
/// After a custom order has panicked, the queue delivers keys by age, and does not call the order
/// again. The queue discards a panic of a limiter, a hook, or the drop of a key or waker.
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

    /// Creates a queue that treats re-adds and failures as client-go does: see
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
                .field("in_flight", &core.in_flight())
                .field("ending", &ending);
        }
        debug.finish_non_exhaustive()
    }
}

impl<K: Key, S: BuildHasher> Queue<K, S> {
    // --- Removing and completing ----------------------------------------------------------------

    /// Cancels the pending runs of `key`, clears its failures in the queue and in the limiter, and returns the
    /// cancelled states.
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
        // The limiter needs a reference to an owned key, which the record contains. If the key has no record, the
        // limiter has no failures of this key to forget.
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

    /// Clears the failures of `key`, in its record and in the limiter.
    ///
    /// This is client-go's `Forget`. [`Item::succeed`] also clears the failures, and completes the
    /// delivery.
    pub fn forget(&self, key: &K) {
        let hash = self.hash_key(key);
        if self.shared.limiter.may_forget() {
            // The memory is fetched while the limiter reads its own table.
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
        let hash = self.hash_key(key);
        let detached = self.shared.lock().ok().and_then(|state| state.core.detached(key, hash));
        if let Some(ticket) = detached {
            return self.shared.finish_detached(&ticket);
        }
        // Like every operation, this call makes due keys ready, up to the limit for one hold of the lock.
        if let Ok((mut state, now)) = self.shared.lock_for(Operation::Promote, None) {
            state.core.promote(now, LOCK_BATCH);
            self.shared.release_lock(state);
        }
        false
    }

    /// Completes the delivery of `ticket` as client-go's `Done` does.
    ///
    /// Returns `false`, and has no effect, if the delivery was completed before or belongs to
    /// another queue.
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
}
