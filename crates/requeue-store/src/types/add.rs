//! The options of adds, and the answers to them.

use std::time::Duration;

pub use requeue::{Added, Merge, ReaddPolicy};

/// The effect of an add on a parked key.
///
/// This value is a setting of the queue for all processes. The first process that opens the queue chooses it
/// permanently.
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
    /// Revives the key: the key runs again, and its failures are reset.
    #[default]
    Revive,
    /// Leaves the key parked. The answer is [`Added::Parked`]. [`Add::revive`] revives the key nevertheless.
    Keep,
}

/// The priority of a key. Ready keys with a higher priority are delivered first.
///
/// Among keys of the same priority, the key that has been ready longest is first.
/// [`OpenOptions::oldest_every`](crate::OpenOptions::oldest_every) is an exception: it delivers old keys with a low
/// priority earlier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// The key is delivered after keys with a higher priority.
    Low,
    /// The key is delivered after keys with the priority `High`, and before keys with the priority `Low`.
    #[default]
    Normal,
    /// The key is delivered before keys with a lower priority.
    High,
}

impl Priority {
    pub(crate) const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// Returns -1, 0 or 1, which engines store as the priority.
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

/// Returns -1, 0 or 1. A queue in memory also accepts these numbers as priorities.
impl From<Priority> for i32 {
    fn from(priority: Priority) -> Self {
        priority.number().into()
    }
}

/// The options of an add: its delay or quiet time, merge rule, priority and flags.
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
    /// The longest time for which further debounced adds can postpone the run. `after` is the quiet time.
    at_most: Option<Duration>,
}

impl Add {
    /// Creates an add that makes its key ready immediately, with normal priority.
    pub const fn now() -> Self {
        Self::after(Duration::ZERO)
    }

    /// Creates an add that makes its key ready after `delay`, with normal priority. The engine's clock measures the
    /// delay, which is rounded up to a microsecond.
    pub const fn after(delay: Duration) -> Self {
        let (merge, priority) = (Merge::Earliest, Priority::Normal);
        Self { after: delay, merge, priority, flags: 0, revives: false, at_most: None }
    }

    /// Creates an add that is due when no debounced add of the key has arrived for the time `quiet`. Each debounced add
    /// postpones the pending run.
    ///
    /// [`at_most`](Self::at_most) bounds the wait. Without a bound, a key that is added repeatedly never runs. If the
    /// key already has a delayed add, the run is due no later than that add. If the key is ready or dirty, the add is
    /// coalesced with that run. If the key is in flight, its next run is debounced. With a quiet time of zero, the run
    /// is due now.
    ///
    /// The due times of debounced adds are combined by this rule, not by their [merge](Self::merge) rules. The only
    /// exception is [`Merge::Exactly`].
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
    /// // The run is due 300 ms after the last change, and at most 3 s after the first change.
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

    /// Limits the wait of a [debounced](Self::debounce) add: the run is due at most `max` after its first add. If `max`
    /// is shorter than the quiet time, the quiet time is the limit.
    ///
    /// If the adds of one run have different limits, the earliest bound is used. An add that is not debounced has no
    /// bound, and `at_most` has no effect on it.
    pub const fn at_most(self, max: Duration) -> Self {
        let at_most = if self.at_most.is_some() { Some(max) } else { None };
        Self { at_most, ..self }
    }

    /// Returns the longest wait of a debounced add, or `None` if the add is not debounced.
    pub(crate) fn longest_wait(&self) -> Option<Duration> {
        self.at_most.filter(|_| !self.after.is_zero()).map(|most| most.max(self.after))
    }

    /// Sets the rule that combines the due time of this add with the due time that the key already has. The default is
    /// [`Merge::Earliest`].
    pub const fn merge(self, merge: Merge) -> Self {
        Self { merge, ..self }
    }

    /// Sets the priority. The default is [`Priority::Normal`]. If several adds are coalesced, the run has the highest
    /// of their priorities.
    pub const fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Adds bits that say why the key needs a run. If several adds are coalesced, the run receives the bitwise or of
    /// their flags.
    pub const fn flags(self, bits: u32) -> Self {
        Self { flags: self.flags | bits, ..self }
    }

    /// Lets the add revive a parked key, even in a queue in which adds [leave](ParkedAdd::Keep) a key parked.
    pub const fn revive(self) -> Self {
        Self { revives: true, ..self }
    }
}

/// Returns the answer to an add that repeats an add with the answer `added`.
pub(crate) const fn repeat_answer(added: Added) -> Added {
    match added {
        Added::New | Added::Dirty | Added::Revived => Added::Coalesced,
        other => other,
    }
}
