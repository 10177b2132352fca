//! The adds of keys: one key, or many keys under one acquisition of the lock.

use std::borrow::Borrow;
use std::hash::{BuildHasher, Hash};
use std::time::Duration;
use std::vec::IntoIter;

use requeue_core::{Add, Added, GroupId, Operation, Time};

use super::Queue;
use super::shared::{LOCK_BATCH, Shared, State};
use crate::Key;
use crate::ranked_mutex::RankedGuard;
use crate::sync::{Arc, drop_quietly};

/// The number of keys by which prefetching is ahead of the adds. A processor can wait for about
/// this number of memory reads at the same time.
const AHEAD: usize = 8;

impl<K: Key, S: BuildHasher> Queue<K, S> {
    /// Adds `key`. However often the key is added before its delivery, it is delivered once.
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
        let hash = self.hash_key(&key);
        self.add_at(key, hash, Add::now(), None, None)
    }

    /// Adds `key`. Converts it to an owned key only if the queue has no record of it.
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

    /// Adds `key` with the options of an [`Add`]. Calls `own` to create an owned key if the queue
    /// has no record of the key.
    ///
    /// This is [`add_ref`](Self::add_ref) for keys without `ToOwned`, such as `Arc<str>`.
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
        #[cfg(feature = "opentelemetry")]
        let has_context = self.shared.current_origin().is_some();
        #[cfg(not(feature = "opentelemetry"))]
        let has_context = false;
        if add.is_delayed() || add.merging() == requeue_core::Merge::Exactly || has_context {
            return self.add_with(own(key), add);
        }
        let hash = self.hash_key(key);
        if add.has_reason() {
            self.shared.expect_reasons();
        }
        let locked = self.shared.lock_for(Operation::Add(&add), None);
        let Ok((mut state, now)) = locked else { return Added::Refused };
        // `own` is user code, so it must not run under the lock.
        let known = state.core.add_known(key, hash, &add, now);
        self.shared.release_lock(state);
        // Another thread may have added the key in the meantime. This add then becomes part of the
        // same run.
        known.unwrap_or_else(|| self.add_with(own(key), add))
    }

    /// Adds `key` after `delay`. If the delay is zero, the run is due now.
    ///
    /// This is client-go's `AddAfter`. It never blocks. A delay of more than about 584 years is
    /// shortened to this length. With a delay of [`Duration::MAX`], the key is never due.
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

    /// Counts a failure of `key`, and adds the key after the delay that the limiter computes.
    ///
    /// This is client-go's `AddRateLimited`, for callers that do not have the [`Item`](crate::Item)
    /// of the key. [`Item::retry`](crate::Item::retry) counts a failure in the same way, and also
    /// completes the delivery. Under [`ReaddPolicy::Hold`](crate::ReaddPolicy::Hold), the default,
    /// every pending run of the key then waits for this delay, even if the key is still in flight.
    pub fn add_rate_limited(&self, key: K) -> Added {
        // The queue is asked first. Otherwise, the limiter would store a key that the queue
        // refuses.
        let hash = self.hash_key(&key);
        {
            let Ok(state) = self.shared.lock() else { return Added::Refused };
            if state.core.refuses(&key, hash) {
                drop(state);
                return self.shared.record_refusal(hash);
            }
            // The processor loads this memory while the limiter reads its table.
            state.core.prefetch(hash);
        }
        let now = self.shared.clock.now();
        let delay = self.shared.limiter.next_delay(&key, now);
        // The queue gets the same time as the limiter, so that both compute the same due time.
        self.add_at(key, hash, Add::after(delay).failed(), None, Some(now))
    }

    /// Adds `key` with the options of an [`Add`]: delay, debounce, merge rule, priority, flags and
    /// reason.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Add, Queue};
    /// use std::time::Duration;
    ///
    /// let queue = Queue::new();
    /// queue.add_with("urgent", Add::now().priority(10).flags(0b10));
    /// // The run is due 300 ms after the last of its adds, and at most 3 s after the first.
    /// let debounced = Add::debounce(Duration::from_millis(300)).at_most(Duration::from_secs(3));
    /// queue.add_with("typing", debounced);
    /// assert_eq!(queue.try_get().unwrap().flags(), 0b10);
    /// ```
    pub fn add_with(&self, key: K, add: Add) -> Added {
        let hash = self.hash_key(&key);
        self.add_at(key, hash, add, None, None)
    }

    /// Adds `key`, and stores the cause of the add, such as the object of an event.
    ///
    /// The run has a list of the [reasons](crate::Item::reasons) of its adds, with the first and
    /// the last cause of each reason. If the add has no [reason](Add::reason), its reason is the
    /// [caller's location](crate::caller_reason). A cause is cut after 320 bytes.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue::{Add, Queue, describe_reasons, intern_reason};
    ///
    /// let queue = Queue::new();
    /// let changed = Add::now().reason(intern_reason("ConfigMap applied"));
    /// queue.add_caused_by("web", changed, "default/settings");
    /// let item = queue.try_get().unwrap();
    /// assert_eq!(
    ///     describe_reasons(&item.reasons()).to_string(),
    ///     "ConfigMap applied (default/settings)",
    /// );
    /// ```
    #[track_caller]
    pub fn add_caused_by(&self, key: K, add: Add, cause: impl Into<Arc<str>>) -> Added {
        let add = if add.has_reason() { add } else { add.reason(crate::caller_reason()) };
        let hash = self.hash_key(&key);
        self.add_at(key, hash, add, Some(&cause.into()), None)
    }

    #[inline(always)]
    fn add_at(
        &self,
        key: K,
        hash: u64,
        add: Add,
        cause: Option<&Arc<str>>,
        now: Option<Time>,
    ) -> Added {
        #[cfg(feature = "opentelemetry")]
        if let Some(origin) = self.shared.current_origin() {
            let (copy, mut unused) = (key.clone(), None);
            let added = self.add_then(key, hash, add, cause, now, |state, added| {
                unused = self.shared.keep_origin(state, (copy, hash), &add, added, origin);
            });
            drop_quietly(unused);
            return added;
        }
        self.add_then(key, hash, add, cause, now, |_, _| {})
    }

    /// Adds a key, and then calls `then` under the lock.
    #[inline(always)]
    fn add_then(
        &self,
        key: K,
        hash: u64,
        add: Add,
        cause: Option<&Arc<str>>,
        now: Option<Time>,
        then: impl FnOnce(&State<K>, Added),
    ) -> Added {
        let group = self.group_of_key(&key);
        if add.merging() == requeue_core::Merge::Exactly
            && self.shared.lock().is_ok_and(|state| !state.core.refuses(&key, hash))
        {
            self.shared.limiter.forget_key(&key);
            #[cfg(feature = "opentelemetry")]
            self.shared.forget_traces(&key, hash);
        }
        if add.has_reason() {
            self.shared.expect_reasons();
        }
        let locked = self.shared.lock_for(Operation::Add(&add), now);
        let Ok((mut state, now)) = locked else { return Added::Refused };
        let (added, unused) = match add.has_reason() {
            true => state.core.add_caused_by(key, hash, add, cause, group, now),
            false => state.core.add(key, hash, add, group, now),
        };
        then(&state, added);
        self.shared.release_lock(state);
        drop_quietly(unused);
        added
    }

    /// Adds all `keys` in order. Returns the number of adds that the queue has accepted.
    ///
    /// The call acquires the lock once per 256 keys.
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
        #[cfg(feature = "opentelemetry")]
        if self.shared.current_origin().is_some() {
            return keys.map(|key| usize::from(self.add(key).is_accepted())).sum();
        }
        let mut count = 0;
        loop {
            // The iterator, the hasher and the function for groups are user code, so they run
            // without the lock.
            let slice = keys.by_ref().take(LOCK_BATCH).map(|key| {
                let (hash, group) = (self.hash_key(&key), self.group_of_key(&key));
                (key, hash, group)
            });
            let mut batch = BatchAdd::new(&self.shared, slice.collect());
            if batch.keys.len() == 0 {
                return count;
            }
            let Some(accepted) = batch.add_all() else { return count };
            count += accepted;
        }
    }
}

impl<K: Key> Shared<K> {
    /// Records that the queue has refused the retry of a key with this hash.
    #[cold]
    #[inline(never)]
    fn record_refusal(&self, hash: u64) -> Added {
        if let Ok(mut state) = self.lock_to_change() {
            state.core.record_refusal(hash, &Add::after(Duration::ZERO).failed());
        }
        Added::Refused
    }
}

/// A batch of keys that are being added. If the `eq` of a key panics, the drop of the batch
/// releases the lock as after a normal return. Getters are then woken for the keys that were
/// already added. The drop also drops the other keys outside the lock.
struct BatchAdd<'q, K: Key> {
    shared: &'q Shared<K>,
    keys: IntoIter<(K, u64, GroupId)>,
    unused: Vec<K>,
    state: Option<RankedGuard<'q, State<K>>>,
}

impl<'q, K: Key> BatchAdd<'q, K> {
    /// Creates a batch from keys with their hashes and groups.
    fn new(shared: &'q Shared<K>, keys: Vec<(K, u64, GroupId)>) -> Self {
        Self { shared, keys: keys.into_iter(), unused: Vec::new(), state: None }
    }

    /// Adds the keys of the batch. Returns the number of adds that the queue has accepted, or
    /// `None` if the lock could not be acquired.
    fn add_all(&mut self) -> Option<usize> {
        let (state, now) = self.shared.lock_for(Operation::Add(&Add::now()), None).ok()?;
        let core = &mut self.state.insert(state).core;
        let mut count = 0;
        for (_, hash, _) in self.keys.as_slice().iter().take(AHEAD) {
            core.prefetch(*hash);
        }
        while let Some((key, hash, group)) = self.keys.next() {
            if let Some((_, hash, _)) = self.keys.as_slice().get(AHEAD - 1) {
                core.prefetch(*hash);
            }
            let (added, back) = core.add(key, hash, Add::now(), group, now);
            count += usize::from(added.is_accepted());
            if let Some(key) = back
                && std::mem::needs_drop::<K>()
            {
                self.unused.push(key);
            }
        }
        Some(count)
    }
}

impl<K: Key> Drop for BatchAdd<'_, K> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.shared.release_lock(state);
        }
        self.unused.drain(..).for_each(drop_quietly);
        self.keys.by_ref().for_each(|(key, ..)| drop_quietly(key));
    }
}
