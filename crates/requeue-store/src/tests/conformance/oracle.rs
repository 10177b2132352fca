//! Applies operations to an engine and to the model. Compares their answers, and the state of all keys.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use requeue::CancelReason;
use requeue::history::Ended;
use requeue_core as core;
use requeue_sim::model::{
    self, GroupSettings, GroupedKey, Model, Ranking, Rules, StoreGroups, Team,
};

use super::steps::{Ending, Step};
use super::{BACKOFF, BEGIN, GROUPED_KEYS, GROUPS, KEYS, LEASE, Rig, STATES, WORKERS, failing};
use crate::engine::time::Micros;
use crate::engine::{
    Ask, Asked, Claim, Claimed, Delivery, Dropped, End, Engine, Failure, Finish, GroupChange,
    Place, Renewed, Settings, by_shard,
};
use crate::tests::Batches as _;
use crate::types::add::{Add, Added, Merge, ParkedAdd, Priority, ReaddPolicy};
use crate::types::error::{Answer, Kind};
use crate::types::group::{GroupBy, Grouping};
use crate::types::inspect::{Entry, FAR, State, StateCounts};
use crate::types::key::Key;

/// Applies `steps` to a new queue of the engine and to the model. Compares both after each step.
pub(crate) async fn check(rig: &dyn Rig, name: &str, readd_policy: ReaddPolicy, steps: &[Step]) {
    check_settings(rig, name, readd_policy.into(), steps).await;
}

/// Checks a queue with groups as [`check`] does. If `group_by` is empty, each add names the group. Otherwise,
/// `group_by` is the pattern that extracts the group.
pub(crate) async fn check_grouped(
    rig: &dyn Rig,
    name: &str,
    (readd_policy, group_by): (ReaddPolicy, &str),
    steps: &[Step],
) {
    let group_by = Some(group_by.into());
    let settings = Settings { readd_policy, group_by, ..Settings::default() };
    check_settings(rig, name, settings, steps).await;
}

async fn check_settings(rig: &dyn Rig, name: &str, settings: Settings, steps: &[Step]) {
    let engine = rig.engine();
    let readd_policy = settings.readd_policy;
    let parked_add =
        if readd_policy == ReaddPolicy::Hold { ParkedAdd::Keep } else { ParkedAdd::Revive };
    let settings = Settings { parked_add, ..settings };
    let group_by = settings.group_by.clone();
    let place = engine.open_queue(name, settings).await.expect("the queue opens");
    let found = (place.readd_policy, place.parked_add, place.group_by.clone());
    assert_eq!(found, (readd_policy, parked_add, group_by.clone()));
    let rules = Rules {
        rerun: core::InFlightPolicy::After,
        pace: None,
        re_add: readd_policy,
        ranking: Ranking::Priority { oldest_every: u32::MAX },
        fair: false,
        limit: None,
    };
    let mut pair = Pair {
        engine,
        place,
        model: Model::new(&rules),
        rules,
        now: BEGIN,
        is_ordered: rig.is_ordered(),
        drops: rig.drops(),
        parks: rig.parks(),
        cancels_runs: rig.cancels_runs(),
        parked: BTreeMap::new(),
        keeps_places: rig.keeps_places(),
        keeps_attempts: rig.keeps_attempts(),
        held: Vec::new(),
        claims: 0,
        stale: Vec::new(),
        past: BTreeMap::new(),
        until: BTreeMap::new(),
        last_epoch: BTreeMap::new(),
        ready_at: BTreeMap::new(),
        released: BTreeMap::new(),
        is_paused: false,
        keys: if group_by.is_some() { GROUPED_KEYS } else { KEYS },
        grouping: group_by
            .as_deref()
            .map(|by| Grouping::new(&GroupBy::from_stored(by)).expect("the pattern is valid")),
        groups: group_by.map(|_| StoreGroups::default()),
    };
    for step in steps {
        // No two steps happen at the same time, so the order of keys by age is unique.
        pair.now += 1;
        if let Step::Pass(micros) = step {
            pair.now += i64::try_from(*micros).expect("a short time");
        }
        rig.set_time(pair.now).await;
        // In an engine, a key becomes ready when it is due. In the model, it becomes ready when a call finds it.
        while let Some(due) = pair.model.next_due().filter(|&due| due <= pair.time()) {
            pair.model.promote(due, usize::MAX);
            let due = i64::try_from(due.as_nanos() / 1000).expect("in the past");
            for which in 0..pair.keys {
                pair.note_ready(which, due);
            }
        }
        pair.step(step).await;
        // Each queue has a separate clock, and the step may have replaced the queue.
        rig.set_time(pair.now).await;
        pair.compare().await;
    }
}

/// A delivery that was not completed.
#[derive(Clone, Debug)]
struct Held {
    out: Delivery,
    of_model: u64,
    worker: Arc<str>,
    lease_until: Micros,
    /// The time at which the key became ready.
    place: Micros,
    /// True if the run was cancelled.
    is_cancelled: bool,
}

/// A parked key.
#[derive(Clone, Copy, Debug)]
struct Parked {
    since: Micros,
    failures: u32,
    asked: Asked,
}

struct Pair {
    engine: Arc<dyn Engine>,
    place: Place,
    rules: Rules,
    model: Model<u32>,
    now: Micros,
    is_ordered: bool,
    drops: bool,
    parks: bool,
    cancels_runs: bool,
    /// The parked keys. The model does not have them.
    parked: BTreeMap<u32, Parked>,
    keeps_attempts: bool,
    keeps_places: bool,
    held: Vec<Held>,
    /// The number of claims so far. Two workers alternate.
    claims: usize,
    stale: Vec<Delivery>,
    /// The completed runs of each key that stays, the oldest first. A run has the way in which it ended, true if its
    /// lease expired, its adds, and the time of its end.
    past: BTreeMap<u32, Vec<(Ended, bool, u32, Micros)>>,
    /// The end of each key's backoff, after the last failure that was counted.
    until: BTreeMap<u32, Micros>,
    /// The fencing token of the last delivery of each key.
    last_epoch: BTreeMap<u32, i64>,
    /// The times that determine the order of ready keys. A key without such a time became ready in this step.
    ready_at: BTreeMap<u32, Micros>,
    /// The times at which unclaimed keys became ready. The model can release a key only to the end of the order.
    released: BTreeMap<u32, Micros>,
    is_paused: bool,
    /// The number of keys.
    keys: u32,
    grouping: Option<Grouping>,
    /// The model of the groups and their settings, or `None` if the queue has no groups.
    groups: Option<StoreGroups>,
}

fn key(number: u32) -> Key {
    // The key contains bytes of all kinds.
    let mut key = vec![b'k', 0, 0xff, b'\'', b'{', number as u8, b'}', b'\n'];
    key.extend(group(number).bytes());
    Key::from(key)
}

/// Returns the group of a key, for a queue with groups.
fn group(number: u32) -> String {
    match number % GROUPS {
        0 => String::new(),
        group => format!("g{group:02}/\u{fc}"),
    }
}

fn number(key: &Key) -> u32 {
    u32::from(key[5])
}

fn priority(number: u32) -> Priority {
    Priority::ALL[number as usize % 3]
}

impl Pair {
    fn time(&self) -> core::Time {
        time(self.now)
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Add(adds) => self.add(adds).await,
            Step::Claim(max) => self.claim(*max).await,
            Step::Finish(which) => self.finish(which).await,
            Step::FinishStale(which) => {
                let Some(out) = pick(&self.stale, *which).cloned() else { return };
                let ends = vec![End { key: out.key, epoch: out.epoch, how: Finish::Succeed }];
                assert_eq!(
                    self.engine.finish_deliveries(&self.place, ends).await.expect("answered"),
                    [false]
                );
            }
            Step::Renew => {
                let now = self.now;
                let lasts = |held: &Held| held.lease_until > now;
                let renewed_or_lost = |held: &Held| match lasts(held) {
                    true if held.is_cancelled => Renewed::Cancelled,
                    true => Renewed::Yes,
                    false => Renewed::Lost,
                };
                let all = self.held.clone();
                for part in by_shard(&*self.engine, &self.place, all, |held| &held.out.key) {
                    let held = part.iter().map(|held| (held.out.key.clone(), held.out.epoch));
                    let renewed =
                        self.engine.renew_leases(&self.place, held.collect(), LEASE).await;
                    let expected: Vec<Renewed> = part.iter().map(renewed_or_lost).collect();
                    assert_eq!(renewed.expect("renewed"), expected);
                }
                for held in self.held.iter_mut().filter(|held| lasts(held)) {
                    held.lease_until = now + crate::engine::time::micros(LEASE);
                }
            }
            Step::Cancel(keys, only) => self.cancel(keys, *only).await,
            Step::CancelRunning(which) if self.cancels_runs => self.cancel_running(*which).await,
            Step::CancelRunning(_) => {}
            Step::Revive(keys) => self.revive(keys).await,
            Step::RunNow(keys) => self.run_now(keys).await,
            Step::Walk(state, limit) => self.walk(*state, *limit).await,
            Step::SetPaused(paused) => {
                self.engine.set_paused(&self.place, *paused).await.expect("paused");
                self.is_paused = *paused;
            }
            Step::ChangeGroup(of, change) => self.change_group(&group(*of), *change).await,
            Step::SetGroupLimit(limit) => {
                self.engine.set_group_limit(&self.place, *limit).await.expect("set");
                let Some(groups) = &mut self.groups else { return };
                groups.default_limit = *limit;
            }
            Step::Drop { keys_too } if self.drops => self.drop_queue(*keys_too).await,
            Step::Drop { .. } | Step::Pass(_) => {}
        }
    }

    async fn change_group(&mut self, name: &str, change: GroupChange) {
        self.engine.change_group(&self.place, name, change).await.expect("changed");
        let Some(groups) = &mut self.groups else { return };
        let settings = groups.settings_mut(name);
        match change {
            GroupChange::Limit(limit) => settings.limit = limit,
            GroupChange::Weight(weight) => settings.weight = weight,
            GroupChange::Paused(paused) => settings.is_paused = paused,
            GroupChange::Rate(_) => {}
        }
    }

    async fn drop_queue(&mut self, keys_too: bool) {
        let mut expected = StateCounts::default();
        for which in 0..self.keys {
            match self.state(which) {
                None => {}
                Some(State::Ready) => expected.ready += 1,
                Some(State::Waiting) => expected.waiting += 1,
                Some(State::Parked) => expected.parked += 1,
                Some(State::Damaged) => expected.damaged += 1,
                Some(State::InFlight) => {
                    expected.in_flight += 1;
                    let is_dirty = self.model.see(&which).is_some_and(|seen| seen.phase == 3);
                    expected.dirty += u64::from(is_dirty);
                }
            }
        }
        let name = self.place.name.clone();
        let dropped = self.engine.drop_queue(&name, keys_too).await.expect("answered");
        let (found, is_dropped) = match dropped {
            Dropped::Yes(found) => (found, true),
            Dropped::Kept(found, _) => (found, false),
            Dropped::Missing => unreachable!("the queue exists"),
        };
        assert_eq!(
            StateCounts { oldest_ready: Duration::ZERO, ..found },
            expected,
            "the counts of the keys"
        );
        let has_keys = (0..self.keys).any(|which| self.state(which).is_some());
        assert_eq!(is_dropped, keys_too || !has_keys, "with {expected:?}");
        if !is_dropped {
            return;
        }
        let missing = self.engine.find_queue(&name).await.expect("answered");
        assert!(missing.is_none(), "{missing:?}");
        let again = self.engine.drop_queue(&name, keys_too).await.expect("answered");
        assert_eq!(again, Dropped::Missing);
        assert_dropped(&*self.engine, &self.place, &self.held).await;
        let Place { readd_policy, parked_add, ref group_by, .. } = self.place;
        let group_by = group_by.clone();
        let settings = Settings { readd_policy, parked_add, group_by, ..Settings::default() };
        let place =
            self.engine.open_queue(&name, settings).await.expect("the queue is created again");
        let old = std::mem::replace(&mut self.place, place);
        assert_dropped(&*self.engine, &old, &self.held).await;
        self.model = Model::new(&self.rules);
        self.parked.clear();
        self.past.clear();
        self.until.clear();
        self.ready_at.clear();
        self.released.clear();
        self.is_paused = false;
        self.groups = self.groups.take().map(|_| StoreGroups::default());
        // Completions of the earlier deliveries must change nothing in the new queue.
        self.stale.extend(self.held.drain(..).map(|held| held.out));
    }

    async fn cancel(&mut self, keys: &BTreeSet<u32>, only: Option<State>) {
        let keys = keys.iter().copied().map(key).collect();
        for part in by_shard(&*self.engine, &self.place, keys, |key| key) {
            let cancelled = self.engine.cancel_keys(&self.place, part.clone(), only).await;
            let cancelled = cancelled.expect("cancelled");
            assert_eq!(cancelled.len(), part.len());
            for (which, cancelled) in part.iter().map(number).zip(cancelled) {
                let fits = only.is_none_or(|only| self.state(which) == Some(only));
                let expected = fits
                    && (self.parked.remove(&which).is_some() || {
                        self.until.remove(&which);
                        self.model.cancel(&which).unwrap_or_default().any()
                    });
                assert_eq!(cancelled, Some(expected), "the answer to a cancel of {which}");
            }
        }
    }

    async fn cancel_running(&mut self, which: u32) {
        let held = self.held.iter_mut().find(|held| held.out.key == key(which));
        let expected = match held {
            None => core::CancelledRun::NotInFlight,
            Some(held) if held.is_cancelled => core::CancelledRun::AlreadyCancelled,
            Some(held) => {
                held.is_cancelled = true;
                core::CancelledRun::Cancelled
            }
        };
        let cancelled = self.engine.cancel_running(&self.place, &key(which)).await;
        assert_eq!(cancelled.expect("answered"), expected, "the run of {which}");
    }

    /// Completes a cancelled run in the model. Removes the key's failures from the model if the key then has no pending
    /// run. Otherwise, the model would keep them.
    fn end_cancelled(&mut self, of_model: u64, out: &Delivery) {
        self.end_of_model(of_model, requeue_sim::How::Done, out.asked);
        let which = number(&out.key);
        if self.model.see(&which).is_none_or(|seen| seen.phase == 0 && seen.due.is_none()) {
            self.model.forget(&which);
            self.until.remove(&which);
        }
    }

    async fn revive(&mut self, keys: &BTreeSet<u32>) {
        let keys = keys.iter().copied().map(key).collect();
        for part in by_shard(&*self.engine, &self.place, keys, |key| key) {
            let revived = self
                .engine
                .make_ready(&self.place, part.clone(), State::Parked)
                .await
                .expect("revived");
            assert_eq!(revived.len(), part.len());
            for (which, revived) in part.iter().map(number).zip(revived) {
                let parked = self.parked.remove(&which);
                assert_eq!(revived, Some(parked.is_some()), "whether {which} was parked");
                let Some(Parked { asked, .. }) = parked else { continue };
                // The key keeps the adds, the flags and the priority that it had when it was parked.
                self.make_ready(which, asked.adds, asked.flags);
            }
        }
    }

    async fn run_now(&mut self, keys: &BTreeSet<u32>) {
        let keys = keys.iter().copied().map(key).collect();
        for part in by_shard(&*self.engine, &self.place, keys, |key| key) {
            let ready = self.engine.make_ready(&self.place, part.clone(), State::Waiting).await;
            let ready = ready.expect("answered");
            assert_eq!(ready.len(), part.len());
            for (which, ready) in part.iter().map(number).zip(ready) {
                let waits = self.state(which) == Some(State::Waiting);
                assert_eq!(ready, Some(waits), "whether {which} was waiting");
                if let Some(seen) = self.model.see(&which).filter(|_| waits) {
                    self.until.remove(&which);
                    self.model.cancel(&which);
                    self.make_ready(which, seen.adds, seen.flags);
                }
            }
        }
    }

    /// Adds a key to the model, if the model does not have it.
    fn make_ready(&mut self, which: u32, adds: u32, flags: u32) {
        for _ in 0..adds {
            let request = model::AddRequest {
                when: core::When::After(Duration::ZERO),
                merge: Merge::Earliest,
                priority: priority(which).number().into(),
                flags,
                why: None,
                failed: false,
                debounce: None,
            };
            self.model.add(&which, TEAM, &request, self.time());
        }
    }

    async fn walk(&self, state: Option<State>, limit: usize) {
        let (mut met, mut next) = (BTreeSet::new(), None);
        loop {
            let walked =
                self.engine.walk_keys(&self.place, state, next, limit).await.expect("a step");
            let distinct: BTreeSet<Key> = walked.keys.iter().cloned().collect();
            assert_eq!(distinct.len(), walked.keys.len(), "no step has a key twice");
            met.extend(distinct);
            next = walked.next;
            if next.is_none() {
                break;
            }
        }
        let page = self.engine.read_page(&self.place, state, None, 100).await.expect("a page");
        let there: BTreeSet<Key> = page.into_iter().map(|entry| entry.key).collect();
        assert_eq!(met, there, "the keys that are {state:?}");
    }

    fn state(&self, which: u32) -> Option<State> {
        if self.parked.contains_key(&which) {
            return Some(State::Parked);
        }
        Some(match self.model.see(&which)?.phase {
            0 => State::Waiting,
            1 => State::Ready,
            _ => State::InFlight,
        })
    }

    async fn add(&mut self, adds: &[(u32, Add)]) {
        let asks = adds.iter().map(|&(which, add)| {
            let ask = Ask::new(key(which), add.priority(priority(which)));
            // An engine can rely on the pattern, because the API refuses any other group.
            let group_of = |by: &Grouping| by.group_of(&ask.key, Some(&group(which)));
            let group = self.grouping.as_ref().map(|by| group_of(by).expect("the key's group"));
            Ask { group, ..ask }
        });
        let mut answers = Vec::new();
        for part in by_shard(&*self.engine, &self.place, asks.collect(), |request| &request.key) {
            let added = self.engine.add_keys(&self.place, part.clone()).await.expect("added");
            answers.extend(part.into_iter().map(|request| number(&request.key)).zip(added));
        }
        assert_eq!(answers.len(), adds.len());
        for (which, answer) in answers {
            let add = adds.iter().find(|add| add.0 == which).expect("the key was added").1;
            let merge = add.merge;
            if merge == Merge::Exactly {
                self.until.remove(&which);
                self.ready_at.remove(&which);
                self.released.remove(&which);
            }
            let request = model::AddRequest {
                when: core::When::After(add.after),
                merge,
                priority: priority(which).number().into(),
                flags: add.flags,
                why: None,
                failed: false,
                debounce: add.longest_wait(),
            };
            let was_parked = self.parked.contains_key(&which);
            if was_parked && !self.place.revives(&add) {
                assert_eq!(answer, Added::Parked, "the answer to an add of {which}");
                continue;
            }
            self.parked.remove(&which);
            let model = self.model.add(&which, TEAM, &request, self.time());
            let model = match model {
                core::Added::New if was_parked => Added::Revived,
                core::Added::New => Added::New,
                core::Added::Coalesced => Added::Coalesced,
                core::Added::Dirty => Added::Dirty,
                core::Added::BackingOff => Added::BackingOff,
                other => unreachable!("{other:?}"),
            };
            assert_eq!(answer, model, "the answer to an add of {which}");
        }
    }

    async fn claim(&mut self, max: usize) {
        // Each claim covers all shards. A shard detects its expired leases only in a claim.
        let mut max = if self.is_ordered { max } else { 2 * self.keys as usize };
        if self.groups.is_none() {
            self.claim_once(max, 0).await;
            return;
        }
        // A claim may return before it has looked up all groups.
        let mut claims = 0;
        loop {
            claims += 1;
            assert!(claims <= self.keys, "{claims} claims in a row may have found a key");
            let oldest = if self.claims.is_multiple_of(3) { max / 2 } else { 0 };
            let claimed = self.claim_once(max, oldest).await;
            max -= claimed.items.len();
            let is_searching = claimed.next == Some(Duration::ZERO);
            if max == 0 || (claimed.items.is_empty() && !is_searching) {
                break;
            }
        }
        if max > 0 && !self.is_paused {
            self.check_none_left();
        }
    }

    /// Checks that no ready key may be delivered now.
    fn check_none_left(&self) {
        let Some(groups) = &self.groups else { return };
        let (ready, in_flight) = (self.ready_keys(), self.groups_in_flight());
        let in_flight: Vec<&str> = in_flight.iter().map(String::as_str).collect();
        let ready = ready.iter().map(|(key, group)| GroupedKey { group, ..*key });
        assert_eq!(groups.check_end(ready, &in_flight), Ok(()));
    }

    /// Checks that a claim may deliver the key after the keys `before`. The key is ready in the model.
    fn check_delivery(&self, which: u32, before: &[Delivery]) {
        let Some(groups) = &self.groups else { return };
        let (ready, in_flight) = (self.ready_keys(), self.groups_in_flight());
        let in_flight: Vec<&str> = in_flight.iter().map(String::as_str).collect();
        let ready = ready.iter().map(|(key, group)| GroupedKey { group, ..*key });
        let name = group(which);
        let key = GroupedKey { group: &name, ..self.grouped(which) };
        let permitted = groups.check_delivery(key, ready.clone(), &in_flight);
        assert_eq!(permitted, Ok(()), "{which}, with {in_flight:?} in flight");
        // Each shard answers a claim separately.
        if self.is_ordered {
            let visited = |out: &Delivery| (group(number(&out.key)), out.asked.priority.number());
            let visited: Vec<_> = before.iter().map(visited).collect();
            let visited: Vec<_> =
                visited.iter().map(|(group, priority)| (&**group, (*priority).into())).collect();
            let permitted = groups.check_priority(key.priority, &visited, ready, &in_flight);
            assert_eq!(permitted, Ok(()), "{which} after {visited:?}");
        }
    }

    /// Returns a key as the model of the groups takes it. The name of its group is left empty.
    fn grouped(&self, which: u32) -> GroupedKey<'static> {
        let since = self.ready_at.get(&which).copied().unwrap_or(self.now);
        GroupedKey { group: "", priority: priority(which).number().into(), since }
    }

    /// Returns the ready keys and their groups.
    fn ready_keys(&self) -> Vec<(GroupedKey<'static>, String)> {
        self.model.by_age().map(|&which| (self.grouped(which), group(which))).collect()
    }

    fn groups_in_flight(&self) -> Vec<String> {
        self.held.iter().map(|held| group(number(&held.out.key))).collect()
    }

    async fn claim_once(&mut self, max: usize, oldest: usize) -> Claimed {
        let claim = Claim { max, oldest, lease: LEASE, expired: failing(), poll: LEASE };
        let worker: Arc<str> = WORKERS[self.claims % WORKERS.len()].into();
        self.claims += 1;
        let of_worker = Place { worker: Arc::clone(&worker), ..self.place.clone() };
        let claimed = self.engine.claim_keys(&of_worker, claim).await.expect("claimed");
        let now = self.now;
        self.held.sort_by_key(|held| held.lease_until);
        let expired: Vec<Held> = self.held.extract_if(.., |held| held.lease_until <= now).collect();
        for held in expired {
            let how = if held.is_cancelled { Ended::Cancelled } else { Ended::Retried };
            self.note_run(&held.out, how, true);
            if held.is_cancelled {
                self.end_cancelled(held.of_model, &held.out);
                self.stale.push(held.out);
                continue;
            }
            let delay = self.back_off(number(&held.out.key));
            self.end_of_model(held.of_model, core_how(Ending::RetryAfter(delay)), held.out.asked);
            self.stale.push(held.out);
        }
        assert_eq!(claimed.is_paused, self.is_paused);
        assert!(
            !self.is_paused || claimed.items.is_empty(),
            "a paused queue delivers: {claimed:?}"
        );
        assert!(claimed.items.len() <= max, "{} keys instead of {max}", claimed.items.len());
        for (n, out) in claimed.items.iter().enumerate() {
            let which = number(&out.key);
            self.check_delivery(which, &claimed.items[..n]);
            let group = self.groups.as_ref().map(|_| Arc::from(group(which)));
            assert_eq!(out.group, group, "the group of {which}");
            let rank = |&which: &u32| {
                let ready_at = self.ready_at.get(&which).copied().unwrap_or(now);
                (Reverse(priority(which)), ready_at)
            };
            // Keys that became ready in the same batch have the same age.
            let first = self.model.by_age().map(rank).min();
            let is_ordered = self.is_ordered && self.groups.is_none();
            assert!(!is_ordered || Some(rank(&which)) == first, "{which}");
            self.ready_at.remove(&which);
            let model = self
                .model
                .get_this(&which, self.time())
                .expect("the key is ready in the model, too");
            let last = self.last_epoch.values().copied();
            let last = last.chain(self.held.iter().map(|held| held.out.epoch));
            let is_new = last.clone().all(|last| out.epoch != last);
            assert!(is_new, "epochs are unique");
            let before =
                if self.is_ordered { last.max() } else { self.last_epoch.get(&which).copied() };
            assert!(before.is_none_or(|before| out.epoch > before), "epochs rise");
            self.last_epoch.insert(which, out.epoch);
            let (asked, failures) = (core_asked(out.asked), out.failures);
            assert_eq!(
                (asked, failures),
                (model.asked, model.failures),
                "adds, flags, priority and failures"
            );
            let place = self.released.remove(&which);
            let queued = place.map_or(model.queued, |place| time(now).since(time(place)));
            assert_eq!(out.queued, queued, "how long {} was ready", model.key);
            let lease_until = now + crate::engine::time::micros(LEASE);
            let place = now - crate::engine::time::micros(queued);
            let (out, of_model, worker) = (out.clone(), model.epoch, Arc::clone(&worker));
            let is_cancelled = false;
            self.held.push(Held { out, of_model, worker, lease_until, place, is_cancelled });
        }
        let is_searching = self.groups.is_some() && claimed.next == Some(Duration::ZERO);
        if claimed.items.len() < max && !is_searching {
            if self.groups.is_none() {
                let left = (!self.is_paused).then(|| self.model.get(self.time())).flatten();
                assert_eq!(left, None, "a ready key was not delivered");
            }
            // If a key is in flight, its next run cannot be claimed, even if it is due.
            let waiting = (0..self.keys).filter_map(|which| self.model.see(&which));
            let waiting = waiting.filter(|seen| seen.phase == 0).filter_map(|seen| seen.due);
            let due = waiting.min().filter(|_| !self.is_paused);
            let due = due.map(|due| due.since(self.time()));
            let leases = self.held.iter().map(|held| {
                Duration::from_micros((held.lease_until - now).try_into().expect("in the future"))
            });
            let next = due.into_iter().chain(leases).min();
            // If one of several shards has found as many keys as requested, it reports no time.
            let is_said = self.is_ordered || claimed.items.is_empty();
            assert!(!is_said || claimed.next == next, "the next due time: {next:?}, {claimed:?}");
        }
        claimed
    }

    async fn finish(&mut self, which: &[(usize, Ending)]) {
        let mut endings: Vec<(Held, Ending)> = Vec::new();
        for &(which, ending) in which {
            if !self.held.is_empty() {
                let held = self.held.remove(which % self.held.len());
                let seen = self.model.see(&number(&held.out.key));
                let is_pending = seen.is_some_and(|seen| seen.phase == 3 || seen.due.is_some());
                let ending = match ending {
                    Ending::GiveUp if is_pending || !self.parks => Ending::Release,
                    Ending::Cancelled if !self.cancels_runs => Ending::Release,
                    ending => ending,
                };
                endings.push((held, ending));
            }
        }
        for part in by_shard(&*self.engine, &self.place, endings, |(held, _)| &held.out.key) {
            self.finish_of_shard(part).await;
        }
    }

    async fn finish_of_shard(&mut self, endings: Vec<(Held, Ending)>) {
        let ends = endings.iter().map(|(held, ending)| {
            let asked = held.out.asked;
            // A process that has not claimed the key does not know the parameters of its adds.
            let known = if held.out.epoch % 2 == 0 { Asked::default() } else { asked };
            let failure = Failure::new(known, "no");
            let how = match *ending {
                Ending::Succeed => Finish::Succeed,
                Ending::RequeueAfter(delay) => Finish::RequeueAfter(delay, asked.priority),
                Ending::RetryAfter(delay) => Finish::RetryAfter(delay, None, failure),
                Ending::Retry => Finish::Retry(failing(), failure),
                Ending::Unclaim if self.keeps_places => Finish::Unclaim(asked, held.out.queued),
                Ending::Release | Ending::Unclaim => Finish::Release(known),
                Ending::GiveUp => Finish::GiveUp(failure),
                Ending::Cancelled => Finish::Cancelled,
            };
            End { key: held.out.key.clone(), epoch: held.out.epoch, how }
        });
        let held =
            self.engine.finish_deliveries(&self.place, ends.collect()).await.expect("finished");
        for ((held, ending), was_held) in endings.into_iter().zip(held) {
            assert_eq!(was_held, held.lease_until > self.now, "held: {held:?}");
            if !was_held {
                // The next claim counts the expired delivery as a failure.
                self.held.push(held);
                continue;
            }
            let which = number(&held.out.key);
            match ending {
                Ending::Succeed => self.note_run(&held.out, Ended::Succeeded, false),
                Ending::RequeueAfter(_) => self.note_run(&held.out, Ended::Requeued, false),
                Ending::RetryAfter(_) | Ending::Retry => {
                    self.note_run(&held.out, Ended::Retried, false);
                }
                Ending::GiveUp => self.note_run(&held.out, Ended::Parked, false),
                Ending::Cancelled => self.note_run(&held.out, Ended::Cancelled, false),
                // The run has not started, so it is not in the past.
                Ending::Unclaim if self.keeps_places => {}
                Ending::Release | Ending::Unclaim => {
                    self.note_run(&held.out, Ended::Released, false);
                }
            }
            // The run of an unclaimed key has not started. Therefore, the cancellation takes effect immediately.
            let was_stopped =
                matches!(ending, Ending::Unclaim) && self.keeps_places && held.is_cancelled;
            if matches!(ending, Ending::Cancelled) || was_stopped {
                self.end_cancelled(held.of_model, &held.out);
                self.stale.push(held.out);
                continue;
            }
            let how = match ending {
                Ending::Retry => core_how(Ending::RetryAfter(self.back_off(which))),
                other => core_how(other),
            };
            if matches!(ending, Ending::Succeed | Ending::RequeueAfter(_) | Ending::GiveUp) {
                self.until.remove(&which);
            }
            if matches!(ending, Ending::GiveUp) {
                let asked = held.out.asked;
                // An add with `Merge::Exactly` and a cancel reset earlier failures.
                let failures = self.model.failures(&which) + 1;
                self.parked.insert(which, Parked { since: self.now, failures, asked });
            }
            self.end_of_model(held.of_model, how, held.out.asked);
            if matches!(ending, Ending::Unclaim) && self.keeps_places {
                self.ready_at.insert(which, held.place);
                self.released.insert(which, held.place);
            }
            self.stale.push(held.out);
        }
    }

    fn note_ready(&mut self, which: u32, now: Micros) {
        if self.model.see(&which).is_some_and(|model| model.phase == 1) {
            self.ready_at.entry(which).or_insert(now);
        } else {
            self.ready_at.remove(&which);
            self.released.remove(&which);
        }
    }

    fn note_run(&mut self, out: &Delivery, how: Ended, lease_expired: bool) {
        let run = (how, lease_expired, out.asked.adds, self.now);
        self.past.entry(number(&out.key)).or_default().push(run);
    }

    /// Checks that the engine has the last runs of a key that stays.
    fn compare_past(&mut self, which: u32, entry: Option<&Entry>) {
        let Some(entry) = entry else {
            self.past.remove(&which);
            return;
        };
        let expected = self.past.get(&which).map(Vec::as_slice).unwrap_or_default();
        let known = &entry.past_runs;
        assert!(known.len() >= expected.len().min(5), "{known:?} of {expected:?}");
        let now = self.now / 1000;
        let known = known.iter().map(|run| {
            let ended = i64::try_from(run.ended.as_millis()).expect("a short time");
            (run.how, run.lease_expired, run.adds, now - ended)
        });
        let ours = expected[expected.len().saturating_sub(known.len())..].iter();
        let ours =
            ours.map(|&(how, lease_expired, adds, at)| (how, lease_expired, adds, at / 1000));
        assert_eq!(known.collect::<Vec<_>>(), ours.collect::<Vec<_>>(), "the runs of {which}");
    }

    fn end_of_model(&mut self, epoch: u64, how: requeue_sim::How, asked: Asked) {
        let ended = self.model.finish(epoch, how, core_asked(asked), self.time());
        assert!(ended.is_some(), "the key is in flight in the model, too");
    }

    fn back_off(&mut self, which: u32) -> Duration {
        let until = self.until.get(&which).copied().unwrap_or(0);
        if self.now < until {
            return Duration::from_micros((until - self.now).try_into().expect("in the future"));
        }
        self.until.insert(which, self.now + crate::engine::time::micros(BACKOFF));
        BACKOFF
    }

    async fn compare(&mut self) {
        let page = self.engine.read_page(&self.place, None, None, 100).await.expect("a page");
        assert!(page.is_sorted_by_key(|entry| entry.key.clone()), "sorted by key");
        let mut states = BTreeMap::<State, u64>::new();
        for which in 0..self.keys {
            self.note_ready(which, self.now);
            let found = page.iter().find(|entry| entry.key == key(which)).cloned();
            // With many keys, one page is much faster than a lookup of each key.
            if self.groups.is_none() || self.now.rem_euclid(self.keys.into()) == which.into() {
                let looked_up = self.engine.look_up(&self.place, &key(which)).await;
                assert_eq!(looked_up.expect("looked up"), found);
            }
            if self.keeps_attempts && self.now.rem_euclid(self.keys.into()) == which.into() {
                self.compare_attempts(which, found.as_ref()).await;
            }
            if self.keeps_attempts {
                self.compare_past(which, found.as_ref());
            }
            let model = self.model.see(&which);
            if let Some(parked) = self.parked.get(&which) {
                assert!(model.is_none(), "{which} is parked, and {model:?}");
                let found = found.expect("the key is parked");
                let since = Duration::from_micros((self.now - parked.since).unsigned_abs());
                let ours = (found.state, found.since, found.failures, found.adds, found.flags);
                let Parked { failures, asked, .. } = *parked;
                let expected = (State::Parked, Some(since), failures, asked.adds, asked.flags);
                assert_eq!(ours, expected, "parked key {which}: since, failures, adds, flags");
                assert_eq!(
                    (found.error.as_deref(), found.due, found.fencing_token, found.worker),
                    (Some("no"), None, None, None)
                );
                *states.entry(State::Parked).or_default() += 1;
                continue;
            }
            assert_eq!(found.is_some(), model.is_some(), "{which}: {found:?}, {model:?}");
            let (Some(found), Some(model)) = (found, model) else { continue };
            *states.entry(found.state).or_default() += 1;
            let phase = match (found.state, found.dirty) {
                (State::Waiting, _) => 0,
                (State::Ready, _) => 1,
                (State::InFlight, false) => 2,
                (State::InFlight, true) => 3,
                (State::Parked | State::Damaged, _) => unreachable!("{which} is not parked"),
            };
            let due = model.due.map(|due| due.since(self.time()));
            let ours = (phase, found.due, found.failures, found.adds, found.flags);
            let models = (model.phase, due, model.failures, model.adds, model.flags);
            assert_eq!(ours, models, "key {which}: phase, due, failures, adds, flags");
            let held = self.held.iter().find(|held| held.out.key == found.key);
            assert_eq!(
                found.fencing_token,
                held.map(|held| held.out.epoch.unsigned_abs()),
                "the epoch of its delivery"
            );
            assert_eq!(found.worker.as_deref(), held.map(|held| &*held.worker), "the worker");
            let lease = held.map(|held| held.lease_until.saturating_sub(self.now).max(0));
            let lease = lease.map(|lease| Duration::from_micros(lease.unsigned_abs()));
            assert_eq!(found.lease, lease, "the rest of the lease");
            let held = held.filter(|held| held.is_cancelled);
            assert_eq!(found.cancelled, held.map(|_| CancelReason::Cancelled), "key {which}");
            // A bound that equals the due time has no further effect, so it is not stored.
            let bound = model.bound.map(|bound| bound.since(self.time()));
            let [ours, models] = [found.bound, bound].map(|bound| {
                bound.filter(|_| due.is_some() && bound != due).map(|bound| bound.min(FAR))
            });
            assert_eq!(ours, models, "key {which}: bound");
            let since = self.released.get(&which).map(|&place| time(place)).or(model.since);
            let since = since.filter(|_| phase > 0).map(|since| self.time().since(since));
            assert_eq!(found.since, since, "key {which}, {found:?}: since");
        }
        self.compare_groups(&page).await;
        let is_paused = self.engine.is_paused(&self.place).await.expect("answered");
        assert_eq!(is_paused, self.is_paused);
        let counts = self.engine.count_keys(&self.place).await.expect("counted");
        let state = |state| states.get(&state).copied().unwrap_or(0);
        let found = [counts.ready, counts.waiting, counts.in_flight, counts.parked];
        let all = STATES.map(state);
        assert_eq!(found, all, "ready, waiting, in_flight, parked");
        let is_idle = self.engine.is_idle(&self.place).await.expect("answered");
        assert_eq!(is_idle, found[..3] == [0; 3], "whether the queue is idle");
    }

    /// Checks that the engine has exactly the last consecutive failures.
    async fn compare_attempts(&self, which: u32, entry: Option<&Entry>) {
        let attempts = self.engine.read_attempts(&self.place, &key(which)).await.expect("read");
        let numbers: Vec<u32> = attempts.iter().map(|attempt| attempt.number).collect();
        let failures = entry.map_or(0, |entry| entry.failures);
        let expected: Vec<u32> = (1..=failures).rev().take(3).collect();
        assert_eq!(numbers, expected, "the attempts of {which}");
        assert!(attempts.is_sorted_by_key(|attempt| attempt.ended), "{attempts:?}");
        let last = attempts.first().map(|attempt| attempt.ended);
        assert_eq!(entry.and_then(|entry| entry.failed), last, "the last failure of {which}");
    }

    /// Compares the settings of all groups, and the numbers of their keys.
    async fn compare_groups(&self, page: &[Entry]) {
        let Some(groups) = &self.groups else {
            assert!(page.iter().all(|entry| entry.group.is_none()));
            return;
        };
        let mut expected: BTreeMap<String, [u64; 4]> =
            groups.names().map(|name| (name.to_owned(), [0; 4])).collect();
        for entry in page {
            let group = group(number(&entry.key));
            assert_eq!(entry.group.as_ref(), Some(&group), "the group of {:?}", entry.key);
            let state = STATES.iter().position(|&state| state == entry.state).expect("a state");
            expected.entry(group).or_default()[state] += 1;
        }
        let listed = self.engine.list_groups(&self.place, None, 100).await.expect("listed");
        let found = listed.into_iter().map(|info| {
            let counts = info.counts;
            let counts = [counts.ready, counts.waiting, counts.in_flight, counts.parked];
            (info.name, counts, info.limit, info.weight, info.is_paused)
        });
        let expected = expected.into_iter().map(|(name, counts)| {
            let GroupSettings { weight, is_paused, .. } = groups.settings(&name);
            let limit = groups.limit(&name);
            (name, counts, limit, weight, is_paused)
        });
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "the groups");
    }
}

/// Checks that each operation fails because the queue was dropped.
async fn assert_dropped(engine: &dyn Engine, queue: &Place, held: &[Held]) {
    fn said<T: std::fmt::Debug>(operation: &str, queue: &Place, answer: Answer<T>) {
        let fault = answer.expect_err(operation);
        assert_eq!(fault.kind, Kind::Dropped, "{operation}: {}", fault.source);
        let expected = format!("queue {:?} was dropped", queue.name);
        assert_eq!(fault.source.to_string(), expected, "{operation}");
    }
    let (one, out) = (key(0), held.first().map(|held| held.out.clone()));
    let request = Ask::new(one.clone(), Add::now());
    said("add", queue, engine.add_keys(queue, vec![request.clone()]).await);
    said("add_free", queue, engine.add_free(queue, vec![request]).await);
    let claim = Claim { max: 3, oldest: 1, lease: LEASE, expired: failing(), poll: LEASE };
    said("claim", queue, engine.claim_keys(queue, claim).await);
    let (of, epoch) = out.map_or((one.clone(), 1), |out| (out.key, out.epoch));
    let end = End { key: of.clone(), epoch, how: Finish::Succeed };
    said("finish", queue, engine.finish_deliveries(queue, vec![end.clone()]).await);
    said("finish_free", queue, engine.finish_free(queue, vec![end]).await);
    said("renew", queue, engine.renew_leases(queue, vec![(of, epoch)], LEASE).await);
    said("cancel", queue, engine.cancel_keys(queue, vec![one.clone()], None).await);
    said("cancel_running", queue, engine.cancel_running(queue, &one).await);
    said("set_paused", queue, engine.set_paused(queue, true).await);
    said("is_paused", queue, engine.is_paused(queue).await);
    said("revive", queue, engine.make_ready(queue, vec![one.clone()], State::Parked).await);
    said("walk", queue, engine.walk_keys(queue, None, None, 3).await);
    said("look_up", queue, engine.look_up(queue, &one).await);
    said("counts", queue, engine.count_keys(queue).await);
    said("is_idle", queue, engine.is_idle(queue).await);
    for state in STATES {
        said("page", queue, engine.read_page(queue, Some(state), None, 3).await);
    }
}

const TEAM: Team = Team { id: 0, weight: 1 };

fn time(now: Micros) -> core::Time {
    core::Time::from_nanos(u64::try_from(now).expect("after 1970") * 1000)
}

fn core_asked(asked: Asked) -> core::Asked {
    let priority = asked.priority.number().into();
    core::Asked { adds: asked.adds, flags: asked.flags, priority }
}

fn core_how(ending: Ending) -> requeue_sim::How {
    match ending {
        // The model has no parked keys.
        Ending::Succeed | Ending::GiveUp => requeue_sim::How::Succeed,
        Ending::RequeueAfter(delay) => requeue_sim::How::RequeueAfter(delay),
        Ending::RetryAfter(delay) => requeue_sim::How::RetryAfter(delay),
        Ending::Release | Ending::Unclaim => requeue_sim::How::Release,
        Ending::Retry | Ending::Cancelled => unreachable!("it was handled before"),
    }
}

fn pick<T>(list: &[T], which: usize) -> Option<&T> {
    list.get(which % list.len().max(1))
}
