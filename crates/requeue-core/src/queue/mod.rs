//! The queue as a state machine.
//!
//! `add` adds keys, and `deliver` delivers them and completes deliveries. Both ask the
//! [rules](crate::rule) for the effect on the key. They then call `transitions`, the only module
//! that changes phases and counters. `key_state` gives the rules access to the state of a key.
//! `fast_path` handles the most common adds and completions.
//!
//! `backoff_gate` stores the backoffs of [`ReaddPolicy::Hold`], and `pace_gate` delays runs that
//! would exceed the [`Pace`]. `restarts` cancels runs in flight. `reasons` stores the reasons of
//! adds. `groups` pauses, cancels and counts the keys of one group. `lifecycle` pauses, closes and
//! shuts down the queue.
//!
//! `recorder` stores the last events, which `event` defines. `recording` converts them to text and
//! back, and `replay` repeats them and compares the results. `storage` stores the records, and
//! `walk` visits them in steps. `snapshot`, `stats` and `depths` report the state of keys and the
//! counters of the queue.

mod add;
mod backoff_gate;
mod deliver;
mod depths;
mod event;
mod fast_path;
mod groups;
mod key_state;
mod lifecycle;
mod needs_now;
mod pace_gate;
mod reasons;
mod recorder;
mod recording;
mod replay;
mod restarts;
mod snapshot;
mod stats;
mod storage;
mod transitions;
mod walk;

use alloc::boxed::Box;

use self::backoff_gate::Backoffs;
pub use self::event::{AddKind, Ended, Event, Subject, Transition};
pub use self::needs_now::Operation;
use self::pace_gate::PaceTable;
pub use self::reasons::KeyReasons;
use self::reasons::ReasonTable;
use self::recorder::Recorder;
pub use self::recorder::{Blocked, EventWalk};
use self::recording::Rules;
pub use self::recording::{InvalidRecording, Recording};
pub use self::replay::{Difference, Replay, Step};
use self::restarts::Restarts;
pub use self::snapshot::{Circumstances, Cursor, Entry, Page};
use self::stats::Tracker;
pub use self::stats::{ConsecutiveFailures, Histogram, StateCounts, Totals};
use self::transitions::Counters;
use self::transitions::record::Record;
pub use self::walk::Walk;
use crate::memory::{Index, Slab, TimerHeap, fold};
use crate::order::{Order, Ready};
use crate::types::{Ending, InFlightPolicy, Pace, ReaddPolicy};

/// The maximum number of due keys that one operation makes ready before its own work.
const MAX_PROMOTIONS: usize = 256;

/// The settings of a [`Queue`].
pub struct Config<K> {
    /// The re-add policy.
    pub readd_policy: ReaddPolicy,
    /// The effect of an add on a key in flight. With [`InFlightPolicy::Restart`], the caller must
    /// pass `now` to every operation, and call [`Queue::take_restarted`] after it.
    pub in_flight_policy: InFlightPolicy,
    /// The order of ready keys.
    pub order: Order<K>,
    /// True if groups take turns: the groups of one priority are delivered alternately.
    pub fair: bool,
    /// The maximum number of keys of one group in flight. 0 is treated as 1, and `None` means no
    /// limit.
    pub group_limit: Option<u32>,
    /// True if the keys have groups even without `fair` and `group_limit`. The caller can then
    /// pause, cancel and count the keys of a group.
    pub groups: bool,
    /// The maximum number of runs of one key in a time window. With a pace, the caller must pass
    /// `now` to every operation. If a value is outside its range in [`Pace::new`], the queue uses
    /// the nearest value in the range.
    pub pace: Option<Pace>,
    /// True if the queue tracks times, for histograms, ages and the field `since` of snapshots. The
    /// caller must then pass `now` to every operation.
    pub track: bool,
    /// The maximum memory for recorded events, in bytes. With 0, the queue records nothing.
    /// Otherwise, the caller must pass `now` to every operation.
    pub recording: usize,
}

impl<K> Default for Config<K> {
    fn default() -> Self {
        Self {
            readd_policy: ReaddPolicy::default(),
            in_flight_policy: InFlightPolicy::default(),
            order: Order::Fifo,
            fair: false,
            group_limit: None,
            groups: false,
            pace: None,
            track: false,
            recording: 0,
        }
    }
}

/// A work queue of keys. The caller provides the clock, the lock, the wakers and the hasher.
///
/// The parameter `hash` must be equal for equal keys. The parameter `now` should not go back. If it
/// does, ages are zero until `now` reaches its earlier value again. The queue returns each key that
/// it no longer needs, so that the caller drops the key outside its lock.
///
/// # Examples
///
/// ```
/// use requeue_core::{Add, Added, Config, Finish, GroupId, Queue, Time};
///
/// let mut queue = Queue::new(Config::default());
/// let now = Time::ZERO;
/// assert_eq!(queue.add("a", 1, Add::now(), GroupId::default(), now).0, Added::New);
/// assert_eq!(queue.add("a", 1, Add::now(), GroupId::default(), now).0, Added::Coalesced);
///
/// let out = queue.get(now).unwrap();
/// assert_eq!((out.key, out.asked.adds), ("a", 2));
/// assert!(queue.get(now).is_none());
///
/// // The key is added while it is in flight, so the queue delivers it once more after its completion.
/// assert_eq!(queue.add("a", 1, Add::now(), GroupId::default(), now).0, Added::Dirty);
/// assert!(queue.get(now).is_none());
/// assert!(queue.finish(&out.ticket, Finish::Succeed, now).unwrap().ready);
/// assert_eq!(queue.get(now).unwrap().key, "a");
/// ```
pub struct Queue<K> {
    records: Slab<Record<K>>,
    index: Index,
    ready: Ready<K>,
    timers: TimerHeap,
    settings: Settings,
    /// The times and histograms, allocated when the first key is added. The tracker is large, few
    /// queues track times, and most queues are empty, so it is in a box.
    tracker: Option<Box<Tracker>>,
    counters: Counters,
    backing_off: Backoffs,
    /// The recent starts of each key, if the queue has a pace.
    pace: Option<Box<PaceTable<K>>>,
    /// Present only if an add restarts the run in flight of its key.
    restarts: Option<Box<Restarts>>,
    /// Allocated by the first add that has a reason.
    reasons: Option<Box<ReasonTable>>,
    recorder: Option<Box<Recorder>>,
    ending: Ending,
    paused: bool,
}

/// The settings that the operations of a queue read. They never change.
struct Settings {
    readd_policy: ReaddPolicy,
    /// True if the queue tracks times.
    tracks: bool,
    /// True if every operation needs the time: the queue tracks times, has a pace, restarts runs,
    /// or records events.
    needs_times: bool,
    /// True if the fast paths apply: the queue has no custom order and no pace, and restarts no
    /// runs.
    is_plain: bool,
}

impl<K: Eq + Clone> Queue<K> {
    /// Creates an empty queue, and allocates only the memory that its order needs.
    #[must_use]
    pub fn new(config: Config<K>) -> Self {
        let rules = Rules::of(&config);
        let ready = Ready::new(config.order, config.fair, config.group_limit, config.groups);
        let restarts = match config.in_flight_policy {
            InFlightPolicy::After => None,
            InFlightPolicy::Restart { at_most } => Some(Box::new(Restarts::new(at_most))),
        };
        let recorder = Recorder::new(config.recording, rules).map(Box::new);
        let settings = Settings {
            readd_policy: config.readd_policy,
            tracks: config.track,
            needs_times: config.track
                || config.pace.is_some()
                || restarts.is_some()
                || recorder.is_some(),
            is_plain: !ready.is_custom() && config.pace.is_none() && restarts.is_none(),
        };
        Self {
            records: Slab::new(config.track || ready.has_side_table()),
            index: Index::new(),
            ready,
            timers: TimerHeap::new(),
            settings,
            tracker: None,
            counters: Counters::default(),
            backing_off: Backoffs::default(),
            pace: config.pace.map(|pace| Box::new(PaceTable::new(pace))),
            restarts,
            reasons: None,
            recorder,
            ending: Ending::Open,
            paused: false,
        }
    }

    /// Makes the processor load the data that the next call for a key with `hash` will read. The
    /// call has no other effect.
    #[doc(hidden)]
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if self.index.is_large() {
            self.index.prefetch(fold(hash));
        }
    }
}
