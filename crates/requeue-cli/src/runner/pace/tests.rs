//! Tests of the pace: delays, debounces and minimum intervals.

use std::time::Duration;

use requeue::Queue;
use requeue::clock::FakeClock;

use super::*;
use crate::duration::Debounce;

const POLICIES: [ReAdd; 3] = [ReAdd::KeepBoth, ReAdd::Replace, ReAdd::Hold];
const K: &[u8] = b"k";

/// A queue with a fake clock, and the runs of a key.
struct Fixture {
    clock: FakeClock,
    origin: Time,
    pace: Pace,
}

impl Fixture {
    fn new(times: Times, re_add: ReAdd) -> Self {
        let clock = FakeClock::new();
        let queue = Queue::builder().clock(clock.clone()).re_add(re_add);
        let queue = match times.min_interval {
            Some(interval) => queue.pace(requeue::Pace::min_interval(interval)),
            None => queue,
        };
        let queue = queue.hasher(std::hash::RandomState::new()).build().unwrap();
        Self { origin: queue.now(), clock, pace: Pace::new(times, re_add, queue) }
    }

    fn elapsed(&self) -> Duration {
        self.pace.queue.now().since(self.origin)
    }

    fn second(&self) -> u64 {
        self.elapsed().as_secs()
    }

    /// Moves the clock to this number of seconds after the start.
    fn at(&self, seconds: u64) {
        let wanted = Duration::from_secs(seconds);
        self.clock.advance(wanted.checked_sub(self.elapsed()).expect("a time to come"));
    }

    fn add(&self) -> Added {
        self.pace.add(K, AddOptions::default())
    }

    fn add_after(&self, seconds: u64, merge: Merge) {
        let after = Some(Duration::from_secs(seconds));
        self.pace.add(K, AddOptions { after, merge, ..AddOptions::default() });
    }

    /// Starts a run, if one may start now.
    fn start(&self) -> Option<Item<'static, Key>> {
        let item = self.turn()?;
        self.pace.started(&item);
        Some(item)
    }

    /// Takes a key that may start now, without recording the start of its command.
    fn turn(&self) -> Option<Item<'static, Key>> {
        std::iter::from_fn(|| self.pace.queue.try_get_owned())
            .find_map(|item| self.pace.start(item))
    }

    /// Waits for the next run, which succeeds. Returns the second at which it starts, and the
    /// number of its adds.
    fn next(&self) -> (u64, u32) {
        let item = self.wait();
        let (second, adds) = (self.second(), self.pace.adds(&item));
        self.pace.succeed(item);
        (second, adds)
    }

    fn wait(&self) -> Item<'static, Key> {
        for _ in 0..10_000 {
            if let Some(item) = self.start() {
                return item;
            }
            self.clock.advance(Duration::from_millis(10));
        }
        panic!("nothing runs")
    }

    fn retry_in(&self, item: Item<'static, Key>, seconds: u64) {
        self.pace.retry(item, self.pace.queue.now() + Duration::from_secs(seconds));
    }

    /// Checks that no state is left after all times have passed.
    fn is_clean(&self) -> bool {
        self.clock.advance(Duration::from_secs(10_000));
        self.pace.lock().keys.is_empty() && self.pace.queue.len() == 0
    }
}

fn delay(seconds: u64) -> Times {
    Times { delay: Some(Duration::from_secs(seconds)), ..Times::default() }
}

fn debounce(quiet: u64, most: u64) -> Times {
    let [quiet, most] = [quiet, most].map(Duration::from_secs);
    Times { debounce: Some(Debounce { quiet, most }), ..Times::default() }
}

fn min_interval(seconds: u64) -> Times {
    Times { min_interval: Some(Duration::from_secs(seconds)), ..Times::default() }
}

#[test]
fn a_delay_counts_from_the_first_add() {
    for policy in POLICIES {
        let it = Fixture::new(delay(5), policy);
        for second in [0, 2, 4] {
            it.at(second);
            it.add();
        }
        assert_eq!(it.next(), (5, 3));
        it.add();
        assert_eq!(it.next(), (10, 1));
        assert!(it.is_clean());
    }
}

#[test]
fn a_debounce_counts_from_the_last_add_up_to_its_limit() {
    for policy in POLICIES {
        let it = Fixture::new(debounce(5, 12), policy);
        for second in [0, 2, 4] {
            it.at(second);
            it.add();
        }
        assert_eq!(it.next(), (9, 3));
        for second in [20, 23, 26, 29] {
            it.at(second);
            it.add();
        }
        assert_eq!(it.next(), (32, 4));
        assert!(it.is_clean());
    }
}

#[test]
fn what_was_ready_already_does_not_wait_again() {
    for policy in POLICIES {
        let it = Fixture::new(debounce(5, 50), policy);
        it.at(0);
        it.add();
        it.at(6);
        it.add();
        assert_eq!(it.next(), (6, 2));
        assert!(it.start().is_none() && it.is_clean());
    }
}

#[test]
fn an_add_while_the_key_runs_has_a_window_of_its_own() {
    for policy in POLICIES {
        let it = Fixture::new(debounce(5, 50), policy);
        it.at(0);
        it.add();
        let first = it.wait();
        it.at(7);
        assert_eq!(it.add(), Added::New);
        it.at(8);
        it.add();
        it.pace.succeed(first);
        assert_eq!(it.next(), (13, 2));
        assert!(it.is_clean());

        // The window ends while the key runs.
        let it = Fixture::new(debounce(5, 50), policy);
        it.add();
        let first = it.wait();
        it.add();
        it.at(20);
        assert_eq!(it.add(), Added::Coalesced);
        it.pace.succeed(first);
        assert_eq!(it.next(), (20, 2));
        assert!(it.is_clean());
    }
}

#[test]
fn starts_of_a_key_are_apart_also_when_it_was_idle() {
    for policy in POLICIES {
        let it = Fixture::new(min_interval(10), policy);
        it.at(0);
        it.add();
        assert_eq!(it.next(), (0, 1));
        it.at(3);
        it.add();
        it.add();
        assert_eq!(it.next(), (10, 2));
        it.at(25);
        it.add();
        let runs = it.wait();
        assert_eq!(it.second(), 25);
        it.add();
        it.at(27);
        it.pace.succeed(runs);
        assert_eq!(it.next(), (35, 1));
        assert!(it.is_clean());
    }
}

#[test]
fn a_start_is_at_the_latest_of_all_times() {
    for policy in POLICIES {
        for (delay, quiet, interval, second) in
            [(9, 5, 7, 9), (5, 9, 7, 9), (5, 7, 9, 9), (3, 2, 1, 3)]
        {
            let times = Times { delay: super::tests::delay(delay).delay, ..debounce(quiet, 50) };
            let times = Times { min_interval: min_interval(interval).min_interval, ..times };
            let it = Fixture::new(times, policy);
            it.add();
            let start = it.next().0;
            it.add();
            assert_eq!(it.next().0, start + second);
            assert!(it.is_clean());
        }
    }
}

#[test]
fn a_retry_waits_for_its_backoff_and_for_what_paces_the_key() {
    for policy in POLICIES {
        for (backoff, second) in [(2, 10), (15, 15)] {
            let it = Fixture::new(min_interval(10), policy);
            it.at(0);
            it.add();
            it.retry_in(it.start().unwrap(), backoff);
            assert_eq!(it.next(), (second, 1));
            assert!(it.is_clean());
        }
    }
}

#[test]
fn an_add_to_a_key_that_backs_off_has_its_window_too() {
    for (policy, early) in [(ReAdd::KeepBoth, 13), (ReAdd::Replace, 13), (ReAdd::Hold, 23)] {
        for (second, expected) in [(10, early), (22, 25)] {
            let it = Fixture::new(debounce(3, 30), policy);
            it.add();
            let item = it.wait();
            assert_eq!(it.second(), 3);
            it.retry_in(item, 20);
            it.at(second);
            it.add();
            assert_eq!(it.next(), (expected, 2), "{policy:?}");
            assert!(it.start().is_none() && it.is_clean());
        }
    }
}

#[test]
fn a_failed_run_leaves_the_window_of_what_was_added_meanwhile() {
    for policy in POLICIES {
        for backoff in [1, 2] {
            let it = Fixture::new(debounce(10, 100), policy);
            it.at(0);
            it.add();
            let item = it.wait();
            it.at(15);
            it.add();
            it.at(16);
            it.retry_in(item, backoff);
            it.at(20);
            it.add();
            assert_eq!(it.next(), (30, 3), "{policy:?}");
            assert!(it.start().is_none() && it.is_clean());
        }
    }
}

#[test]
fn times_that_adds_name_are_waited_for_besides() {
    for policy in POLICIES {
        for (merge, second) in [(Merge::Earliest, 20), (Merge::Latest, 30), (Merge::Exactly, 20)] {
            let it = Fixture::new(debounce(5, 50), policy);
            it.at(0);
            it.add_after(30, Merge::Earliest);
            it.add_after(20, merge);
            let adds = if merge == Merge::Exactly { 1 } else { 2 };
            assert_eq!(it.next(), (second, adds), "{policy:?} {merge:?}");
            it.at(40);
            it.add_after(30, Merge::Earliest);
            it.at(50);
            it.add();
            assert_eq!(it.next(), (55, 2), "{policy:?}");
            assert!(it.is_clean());
        }
    }
}

#[test]
fn an_add_in_the_moment_of_the_start_is_paced_like_any_other() {
    for policy in POLICIES {
        // Between the delivery and the record of the start.
        let it = Fixture::new(min_interval(5), policy);
        it.at(5);
        it.add();
        let item = it.pace.queue.try_get_owned().unwrap();
        (0..3).for_each(|_| _ = it.add());
        let item = it.pace.start(item).unwrap();
        it.pace.started(&item);
        it.at(7);
        it.pace.succeed(item);
        assert_eq!(it.next(), (10, 3));
        assert!(it.is_clean());

        // The command has not started, so that the window goes on.
        let it = Fixture::new(debounce(5, 50), policy);
        it.add();
        it.at(5);
        let item = it.pace.queue.try_get_owned().unwrap();
        (0..3).for_each(|_| _ = it.add());
        assert!(it.pace.start(item).is_none());
        assert_eq!(it.next(), (10, 4));
        assert!(it.start().is_none() && it.is_clean());
    }
}

#[test]
fn a_turn_without_a_need_for_a_run_spaces_nothing() {
    for policy in POLICIES {
        let it = Fixture::new(min_interval(5), policy);
        it.at(5);
        it.add();
        let item = it.turn().unwrap();
        it.add();
        it.pace.succeed(item);
        assert_eq!(it.next(), (5, 1));
        it.add();
        assert_eq!(it.next(), (10, 1));
        assert!(it.is_clean());
    }
}

#[test]
fn a_key_that_is_taken_back_leaves_nothing() {
    let it = Fixture::new(debounce(5, 50), ReAdd::Replace);
    it.at(0);
    it.add();
    assert!(it.pace.cancel(K) && !it.pace.cancel(K));
    it.at(2);
    it.add();
    assert_eq!(it.next(), (7, 1));
    assert!(it.is_clean());
}

#[test]
fn at_the_end_of_the_input_windows_end_and_nothing_else_does() {
    for policy in POLICIES {
        // Only a window.
        let it = Fixture::new(debounce(50, 500), policy);
        it.at(0);
        (0..3).for_each(|_| _ = it.add());
        it.pace.end_windows();
        assert_eq!(it.next(), (0, 3));
        assert!(it.is_clean());

        // The due time of an add.
        let it = Fixture::new(debounce(50, 500), policy);
        it.at(0);
        it.add_after(20, Merge::Earliest);
        it.pace.end_windows();
        assert_eq!(it.next(), (20, 1));
        assert!(it.is_clean());

        // The least interval.
        let it = Fixture::new(
            Times { delay: Some(Duration::from_secs(50)), ..min_interval(60) },
            policy,
        );
        it.add();
        let start = it.next().0;
        it.add();
        it.pace.end_windows();
        assert_eq!(it.next(), (start + 60, 1));
        assert!(it.is_clean());

        // A backoff, with nothing added since.
        let it = Fixture::new(delay(50), policy);
        it.add();
        it.retry_in(it.wait(), 5);
        let now = it.second();
        it.pace.end_windows();
        assert_eq!(it.next(), (now + 5, 1));
        assert!(it.is_clean());
    }
}

#[test]
fn at_the_end_of_the_input_an_add_and_a_backoff_are_as_re_adds_say() {
    for (policy, wait) in [(ReAdd::KeepBoth, 0), (ReAdd::Replace, 0), (ReAdd::Hold, 5)] {
        for ends_first in [true, false] {
            let it = Fixture::new(delay(50), policy);
            it.add();
            let item = it.wait();
            it.add();
            it.add();
            if ends_first {
                it.pace.end_windows();
            }
            let now = it.second();
            it.retry_in(item, 5);
            it.pace.end_windows();
            assert_eq!(it.next(), (now + wait, 3), "{policy:?} {ends_first}");
            assert!(it.start().is_none() && it.is_clean());
        }
    }
}

#[test]
fn at_the_end_of_the_input_what_was_added_to_a_key_that_runs_is_run_after_it() {
    for policy in POLICIES {
        let it = Fixture::new(delay(50), policy);
        it.add();
        let item = it.wait();
        (0..2).for_each(|_| _ = it.add());
        it.pace.end_windows();
        let now = it.second();
        it.pace.succeed(item);
        assert_eq!(it.next(), (now, 2));
        assert!(it.is_clean());
    }
}
