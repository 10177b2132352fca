//! Generates the operations of the conformance tests.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::{GROUPED_KEYS, GROUPS, KEYS, PATTERN, STATES};
use crate::engine::GroupChange;
use crate::types::add::{Add, Merge, ReaddPolicy};
use crate::types::inspect::State;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Adds distinct keys in one batch.
    Add(Vec<(u32, Add)>),
    Claim(usize),
    /// Completes held keys in one batch. The numbers are the keys' positions in the list of held keys.
    Finish(Vec<(usize, Ending)>),
    /// Completes a delivery that was already completed or lost.
    FinishStale(usize),
    Renew,
    /// Cancels distinct keys in one batch, if they are in the given state. With `None`, the state has no effect.
    Cancel(BTreeSet<u32>, Option<State>),
    /// Cancels the run of a key in flight.
    CancelRunning(u32),
    Revive(BTreeSet<u32>),
    /// Makes waiting keys ready.
    RunNow(BTreeSet<u32>),
    /// Walks over the keys in the given state, or in every state with `None`. Each step has the given number of keys.
    Walk(Option<State>, usize),
    /// Pauses or resumes the queue.
    SetPaused(bool),
    /// Changes a setting of the group with this number.
    ChangeGroup(u32, GroupChange),
    SetGroupLimit(Option<u32>),
    /// Drops the queue if it has no keys or `keys_too` is true, and creates it again.
    Drop {
        keys_too: bool,
    },
    Pass(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    Succeed,
    RequeueAfter(Duration),
    RetryAfter(Duration),
    Retry,
    Release,
    /// Gives the key up. If the key was added during the run, the test releases it instead.
    GiveUp,
    Unclaim,
    Cancelled,
}

fn states() -> impl Strategy<Value = Option<State>> {
    prop::option::of(prop::sample::select(&STATES[..]))
}

fn delays() -> impl Strategy<Value = Duration> {
    prop_oneof![
        2 => Just(Duration::ZERO),
        6 => (1u64..60).prop_map(Duration::from_micros),
        1 => (1u64..1 << 40).prop_map(Duration::from_micros),
    ]
}

fn adds() -> impl Strategy<Value = Add> {
    let merge = prop_oneof![
        6 => Just(Merge::Earliest),
        2 => Just(Merge::Latest),
        1 => Just(Merge::Exactly),
    ];
    let flags = prop_oneof![Just(0u32), (0u32..32).prop_map(|bit| 1 << bit)];
    let at = prop_oneof![
        3 => Just(Add::now()),
        2 => delays().prop_map(Add::after),
        1 => delays().prop_map(Add::debounce),
        2 => (delays(), delays()).prop_map(|(quiet, max)| Add::debounce(quiet).at_most(max)),
    ];
    (at, merge, flags, any::<bool>()).prop_map(|(at, merge, flags, revives)| {
        let add = at.merge(merge).flags(flags);
        if revives { add.revive() } else { add }
    })
}

fn endings() -> impl Strategy<Value = Ending> {
    prop_oneof![
        3 => Just(Ending::Succeed),
        2 => delays().prop_map(Ending::RequeueAfter),
        2 => delays().prop_map(Ending::RetryAfter),
        3 => Just(Ending::Retry),
        1 => Just(Ending::Release),
        3 => Just(Ending::GiveUp),
        2 => Just(Ending::Unclaim),
        1 => Just(Ending::Cancelled),
    ]
}

/// Returns operations on keys whose runs were cancelled before they started. One of the keys was added again.
pub(crate) fn unclaimed_and_cancelled() -> Vec<Step> {
    let add = |keys: &[u32]| Step::Add(keys.iter().map(|&key| (key, Add::now())).collect());
    let unclaim = (0, Ending::Unclaim);
    vec![
        add(&[0, 1, 2]),
        Step::Claim(3),
        Step::CancelRunning(0),
        Step::CancelRunning(1),
        add(&[1]),
        Step::Finish(vec![unclaim, unclaim, unclaim]),
        Step::Claim(3),
    ]
}

/// Returns operations on two keys of a group whose limit is one. The number of the first key is the byte of a line
/// break.
pub(crate) fn one_group() -> Vec<Step> {
    let adds = [10, 10 + 3 * GROUPS].map(|key| Step::Add(vec![(key, Add::now())]));
    let limit = Step::ChangeGroup(10, GroupChange::Limit(Some(1)));
    let end = Step::Finish(vec![(0, Ending::Succeed)]);
    let claims = [Step::Claim(4), end, Step::Claim(4)];
    adds.into_iter().chain([limit]).chain(claims).collect()
}

/// Generates sequences of operations.
///
/// The priority of a key never changes. If the priority of a ready key changed, engines would sort the key by its age,
/// and the queue in memory by the time of the change.
pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step((0..KEYS).boxed()), 1..most)
}

/// Generates sequences of operations on a queue with groups.
pub(crate) fn grouped_steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    // Most steps use keys of a few groups. These groups then reach their limits.
    let few = (0..3u32, 0..GROUPED_KEYS / GROUPS).prop_map(|(group, n)| group + n * GROUPS);
    let key = prop_oneof![3 => few, 1 => 0..GROUPED_KEYS].boxed();
    let limit = || prop_oneof![1 => Just(None), 3 => (1..3u32).prop_map(Some)];
    let change = prop_oneof![
        3 => limit().prop_map(GroupChange::Limit),
        1 => (1..4u32).prop_map(GroupChange::Weight),
        2 => any::<bool>().prop_map(GroupChange::Paused),
    ];
    let change = (prop_oneof![5 => 0..3u32, 1 => 0..GROUPS], change)
        .prop_map(|(group, change)| Step::ChangeGroup(group, change));
    let step = prop_oneof![
        20 => step(key),
        3 => change.clone(),
        1 => limit().prop_map(Step::SetGroupLimit),
        // A claim visits several priorities only if it asks for several keys.
        2 => (4usize..9).prop_map(Step::Claim),
    ];
    // A drop of the queue also drops the settings. Therefore, the settings of groups are first changed at the
    // beginning.
    let begin = prop::collection::vec(change, 0..6);
    (begin, prop::collection::vec(step, 1..most)).prop_map(|(begin, steps)| [begin, steps].concat())
}

/// Generates the re-add policy of a queue with groups, and the rule that assigns its keys to groups.
pub(crate) fn groupings() -> impl Strategy<Value = (ReaddPolicy, &'static str)> {
    let policy = prop::sample::select(vec![ReaddPolicy::Hold, ReaddPolicy::Replace]);
    (policy, prop::sample::select(vec!["", PATTERN]))
}

fn step(key: BoxedStrategy<u32>) -> impl Strategy<Value = Step> {
    let batch = |of| prop::collection::vec(of, 1..4usize);
    let add = batch((key.clone(), adds()));
    let keys = || prop::collection::btree_set(key.clone(), 1..4usize);
    prop_oneof![
        8 => add.prop_map(|mut adds| {
            adds.sort_by_key(|&(key, _)| key);
            adds.dedup_by_key(|&mut (key, _)| key);
            Step::Add(adds)
        }),
        6 => (1usize..4).prop_map(Step::Claim),
        6 => prop::collection::vec((0usize..8, endings()), 1..4).prop_map(Step::Finish),
        1 => (0usize..8).prop_map(Step::FinishStale),
        2 => Just(Step::Renew),
        1 => (keys(), states()).prop_map(|(keys, only)| Step::Cancel(keys, only)),
        2 => key.clone().prop_map(Step::CancelRunning),
        1 => keys().prop_map(Step::Revive),
        1 => keys().prop_map(Step::RunNow),
        1 => (states(), 1usize..4).prop_map(|(state, limit)| Step::Walk(state, limit)),
        // The queue is paused in only a small part of the steps.
        1 => Just(Step::SetPaused(true)),
        2 => Just(Step::SetPaused(false)),
        1 => any::<bool>().prop_map(|keys_too| Step::Drop { keys_too }),
        5 => (1u64..70).prop_map(Step::Pass),
        1 => (200u64..400).prop_map(Step::Pass),
    ]
}
