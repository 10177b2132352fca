//! Adds: their options and their answers.

use std::time::Duration;

pub use requeue::{Added, Merge, ReaddPolicy};

/// The effect of an add on a parked key.
///
/// This effect is a setting of the queue for all processes. The first process that opens the queue chooses it.
///
/// # Examples
///
/// ```
/// # use requeue_store::Store;
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// # let store = Store::connect(&url).await?;
/// # store.migrate().await?;
/// use requeue_store::{Add, Added, ParkedAdd};
///
/// let queue = store.queue("mail").parked_add(ParkedAdd::Keep).open().await?;
/// queue.add("alice").await?;
/// let item = queue.get().await.expect("the queue is open");
/// item.give_up("there is no such address").await?;
///
/// assert_eq!(queue.add("alice").await?, Added::Parked);
/// assert_eq!(queue.add_with("alice", Add::now().revive()).await?, Added::Revived);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub enum ParkedAdd {
    /// Revives the key: it runs again, and its failures are reset.
    #[default]
    Revive,
    /// Leaves the key parked, and answers [`Added::Parked`]. [`Add::revive`] revives the key.
    Keep,
}

/// The priority of a key. Ready keys with a higher priority are delivered first.
///
/// Within one priority, the keys that have been ready longest are first. See
/// [`OpenOptions::oldest_every`](crate::OpenOptions::oldest_every) for the exception that keeps low
/// priorities from starving.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// Delivered after all other keys.
    Low,
    /// Delivered after `High` and before `Low`.
    #[default]
    Normal,
    /// Delivered before all other keys.
    High,
}

impl Priority {
    pub(crate) const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// Returns -1, 0 or 1, as the engines store it.
    pub(crate) const fn number(self) -> i8 {
        match self {
            Self::Low => -1,
            Self::Normal => 0,
            Self::High => 1,
        }
    }
}

/// Converts a number below 0 to `Low`, 0 to `Normal`, and a number above 0 to `High`.
///
/// # Examples
///
/// ```
/// use requeue_store::Priority;
///
/// let priorities = [-7, 0, 1].map(Priority::from);
/// assert_eq!(priorities, [Priority::Low, Priority::Normal, Priority::High]);
/// assert_eq!(priorities.map(i32::from), [-1, 0, 1]);
/// ```
impl From<i32> for Priority {
    fn from(number: i32) -> Self {
        match number {
            ..0 => Self::Low,
            0 => Self::Normal,
            1.. => Self::High,
        }
    }
}

/// Returns -1, 0 or 1, which a queue in memory also accepts as a priority.
impl From<Priority> for i32 {
    fn from(priority: Priority) -> Self {
        priority.number().into()
    }
}

/// The options of an add: its delay or debouncing, merge rule, priority and flags.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use requeue_store::{Add, Merge, Priority};
///
/// let add = Add::after(Duration::from_secs(3)).merge(Merge::Latest).priority(Priority::High);
/// assert_ne!(add, Add::now());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[must_use = "an add does nothing until it is given to a queue"]
pub struct Add {
    pub(crate) after: Duration,
    pub(crate) merge: Merge,
    pub(crate) priority: Priority,
    pub(crate) flags: u32,
    pub(crate) revives: bool,
    /// The longest wait of a debounced add, whose quiet time is `after`.
    at_most: Option<Duration>,
}

impl Add {
    /// Creates an add that makes its key ready immediately, with normal priority.
    pub const fn now() -> Self {
        Self::after(Duration::ZERO)
    }

    /// Creates an add that makes its key ready after `delay`, with normal priority. The delay is
    /// measured by the engine's clock, and rounded up to a microsecond.
    pub const fn after(delay: Duration) -> Self {
        let (merge, priority) = (Merge::Earliest, Priority::Normal);
        Self { after: delay, merge, priority, flags: 0, revives: false, at_most: None }
    }

    /// Creates an add that is due when no debounced add of the key has arrived for the time `quiet`. Each debounced add
    /// postpones the pending run.
    ///
    /// [`at_most`](Self::at_most) bounds the wait. Without a bound, a key that is added again and again never runs. If
    /// the key already has another delayed add, it is due no later than that add. If the key is ready or dirty, the add
    /// is part of that run. If the key is in flight, its next run is debounced. A quiet time of zero means now.
    ///
    /// Debounced adds combine due times by this separate rule. [`Merge::Exactly`] is the only [merge](Self::merge) that
    /// affects them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// use std::time::Duration;
    /// use requeue_store::{Add, Added};
    ///
    /// let queue = store.queue("builds").open().await?;
    /// // 300 ms after the last change, and 3 s after the first at the latest.
    /// let add = Add::debounce(Duration::from_millis(300)).at_most(Duration::from_secs(3));
    /// assert_eq!(queue.add_with("main", add).await?, Added::New);
    /// assert_eq!(queue.add_with("main", add).await?, Added::Coalesced);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn debounce(quiet: Duration) -> Self {
        Self { at_most: Some(Duration::MAX), ..Self::after(quiet) }
    }

    /// Limits the wait of a [debounced](Self::debounce) add, so that the run is due at most `max` after its first add.
    /// A `max` that is shorter than the quiet time counts as the quiet time.
    ///
    /// If the adds of one run have different bounds, the earliest bound counts. An add that is not debounced
    /// has no bound, and `at_most` has no effect on it.
    pub const fn at_most(self, max: Duration) -> Self {
        let at_most = if self.at_most.is_some() { Some(max) } else { None };
        Self { at_most, ..self }
    }

    /// Returns the longest wait, if the add is debounced.
    pub(crate) fn longest_wait(&self) -> Option<Duration> {
        self.at_most.filter(|_| !self.after.is_zero()).map(|most| most.max(self.after))
    }

    /// Sets the rule that combines the due time of this add with the due time that the key already has. The default is
    /// [`Merge::Earliest`].
    pub const fn merge(self, merge: Merge) -> Self {
        Self { merge, ..self }
    }

    /// Sets the priority. The default is [`Priority::Normal`]. If several adds are coalesced, the
    /// highest priority counts.
    pub const fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Adds bits that say why the key needs a run. If several adds are coalesced, the run sees the
    /// bitwise or of their flags.
    pub const fn flags(self, bits: u32) -> Self {
        Self { flags: self.flags | bits, ..self }
    }

    /// Makes the add revive a parked key even in a queue that [keeps](ParkedAdd::Keep) parked keys.
    pub const fn revive(self) -> Self {
        Self { revives: true, ..self }
    }
}

/// Returns the answer to a repetition of the add.
pub(crate) const fn repeat_answer(added: Added) -> Added {
    match added {
        Added::New | Added::Dirty | Added::Revived => Added::Coalesced,
        other => other,
    }
}
