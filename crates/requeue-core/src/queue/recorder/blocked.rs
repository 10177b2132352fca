//! The periods in which a ready key could not be delivered, because of a pause or of its group's
//! limit.

use alloc::vec::Vec;
use core::time::Duration;

use super::super::Queue;
use super::super::event::{Event, Subject, Transition};
use super::event_walk::STEP;
use crate::types::{Ticket, Time};

/// The maximum number of periods that are returned.
const MOST: usize = 16;
/// If the gap between two periods with the same cause is shorter than this, they are one period. A
/// group at its limit has such a gap at each completion, when it delivers its next key.
const SHORTEST: Duration = Duration::from_millis(1);

/// A period in which a ready key could not be delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Blocked {
    /// The cause: [`Paused`](Transition::Paused), [`GroupPaused`](Transition::GroupPaused) or
    /// [`GroupFilled`](Transition::GroupFilled).
    pub cause: Transition,
    /// The beginning of the period, as the time before the delivery.
    pub from: Duration,
    /// The end of the period, as the time before the delivery.
    pub until: Duration,
}

/// The causes that can block a key, and which of them are active. The walk goes back in time, and
/// this is the state before the last event that was read. The causes are in the order of their
/// precedence.
struct Causes([(Transition, bool); 3]);

impl Causes {
    /// Undoes `transition`: restores the state of the cause before this event. Returns true if
    /// `transition` began or ended one of the causes.
    fn go_back(&mut self, transition: Transition) -> bool {
        let (began, begins) = match transition {
            Transition::Paused => (Transition::Paused, true),
            Transition::Resumed => (Transition::Paused, false),
            Transition::GroupPaused(group) => (Transition::GroupPaused(group), true),
            Transition::GroupResumed(group) => (Transition::GroupPaused(group), false),
            Transition::GroupFilled(group) => (Transition::GroupFilled(group), true),
            Transition::GroupFreed(group) => (Transition::GroupFilled(group), false),
            _ => return false,
        };
        let found = self.0.iter_mut().find(|(cause, _)| *cause == began);
        found.is_some_and(|(_, is_on)| core::mem::replace(is_on, !begins) == begins)
    }

    fn first(&self) -> Option<Transition> {
        self.0.iter().find(|(_, is_on)| *is_on).map(|(cause, _)| *cause)
    }
}

impl<K: Eq + Clone> Queue<K> {
    /// Returns the periods in which the key of this delivery was ready and could not be delivered,
    /// as far as the last 1,024 places of the recorder show. The latest period is first, and at
    /// most 16 are returned. The result is empty unless the queue tracks times and records events.
    #[must_use]
    pub fn blocked_times(&self, ticket: &Ticket) -> Vec<Blocked> {
        let mut times: Vec<Blocked> = Vec::new();
        let (Some(recorder), Some(slot)) = (&self.recorder, self.slot_of(ticket)) else {
            return times;
        };
        let oldest = recorder.oldest().max(recorder.filled().saturating_sub(STEP));
        // Only events of groups and of the queue are causes. If there is none of them, the other
        // events need not be read.
        if recorder.shared <= oldest {
            return times;
        }
        let queued = self.queued(ticket).unwrap_or_default();
        let group = self.ready.groups().map_or(0, |groups| groups.group_of(slot).id());
        let causes =
            [Transition::Paused, Transition::GroupPaused(group), Transition::GroupFilled(group)];
        let mut causes = Causes(causes.map(|cause| (cause, false)));
        let mut push = |causes: &Causes, from: Duration, until: Duration| {
            let Some(cause) = causes.first().filter(|_| from > until) else { return };
            match times.last_mut() {
                Some(last) if last.cause == cause && until.saturating_sub(last.from) < SHORTEST => {
                    last.from = from;
                }
                _ => times.push(Blocked { cause, from, until }),
            }
        };
        let is_delivery = |event: &Event| {
            matches!(event.transition, Transition::Delivered { number, .. } if number == ticket.epoch)
                && event.subject() == Subject::of_ticket(ticket)
        };
        let mut delivered: Option<Time> = None;
        let mut until = Duration::ZERO;
        for event in (oldest..recorder.filled()).rev().filter_map(|number| recorder.decode(number))
        {
            let Some(delivered) = delivered else {
                delivered = is_delivery(&event).then_some(event.at);
                continue;
            };
            let before = delivered.since(event.at);
            if before > queued {
                break;
            }
            let cause = causes.first();
            let mut changed = Causes(causes.0);
            if changed.go_back(event.transition) && changed.first() != cause {
                push(&causes, before, until);
                until = before;
            }
            causes = changed;
        }
        if delivered.is_some() {
            push(&causes, queued, until);
        }
        times.truncate(MOST);
        times
    }
}
