use core::time::Duration;

use alloc::vec::Vec;

use super::*;
use crate::memory::chunked::CHUNK;
use crate::queue::Config;
use crate::{Add, Finish, GroupId, Order, Time};

const KEYS: u32 = 64 * CHUNK as u32;

/// A time at which all waiting keys are due.
const LATER: Time = Time::from_nanos(2_000_000_000);

/// Returns the keys that stay in the queue: one key of each chunk.
fn left() -> impl Iterator<Item = u32> {
    (0..KEYS).step_by(CHUNK)
}

fn added_at(key: u32) -> Time {
    Time::from_nanos(key.into())
}

/// Returns a queue with one key in each chunk of the slab. In one third of the chunks, this key
/// waits. In another third, it is in flight.
fn thinned_out(config: Config<u32>) -> Queue<u32> {
    let mut queue = Queue::new(config);
    let mut working = Vec::new();
    for key in 0..KEYS {
        let third = key / CHUNK as u32 % 3;
        let delay = if third == 1 { Duration::from_secs(1) } else { Duration::ZERO };
        let group = GroupId::new(u64::from(key % 7));
        let debounced = Add::debounce(delay).at_most(2 * delay);
        let _ = queue.add(key, u64::from(key), debounced, group, added_at(key));
        if third == 2 {
            working.extend(queue.get(added_at(key)));
        }
    }
    for out in working.into_iter().filter(|out| out.key % CHUNK as u32 > 0) {
        assert!(queue.finish(&out.ticket, Finish::Done, Time::ZERO).is_some());
    }
    for key in (0..KEYS).filter(|key| key % CHUNK as u32 > 0) {
        let _ = queue.cancel(&key, u64::from(key));
    }
    queue
}

/// Asserts that the queue has every key of `left`. Then delivers all ready keys.
fn all_is_there(queue: &mut Queue<u32>) {
    let keys = (0..KEYS).filter(|&key| queue.look_up(&key, u64::from(key)).is_some());
    assert!(keys.eq(left()));
    while queue.promote(LATER, 1000) > 0 {}
    let (ready, working) = (queue.len(), queue.in_flight());
    assert_eq!(ready + working, left().count());
    assert_eq!(core::iter::from_fn(|| queue.get(LATER)).count(), ready);
}

#[test]
fn what_is_kept_per_slot_comes_back_when_few_keys_are_left() {
    let priority = || Order::Priority { oldest_every: 4 };
    for (order, fair) in [(Order::Fifo, false), (priority(), false), (priority(), true)] {
        let mut queue = thinned_out(Config { order, fair, track: true, ..Config::default() });
        let (end, few) = (queue.records.slots_end(), 4 * CHUNK);
        assert!(end <= few, "{end} slots");
        assert!(queue.timers.chunks() <= few / CHUNK);
        assert!(queue.tracker.as_ref().is_some_and(|tracker| tracker.slots() <= few));
        assert!(queue.ready.slots() <= few);

        // The times of each key have moved together with its record.
        for key in left() {
            let since = queue.look_up(&key, u64::from(key)).and_then(|entry| entry.since);
            assert!(since.is_some_and(|since| since >= added_at(key)), "{key} since {since:?}");
            let bound = queue.look_up(&key, u64::from(key)).and_then(|entry| entry.bound);
            let waits = key / CHUNK as u32 % 3 == 1;
            assert_eq!(bound, waits.then(|| added_at(key) + Duration::from_secs(2)), "{key}");
        }
        let running = queue.entries_in_flight(0, KEYS as usize).expect("times are tracked");
        assert_eq!(running.len(), queue.in_flight());
        assert!(running.is_sorted_by_key(|entry| entry.since));
        all_is_there(&mut queue);
    }
}

#[test]
fn records_that_nothing_follows_come_together_too() {
    let mut queue = thinned_out(Config::default());
    let end = queue.records.slots_end();
    assert!(end <= 16 * CHUNK, "{end} slots");
    all_is_there(&mut queue);
}

#[test]
fn groups_without_keys_are_forgotten() {
    let mut queue = Queue::new(Config { fair: true, ..Config::default() });
    for key in 0..100_u32 {
        let _ = queue.add(key, u64::from(key), Add::now(), GroupId::new(key.into()), Time::ZERO);
        assert_eq!(queue.ready.groups().map(crate::order::Fair::groups), Some(1));
        let out = queue.get(Time::ZERO).expect("one is ready");
        let _ = queue.finish(&out.ticket, Finish::Done, Time::ZERO);
    }
}

#[test]
fn a_paused_group_without_keys_is_kept_until_it_is_resumed() {
    let mut queue = Queue::<u32>::new(Config { groups: true, ..Config::default() });
    assert!(queue.has_groups() && !Queue::<u32>::new(Config::default()).has_groups());
    for (paused, groups) in [(false, 0), (true, 1), (true, 1), (false, 0)] {
        queue.set_group_paused(GroupId::new(1), paused);
        assert_eq!(queue.ready.groups().map(crate::order::Fair::groups), Some(groups));
        assert_eq!(queue.is_group_paused(GroupId::new(1)), paused);
    }
}
