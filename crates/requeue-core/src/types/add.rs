//! Adds: their options and their results.

use core::num::NonZero;
use core::time::Duration;

use super::reason::Reason;
use super::time::Time;

/// The re-add policy: the effect of an add on a key that already waits, or that backs off after a
/// failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum ReaddPolicy {
    /// At most one run is pending. An add replaces a delayed add, but no run starts before the
    /// backoff of a failure ends.
    #[default]
    Hold,
    /// At most one run is pending. An add replaces a delayed add, and also a retry. An add therefore ends the backoff.
    Replace,
    /// client-go's behaviour. An add runs the key now and leaves its delayed add alone, so that
    /// both runs happen. A key that fails while it is dirty runs immediately, and again after its
    /// backoff.
    KeepBoth,
}

/// The rule that combines a delayed add with the due time that the key already has.
///
/// The rule changes only the due time, and a ready key stays ready. The exception is
/// [`Exactly`](Self::Exactly), which makes a ready key wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Merge {
    /// The earlier due time, like client-go's `AddAfter`.
    #[default]
    Earliest,
    /// The later due time.
    Latest,
    /// The due time of this add. The effect is that of `cancel` and the add in one step.
    Exactly,
}

/// The time at which an added key becomes ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum When {
    /// Immediately.
    #[default]
    Now,
    /// After a delay, counted from the `now` of the add. A delay of zero is `Now`.
    After(Duration),
    /// At a time. A time that has passed is `Now`.
    At(Time),
}

/// An add with its options.
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
    /// The longest wait of a debounced add, in nanoseconds. The quiet time is in `when`. A variant of `When` with both
    /// times would make every add eight bytes larger.
    pub(crate) at_most: Option<NonZero<u64>>,
}

impl Add {
    /// Creates an add that is due now, with priority 0.
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

    /// Creates an add that is due after `delay`. A delay saturates at about 584 years.
    pub const fn after(delay: Duration) -> Self {
        Self { when: When::After(delay), ..Self::now() }
    }

    /// Creates an add that is due at `time`, by the clock of the queue.
    pub const fn at(time: Time) -> Self {
        Self { when: When::At(time), ..Self::now() }
    }

    /// Creates an add that is due when no debounced add of the key has come for the duration
    /// `quiet`. Each debounced add postpones the pending run.
    ///
    /// [`at_most`](Self::at_most) bounds the wait. Without it, a key that is added repeatedly never
    /// runs. If the key already has another delayed add, such as an hourly run, the key is due no
    /// later than that add. If the key is ready or dirty, the add is part of that run. With a quiet
    /// time of zero, the add is due now.
    ///
    /// Debounced adds have a separate rule for due times, so [`Merge::Exactly`] is the only [merge](Self::merge) that
    /// affects them. Debounced adds do not count as retries.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_core as requeue;
    /// use core::time::Duration;
    /// use requeue::Add;
    ///
    /// // 300 ms after the last change, and 3 s after the first at the latest.
    /// let add = Add::debounce(Duration::from_millis(300)).at_most(Duration::from_secs(3));
    /// assert_ne!(add, Add::after(Duration::from_millis(300)));
    /// ```
    pub const fn debounce(quiet: Duration) -> Self {
        Self { at_most: Some(NonZero::<u64>::MAX), ..Self::after(quiet) }
    }

    /// Bounds the wait of a [debounced](Self::debounce) add: the run is due at most `max` after its
    /// first add. A `max` that is shorter than the quiet time counts as the quiet time.
    ///
    /// If the adds of one run have different bounds, the earliest bound counts. `at_most` has no
    /// effect on an add that is not debounced.
    pub const fn at_most(self, max: Duration) -> Self {
        if self.at_most.is_none() {
            return self;
        }
        // Zero means that the add is not debounced. A bound of 1 ns has the effect of zero.
        let nanos = match max.as_nanos() {
            0 => 1,
            nanos if nanos > u64::MAX as u128 => u64::MAX,
            nanos => nanos as u64,
        };
        Self { at_most: NonZero::new(nanos), ..self }
    }

    /// Sets the rule that combines this due time with the due time that the key already has. The
    /// default is [`Merge::Earliest`].
    pub const fn merge(self, merge: Merge) -> Self {
        Self { merge, ..self }
    }

    /// Sets the priority. The default is 0. The run has the highest priority of its adds.
    pub const fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Sets bits that the run sees. A run sees the bits of all its adds, or-ed.
    pub const fn flags(self, bits: u32) -> Self {
        Self { flags: self.flags | bits, ..self }
    }

    /// Sets the reason: why the key needs a run. A run lists the reasons of its adds.
    ///
    /// The crate `requeue` makes reasons from short texts.
    pub const fn reason(self, reason: Reason) -> Self {
        Self { reason: Some(reason), ..self }
    }

    /// Marks this add as the retry of a failure, and counts the failure (client-go's
    /// `AddRateLimited`).
    // Users call `Queue::add_rate_limited` of `requeue`, which takes the delay from the limiter.
    #[doc(hidden)]
    pub const fn failed(self) -> Self {
        Self { failed: true, ..self }
    }

    /// Returns the due time, or `None` for now.
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        let due = match self.when {
            When::Now => return None,
            When::After(delay) => now + delay,
            When::At(time) => time,
        };
        // A time that has come counts as now, so no timer is set for it.
        (due > now).then_some(due)
    }

    /// Returns the latest due time of a run that begins to wait with this add, if the add is debounced.
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

    /// Returns true if the add asks for a run later than now. Such an add needs a clock.
    // The four getters are for `requeue` and for tests. A user knows the options of each add, so
    // the getters are hidden.
    #[doc(hidden)]
    #[must_use]
    pub const fn is_delayed(&self) -> bool {
        !matches!(self.when, When::Now | When::After(Duration::ZERO))
    }

    /// Returns true if the add counts as a retry (`workqueue_retries_total`).
    ///
    /// Every delayed add counts, even with a delay of zero. A debounced add does not count.
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

    /// Returns the rule that [`merge`](Self::merge) sets.
    #[doc(hidden)]
    #[must_use]
    pub const fn merging(&self) -> Merge {
        self.merge
    }
}

/// The result of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Added {
    /// The key has become ready, perhaps before its due time (see [`ReaddPolicy`]), or has begun to wait.
    New,
    /// The add has become part of the pending run.
    Coalesced,
    /// The key is in flight. The key is delivered once more after its completion.
    Dirty,
    /// The key is backing off after a failure, and runs when the backoff ends ([`ReaddPolicy::Hold`]).
    BackingOff,
    /// The queue has been closed or shut down.
    Refused,
    /// The key was parked. The key is ready again or waits for its delay, and its failures are reset. Only stores give
    /// this answer.
    Revived,
    /// The key is parked, and stays parked. Only stores give this answer.
    Parked,
}

impl Added {
    /// Returns true if the queue accepted the add.
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        !matches!(self, Self::Refused)
    }
}

/// The states that a `cancel` removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Cancelled {
    /// True if the key was ready.
    pub ready: bool,
    /// True if the key was dirty: added again while in flight.
    pub dirty: bool,
    /// True if the key was waiting.
    pub waiting: bool,
}

impl Cancelled {
    /// Returns true if any state was removed.
    #[must_use]
    pub const fn any(self) -> bool {
        self.ready || self.dirty || self.waiting
    }
}
