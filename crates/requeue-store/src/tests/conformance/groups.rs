//! Checks the groups of an engine against a small model: limits, pauses, turns, and that no deliverable key waits.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{BACKOFF, BEGIN, LEASE, Rig};
use crate::engine::time::{Micros, micros};
use crate::engine::{
    Ask, Backoff, Claim, Delivery, End, Engine, Failing, Failure, Finish, GroupChange, Place,
    Settings, by_shard,
};
use crate::tests::Batches as _;
use crate::types::add::{Add, Priority};
use crate::types::inspect::{Entry, State};
use crate::types::key::Key;

/// One more than the groups that a claim looks up, so that the cursor matters. The first is the group without a name.
const GROUPS: usize = 18;
const KEYS_PER_GROUP: u32 = 4;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Adds a key of a group, with a delay in microseconds.
    Add(usize, u32, u64),
    Claim(usize),
    Finish(usize, Ending),
    Renew,
    CancelRunning(usize),
    Change(usize, GroupChange),
    SetLimit(Option<u32>),
    Pass(u64),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    Succeed,
    Requeue,
    Retry,
    Release,
    Unclaim,
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    // Most steps concern a few groups, which then reach their limits.
    let group = || prop_oneof![3 => 0..3usize, 1 => 0..GROUPS];
    let ending = prop::sample::select(vec![
        Ending::Succeed,
        Ending::Succeed,
        Ending::Requeue,
        Ending::Retry,
        Ending::Release,
        Ending::Unclaim,
    ]);
    let change = prop_oneof![
        prop::option::of(1..4u32).prop_map(GroupChange::Limit),
        (1..4u32).prop_map(GroupChange::Weight),
        any::<bool>().prop_map(GroupChange::Paused),
    ];
    let step = prop_oneof![
        8 => (group(), 0..KEYS_PER_GROUP, prop_oneof![2 => Just(0), 1 => 0..60u64])
            .prop_map(|(group, key, delay)| Step::Add(group, key, delay)),
        6 => (1..6usize).prop_map(Step::Claim),
        5 => (0..12usize, ending).prop_map(|(which, ending)| Step::Finish(which, ending)),
        1 => Just(Step::Renew),
        1 => (0..12usize).prop_map(Step::CancelRunning),
        2 => (group(), change).prop_map(|(group, change)| Step::Change(group, change)),
        1 => prop::option::of(1..4u32).prop_map(Step::SetLimit),
        3 => (1..70u64).prop_map(Step::Pass),
        1 => (200..400u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..most)
}

struct Model {
    engine: Arc<dyn Engine>,
    place: Place,
    now: Micros,
    limit: Option<u32>,
    settings: HashMap<usize, GroupSettings>,
    held: Vec<(Delivery, Micros)>,
}

#[derive(Clone, Copy, Default)]
struct GroupSettings {
    limit: Option<u32>,
    is_paused: bool,
}

fn name(group: usize) -> String {
    if group == 0 { String::new() } else { format!("g{group:02}/ü") }
}

fn group_of(name: &str) -> usize {
    if name.is_empty() { 0 } else { name[1..3].parse().expect("a number") }
}

fn key(group: usize, number: u32) -> Key {
    Key::from(format!("{}:{number}", name(group)))
}

/// Applies `steps` to a new queue of the engine, whose adds name the groups, and checks each claim.
pub(crate) async fn check(rig: &dyn Rig, queue: &str, steps: &[Step]) {
    check_with(rig, queue, "", steps).await;
}

/// The pattern that extracts the groups from the keys of [`check_with`].
pub(crate) const PATTERN: &str = "^([^:]*):";

/// As [`check`], for a queue that gets its groups in this way.
pub(crate) async fn check_with(rig: &dyn Rig, queue: &str, group_by: &str, steps: &[Step]) {
    let engine = rig.engine();
    let settings = Settings { group_by: Some(group_by.into()), ..Settings::default() };
    let place = engine.open_queue(queue, settings).await.expect("the queue opens");
    assert_eq!(place.group_by.as_deref(), Some(group_by));
    let (now, limit) = (BEGIN, None);
    let (settings, held) = (HashMap::new(), Vec::new());
    let mut model = Model { engine, place, now, limit, settings, held };
    for step in steps {
        model.now += 1;
        if let Step::Pass(time) = step {
            model.now += i64::try_from(*time).expect("a short time");
        }
        rig.set_time(model.now).await;
        model.step(step).await;
    }
    model.drain(rig).await;
}

impl Model {
    async fn step(&mut self, step: &Step) {
        let Self { engine, place, .. } = self;
        match *step {
            Step::Add(group, number, delay) => {
                let add = Add::after(Duration::from_micros(delay)).priority(priority(number));
                let group_name = Some(Arc::from(name(group)));
                let ask = Ask { group: group_name, ..Ask::new(key(group, number), add) };
                engine.add_keys(place, vec![ask]).await.expect("added");
            }
            Step::Claim(max) => _ = self.claim(max).await,
            Step::Finish(which, ending) => self.finish(which, ending).await,
            Step::Renew => {
                let now = self.now;
                self.held.retain(|(_, until)| *until > now);
                let all: Vec<_> =
                    self.held.iter().map(|(out, _)| (out.key.clone(), out.epoch)).collect();
                for part in by_shard(&**engine, place, all, |(key, _)| key) {
                    engine.renew_leases(place, part, LEASE).await.expect("renewed");
                }
                self.held.iter_mut().for_each(|(_, until)| *until = now + micros(LEASE));
            }
            Step::CancelRunning(which) => {
                if let Some((out, _)) = self.held.get(which) {
                    let _ = engine.cancel_running(place, &out.key).await.expect("cancelled");
                }
            }
            Step::Change(group, change) => {
                engine.change_group(place, &name(group), change).await.expect("changed");
                let settings = self.settings.entry(group).or_default();
                match change {
                    GroupChange::Limit(limit) => settings.limit = limit,
                    GroupChange::Paused(paused) => settings.is_paused = paused,
                    GroupChange::Weight(_) | GroupChange::Rate(_) => {}
                }
            }
            Step::SetLimit(limit) => {
                engine.set_group_limit(place, limit).await.expect("set");
                self.limit = limit;
            }
            Step::Pass(_) => {}
        }
    }

    async fn finish(&mut self, which: usize, ending: Ending) {
        if which >= self.held.len() {
            return;
        }
        let (out, _) = self.held.remove(which);
        let asked = out.asked;
        let error = "no".to_owned();
        let how = match ending {
            Ending::Succeed => Finish::Succeed,
            Ending::Requeue => Finish::RequeueAfter(Duration::from_micros(30), asked.priority),
            Ending::Retry => Finish::Retry(failing(), Failure { asked, error }),
            Ending::Release => Finish::Release(asked),
            Ending::Unclaim => Finish::Unclaim(asked, out.queued),
        };
        let ends = vec![End { key: out.key, epoch: out.epoch, how }];
        self.engine.finish_deliveries(&self.place, ends).await.expect("answered");
    }

    fn limit_of(&self, group: usize) -> Option<u32> {
        let settings = self.settings.get(&group).copied().unwrap_or_default();
        if settings.is_paused { Some(0) } else { settings.limit.or(self.limit) }
    }

    async fn entries(&self) -> Vec<Entry> {
        self.engine.read_page(&self.place, None, None, 1000).await.expect("a page")
    }

    /// Claims until a claim has found no key and may not find one. Returns the number of keys.
    async fn claim(&mut self, max: usize) -> usize {
        let mut left = max;
        loop {
            let before = self.entries().await;
            let claim = Claim {
                max: left,
                oldest: left / 2,
                lease: LEASE,
                expired: failing(),
                poll: LEASE,
            };
            let claimed = self.engine.claim_keys(&self.place, claim).await.expect("claimed");
            let count = claimed.items.len();
            assert!(count <= left, "{count} keys instead of {left}");
            self.check_claim(&before, &claimed.items).await;
            let until = self.now + micros(LEASE);
            self.held.extend(claimed.items.into_iter().map(|out| (out, until)));
            left -= count;
            if left == 0 {
                return max;
            }
            let is_searching = claimed.next.is_some_and(|next| next.is_zero());
            if count == 0 && !is_searching {
                self.check_nothing_left().await;
                return max - left;
            }
        }
    }

    async fn check_claim(&self, before: &[Entry], items: &[Delivery]) {
        let mut claimed: BTreeMap<usize, u32> = BTreeMap::new();
        for out in items {
            let group = group_of(out.group.as_deref().expect("the queue has groups"));
            let text = out.key.as_str().expect("text");
            let prefix = format!("{}:", name(group));
            assert!(text.starts_with(&prefix), "{text} is not of group {group}");
            let was = before.iter().find(|entry| entry.key == out.key).expect("it had a state");
            assert!(!matches!(was.state, State::Parked | State::Waiting), "{was:?} was delivered");
            *claimed.entry(group).or_default() += 1;
        }
        for entry in self.entries().await.iter().filter(|entry| entry.state == State::InFlight) {
            let group = group_of(entry.group.as_deref().expect("the queue has groups"));
            if !items.iter().any(|out| out.key == entry.key) {
                claimed.entry(group).and_modify(|count| *count += 1);
            }
        }
        for (group, in_flight) in claimed {
            let limit = self.limit_of(group).unwrap_or(u32::MAX);
            assert!(
                in_flight <= limit,
                "group {group} has {in_flight} keys in flight, and may {limit}"
            );
        }
    }

    /// Checks that no key may be delivered.
    async fn check_nothing_left(&self) {
        let entries = self.entries().await;
        let in_flight = |group: usize| {
            let of_group = |entry: &&Entry| {
                entry.state == State::InFlight && entry.group.as_deref() == Some(&name(group))
            };
            entries.iter().filter(of_group).count() as u32
        };
        for entry in entries.iter().filter(|entry| entry.state == State::Ready) {
            let group = group_of(entry.group.as_deref().expect("the queue has groups"));
            let limit = self.limit_of(group).unwrap_or(u32::MAX);
            assert!(
                in_flight(group) >= limit,
                "{entry:?} was not delivered, with the limit {limit}"
            );
        }
    }

    /// Removes the limits, and checks that all keys are delivered.
    async fn drain(&mut self, rig: &dyn Rig) {
        for group in 0..GROUPS {
            for change in [GroupChange::Limit(None), GroupChange::Paused(false)] {
                self.step(&Step::Change(group, change)).await;
            }
        }
        self.step(&Step::SetLimit(None)).await;
        for _ in 0..100 {
            self.now += 1000;
            rig.set_time(self.now).await;
            // The leases of all keys in flight have expired.
            self.held.clear();
            self.claim(200).await;
            while !self.held.is_empty() {
                self.finish(0, Ending::Succeed).await;
            }
            if self.entries().await.is_empty() {
                return;
            }
        }
        panic!("keys are left: {:?}", self.entries().await);
    }
}

fn priority(number: u32) -> Priority {
    Priority::ALL[number as usize % 3]
}

pub(super) fn failing() -> Failing {
    Failing { backoff: Backoff { base: BACKOFF, cap: BACKOFF, share: 1.0 }, max_failures: None }
}

/// Checks that groups get their weights in keys, one claim for each key.
pub(crate) async fn check_turns(rig: &dyn Rig, queue: &str) {
    let engine = rig.engine();
    let settings = Settings { group_by: Some("".into()), ..Settings::default() };
    let place = engine.open_queue(queue, settings).await.expect("the queue opens");
    rig.set_time(BEGIN).await;
    let weights = [("a", 1), ("b", 2), ("c", 3)];
    for (group, weight) in weights {
        engine.change_group(&place, group, GroupChange::Weight(weight)).await.expect("changed");
        let asks = (0..40).map(|n| {
            let key = Key::from(format!("{group}{n}"));
            Ask { group: Some(group.into()), ..Ask::new(key, Add::now()) }
        });
        engine.add_keys(&place, asks.collect()).await.expect("added");
    }
    for max in [1, 4, 6] {
        let mut got: Vec<String> = Vec::new();
        while got.len() < 36 {
            let claim = Claim { max, oldest: 0, lease: LEASE, expired: failing(), poll: LEASE };
            let claimed = engine.claim_keys(&place, claim).await.expect("claimed");
            assert!(!claimed.items.is_empty());
            got.extend(
                claimed.items.iter().map(|out| out.group.as_deref().expect("a group").to_owned()),
            );
            let end = |out: Delivery| End {
                key: out.key,
                epoch: out.epoch,
                how: Finish::Release(out.asked),
            };
            let ends = claimed.items.into_iter().map(end).collect();
            engine.finish_deliveries(&place, ends).await.expect("finished");
        }
        for (group, weight) in weights {
            let count = got.iter().filter(|name| *name == group).count() as u32;
            assert!(
                count.abs_diff(weight * 6) <= weight,
                "{group} got {count} of {got:?} with claims of {max}"
            );
        }
    }
}
