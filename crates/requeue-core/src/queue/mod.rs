//! The queue as a state machine.
//!
//! `add` adds a key; `deliver` delivers it and completes its delivery. Both ask the [rules](crate::rule) about the
//! effect on the key, and call `transitions`, the only module that changes phases and counters. `key_state` shows the
//! state of a key to the rules. `fast_path` is the first arm of adds and completions. `backoff_gate` keeps the backoffs
//! of [`ReaddPolicy::Hold`]; `pace_gate` delays runs above the [`Pace`]. `restarts` cancels runs in flight. `reasons` keeps the
//! reasons of adds. `recorder`
//! keeps the last transitions, which `event` describes. `recording` writes and reads them, and `replay` compares them
//! with the state machine. `groups` pauses, cancels and counts the keys of one group. `lifecycle` pauses, closes and
//! shuts down. `storage` keeps the records, and `walk` walks through them. `snapshot`, `stats` and `depths` report
//! their state.

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

/// The maximum number of due keys that one operation makes ready before its other work.
const MAX_PROMOTIONS: usize = 256;

/// The settings of a [`Queue`].
pub struct Config<K> {
    /// The re-add policy.
    pub readd_policy: ReaddPolicy,
    /// The effect of an add on a key in flight. With [`InFlightPolicy::Restart`], every operation needs `now`, and the
    /// caller must call [`Queue::take_restarted`] after it.
    pub in_flight_policy: InFlightPolicy,
    /// The order of ready keys.
    pub order: Order<K>,
    /// True if groups take turns within a priority.
    pub fair: bool,
    /// The maximum number of keys of one group in flight. 0 counts as 1, and `None` means no limit.
    pub group_limit: Option<u32>,
    /// True if the keys have groups, even without `fair` and `group_limit`, so that a group can be
    /// paused, cancelled and counted.
    pub groups: bool,
    /// The limit on how often one key runs. With a pace, every operation needs `now`. A value
    /// outside its range in [`Pace::new`] counts as the nearest value in the range.
    pub pace: Option<Pace>,
    /// True if times are tracked, for histograms, ages and `since` in snapshots. Every operation
    /// then needs `now`.
    pub track: bool,
    /// The memory for recorded events, in bytes. 0 records nothing. With a recording, every operation needs `now`.
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
/// `hash` must be equal for equal keys. `now` should not go back. If it does, ages are zero until
/// `now` reaches its earlier value. Keys that the queue no longer needs are returned, so that the
/// caller drops them outside its lock.
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
/// // The key is added while it is in flight. It is delivered once more after its completion.
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
    /// Allocated with the first key. The tracker is boxed because it is large, few queues track times, and most queues
    /// have no keys.
    tracker: Option<Box<Tracker>>,
    counters: Counters,
    backing_off: Backoffs,
    /// The recent starts of each key, in a queue with a pace.
    pace: Option<Box<PaceTable<K>>>,
    /// Allocated if the queue restarts the run in flight of a key that is added.
    restarts: Option<Box<Restarts>>,
    /// Allocated with the first add that has a reason.
    reasons: Option<Box<ReasonTable>>,
    recorder: Option<Box<Recorder>>,
    ending: Ending,
    paused: bool,
}

/// The settings of a queue that its operations read. These settings never change.
struct Settings {
    readd_policy: ReaddPolicy,
    /// True if times are tracked.
    tracks: bool,
    /// True if every operation needs the time: times are tracked, the queue has a pace, adds restart runs, or events
    /// are recorded.
    needs_times: bool,
    /// True if the fast paths apply: the queue has no custom order and no pace, and adds restart no
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

    /// Makes the processor fetch the data that the next call for a key with `hash` will read. The function has no other
    /// effect.
    #[doc(hidden)]
    #[inline]
    pub fn prefetch(&self, hash: u64) {
        if self.index.is_large() {
            self.index.prefetch(fold(hash));
        }
    }
}
