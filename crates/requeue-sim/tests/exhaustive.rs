//! Every state that two keys can be in, and every operation in each. The search is breadth-first,
//! and stops when it finds no new state. Times are relative and counts are capped, so that the
//! search ends.

use std::collections::BTreeSet;
use std::time::Duration;

use requeue_core::ReaddPolicy::{Hold, KeepBoth, Replace};
use requeue_core::{Ending, InFlightPolicy, Merge, Pace, ReaddPolicy, When};
use requeue_sim::model::{AddRequest, Ranking, Rules};
use requeue_sim::{How, Lockstep, Op, Setup};

/// The longest delay. No due time is later than this delay from now.
const FAR: u64 = 2;

const fn nanos(n: u64) -> Duration {
    Duration::from_nanos(n)
}

/// A sequence that runs all pending keys, and thereby exposes the state of delays and deliveries.
const PROBE: [Op; 12] = [
    Op::Add(1, PLAIN),
    Op::Add(0, PLAIN),
    Op::Get,
    Op::Get,
    Op::Finish(0, How::Done),
    Op::Finish(0, How::Release),
    Op::Advance(nanos(FAR)),
    Op::Get,
    Op::PauseTeam(0, false),
    Op::PauseTeam(1, false),
    Op::Get,
    Op::Get,
];

const PLAIN: AddRequest = AddRequest {
    when: When::Now,
    merge: Merge::Earliest,
    priority: 0,
    flags: 0,
    why: None,
    failed: false,
    debounce: None,
};

/// Returns the operations that are applied to every state.
fn alphabet() -> Vec<Op> {
    let now = PLAIN;
    let after = |n| AddRequest { when: When::After(nanos(n)), ..now };
    let debounced = AddRequest { debounce: Some(nanos(FAR)), ..after(1) };
    let mut ops = vec![Op::Get, Op::Advance(nanos(1)), Op::Promote(1), Op::FlushDebounced];
    for key in 0..2 {
        ops.extend([
            Op::Add(key, now),
            Op::Add(key, after(1)),
            Op::Add(key, after(FAR)),
            Op::Add(key, AddRequest { merge: Merge::Latest, ..after(FAR) }),
            Op::Add(key, AddRequest { merge: Merge::Exactly, ..after(1) }),
            Op::Add(key, AddRequest { merge: Merge::Exactly, ..now }),
            Op::Add(key, AddRequest { failed: true, ..after(FAR) }),
            Op::Add(key, debounced),
            Op::Done(key),
            Op::Cancel(key),
            Op::Forget(key),
        ]);
    }
    for which in 0..2 {
        let hows = [
            How::Done,
            How::Succeed,
            How::GiveUp,
            How::RequeueAfter(nanos(0)),
            How::RequeueAfter(nanos(1)),
            How::RetryAfter(nanos(0)),
            How::RetryAfter(nanos(1)),
            How::RetryAfter(nanos(FAR)),
            How::Release,
            How::ReleaseAfter(nanos(1)),
        ];
        ops.extend(hows.map(|how| Op::Finish(which, how)));
        ops.push(Op::Detach(which));
    }
    ops.extend([true, false].map(Op::Pause));
    ops.extend([Ending::Closed, Ending::ShutDown].map(Op::End));
    ops
}

const fn rules(re_add: ReaddPolicy, ranking: Ranking, limit: Option<u32>) -> Rules {
    Rules {
        re_add,
        rerun: InFlightPolicy::After,
        ranking,
        fair: limit.is_some(),
        limit,
        pace: None,
    }
}

/// Explores all states, and prints the number of states and of steps.
fn explore(rules: Rules, ops: &[Op]) {
    explore_in(Setup { keys: 2, ..Setup::new(rules) }, ops);
}

fn explore_in(setup: Setup, ops: &[Op]) {
    let rules = setup.rules;
    // Each state is stored as the operation that led to it, and the state before it.
    let mut found: Vec<(usize, Option<Op>)> = vec![(0, None)];
    let mut seen = BTreeSet::from([Lockstep::new(setup).essence(FAR)]);
    let (mut at, mut steps) = (0, 0);
    while at < found.len() {
        let path = path_to(&found, at);
        for op in ops {
            let mut lockstep = Lockstep::new(setup);
            let trace = Trace(&path, op);
            for op in &path {
                lockstep.apply(op);
            }
            lockstep.step(op);
            steps += 1;
            if seen.insert(lockstep.essence(FAR)) {
                found.push((at, Some(*op)));
            } else {
                // The model was in this state before. The internal state of the queue must also be
                // equivalent.
                PROBE.iter().for_each(|op| {
                    lockstep.apply(op);
                });
                lockstep.compare(0..2);
            }
            drop(trace);
        }
        at += 1;
    }
    println!("{rules:?}: {} states, {steps} steps", found.len());
}

/// Prints the operations that led to a panic.
struct Trace<'a>(&'a [Op], &'a Op);

impl Drop for Trace<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("after {:?}\nin {:?}", self.0, self.1);
        }
    }
}

fn path_to(found: &[(usize, Option<Op>)], mut at: usize) -> Vec<Op> {
    let mut path = Vec::new();
    while let (before, Some(op)) = found[at] {
        path.push(op);
        at = before;
    }
    path.reverse();
    path
}

#[test]
fn keep_agrees_in_every_state_of_two_keys() {
    explore(rules(KeepBoth, Ranking::Fifo, None), &alphabet());
}

#[test]
fn replace_agrees_in_every_state_of_two_keys() {
    explore(rules(Replace, Ranking::Fifo, None), &alphabet());
}

#[test]
fn hold_agrees_in_every_state_of_two_keys() {
    explore(rules(Hold, Ranking::Fifo, None), &alphabet());
}

/// Priorities and a custom order have more states, and are explored with fewer operations.
fn explore_orders(re_add: ReaddPolicy) {
    let mut ops = vec![Op::Get, Op::Advance(nanos(1))];
    for key in 0..2 {
        let (now, soon) = (PLAIN, AddRequest { when: When::After(nanos(1)), ..PLAIN });
        ops.extend([
            Op::Add(key, now),
            Op::Add(key, AddRequest { priority: 1, ..now }),
            Op::Add(key, AddRequest { priority: 1, ..soon }),
            Op::Add(key, AddRequest { merge: Merge::Latest, ..soon }),
            Op::Add(key, AddRequest { merge: Merge::Exactly, ..soon }),
            Op::Cancel(key),
        ]);
    }
    for which in 0..2 {
        let hows =
            [How::Done, How::RequeueAfter(nanos(1)), How::RetryAfter(nanos(1)), How::Release];
        ops.extend(hows.map(|how| Op::Finish(which, how)));
    }
    let priority = Ranking::Priority { oldest_every: 2 };
    explore(rules(re_add, priority, None), &ops);
    explore(rules(re_add, priority, Some(1)), &ops);
    // Operations that cancel a key are left out, because a key that is repeatedly cancelled and
    // added would be in the stack several times.
    ops.retain(|op| match op {
        Op::Add(_, request) => request.merge != Merge::Exactly,
        op => !matches!(op, Op::Cancel(_)),
    });
    explore(rules(re_add, Ranking::Stack { lossy: 0 }, None), &ops);
    explore(rules(re_add, Ranking::Stack { lossy: 0 }, Some(1)), &ops);
}

#[test]
fn keep_agrees_in_every_state_of_two_keys_in_any_order() {
    explore_orders(KeepBoth);
}

#[test]
fn replace_agrees_in_every_state_of_two_keys_in_any_order() {
    explore_orders(Replace);
}

#[test]
fn hold_agrees_in_every_state_of_two_keys_in_any_order() {
    explore_orders(Hold);
}

/// Runs that are cancelled and restarted have more states, and are explored with fewer operations.
fn explore_restarts(re_add: ReaddPolicy) {
    let mut ops = vec![Op::Get, Op::Advance(nanos(1))];
    for key in 0..2 {
        let (now, soon) = (PLAIN, AddRequest { when: When::After(nanos(1)), ..PLAIN });
        ops.extend([
            Op::Add(key, now),
            Op::Add(key, soon),
            Op::Add(key, AddRequest { merge: Merge::Exactly, ..soon }),
            Op::Add(key, AddRequest { failed: true, ..soon }),
            Op::Cancel(key),
            Op::CancelRunning(key),
        ]);
    }
    for which in 0..2 {
        let hows =
            [How::Succeed, How::RetryAfter(nanos(1)), How::ReleaseAfter(nanos(1)), How::Cancelled];
        ops.extend(hows.map(|how| Op::Finish(which, how)));
    }
    for at_most in [0, FAR] {
        let rerun = InFlightPolicy::Restart { at_most: nanos(at_most) };
        explore(Rules { rerun, ..rules(re_add, Ranking::Fifo, None) }, &ops);
    }
}

/// A pace multiplies the states by the states of its windows, and is explored with fewer
/// operations.
fn explore_paces(re_add: ReaddPolicy) {
    let mut ops = vec![Op::Get, Op::Advance(nanos(1)), Op::End(Ending::ShutDown)];
    let soon = AddRequest { when: When::After(nanos(1)), ..PLAIN };
    for key in 0..2 {
        ops.extend([
            Op::Add(key, PLAIN),
            Op::Add(key, soon),
            Op::Add(key, AddRequest { debounce: Some(nanos(FAR)), ..soon }),
            Op::Add(key, AddRequest { merge: Merge::Exactly, ..PLAIN }),
            Op::Cancel(key),
        ]);
    }
    let hows = [
        How::Succeed,
        How::GiveUp,
        How::RequeueAfter(nanos(0)),
        How::RetryAfter(nanos(0)),
        How::RetryAfter(nanos(1)),
        How::Release,
        How::ReleaseAfter(nanos(1)),
    ];
    ops.extend(hows.map(|how| Op::Finish(0, how)));
    for runs in [1, 2] {
        let pace = Some(Pace::new(runs, nanos(FAR)));
        explore(Rules { pace, ..rules(re_add, Ranking::Fifo, None) }, &ops);
    }
}

/// The search has two keys in two groups, or in one group. A paused group multiplies the states,
/// which are explored with fewer operations.
fn explore_groups(re_add: ReaddPolicy) {
    let mut ops = vec![Op::Get, Op::Advance(nanos(1))];
    let soon = AddRequest { when: When::After(nanos(1)), ..PLAIN };
    for key in 0..2 {
        ops.extend([Op::Add(key, PLAIN), Op::Add(key, soon)]);
    }
    for team in 0..2 {
        ops.extend([
            Op::PauseTeam(team, true),
            Op::PauseTeam(team, false),
            Op::CancelTeam(team),
            Op::CancelRunningTeam(team),
        ]);
    }
    let hows = [How::Succeed, How::RetryAfter(nanos(1)), How::Cancelled];
    ops.extend(hows.map(|how| Op::Finish(0, how)));
    ops.extend([Ending::Closed, Ending::ShutDown].map(Op::End));
    let explore = |ranking, limit, teams, ops: &[Op]| {
        let rules = rules(re_add, ranking, limit);
        explore_in(Setup { keys: 2, teams, groups: true, ..Setup::new(rules) }, ops);
    };
    for teams in [1, 2] {
        explore(Ranking::Fifo, None, teams, &ops);
    }
    ops.retain(|op| {
        !matches!(op, Op::End(_) | Op::CancelRunningTeam(_) | Op::Finish(_, How::Cancelled))
    });
    explore(Ranking::Priority { oldest_every: 2 }, Some(1), 2, &ops);
    // As in `explore_orders`, the stack must not grow.
    ops.retain(|op| !matches!(op, Op::CancelTeam(_)));
    for limit in [None, Some(1)] {
        explore(Ranking::Stack { lossy: 0 }, limit, 2, &ops);
    }
}

#[test]
fn keep_agrees_in_every_state_of_two_keys_in_groups() {
    explore_groups(KeepBoth);
}

#[test]
fn replace_agrees_in_every_state_of_two_keys_in_groups() {
    explore_groups(Replace);
}

#[test]
fn hold_agrees_in_every_state_of_two_keys_in_groups() {
    explore_groups(Hold);
}

#[test]
fn keep_agrees_in_every_state_of_two_keys_that_restart() {
    explore_restarts(KeepBoth);
}

#[test]
fn replace_agrees_in_every_state_of_two_keys_that_restart() {
    explore_restarts(Replace);
}

#[test]
fn hold_agrees_in_every_state_of_two_keys_that_restart() {
    explore_restarts(Hold);
}

#[test]
fn keep_agrees_in_every_state_of_two_keys_with_a_pace() {
    explore_paces(KeepBoth);
}

#[test]
fn replace_agrees_in_every_state_of_two_keys_with_a_pace() {
    explore_paces(Replace);
}

#[test]
fn hold_agrees_in_every_state_of_two_keys_with_a_pace() {
    explore_paces(Hold);
}
