//! The decision if an operation needs the current time. No other module makes this decision.
//!
//! A clock takes a large part of the time of an operation. It may also be user code, which must not
//! run under a lock. The caller therefore asks first if the operation needs the time. If not, the
//! caller passes `Time::ZERO`.

use super::Queue;
use crate::order::Ready;
use crate::types::{Add, Finish, Ticket};

/// An operation of a [`Queue`], for [`Queue::needs_now`].
#[derive(Clone, Copy, Debug)]
pub enum Operation<'a> {
    /// [`Queue::get`] and [`Queue::get_by_order`].
    Get,
    /// [`Queue::add`] and [`Queue::add_known`].
    Add(&'a Add),
    /// [`Queue::promote`].
    Promote,
    /// [`Queue::finish`].
    Finish(&'a Ticket, &'a Finish),
}

impl Operation<'_> {
    /// Returns true if the operation needs the current time in every state of a queue.
    ///
    /// The caller can then read the clock before it acquires its lock.
    #[inline(always)]
    #[must_use]
    pub const fn always_needs_now(self) -> bool {
        match self {
            Self::Get | Self::Promote => false,
            Self::Add(add) => add.is_delayed(),
            Self::Finish(_, how) => {
                use Finish::{ReleaseAfter, RequeueAfter, RetryAfter};
                matches!(how, RequeueAfter { .. } | RetryAfter { .. } | ReleaseAfter { .. })
            }
        }
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Returns true if the result of `operation` depends on the current time.
    #[inline(always)]
    #[must_use]
    pub fn needs_now(&self, operation: Operation<'_>) -> bool {
        if self.settings.needs_times || operation.always_needs_now() {
            return true;
        }
        if self.timers.len() == 0 {
            return false;
        }
        match operation {
            Operation::Add(_) | Operation::Promote => true,
            Operation::Get => !self.first_is_known(),
            // If a group is at its limit, a completion can make its next key eligible. Keys that
            // became due earlier must be ahead of that key, so they must be promoted first.
            Operation::Finish(ticket, Finish::Done | Finish::Succeed | Finish::GiveUp) => {
                self.has_groups() || self.may_come_back(ticket)
            }
            Operation::Finish(..) => true,
        }
    }

    /// Returns true if due keys cannot change which key is next. In a first-in, first-out order,
    /// keys that become due are behind the next key. Returns false if the next key also has a
    /// deadline, because the run at this deadline may become part of the present run.
    fn first_is_known(&self) -> bool {
        let Ready::Fifo(list) = &self.ready else { return false };
        list.head().is_some_and(|slot| !self.records.get(slot).is_waiting())
    }

    /// Returns true if the completion may make the key ready again. Keys that are due must then
    /// become ready first, to be ahead of it. Such a key is dirty, or has a deadline that may come
    /// before the completion.
    #[inline(always)]
    fn may_come_back(&self, ticket: &Ticket) -> bool {
        match self.records.find_record(ticket.slot) {
            Some(record) if record.is_with(ticket.epoch) => record.is_waiting(),
            _ => self.slot_of(ticket).is_some_and(|slot| self.records.get(slot).is_pending()),
        }
    }
}
