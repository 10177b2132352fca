//! Adds, their options and their results.

use core::num::NonZero;
use core::time::Duration;

use super::reason::Reason;
use super::time::Time;

/// The effect of an add on a key that already waits for a due time, or that backs off after a
/// failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum ReaddPolicy {
    /// At most one run is pending. An add replaces a delayed add. No run starts before the backoff
    /// of a failure has ended.
    #[default]
    Hold,
    /// At most one run is pending. An add replaces a delayed add and a retry, so it also ends the
    /// backoff.
    Replace,
    /// The behaviour of client-go. An add runs the key now, and does not change its delayed add, so
    /// both runs happen. If a key fails while it is dirty, it runs immediately, and again after its
    /// backoff.
    KeepBoth,
}

/// The rule that combines the due time of a delayed add with the due time that the key already has.
///
/// The rule changes only the due time. A ready key stays ready, except with
/// [`Exactly`](Self::Exactly), which makes the key wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Merge {
    /// The earlier of the two due times, as in client-go's `AddAfter`.
    #[default]
    Earliest,
    /// The later of the two due times.
    Latest,
    /// The due time of the new add. The add has the effect of a `cancel` followed by an add, in one
    /// step.
    Exactly,
}

/// The time at which an add makes its key ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum When {
    /// Immediately.
    #[default]
    Now,
    /// After a delay that begins at the parameter `now` of the add. A delay of zero has the effect
    /// of `Now`.
    After(Duration),
    /// At a given time. A time that has passed has the effect of `Now`.
    At(Time),
}

/// A request to run a key, with its options: when, at which priority, with which flags and for
/// which reason.
///
/// # Examples
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::{Add, Merge};
///
/// let add = Add::after(Duration::from_secs(3)).merge(Merge::Latest).priority(10).flags(0b1);
/// assert_eq!(add, Add::after(Duration::from_secs(3)).flags(0b1).priority(10).merge(Merge::Latest));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[must_use = "an add does nothing until it is given to a queue"]
pub struct Add {
    pub(crate) when: When,
    pub(crate) merge: Merge,
    pub(crate) priority: i32,
    pub(crate) flags: u32,
    pub(crate) reason: Option<Reason>,
    pub(crate) failed: bool,
    /// For a debounced add: the longest wait, in nanoseconds. Its quiet time is in `when`. A
    /// variant of `When` with both times would make every add eight bytes larger.
    pub(crate) at_most: Option<NonZero<u64>>,
}

impl Add {
    /// Creates an add that requests an immediate run, with priority 0.
    pub const fn now() -> Self {
        Self {
            when: When::Now,
            merge: Merge::Earliest,
            priority: 0,
            flags: 0,
            reason: None,
            failed: false,
            at_most: None,
        }
    }

    /// Creates an add whose run is due after `delay`. A longer delay than about 584 years is
    /// shortened to this length.
    pub const fn after(delay: Duration) -> Self {
        Self { when: When::After(delay), ..Self::now() }
    }

    /// Creates an add whose run is due at `time`, by the clock of the queue.
    pub const fn at(time: Time) -> Self {
        Self { when: When::At(time), ..Self::now() }
    }

    /// Creates a debounced add. Its run is due when no further debounced add of the key has come
    /// for the duration `quiet`. Each debounced add postpones the pending run.
    ///
    /// [`at_most`](Self::at_most) limits the wait. Without this limit, a key that is constantly
    /// added never runs. If the key already has another delayed add, such as an hourly run, the run
    /// is due at the time of that add at the latest. If the key is ready or dirty, the add becomes
    /// part of that run. If `quiet` is zero, the run is due immediately.
    ///
    /// The only [merge](Self::merge) rule that affects a debounced add is [`Merge::Exactly`]. A
    /// debounced add does not count as a retry.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::Add;
    ///
    /// // The run is due 300 ms after the last change, and at most 3 s after the first change.
    /// let add = Add::debounce(Duration::from_millis(300)).at_most(Duration::from_secs(3));
    /// assert_ne!(add, Add::after(Duration::from_millis(300)));
    /// ```
    pub const fn debounce(quiet: Duration) -> Self {
        Self { at_most: Some(NonZero::<u64>::MAX), ..Self::after(quiet) }
    }

    /// Limits the wait of a [debounced](Self::debounce) add: the run is due at most `max` after its
    /// first add. If `max` is shorter than the quiet time, the limit is the quiet time.
    ///
    /// If the adds of one run have different limits, the earliest resulting time is used. On an add
    /// that is not debounced, `at_most` has no effect.
    pub const fn at_most(self, max: Duration) -> Self {
        if self.at_most.is_none() {
            return self;
        }
        // In this field, zero would mean that the add is not debounced. A limit of 1 ns has the
        // same effect as a limit of zero.
        let nanos = match max.as_nanos() {
            0 => 1,
            nanos if nanos > u64::MAX as u128 => u64::MAX,
            nanos => nanos as u64,
        };
        Self { at_most: NonZero::new(nanos), ..self }
    }

    /// Sets the rule that combines the due time of this add with the due time that the key already
    /// has. The default is [`Merge::Earliest`].
    pub const fn merge(self, merge: Merge) -> Self {
        Self { merge, ..self }
    }

    /// Sets the priority of the add. The default is 0. The priority of a run is the highest
    /// priority of its adds.
    pub const fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Sets bits that are passed to the run. A run gets the bits of all its adds, or-ed.
    pub const fn flags(self, bits: u32) -> Self {
        Self { flags: self.flags | bits, ..self }
    }

    /// Sets the reason why the key needs a run. The run has a list of the reasons of its adds.
    ///
    /// The crate `requeue` creates reasons from short texts.
    pub const fn reason(self, reason: Reason) -> Self {
        Self { reason: Some(reason), ..self }
    }

    /// Marks this add as the retry of a failed run, so that the queue counts a failure (client-go's
    /// `AddRateLimited`).
    // This method is hidden: users call `Queue::add_rate_limited` of `requeue`, which takes the
    // delay from the limiter.
    #[doc(hidden)]
    pub const fn failed(self) -> Self {
        Self { failed: true, ..self }
    }

    /// Returns the due time, or `None` if the run is due at `now` or earlier.
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        let due = match self.when {
            When::Now => return None,
            When::After(delay) => now + delay,
            When::At(time) => time,
        };
        // A time that has come is treated as an immediate add, so that no timer is set for it.
        (due > now).then_some(due)
    }

    /// For a debounced add, returns the latest due time of a run that begins to wait with this add.
    pub(crate) fn bound(&self, now: Time) -> Option<Time> {
        match (self.at_most, self.when) {
            (Some(at_most), When::After(quiet)) if !quiet.is_zero() => {
                Some(now + quiet.max(Duration::from_nanos(at_most.get())))
            }
            _ => None,
        }
    }

    #[inline(always)]
    pub(crate) const fn is_debounced(&self) -> bool {
        self.at_most.is_some()
    }

    /// Returns true if the add requests a run later than now. Such an add needs the time of a
    /// clock.
    // The four getters are hidden. They are for `requeue` and for tests: users know the options
    // that they set.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_delayed(&self) -> bool {
        !matches!(self.when, When::Now | When::After(Duration::ZERO))
    }

    /// Returns true if the add is counted as a retry (`workqueue_retries_total`).
    ///
    /// Every delayed add is a retry, even with a delay of zero. A debounced add is not.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_retry(&self) -> bool {
        !matches!(self.when, When::Now) && !self.is_debounced()
    }

    /// Returns true if the add has a [reason](Self::reason).
    #[doc(hidden)]
    #[must_use]
    pub const fn has_reason(&self) -> bool {
        self.reason.is_some()
    }

    /// Returns the rule that was set with [`merge`](Self::merge).
    #[doc(hidden)]
    #[must_use]
    pub const fn merging(&self) -> Merge {
        self.merge
    }
}

/// The effect of an add on its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Added {
    /// The key was not pending. It has become ready, or has begun to wait.
    New,
    /// The add has become part of the pending run.
    Coalesced,
    /// The key is in flight, and will be delivered once more after its completion.
    Dirty,
    /// The key is backing off after a failure, and runs when its backoff ends
    /// ([`ReaddPolicy::Hold`]).
    BackingOff,
    /// The queue refused the add, because it is closed or shut down.
    Refused,
    /// The key was parked. It is now ready or waits for its delay, and its failures are forgotten.
    /// Only stores return this value.
    Revived,
    /// The key was parked, and stays parked. Only stores return this value.
    Parked,
}

impl Added {
    /// Returns true if the queue accepted the add.
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        !matches!(self, Self::Refused)
    }
}

/// The states that a key lost by a `cancel`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Cancelled {
    /// True if the key was ready.
    pub ready: bool,
    /// True if the key was dirty: it was in flight, and had been added again.
    pub dirty: bool,
    /// True if the key was waiting.
    pub waiting: bool,
}

impl Cancelled {
    /// Returns true if the key lost at least one state, so a pending run was cancelled.
    #[must_use]
    pub const fn any(self) -> bool {
        self.ready || self.dirty || self.waiting
    }
}
