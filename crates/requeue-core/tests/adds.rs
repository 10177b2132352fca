//! The options and the results of adds.

use std::time::Duration;

use requeue_core::{Add, Added, Cancelled, Config, GroupId, Merge, Queue, ReaddPolicy, Time};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn an_add_says_what_it_asks_for() {
    assert_eq!(Add::now().flags(1).flags(1), Add::now().flags(1));
    assert_eq!(Add::now().flags(1).flags(2), Add::now().flags(3));
    for merge in [Merge::Earliest, Merge::Latest, Merge::Exactly] {
        assert_eq!(Add::now().merge(merge).merging(), merge);
    }
    let delayed = [Add::now(), Add::after(Duration::ZERO), Add::after(SECOND), Add::at(Time::ZERO)]
        .map(|add| add.is_delayed());
    assert_eq!(delayed, [false, false, true, true]);
    let debounced = [Add::debounce(Duration::ZERO), Add::debounce(SECOND)];
    assert_eq!(debounced.map(|add| add.is_delayed()), [false, true]);
    assert_eq!(debounced.map(|add| add.is_retry()), [false, false]);
    // Only a debounced add has a bound, so `at_most` changes no other add.
    assert_eq!(Add::after(SECOND).at_most(SECOND), Add::after(SECOND));
    assert_ne!(Add::debounce(SECOND).at_most(SECOND), Add::debounce(SECOND));
}

#[test]
fn a_cancel_says_whether_it_took_anything() {
    let none = Cancelled::default();
    assert!(!none.any());
    assert!(Cancelled { ready: true, ..none }.any());
    assert!(Cancelled { dirty: true, ..none }.any());
    assert!(Cancelled { waiting: true, ..none }.any());
}

/// Keys with the same due time are delivered in the order in which they began to wait.
#[test]
fn an_add_that_changes_no_time_keeps_the_place() {
    for readd_policy in [ReaddPolicy::KeepBoth, ReaddPolicy::Replace, ReaddPolicy::Hold] {
        let debounced = Add::debounce(SECOND).at_most(SECOND);
        let merged = [Merge::Earliest, Merge::Latest].map(|merge| Add::after(SECOND).merge(merge));
        for add in merged.into_iter().chain([debounced]) {
            let mut queue = Queue::new(Config { readd_policy, ..Config::default() });
            let mut add = |key: u32| queue.add(key, 1, add, GroupId::default(), Time::ZERO).0;
            assert_eq!([1, 2, 1].map(&mut add), [Added::New, Added::New, Added::Coalesced]);
            let later = Time::ZERO + SECOND;
            assert_eq!([(); 2].map(|()| queue.get(later).expect("both are due").key), [1, 2]);
        }
    }
}
