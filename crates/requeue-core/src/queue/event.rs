//! Events of keys, as a queue records them.

use core::fmt;
use core::time::Duration;

use crate::memory::fold;
use crate::order::GroupId;
use crate::rule::How;
use crate::types::{Added, CancelReason, Merge, Reason, Ticket, Time};

/// A transition of a key, of a group or of the queue, as a queue records it.
///
/// [`Display`](fmt::Display) formats the event on one line: the time since the origin of the clock, the transition, and
/// times to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The time of the transition.
    pub at: Time,
    /// The hash of the key, or 0 for a transition of a group or of the queue.
    pub(super) hash: u32,
    /// The transition.
    pub transition: Transition,
}

/// The subject of an [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// The key with this hash. Two given keys share a hash with a probability of one in four billion.
    Key(u32),
    /// The group with this number, and so all its keys.
    Group(u64),
    /// The queue, and so all keys.
    Queue,
}

impl Event {
    /// Returns the subject of the transition.
    #[must_use]
    pub const fn subject(&self) -> Subject {
        match self.transition {
            Transition::GroupFilled(group)
            | Transition::GroupFreed(group)
            | Transition::GroupPaused(group)
            | Transition::GroupResumed(group) => Subject::Group(group),
            Transition::Paused
            | Transition::Resumed
            | Transition::Closed
            | Transition::ShutDown => Subject::Queue,
            _ => Subject::Key(self.hash),
        }
    }

    /// Returns the reason of an add.
    #[must_use]
    pub const fn reason(&self) -> Option<Reason> {
        match self.transition {
            Transition::Added { reason, .. } => reason,
            _ => None,
        }
    }

    /// Returns the event for [`Display`](fmt::Display), with `text` as the text of its [reason](Self::reason).
    // Only requeue-http and the program need this method. Users print the event itself.
    #[doc(hidden)]
    pub const fn with_reason_text<'t>(&'t self, text: Option<&'t str>) -> impl fmt::Display + 't {
        Described { event: self, text }
    }
}

/// A transition of an [`Event`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Transition {
    /// The key was added.
    Added {
        /// The result of the add.
        added: Added,
        /// The time at which the add asks for the run.
        due: Time,
        /// The flags of the add.
        flags: u32,
        /// The reason of the add, if any.
        reason: Option<Reason>,
        /// The priority of the add.
        priority: i32,
        /// The kind of the add.
        kind: AddKind,
        /// The rule that combines the due time with the due time that the key already has.
        merge: Merge,
        /// True if the add is the retry of a failure.
        failed: bool,
        /// True if the queue had no record of the key: the key had no state.
        is_new: bool,
        /// The group of a new key, if the keys of the queue have groups.
        group: Option<GroupId>,
    },
    /// The backoff of a failure delays the pending run until this time. The add that asks for the run precedes this event.
    Held {
        /// The end of the backoff.
        until: Time,
    },
    /// The pace of the key delays the pending run until this time. An add or a completion that asks for the run precedes
    /// this event.
    Paced {
        /// The time from which the pace permits the run.
        until: Time,
    },
    /// A due time has come: the key is ready, or runs once more after the run in flight.
    Due,
    /// The key was delivered.
    Delivered {
        /// The number of the delivery.
        number: u64,
        /// The number of adds that the run serves.
        adds: u32,
    },
    /// The delivery was completed.
    Completed {
        /// The number of the delivery.
        number: u64,
        /// The way in which it was completed.
        how: Ended,
        /// The number of consecutive failures after the completion.
        failures: u32,
        /// True if the key is ready again.
        is_ready: bool,
        /// The time at which the key becomes ready, if it waits.
        due: Option<Time>,
        /// The delay that the completion asks for, if any.
        delay: Option<Duration>,
    },
    /// The run in flight was cancelled. Its worker completes it later.
    Cancelled {
        /// The number of the delivery.
        number: u64,
        /// The reason.
        reason: CancelReason,
    },
    /// The pending runs of the key were cancelled, and its failures forgotten.
    Withdrawn,
    /// The failures of the key were forgotten, and its backoff has ended.
    Forgotten,
    /// The wait for further debounced adds has ended.
    Flushed {
        /// The time at which the key becomes ready.
        due: Time,
    },
    /// From now on, nothing cancels the run in flight. Only queues that restart runs record this event.
    Sealed,
    /// The delivery counts toward the pace from now on.
    StartCounted,
    /// The delivery does not count toward the pace.
    StartUncounted,
    /// The starts of the key no longer count toward the pace.
    PaceOver,
    /// The pending runs of the key were dropped by a shutdown.
    Dropped,
    /// The group with this number has reached its limit of keys in flight. Its ready keys wait.
    GroupFilled(u64),
    /// The group is below its limit again.
    GroupFreed(u64),
    /// The deliveries of the group were paused.
    GroupPaused(u64),
    /// The deliveries of the group were resumed.
    GroupResumed(u64),
    /// The deliveries of the queue were paused.
    Paused,
    /// The deliveries of the queue were resumed.
    Resumed,
    /// The queue was closed.
    Closed,
    /// The queue was shut down.
    ShutDown,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_reason_text(None).fmt(f)
    }
}

/// An event with the text of its reason.
struct Described<'t> {
    event: &'t Event,
    text: Option<&'t str>,
}

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { at, transition, .. } = *self.event;
        let wait = |until: Time| until.since(at);
        write!(f, "{:.3?} ", at.since(Time::ZERO))?;
        match transition {
            Transition::Added { added, due, reason, .. } => {
                f.write_str(match added {
                    Added::New => "added",
                    Added::Coalesced => "added to the pending run",
                    Added::Dirty => "added in flight, runs once more",
                    Added::BackingOff => "added, held for its backoff",
                    Added::Refused => "add refused",
                    Added::Revived => "added, revived",
                    Added::Parked => "added, stays parked",
                })?;
                match (reason, self.text) {
                    (Some(_), Some(text)) => write!(f, " ({text})")?,
                    (Some(reason), None) => write!(f, " ({reason})")?,
                    (None, _) => {}
                }
                match wait(due) {
                    Duration::ZERO => Ok(()),
                    wait if added == Added::New => write!(f, ", to run in {wait:.1?}"),
                    wait => write!(f, ", asked for in {wait:.1?}"),
                }
            }
            Transition::Held { until } => write!(f, "waits {:.1?} for its backoff", wait(until)),
            Transition::Paced { until } => write!(f, "waits {:.1?} for its pace", wait(until)),
            Transition::Due => f.write_str("due"),
            Transition::Delivered { number, adds } => {
                let s = if adds == 1 { "" } else { "s" };
                write!(f, "delivery {number}, for {adds} add{s}")
            }
            Transition::Completed { number, how, is_ready, due, .. } => {
                write!(f, "delivery {number} {}", how.as_str())?;
                match due {
                    Some(due) => write!(f, "; the key waits {:.1?}", wait(due)),
                    None if is_ready => f.write_str("; the key is ready again"),
                    None => Ok(()),
                }
            }
            Transition::Cancelled { number, .. } => write!(f, "delivery {number} is cancelled"),
            Transition::Withdrawn => f.write_str("pending runs cancelled"),
            Transition::Forgotten => f.write_str("failures forgotten"),
            Transition::Flushed { due } if due <= at => f.write_str("waits for no further adds"),
            Transition::Flushed { due } => {
                write!(f, "waits for no further adds, but for {:.1?}", wait(due))
            }
            Transition::Sealed => f.write_str("run can no longer be cancelled"),
            Transition::StartCounted => f.write_str("run counts toward the pace"),
            Transition::StartUncounted => f.write_str("run does not count toward the pace"),
            Transition::PaceOver => f.write_str("earlier runs no longer count toward the pace"),
            Transition::Dropped => f.write_str("pending run dropped by the shutdown"),
            Transition::GroupFilled(_) => f.write_str("group at its limit"),
            Transition::GroupFreed(_) => f.write_str("group below its limit"),
            Transition::GroupPaused(_) => f.write_str("group paused"),
            Transition::GroupResumed(_) => f.write_str("group resumed"),
            Transition::Paused => f.write_str("queue paused"),
            Transition::Resumed => f.write_str("queue resumed"),
            Transition::Closed => f.write_str("queue closed"),
            Transition::ShutDown => f.write_str("queue shut down"),
        }
    }
}

/// The kind of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum AddKind {
    /// An add without a delay.
    Now,
    /// An add with a delay or a time, which may have come.
    Delayed,
    /// A debounced add.
    Debounced {
        /// The longest wait. Without a bound, it is about 584 years.
        at_most: Duration,
    },
}

/// The way in which a delivery was completed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// client-go's `Done`.
    Done,
    /// A success.
    Succeeded,
    /// A success, and an add with a delay.
    Requeued,
    /// A failure, and a retry.
    Retried,
    /// A failure without a retry.
    GivenUp,
    /// A failure without a retry. The store keeps the key.
    Parked,
    /// The delivery was undone.
    Released,
    /// The run was cancelled by name.
    Cancelled,
    /// The run was cancelled because its key was added.
    Restarted,
}

impl Ended {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "is done",
            Self::Succeeded => "succeeded",
            Self::Requeued => "succeeded and is added again",
            Self::Retried => "failed and is retried",
            Self::GivenUp => "failed and is given up",
            Self::Parked => "failed and is parked",
            Self::Released => "was released",
            Self::Cancelled => "stopped after a cancellation",
            Self::Restarted => "stopped for an add",
        }
    }
}

impl<T> From<How<T>> for Ended {
    fn from(how: How<T>) -> Self {
        match how {
            How::Done => Self::Done,
            How::Succeed => Self::Succeeded,
            How::Requeue(_) => Self::Requeued,
            How::Retry(_) => Self::Retried,
            How::GiveUp => Self::GivenUp,
            How::Park => Self::Parked,
            How::Release(_) => Self::Released,
            How::Cancelled => Self::Cancelled,
            How::Restarted => Self::Restarted,
        }
    }
}

impl Subject {
    /// Returns the key with this hash.
    #[doc(hidden)]
    #[must_use]
    pub const fn key(hash: u64) -> Self {
        Self::Key(fold(hash))
    }

    /// Returns the key of this delivery.
    #[doc(hidden)]
    #[must_use]
    pub const fn of_ticket(ticket: &Ticket) -> Self {
        Self::Key(ticket.hash)
    }
}
