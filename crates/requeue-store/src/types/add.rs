//! What can be asked of the queue, and what it answers.

use std::ops::AddAssign;
use std::time::Duration;

pub use requeue::{Merge, ReAdd};

/// The effect of an add on a parked key. It is a setting of the queue, the same for all processes: the
/// first opener chooses it.
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
    /// The add revives the key: it runs again, and its failures are reset.
    #[default]
    Revive,
    /// The key stays parked, and the add is answered [`Added::Parked`]. [`Add::revive`] revives it.
    Keep,
}

/// Which keys go first. Within one priority, those that have been ready longest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash)]
#[non_exhaustive]
pub enum Priority {
    /// After all others.
    Low,
    /// Neither.
    #[default]
    Normal,
    /// Before all others.
    High,
}

impl Priority {
    pub(crate) const ALL: [Self; 3] = [Self::Low, Self::Normal, Self::High];

    /// -1, 0 or 1, as engines keep it, and as a queue in memory may have it.
    #[must_use]
    pub const fn number(self) -> i8 {
        match self {
            Self::Low => -1,
            Self::Normal => 0,
            Self::High => 1,
        }
    }

    /// Of any number: low below zero, high above.
    ///
    /// ```
    /// use requeue_store::Priority;
    ///
    /// let priorities = [-7, 0, 1].map(Priority::of);
    /// assert_eq!(priorities, [Priority::Low, Priority::Normal, Priority::High]);
    /// assert_eq!(priorities.map(Priority::number), [-1, 0, 1]);
    /// ```
    #[must_use]
    pub const fn of(number: i32) -> Self {
        match number {
            ..0 => Self::Low,
            0 => Self::Normal,
            1.. => Self::High,
        }
    }
}

/// An add with all that can be asked of it.
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
    pub(crate) reasons: u32,
    pub(crate) revives: bool,
}

impl Add {
    /// Now, with normal priority.
    pub const fn now() -> Self {
        Self::after(Duration::ZERO)
    }

    /// After `delay`, by the engine's clock; to the microsecond, rounded up.
    pub const fn after(delay: Duration) -> Self {
        let (merge, priority) = (Merge::Earliest, Priority::Normal);
        Self { after: delay, merge, priority, reasons: 0, revives: false }
    }

    /// How this add and a delay the key already has become one; [`Merge::Earliest`] unless said.
    pub const fn merge(self, merge: Merge) -> Self {
        Self { merge, ..self }
    }

    /// The priority; [`Priority::Normal`] unless said. Of several adds the highest wins.
    pub const fn priority(self, priority: Priority) -> Self {
        Self { priority, ..self }
    }

    /// Bits that say why, for the run to see. Those of several adds are or-ed.
    pub const fn reason(self, bits: u32) -> Self {
        Self { reasons: self.reasons | bits, ..self }
    }

    /// The add revives a parked key also in a queue that keeps parked keys: see [`ParkedAdd`].
    pub const fn revive(self) -> Self {
        Self { revives: true, ..self }
    }
}

/// What became of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Added {
    /// The key has become ready (perhaps sooner than it was to, see [`ReAdd`]), or
    /// has begun to wait for its time.
    New,
    /// A run was pending already; the add has become part of it.
    Coalesced,
    /// The key is with a worker; it is handed out once more afterwards.
    Dirty,
    /// The key has failed and is backing off ([`ReAdd::Hold`]): it runs when that has passed.
    Held,
    /// The key was parked. It is ready again, or waits for its delay, and its failures are reset.
    Revived,
    /// The key is parked and stays parked ([`ParkedAdd::Keep`]): see [`Add::revive`].
    Parked,
}

impl Added {
    /// What the same add is answered once more.
    pub(crate) const fn again(self) -> Self {
        match self {
            Self::New | Self::Dirty | Self::Revived => Self::Coalesced,
            Self::Coalesced | Self::Held | Self::Parked => self,
        }
    }
}

/// The answers to several adds, counted. An add of a key that came earlier in the
/// same batch is [`coalesced`](Self::coalesced).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
#[non_exhaustive]
pub struct AddCounts {
    /// [`Added::New`].
    pub new: usize,
    /// [`Added::Coalesced`].
    pub coalesced: usize,
    /// [`Added::Dirty`].
    pub dirty: usize,
    /// [`Added::Held`].
    pub held: usize,
    /// [`Added::Revived`].
    pub revived: usize,
    /// [`Added::Parked`].
    pub parked: usize,
}

impl AddCounts {
    /// The number of adds.
    #[must_use]
    pub const fn total(&self) -> usize {
        self.new + self.coalesced + self.dirty + self.held + self.revived + self.parked
    }

    /// Counts adds of one key in one batch, of which the first was answered `first`.
    pub(crate) fn count(&mut self, first: Added, adds: u32) {
        let mut count = |added, adds: usize| {
            let count = match added {
                Added::New => &mut self.new,
                Added::Coalesced => &mut self.coalesced,
                Added::Dirty => &mut self.dirty,
                Added::Held => &mut self.held,
                Added::Revived => &mut self.revived,
                Added::Parked => &mut self.parked,
            };
            *count += adds;
        };
        count(first, 1);
        count(first.again(), adds.saturating_sub(1) as usize);
    }
}

impl AddAssign for AddCounts {
    fn add_assign(&mut self, other: Self) {
        self.new += other.new;
        self.coalesced += other.coalesced;
        self.dirty += other.dirty;
        self.held += other.held;
        self.revived += other.revived;
        self.parked += other.parked;
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
    /// The key was parked.
    pub parked: bool,
    /// The key was [damaged](crate::State::Damaged).
    pub damaged: bool,
}

impl Cancelled {
    /// Whether anything was taken.
    #[must_use]
    pub const fn any(self) -> bool {
        self.ready || self.dirty || self.waiting || self.parked || self.damaged
    }
}
