//! One test for each row of the tables, and random tests that compare the rules with a set of runs.

use alloc::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::types::{Merge, ReaddPolicy};

const NOW: u64 = 100;
const POLICIES: [ReaddPolicy; 3] = [ReaddPolicy::Hold, ReaddPolicy::Replace, ReaddPolicy::KeepBoth];

/// A key whose whole state is in its fields.
#[derive(Clone, Copy, Debug)]
struct Key {
    phase: Phase,
    wait: Option<Wait<u64>>,
    not_before: u64,
    paced: Option<u64>,
    ending: Ending,
    is_stopped: bool,
}

impl KeyState for Key {
    type Time = u64;

    fn phase(&self) -> Phase {
        self.phase
    }

    fn wait(&self) -> Option<Wait<u64>> {
        self.wait
    }

    fn not_before(&self) -> u64 {
        self.not_before
    }

    fn paced(&self, now: u64) -> Option<u64> {
        self.paced.filter(|&until| until > now)
    }

    fn ending(&self) -> Ending {
        self.ending
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped
    }
}

const fn key(phase: Phase) -> Key {
    let (ending, is_stopped) = (Ending::Open, false);
    Key { phase, wait: None, not_before: 0, paced: None, ending, is_stopped }
}

const DIRTY: Key = key(Phase::InFlightDirty);
const CLEAN: Key = key(Phase::InFlight);

const fn due(due: u64) -> Option<Wait<u64>> {
    Some(Wait { due, bound: None })
}

const fn wish(due: Option<u64>, bound: Option<u64>) -> Wish<u64> {
    Wish { due, bound, is_failure: false }
}

// --- Adds -----------------------------------------------------------------------------------------

#[test]
fn only_hold_delays_an_add_and_only_of_a_key_that_is_not_ready() {
    for policy in POLICIES {
        for phase in [Phase::Idle, Phase::Ready, Phase::InFlight, Phase::InFlightDirty] {
            let key = Key { not_before: 105, ..key(phase) };
            let is_held = policy == ReaddPolicy::Hold && phase != Phase::Ready;
            for (wanted, held) in [(None, Some(105)), (Some(103), Some(105))] {
                let permit = permit(&key, policy, wish(wanted, None), NOW);
                let expected = if is_held { held } else { wanted };
                assert_eq!(
                    (permit.due, permit.is_held),
                    (expected, is_held),
                    "{policy:?} {phase:?}"
                );
            }
            let later = permit(&key, policy, wish(Some(106), None), NOW);
            assert_eq!((later.due, later.is_held), (Some(106), false));
        }
    }
}

#[test]
fn a_debounced_add_asks_for_no_time_after_the_latest() {
    let waits = |bound| Key { wait: Some(Wait { due: 102, bound }), ..key(Phase::Idle) };
    for policy in POLICIES {
        let asks = |key: Key| permit(&key, policy, wish(Some(110), Some(120)), NOW).due;
        assert_eq!(asks(key(Phase::Idle)), Some(110));
        assert_eq!(asks(waits(None)), Some(102), "an hourly run is not postponed");
        assert_eq!(asks(waits(Some(104))), Some(104));
        assert_eq!(asks(waits(Some(115))), Some(110));
        assert_eq!(asks(Key { wait: due(NOW), ..key(Phase::Idle) }), Some(NOW), "it stays due");
    }
}

#[test]
fn an_add_that_reports_a_failure_begins_a_backoff() {
    let failed = |due| Wish { is_failure: true, ..wish(due, None) };
    let begins = |key: Key, due| permit(&key, ReaddPolicy::Hold, failed(due), NOW).backoff;
    assert_eq!(begins(key(Phase::Idle), Some(105)), Some(105));
    assert_eq!(begins(Key { not_before: 107, ..CLEAN }, Some(105)), Some(107));
    assert_eq!(begins(CLEAN, None), None);
    assert_eq!(begins(key(Phase::Ready), Some(105)), None);
    assert_eq!(permit(&CLEAN, ReaddPolicy::Replace, failed(Some(105)), NOW).backoff, None);

    assert!(postpones(&DIRTY, 105));
    assert!(postpones(&Key { wait: due(104), ..CLEAN }, 105));
    assert!(!postpones(&Key { wait: due(105), ..CLEAN }, 105));
    assert!(!postpones(&CLEAN, 105));
}

#[test]
fn an_add_with_a_due_time_joins_begins_or_merges() {
    for (policy, bound) in
        [(ReaddPolicy::Hold, None), (ReaddPolicy::Replace, None), (ReaddPolicy::KeepBoth, Some(9))]
    {
        assert_eq!(later(&key(Phase::Ready), policy, bound), Later::Joins);
        assert_eq!(later(&DIRTY, policy, bound), Later::Joins);
        assert_eq!(later(&CLEAN, policy, bound), Later::Begins);
        assert_eq!(later(&Key { wait: due(105), ..CLEAN }, policy, bound), Later::Merges);
    }
    assert_eq!(later(&DIRTY, ReaddPolicy::KeepBoth, None), Later::Begins);
    assert_eq!(later(&Key { wait: due(105), ..DIRTY }, ReaddPolicy::KeepBoth, None), Later::Merges);
}

#[test]
fn due_times_merge_by_the_table() {
    let bounded = |due, bound| Wait { due, bound: Some(bound) };
    let wait = bounded(105, 110);
    assert_eq!(wait.merged(103, Merge::Earliest), bounded(103, 103));
    assert_eq!(wait.merged(107, Merge::Earliest), bounded(105, 107));
    assert_eq!(wait.merged(112, Merge::Earliest), wait);
    assert_eq!(wait.merged(107, Merge::Latest), Wait { due: 107, bound: None });
    assert_eq!(wait.merged(105, Merge::Latest), wait);
    assert_eq!(wait.merged(105, Merge::Exactly), Wait { due: 105, bound: None });
    assert_eq!(wait.debounced(107, 120), bounded(107, 110));
    assert_eq!(wait.debounced(107, 109), bounded(107, 109));
    assert_eq!(Wait { due: 105, bound: None }.debounced(103, 120), bounded(103, 105));
    assert_eq!(wait.flushed(103), Wait { due: 103, bound: None });
    assert_eq!(wait.flushed(107), Wait { due: 105, bound: None });
}

#[test]
fn the_highest_priority_of_the_pending_run_wins() {
    assert_eq!([priority(None, -1), priority(Some(2), -1), priority(Some(-2), -1)], [-1, 2, -1]);
}

// --- Completions ----------------------------------------------------------------------------------

#[test]
fn failures_and_adds_follow_the_table() {
    let cases = [
        (How::Done, Failures::Keep, Adds::End),
        (How::Succeed, Failures::Forget, Adds::End),
        (How::Requeue(105), Failures::Forget, Adds::End),
        (How::Retry(105), Failures::Count, Adds::PassOn),
        (How::GiveUp, Failures::Forget, Adds::End),
        (How::Release(None), Failures::Keep, Adds::PassOn),
        (How::Release(Some(105)), Failures::Keep, Adds::PassOn),
        (How::Cancelled, Failures::Keep, Adds::End),
    ];
    for (how, failures, adds) in cases {
        for key in [CLEAN, DIRTY, Key { wait: due(109), ..CLEAN }] {
            let plan = complete(how, &key, ReaddPolicy::Hold, NOW);
            assert_eq!((plan.failures, plan.adds, plan.is_parked), (failures, adds, false));
        }
    }
    for (key, is_pending) in
        [(CLEAN, false), (DIRTY, true), (Key { wait: due(109), ..CLEAN }, true)]
    {
        let restarted = complete(How::Restarted, &key, ReaddPolicy::Hold, NOW);
        assert_eq!(restarted.adds == Adds::PassOn, is_pending);
        let parked = complete(How::Park, &key, ReaddPolicy::Hold, NOW);
        assert_eq!((parked.is_parked, parked.adds), (!is_pending, Adds::PassOn));
        let failures = if is_pending { Failures::Forget } else { Failures::Count };
        assert_eq!(parked.failures, failures);
    }
}

#[test]
fn a_completion_that_asks_for_no_run_leaves_it_to_the_adds() {
    let hows = [How::Done, How::Succeed, How::Requeue(105), How::GiveUp, How::Park, How::Cancelled];
    for policy in POLICIES {
        for how in hows {
            assert_eq!(complete(how, &CLEAN, policy, NOW).start, Start::No);
            let dirty = complete(how, &DIRTY, policy, NOW);
            assert_eq!((dirty.start, dirty.later), (Start::Now, None));
        }
    }
}

#[test]
fn a_retry_of_a_dirty_key_is_one_run_unless_both_are_kept() {
    let retry = |policy, key: Key, at| {
        let plan = complete(How::Retry(at), &key, policy, NOW);
        (plan.start, plan.later, plan.is_one_run())
    };
    let exactly = Some((105, Merge::Exactly));
    let earliest = Some((105, Merge::Earliest));
    assert_eq!(retry(ReaddPolicy::Hold, DIRTY, 105), (Start::No, exactly, true));
    assert_eq!(retry(ReaddPolicy::Hold, CLEAN, 105), (Start::No, exactly, true));
    assert_eq!(
        retry(ReaddPolicy::Hold, Key { not_before: 105, ..CLEAN }, NOW),
        (Start::No, exactly, true)
    );
    assert_eq!(retry(ReaddPolicy::Replace, DIRTY, 105), (Start::Now, None, true));
    assert_eq!(retry(ReaddPolicy::Replace, CLEAN, 105), (Start::No, earliest, true));
    assert_eq!(retry(ReaddPolicy::KeepBoth, DIRTY, 105), (Start::Now, earliest, false));
    for policy in POLICIES {
        assert_eq!(retry(policy, CLEAN, NOW), (Start::Now, None, true));
    }
}

#[test]
fn a_release_waits_for_its_delay_unless_the_key_is_dirty() {
    let release = |key: Key, at| complete(How::Release(at), &key, ReaddPolicy::Hold, NOW);
    assert_eq!(release(CLEAN, None).start, Start::Now);
    assert_eq!(release(DIRTY, Some(105)).start, Start::Now);
    let waits = release(Key { not_before: 103, ..CLEAN }, Some(105));
    assert_eq!((waits.later, waits.backoff), (Some((105, Merge::Earliest)), Some(103)));
    let backs_off = release(Key { not_before: 107, ..CLEAN }, Some(105));
    assert_eq!((backs_off.later, backs_off.backoff), (Some((107, Merge::Exactly)), Some(107)));
}

#[test]
fn a_pace_delays_every_run_except_after_a_release() {
    let paced = |key: Key| Key { paced: Some(108), ..key };
    for how in [How::Done, How::Retry(NOW), How::Restarted] {
        let plan = complete(how, &paced(DIRTY), ReaddPolicy::Replace, NOW);
        assert_eq!((plan.start, plan.makes_ready), (Start::Paced(108), false));
    }
    assert_eq!(
        complete(How::Release(None), &paced(DIRTY), ReaddPolicy::Hold, NOW).start,
        Start::Now
    );
    let requeue = |key: Key| complete(How::Requeue(NOW), &key, ReaddPolicy::Hold, NOW).makes_ready;
    assert!(requeue(CLEAN) && !requeue(paced(CLEAN)));
}

#[test]
fn a_shutdown_drops_what_a_completion_asks_for() {
    let lost = |how, key: Key, is_stopped| {
        let key = Key { ending: Ending::ShutDown, is_stopped, ..key };
        let plan = complete(how, &key, ReaddPolicy::Hold, NOW);
        assert_eq!((plan.later, plan.add), (None, None));
        (plan.is_lost, plan.start == Start::Now)
    };
    for how in [How::Retry(105), How::Requeue(NOW), How::Release(None)] {
        assert_eq!(lost(how, CLEAN, false), (true, false));
        assert_eq!(lost(how, DIRTY, false), (false, true));
        assert_eq!(lost(how, DIRTY, true), (true, false));
    }
    assert_eq!(lost(How::Succeed, CLEAN, true), (false, false));
    assert_eq!(lost(How::Succeed, DIRTY, true), (true, false));
    assert_eq!(lost(How::Done, Key { paced: Some(108), ..DIRTY }, false), (true, false));
}

// --- The oracle -----------------------------------------------------------------------------------

/// The due times of the pending runs of a key. A run that is due now has the time 0.
fn runs(key: &Key) -> BTreeSet<u64> {
    let ready = key.phase.is_dirty().then_some(0);
    ready.into_iter().chain(key.wait.map(|wait| wait.due)).collect()
}

/// Returns the pending runs after the plan has been applied.
fn apply(key: &Key, plan: &Plan<u64>, policy: ReaddPolicy) -> BTreeSet<u64> {
    let mut wait = key.wait.map(|wait| wait.due);
    let mut runs = BTreeSet::new();
    if plan.start == Start::Now {
        runs.insert(0);
        wait = wait.filter(|_| policy == ReaddPolicy::KeepBoth);
    }
    if let Some((at, merge)) = plan.later {
        wait = match (wait, merge) {
            (Some(was), Merge::Earliest) => Some(was.min(at)),
            _ => Some(at),
        };
    }
    runs.extend(wait);
    runs
}

fn keys() -> impl Strategy<Value = Key> {
    let wait = proptest::option::of(101_u64..110);
    (any::<bool>(), wait, 95_u64..110).prop_map(|(is_dirty, wait, not_before)| Key {
        wait: wait.map(|due| Wait { due, bound: None }),
        not_before,
        ..if is_dirty { DIRTY } else { CLEAN }
    })
}

proptest! {
    /// The expected result is computed with a set of pending runs. The retry is added to the set,
    /// and then the policy is applied. `KeepBoth` keeps all runs, and the other policies keep only
    /// the first one. `Hold` moves it to the end of the backoff.
    #[test]
    fn a_retry_adds_a_run_to_the_set(key in keys(), at in 95_u64..110) {
        for policy in POLICIES {
            let is_single = policy != ReaddPolicy::KeepBoth;
            // Only `KeepBoth` permits two pending runs of a key, and only `Hold` uses backoffs.
            let key = Key {
                wait: key.wait.filter(|_| !(is_single && key.phase.is_dirty())),
                not_before: if policy == ReaddPolicy::Hold { key.not_before } else { 0 },
                ..key
            };
            let plan = complete(How::Retry(at), &key, policy, NOW);
            let retry = at.max(key.not_before);
            let mut expected = runs(&key);
            if policy == ReaddPolicy::KeepBoth && retry > NOW {
                // A key stores only one due time.
                let first = key.wait.map_or(retry, |wait| wait.due.min(retry));
                expected.retain(|&run| run == 0);
                expected.insert(first);
            } else {
                expected.insert(if retry > NOW { retry } else { 0 });
            }
            if is_single {
                let first = *expected.first().expect("the retry");
                let waits = policy == ReaddPolicy::Hold && retry > NOW;
                expected = BTreeSet::from([if waits { retry } else { first }]);
            }
            prop_assert_eq!(apply(&key, &plan, policy), expected, "{:?}", policy);
            if let Some(end) = plan.backoff {
                let is_held = |&run: &u64| run >= end;
                prop_assert!(apply(&key, &plan, policy).iter().all(is_held));
            }
        }
    }

    /// No debounced add postpones a run beyond its bound or beyond another due time. No add with
    /// `Earliest` postpones a run.
    #[test]
    fn no_add_passes_the_bound(
        adds in proptest::collection::vec((1_u64..9, proptest::option::of(0_u64..9)), 1..20),
    ) {
        let mut key = key(Phase::Idle);
        let mut latest = u64::MAX;
        for (now, (after, more)) in (NOW..).zip(adds) {
            let bound = more.map(|more| now + after + more);
            let due = permit(&key, ReaddPolicy::Hold, wish(Some(now + after), bound), now).due;
            let due = due.expect("it is later");
            latest = latest.min(bound.unwrap_or(now + after));
            key.wait = Some(match key.wait {
                None => Wait { due, bound },
                Some(wait) => wait.with_add(due, Merge::Earliest, bound),
            });
            let wait = key.wait.expect("it waits");
            prop_assert_eq!(wait.latest().min(latest), if wait.bound.is_some() { latest } else { wait.due });
            prop_assert!(wait.due <= latest);
        }
    }
}
