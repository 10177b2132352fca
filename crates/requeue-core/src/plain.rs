//! The short ways: what happens mostly, to keys in the plainest of queues, with no more work than
//! that needs. Each gives up, with nothing changed, where there is more to it.

use core::time::Duration;

use crate::add::{Add, Added, EarlyAdd, Merge};
use crate::index::Found;
use crate::order::{Group, Ready};
use crate::queue::fold;
use crate::record::{Phase, Record};
use crate::{Ending, Finish, Queue, Ticket, Time};

impl<K: Eq + Clone> Queue<K> {
    /// Whether the queue is open and its order is its own, and the add has no backoff to be held to.
    #[inline(always)]
    pub(crate) fn is_plain(&self, add: &Add) -> bool {
        let backs_off = add.failed && self.early_add == EarlyAdd::Hold;
        self.ending == Ending::Open && !self.has_order() && !backs_off
    }

    /// What `add` does where a glance shows whether the key is new.
    #[inline(always)]
    pub(crate) fn add_plain(
        &mut self,
        key: K,
        hash: u64,
        add: &Add,
        group: Group,
        now: Time,
    ) -> Result<(Added, Option<K>), K> {
        if !self.is_plain(add) || self.timers.is_due(now) {
            return Err(key);
        }
        let hash = fold(hash);
        let is = |record: &Record<K>| record.hash == hash && record.key == key;
        let room = match self.index.glance(&self.records, hash, is) {
            Found::Room(room) => room,
            Found::Slot(slot) => {
                return match self.add_again_plain(slot, add, add.due(now), now) {
                    Some(added) => Ok((added, Some(key))),
                    None => Err(key),
                };
            }
            Found::Unclear => return Err(key),
        };
        let due = add.due(now);
        let slot = self.records.insert_with(|| {
            let mut record = Record::new(key, hash);
            (record.adds, record.reasons, record.priority) = (1, add.reasons, add.priority);
            record.place = room.place();
            record.failures = add.failed.into();
            match due {
                None => record.make_ready(self.ready.tail()),
                Some(_) => record.waiting = true,
            }
            record
        });
        room.put(hash, slot);
        if let Ready::Lanes(lanes) = &mut self.ready {
            lanes.enroll(slot, group);
        }
        match due {
            None => {
                self.ready.append(&mut self.records, slot);
                self.ready_len += 1;
                self.counts.adds += 1;
            }
            Some(due) => {
                self.timers.insert(slot, due);
                self.failing_len += usize::from(add.failed);
            }
        }
        self.counts.retries += u64::from(add.is_retry());
        self.enroll(slot, now);
        if self.tracks && due.is_none() {
            self.enter(slot);
        }
        Ok((Added::New, None))
    }

    /// What an add does to the key in `slot` where it joins a run that is pending, or asks for
    /// another one of a key that is with a worker.
    #[inline]
    pub(crate) fn add_again_plain(
        &mut self,
        slot: u32,
        add: &Add,
        due: Option<Time>,
        now: Time,
    ) -> Option<Added> {
        let record = self.records.get_mut(slot);
        // Of two pending runs, and of backoffs, the policy has something to say.
        let is_alone = self.early_add == EarlyAdd::Keep
            || self.early_add == EarlyAdd::Replace && !record.waiting;
        let added = match (record.phase, due) {
            _ if add.merge == Merge::Exactly || add.failed => return None,
            (Phase::Ready | Phase::ProcessingDirty, None) if is_alone => Added::Coalesced,
            (Phase::Processing, None) if is_alone && self.backing_off.is_empty() => Added::Dirty,
            (Phase::Idle, Some(due)) if record.waiting && self.early_add != EarlyAdd::Hold => {
                self.timers.merge(slot, due, add.merge == Merge::Earliest);
                Added::Coalesced
            }
            _ => return None,
        };
        let before = record.priority;
        record.note(add.priority, 1, add.reasons);
        let is_raised = record.priority != before;
        if added == Added::Dirty {
            record.phase = Phase::ProcessingDirty;
            self.dirty_len += 1;
            self.counts.adds += 1;
            self.stamp(slot, now);
            self.enter(slot);
        } else {
            self.counts.coalesced += 1;
            if is_raised {
                self.raised(slot, before);
            }
            if self.ready.ranks() {
                self.touch_if(slot, true);
            }
        }
        self.counts.retries += u64::from(add.is_retry());
        Some(added)
    }

    /// What [`finish`](Self::finish) does to a run that has succeeded, of a key to which nothing has
    /// happened meanwhile, in a queue without an order of the user's own: the key comes back, as
    /// nothing is kept of it, and how long the worker had it, if times are kept; only then `now`
    /// matters. `None`, and no effect, of any other.
    #[inline(always)]
    pub fn finish_plain(
        &mut self,
        ticket: &Ticket,
        how: Finish,
        now: Time,
    ) -> Option<(K, Option<Duration>)> {
        let (succeeds, ends) = (matches!(how, Finish::Succeed), matches!(how, Finish::Done));
        let plain = !self.has_order() && self.backing_off.is_empty();
        if !(succeeds || ends) || !plain {
            return None;
        }
        let record = self.records.take_if(ticket.slot(), |record| {
            record.is_with(ticket.epoch()) && !record.waiting && (succeeds || record.failures == 0)
        })?;
        self.processing_len -= 1;
        let worked = self.tracker.as_mut().map(|tracker| tracker.finish(ticket.slot(), now));
        if let Ready::Lanes(lanes) = &mut self.ready {
            lanes.finish(ticket.slot());
        }
        self.unnote(ticket.slot(), &record);
        Some((record.key, worked))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, Order};

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Time = Time::ZERO;

    /// What is not done in a short way is done in the long one, so that only this shows it.
    #[test]
    fn the_short_ways_are_taken() {
        let plain = Config::default;
        let order = || Order::Priority { oldest_every: 4 };
        let configs = [
            plain(),
            Config { early_add: EarlyAdd::Replace, track: true, ..plain() },
            Config { order: order(), ..plain() },
            Config { order: order(), fair: true, group_limit: Some(3), ..plain() },
            Config { group_limit: Some(3), ..plain() },
        ];
        for config in configs {
            let track = config.track;
            let mut queue = Queue::new(config);
            let add = |queue: &mut Queue<u8>, key, add| {
                queue
                    .add_plain(key, key.into(), &add, Group::default(), NOW)
                    .map(|(added, _)| added)
            };
            let later = Add::after(SECOND);
            // In an index without a line there is nothing to be seen at a glance.
            assert_eq!(add(&mut queue, 0, later), Err(0));
            let _ = queue.add(0, 0, later, Group::default(), NOW);
            for key in 1..=4 {
                let first = if key == 4 { later } else { Add::now() };
                assert_eq!(add(&mut queue, key, first), Ok(Added::New));
                assert_eq!(add(&mut queue, key, first), Ok(Added::Coalesced));
            }
            let [one, two, three] = [(); 3].map(|()| queue.get(NOW).expect("three are ready"));
            assert_eq!(add(&mut queue, 1, Add::now()), Ok(Added::Dirty));
            assert_eq!(add(&mut queue, 1, Add::now()), Ok(Added::Coalesced));
            assert_eq!(queue.finish_plain(&one.ticket, Finish::Succeed, NOW), None);
            let worked = track.then_some(SECOND);
            for (out, how) in [(two, Finish::Done), (three, Finish::Succeed)] {
                let ended = queue.finish_plain(&out.ticket, how, NOW + SECOND);
                assert_eq!(ended, Some((out.key, worked)));
            }
        }
    }

    #[test]
    fn a_failure_goes_the_long_way_where_adds_are_held_to_backoffs() {
        let cases = [
            (EarlyAdd::Keep, true, true),
            (EarlyAdd::Hold, false, true),
            (EarlyAdd::Hold, true, false),
        ];
        for (early_add, failed, is_short) in cases {
            let mut queue = Queue::new(Config { early_add, ..Config::default() });
            let _ = queue.add(0, 0, Add::now(), Group::default(), NOW);
            let add = if failed { Add::after(SECOND).failed() } else { Add::now() };
            let added = queue.add_plain(1, 1, &add, Group::default(), NOW);
            assert_eq!(added.is_ok(), is_short);
        }
    }

    #[test]
    fn a_key_whose_priority_rises_while_it_is_ready_is_lifted() {
        for fair in [false, true] {
            let order = Order::Priority { oldest_every: 4 };
            let mut queue = Queue::new(Config { order, fair, ..Config::default() });
            for (key, priority) in [(1, 0), (2, 1), (3, 0), (3, 2), (1, 1)] {
                let add = Add::now().priority(priority);
                let _ = queue.add(key, key, add, Group::default(), NOW);
            }
            let keys = core::iter::from_fn(|| queue.get(NOW)).map(|out| out.key);
            assert!(keys.eq([3, 2, 1]));
        }
    }

    #[test]
    fn a_run_of_a_key_that_has_failed_is_short_if_it_succeeds() {
        for (how, is_short) in [(Finish::Succeed, true), (Finish::Done, false)] {
            let mut queue = Queue::new(Config::default());
            let _ = queue.add(1, 1, Add::after(SECOND).failed(), Group::default(), NOW);
            let out = queue.get(NOW + SECOND).expect("it is due");
            assert_eq!(out.failures, 1);
            let ended = queue.finish_plain(&out.ticket, how, NOW);
            assert_eq!(ended.is_some(), is_short);
        }
    }
}
