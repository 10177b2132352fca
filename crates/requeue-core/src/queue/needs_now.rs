//! The operations that need the current time. Only this module knows these operations.
//!
//! Reading a clock takes a large part of the time of an operation. A clock may also be user code,
//! which must not run under a lock. The caller therefore asks first whether the operation needs the
//! time, and passes [`Time::ZERO`] if it does not.

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
    /// Returns true if the operation needs the current time in every queue.
    ///
    /// A caller that uses a lock then reads the clock before it acquires the lock.
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
            // A completion can make the next key of a group eligible, if the group was at its limit. That key must
            // stand behind the keys that became ready before.
            Operation::Finish(ticket, Finish::Done | Finish::Succeed | Finish::GiveUp) => {
                self.has_groups() || self.may_come_back(ticket)
            }
            Operation::Finish(..) => true,
        }
    }

    /// Returns true if keys that are due cannot change the next key. In a first-in, first-out
    /// order, keys that become due stand behind the next key. Returns false if the next key itself
    /// has a deadline, because the run at that deadline may become part of the present run.
    fn first_is_known(&self) -> bool {
        let Ready::Fifo(list) = &self.ready else { return false };
        list.head().is_some_and(|slot| !self.records.get(slot).is_waiting())
    }

    /// Returns true if a key may go to the tail at its completion, behind keys that became ready
    /// earlier. Such a key is dirty, or becomes dirty because its deadline comes before the
    /// completion.
    #[inline(always)]
    fn may_come_back(&self, ticket: &Ticket) -> bool {
        match self.records.find_record(ticket.slot) {
            Some(record) if record.is_with(ticket.epoch) => record.is_waiting(),
            _ => self.slot_of(ticket).is_some_and(|slot| self.records.get(slot).is_pending()),
        }
    }
}
