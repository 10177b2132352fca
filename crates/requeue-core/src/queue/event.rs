//! Events: the recorded changes of keys, groups and the queue.

use core::fmt;
use core::time::Duration;

use crate::memory::fold;
use crate::order::GroupId;
use crate::rule::How;
use crate::types::{Added, CancelReason, Merge, Reason, Ticket, Time};

/// A recorded change of a key, of a group or of the queue.
///
/// [`Display`](fmt::Display) formats an event on one line: the time since the origin of the clock,
/// the transition, and the time for which the key then waits.
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

/// The key, group or queue that an [`Event`] has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Subject {
    /// The key with this hash. The probability that two different keys have the same hash is one in
    /// four billion.
    Key(u32),
    /// The group with this number, and thereby all its keys.
    Group(u64),
    /// The queue, and thereby all its keys.
    Queue,
}

impl Event {
    /// Returns the key, group or queue that the event has changed.
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

    /// Returns the reason of the add, if the event is an add with a reason.
    #[must_use]
    pub const fn reason(&self) -> Option<Reason> {
        match self.transition {
            Transition::Added { reason, .. } => reason,
            _ => None,
        }
    }

    /// Returns a value that formats the event like [`Display`](fmt::Display), but with `text` in place
    /// of the number of its [reason](Self::reason).
    // Only requeue-http and the program need this method. Users print the event itself.
    #[doc(hidden)]
    pub const fn with_reason_text<'t>(&'t self, text: Option<&'t str>) -> impl fmt::Display + 't {
        Described { event: self, text }
    }
}

/// The change that an [`Event`] records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Transition {
    /// The key was added.
    Added {
        /// The result of the add.
        added: Added,
        /// The time for which the add requests the run.
        due: Time,
        /// The flags of the add.
        flags: u32,
        /// The reason of the add, if any.
        reason: Option<Reason>,
        /// The priority of the add.
        priority: i32,
        /// The kind of the add.
        kind: AddKind,
        /// The rule that combines the due time of this add with the due time that the key already
        /// has.
        merge: Merge,
        /// True if the add reports a failure, so that its run is a retry.
        failed: bool,
        /// True if the queue had no record of the key before this add.
        is_new: bool,
        /// The group of the key, if the key is new and the queue has groups.
        group: Option<GroupId>,
    },
    /// A backoff delays the pending run until this time. The event of the add that requests the run
    /// comes before this event.
    Held {
        /// The end of the backoff.
        until: Time,
    },
    /// The pace of the key delays the pending run until this time. The event of the add or
    /// completion that requests the run comes before this event.
    Paced {
        /// The time from which the pace permits the run.
        until: Time,
    },
    /// The due time of the key has come. The key is ready, or runs once more after the run in
    /// flight.
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
        /// The kind of the completion.
        how: Ended,
        /// The number of consecutive failures after the completion.
        failures: u32,
        /// True if the key is ready again.
        is_ready: bool,
        /// The time at which the waiting key becomes ready, or `None` if the key does not wait.
        due: Option<Time>,
        /// The delay that the completion requests, if any.
        delay: Option<Duration>,
    },
    /// The run in flight was asked to stop. A later event records its completion.
    Cancelled {
        /// The number of the delivery.
        number: u64,
        /// The reason for the cancellation.
        reason: CancelReason,
    },
    /// The pending runs of the key were cancelled, and its failures forgotten.
    Withdrawn,
    /// The failures of the key were forgotten, and its backoff has ended.
    Forgotten,
    /// The key no longer waits for further debounced adds.
    Flushed {
        /// The time at which the key becomes ready.
        due: Time,
    },
    /// From this event on, no call can cancel the run in flight. Only a queue that restarts runs
    /// records this event.
    Sealed,
    /// The start of the run in flight counts toward the pace from now on.
    StartCounted,
    /// The start of the run in flight no longer counts toward the pace.
    StartUncounted,
    /// Earlier starts of the key no longer count toward the pace.
    PaceOver,
    /// A shutdown has dropped the pending runs of the key.
    Dropped,
    /// The group with this number has reached its limit of keys in flight, so its ready keys wait.
    GroupFilled(u64),
    /// The group with this number is below its limit again.
    GroupFreed(u64),
    /// The group with this number was paused.
    GroupPaused(u64),
    /// The group with this number was resumed.
    GroupResumed(u64),
    /// The queue was paused.
    Paused,
    /// The queue was resumed.
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

/// An event, with the text of its reason.
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

/// The form of an add: immediate, delayed or debounced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum AddKind {
    /// An add without a delay.
    Now,
    /// An add with a delay or a due time. The due time may already have come.
    Delayed,
    /// A debounced add.
    Debounced {
        /// The maximum time that the key waits for further adds. For an add without a bound, about
        /// 584 years.
        at_most: Duration,
    },
}

/// The kind of a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum Ended {
    /// The worker called client-go's `Done`.
    Done,
    /// The run succeeded.
    Succeeded,
    /// The run succeeded, and the key was added again with a delay.
    Requeued,
    /// The run failed, and the key is retried.
    Retried,
    /// The run failed, and the key is not retried.
    GivenUp,
    /// The run failed, the key is not retried, and the store keeps it as parked.
    Parked,
    /// The worker undid the delivery.
    Released,
    /// The run stopped after a caller had cancelled it by its key.
    Cancelled,
    /// The run stopped after an add of its key had cancelled it.
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
    /// Returns the subject for the key with this hash.
    #[doc(hidden)]
    #[must_use]
    pub const fn key(hash: u64) -> Self {
        Self::Key(fold(hash))
    }

    /// Returns the subject for the key of this delivery.
    #[doc(hidden)]
    #[must_use]
    pub const fn of_ticket(ticket: &Ticket) -> Self {
        Self::Key(ticket.hash)
    }
}
