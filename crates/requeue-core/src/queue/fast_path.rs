//! Fast paths of `add` and `finish` for the most common cases. They are tried first, and apply the
//! same transitions as the general paths. A fast path that does not apply changes nothing.

use core::time::Duration;

use super::{Queue, Record};
use crate::memory::{Found, fold};
use crate::order::GroupId;
use crate::types::{
    Add, Added, Asked, Ending, Finish, Merge, Phase, ReaddPolicy, Slot, Ticket, Time,
};

impl<K: Eq + Clone> Queue<K> {
    /// Returns true if the queue is open, has no custom order and no pace, and does not restart
    /// runs.
    #[inline(always)]
    pub(super) fn is_simple(&self) -> bool {
        self.ending == Ending::Open && self.settings.is_plain
    }

    /// Adds a key, if no key is due, and if one bucket of the index shows that the key is new or
    /// known.
    #[inline(always)]
    pub(super) fn add_fast(
        &mut self,
        key: K,
        hash: u64,
        add: &Add,
        group: GroupId,
        now: Time,
    ) -> Result<(Added, Option<K>), K> {
        // If a key is due, it may be the added key, or must become ready before it. A reason needs
        // memory. The general path handles both cases.
        if !self.is_simple() || self.timers.is_due(now) || add.reason.is_some() {
            return Err(key);
        }
        let hash = fold(hash);
        let is = |record: &Record<K>| record.hash == hash && record.key == key;
        let free = match self.index.find_in_first_bucket(&self.records, hash, is) {
            Found::Free(free) => free,
            Found::Slot(slot) => {
                return match self.add_again_fast(slot, add, now) {
                    Some(added) => {
                        self.record_add(hash, add, added, now);
                        Ok((added, Some(key)))
                    }
                    None => Err(key),
                };
            }
            Found::Unclear => return Err(key),
        };
        let due = add.due(now);
        let tail = self.ready.tail();
        let slot = self
            .records
            .insert_with(|| Record::new(key, hash, add, due.is_some(), tail, free.position()));
        // The place is still free, because `free` has borrowed the index since the search.
        free.put_slot(hash, slot);
        self.admit_new(slot, add, due, group, now);
        self.record_new(hash, add, group, now);
        Ok((Added::New, None))
    }

    /// Adds the key in `slot` again, if all re-add policies have the same effect. The add must join
    /// the pending run, or request another run of a key in flight.
    #[inline]
    pub(super) fn add_again_fast(&mut self, slot: Slot, add: &Add, now: Time) -> Option<Added> {
        if add.merge == Merge::Exactly || add.failed {
            return None;
        }
        let record = self.records.get_mut(slot);
        let (phase, is_waiting) = (record.phase(), record.is_waiting());
        let due = add.due(now);
        // The policies have different effects if two runs are pending, or if a backoff has not
        // ended.
        let applies = match due {
            None => {
                let keeps = || {
                    self.settings.readd_policy == ReaddPolicy::KeepBoth && !self.timers.has_bounds()
                };
                phase != Phase::Idle && (!is_waiting || keeps())
            }
            Some(due) => {
                let is_gated =
                    || self.settings.readd_policy == ReaddPolicy::Hold && record.not_before() > due;
                phase == Phase::Idle && is_waiting && !add.is_debounced() && !is_gated()
            }
        };
        // The backoff of a key in flight is not in its record. Only the general path looks it up.
        if !applies || (phase.is_in_flight() && !self.backing_off.is_empty()) {
            return None;
        }
        let before = record.priority;
        record.merge_asked(Asked { adds: 1, flags: add.flags, priority: add.priority });
        if record.priority != before {
            self.move_depth(slot, before);
        }
        Some(match due {
            None => {
                self.counters.count_add(add);
                self.request_run_in(phase, slot, now, None)
            }
            Some(due) => {
                self.counters.count_add(add);
                self.merge_due(slot, due, add.merge)
            }
        })
    }

    /// Completes a run that has not failed, if the record of its key is then no longer needed.
    /// Returns the key. Also returns the time for which the key was in flight, if the queue tracks
    /// times. Otherwise, the function does not use `now`.
    #[inline(always)]
    pub(super) fn finish_fast(
        &mut self,
        ticket: &Ticket,
        how: Finish,
        now: Time,
    ) -> Option<(K, Option<Duration>)> {
        let succeeds = matches!(how, Finish::Succeed);
        // If a key in flight backs off, it may be this key.
        let is_simple = self.settings.is_plain && self.backing_off.is_empty();
        if !(succeeds || matches!(how, Finish::Done)) || !is_simple {
            return None;
        }
        self.end_and_remove(ticket, succeeds, now, |record| {
            record.is_with(ticket.epoch)
                && !record.is_waiting()
                && (succeeds || record.failures() == 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Order;
    use crate::queue::Config;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Time = Time::ZERO;

    /// The general path gives the same results, so no other test shows that the fast paths are
    /// used.
    #[test]
    fn the_short_ways_are_taken() {
        let plain = Config::default;
        let order = || Order::Priority { oldest_every: 4 };
        let configs = [
            plain(),
            Config { readd_policy: ReaddPolicy::Replace, track: true, ..plain() },
            Config { readd_policy: ReaddPolicy::KeepBoth, ..plain() },
            Config { order: order(), ..plain() },
            Config { order: order(), fair: true, group_limit: Some(3), ..plain() },
            Config { group_limit: Some(3), ..plain() },
        ];
        for config in configs {
            let track = config.track;
            let mut queue = Queue::new(config);
            let add = |queue: &mut Queue<u8>, key, add| {
                queue
                    .add_fast(key, key.into(), &add, GroupId::default(), NOW)
                    .map(|(added, _)| added)
            };
            let later = Add::after(SECOND);
            // The index is still empty, so the key has no first bucket.
            assert_eq!(add(&mut queue, 0, later), Err(0));
            let _ = queue.add(0, 0, later, GroupId::default(), NOW);
            for key in 1..=4 {
                let first = if key == 4 { later } else { Add::now() };
                assert_eq!(add(&mut queue, key, first), Ok(Added::New));
                assert_eq!(add(&mut queue, key, first), Ok(Added::Coalesced));
            }
            let [one, two, three] = [(); 3].map(|()| queue.get(NOW).expect("three are ready"));
            assert_eq!(add(&mut queue, 1, Add::now()), Ok(Added::Dirty));
            assert_eq!(add(&mut queue, 1, Add::now()), Ok(Added::Coalesced));
            assert_eq!(queue.finish_fast(&one.ticket, Finish::Succeed, NOW), None);
            let worked = track.then_some(SECOND);
            for (out, how) in [(two, Finish::Done), (three, Finish::Succeed)] {
                let ended = queue.finish_fast(&out.ticket, how, NOW + SECOND);
                assert_eq!(ended, Some((out.key, worked)));
            }
        }
    }

    #[test]
    fn a_new_key_that_has_failed_is_added_the_short_way_and_backs_off() {
        let cases = [
            (ReaddPolicy::Hold, Added::BackingOff),
            (ReaddPolicy::Replace, Added::New),
            (ReaddPolicy::KeepBoth, Added::New),
        ];
        for (readd_policy, again) in cases {
            let mut queue = Queue::new(Config { readd_policy, ..Config::default() });
            let _ = queue.add(0, 0, Add::now(), GroupId::default(), NOW);
            let failed = Add::after(SECOND).failed();
            let added = queue.add_fast(1, 1, &failed, GroupId::default(), NOW);
            assert_eq!(added, Ok((Added::New, None)));
            assert_eq!(queue.add(1, 1, Add::now(), GroupId::default(), NOW).0, again);
        }
    }

    #[test]
    fn a_delayed_add_of_a_waiting_key_takes_the_short_way_unless_it_is_held() {
        for (failed, is_short) in [(false, true), (true, false)] {
            let mut queue = Queue::new(Config::default());
            let first = Add::after(2 * SECOND);
            let first = if failed { first.failed() } else { first };
            let _ = queue.add(1, 1, first, GroupId::default(), NOW);
            let mut again = |after| {
                let slot = queue.find_slot(&1, 1).expect("it waits");
                queue.add_again_fast(slot, &Add::after(after), NOW)
            };
            assert_eq!(again(SECOND), is_short.then_some(Added::Coalesced));
            assert_eq!(again(3 * SECOND), Some(Added::Coalesced));
        }
    }

    #[test]
    fn a_key_whose_priority_rises_while_it_is_ready_is_lifted() {
        for fair in [false, true] {
            let order = Order::Priority { oldest_every: 4 };
            let mut queue = Queue::new(Config { order, fair, ..Config::default() });
            for (key, priority) in [(1, 0), (2, 1), (3, 0), (3, 2), (1, 1)] {
                let add = Add::now().priority(priority);
                let _ = queue.add(key, key, add, GroupId::default(), NOW);
            }
            let keys = core::iter::from_fn(|| queue.get(NOW)).map(|out| out.key);
            assert!(keys.eq([3, 2, 1]));
        }
    }

    #[test]
    fn a_run_of_a_key_that_has_failed_is_short_if_it_succeeds() {
        for (how, is_short) in [(Finish::Succeed, true), (Finish::Done, false)] {
            let mut queue = Queue::new(Config::default());
            let _ = queue.add(1, 1, Add::after(SECOND).failed(), GroupId::default(), NOW);
            let out = queue.get(NOW + SECOND).expect("it is due");
            assert_eq!(out.failures, 1);
            let ended = queue.finish_fast(&out.ticket, how, NOW);
            assert_eq!(ended.is_some(), is_short);
        }
    }
}
