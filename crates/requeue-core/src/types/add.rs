//! What can be asked of the queue, and what it answers.

use core::num::NonZero;
use core::time::Duration;

use super::time::Time;

/// The re-add policy: the effect of an add on a key that already waits, or that backs off after a
/// failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum ReAdd {
    /// At most one run is pending. An add takes the place of a delayed one, but no run starts before
    /// the backoff of a failure is over.
    #[default]
    Hold,
    /// At most one run is pending. An add takes the place of a delayed one and of a retry, so it ends
    /// the backoff.
    Replace,
    /// client-go's behaviour. An add runs the key now and leaves its delayed add alone, so that both
    /// runs happen. A key that fails while it is dirty runs at once, and again after its backoff.
    KeepBoth,
}

/// How a delayed add combines with the due time that the key already has. It changes the due time and
/// nothing else: only [`Exactly`](Self::Exactly) makes a ready key wait instead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Merge {
    /// The earlier of the two, as client-go's `AddAfter`.
    #[default]
    Earliest,
    /// The later of the two.
    Latest,
    /// The time of this add: `cancel` and the add, in one step.
    Exactly,
}

/// When an added key becomes ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum When {
    /// At once.
    #[default]
    Now,
    /// After a delay, counted from the `now` of the add. A delay of zero is `Now`.
    After(Duration),
    /// At a time. One that has passed is `Now`.
    At(Time),
}

/// An add with all that can be asked of it.
///
/// ```
/// # use requeue_core as requeue;
/// use core::time::Duration;
/// use requeue::{Add, Merge};
///
/// let add = Add::after(Duration::from_secs(3)).merge(Merge::Latest).priority(10).reason(0b1);
/// assert_eq!(add, Add::after(Duration::from_secs(3)).reason(0b1).priority(10).merge(Merge::Latest));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[must_use = "an add does nothing until it is given to a queue"]
pub struct Add {
    pub(crate) when: When,
    pub(crate) merge: Merge,
    pub(crate) priority: i32,
    pub(crate) reasons: u32,
    pub(crate) failed: bool,
    /// The longest wait of a debounced add, in nanoseconds. Its quiet time is `when`. A variant of
    /// `When` with both times would make every add larger by another eight bytes.
    at_most: Option<NonZero<u64>>,
}

impl Add {
    /// Now, with priority 0.
    pub const fn now() -> Self {
        Self {
            when: When::Now,
            merge: Merge::Earliest,
            priority: 0,
            reasons: 0,
            failed: false,
            at_most: None,
        }
    }

    /// After `delay`.
    pub const fn after(delay: Duration) -> Self {
        Self { when: When::After(delay), ..Self::now() }
    }

    /// At `time`, by the clock of the queue.
    pub const fn at(time: Time) -> Self {
        Self { when: When::At(time), ..Self::now() }
    }

    /// After `quiet` without another debounced add of the key: each one postpones the pending run.
    ///
    /// [`at_most`](Self::at_most) bounds the wait. Without it, a key that is added again and again
    /// never runs. The key also waits no longer than for another delayed add that it already has, such
    /// as an hourly run. If the key is ready, or dirty, the add is part of that run. A quiet time of zero
    /// is now.
    ///
    /// A debounced add has a rule of its own to combine due times: [`Merge::Exactly`] is the only
    /// [merge](Self::merge) that has an effect on it. It does not count as a retry.
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
    /// assert!(add.is_delayed() && !add.is_retry());
    /// ```
    pub const fn debounce(quiet: Duration) -> Self {
        Self { at_most: Some(NonZero::<u64>::MAX), ..Self::after(quiet) }
    }

    /// Bounds the wait of a [debounced](Self::debounce) add: the run is due at most `max` after the
    /// first of its adds. A bound that is shorter than the quiet time counts as the quiet time.
    ///
    /// If the adds of one run have different bounds, the earliest counts. Any other add has no bound,
    /// and this has no effect on it.
    pub const fn at_most(self, max: Duration) -> Self {
        if self.at_most.is_none() {
            return self;
        }
        let nanos = max.as_nanos();
        let nanos = if nanos > u64::MAX as u128 { u64::MAX } else { nanos as u64 };
        let at_most = match NonZero::new(nanos) {
            None => Some(NonZero::<u64>::MIN),
            some => some,
        };
        Self { at_most, ..self }
    }

    /// How this add and a delay the key already has become one; [`Merge::Earliest`] unless said.
    pub const fn merge(self, merge: Merge) -> Self {
        Self { merge, ..self }
    }

    /// The priority; 0 unless said. Of several adds the highest wins.
    pub const fn priority(self, priority: i32) -> Self {
        Self { priority, ..self }
    }

    /// Bits that say why, for the run to see. Those of several adds are or-ed.
    pub const fn reason(self, bits: u32) -> Self {
        Self { reasons: self.reasons | bits, ..self }
    }

    /// This add is the retry of a failure, which is counted (client-go's `AddRateLimited`).
    pub const fn failed(self) -> Self {
        Self { failed: true, ..self }
    }

    /// The time it asks for, or `None` for now.
    pub(crate) fn due(&self, now: Time) -> Option<Time> {
        let due = match self.when {
            When::Now => return None,
            When::After(delay) => now + delay,
            When::At(time) => time,
        };
        (due > now).then_some(due)
    }

    /// The latest due time of a run that begins to wait with this add, if the add is debounced.
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

    /// Whether the add asks for a run later than now, so that a clock must be read for it.
    #[must_use]
    pub const fn is_delayed(&self) -> bool {
        !matches!(self.when, When::Now | When::After(Duration::ZERO))
    }

    /// Whether the add counts as a retry (`workqueue_retries_total`): every delayed add does, of
    /// any delay, zero included. A debounced add does not.
    #[must_use]
    pub const fn is_retry(&self) -> bool {
        !matches!(self.when, When::Now) && !self.is_debounced()
    }

    /// What [`merge`](Self::merge) was set to.
    #[must_use]
    pub const fn merging(&self) -> Merge {
        self.merge
    }
}

/// What became of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Added {
    /// The key has become ready (perhaps sooner than it was to, see [`ReAdd`]), or has begun to
    /// wait for its time.
    New,
    /// A run was pending already; the add has become part of it.
    Coalesced,
    /// The key is with a worker; it is handed out once more afterwards.
    Dirty,
    /// The key has failed and is backing off ([`ReAdd::Hold`]): it runs when that has passed.
    Held,
    /// The queue has been closed or shut down.
    Refused,
}

impl Added {
    /// Whether the queue took the add.
    #[must_use]
    pub const fn is_accepted(self) -> bool {
        !matches!(self, Self::Refused)
    }
}

/// What a `cancel` took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Cancelled {
    /// The key was ready.
    pub ready: bool,
    /// The key had been added again while with a worker.
    pub dirty: bool,
    /// The key had a delayed add.
    pub waiting: bool,
}

impl Cancelled {
    /// Whether anything was taken.
    #[must_use]
    pub const fn any(self) -> bool {
        self.ready || self.dirty || self.waiting
    }
}
