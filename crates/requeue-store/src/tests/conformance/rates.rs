//! Compares the rates of an engine with the recorded times of the starts.
//!
//! In each window between two starts, there are at most as many starts as the rate permits. If ready keys remain after
//! a claim, one more start would have exceeded a rate or a limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{BEGIN, LEASE, Rig, failing};
use crate::engine::time::{Micros, micros};
use crate::engine::{
    Ask, Claim, Claimed, Delivery, End, Engine, Failure, Finish, GroupChange, Place, Settings,
};
use crate::tests::Batches as _;
use crate::types::add::Add;
use crate::types::inspect::State;
use crate::types::key::Key;
use crate::types::rate::{Rate, Throttle};

const WORKERS: usize = 3;
const KEYS_PER_GROUP: u32 = 8;
/// The limit of keys in flight of the last group. This group has no rate.
const LIMIT: u32 = 2;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Adds a key of a group.
    Add(usize, u32),
    /// A worker claims keys. The first number is the worker, and the second is the maximum number of keys.
    Claim(usize, usize),
    Finish(usize, Ending),
    Pass(u64),
    /// Sets the clock back.
    GoBack(u64),
    /// A worker opens the queue again.
    Reopen(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Ending {
    Succeed,
    Retry,
    Release,
    Unclaim,
    /// The worker is killed, and its lease expires.
    Kill,
}

/// The rates of a queue and of its first groups. Each interval is a whole number of microseconds. Otherwise, rounding
/// would make the starts slower than the rate.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    queue: Option<Rate>,
    groups: Vec<Option<Rate>>,
}

pub(crate) fn rates() -> impl Strategy<Value = Rates> {
    let rate = || {
        (1..5u32, 1..40u64, 1..5u32).prop_map(|(starts, interval, burst)| {
            let per = Duration::from_micros(u64::from(starts) * interval);
            Rate::new(starts, per).burst(burst)
        })
    };
    (prop::option::of(rate()), prop::collection::vec(prop::option::of(rate()), 3))
        .prop_map(|(queue, groups)| Rates { queue, groups })
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let ending = prop::sample::select(vec![
        Ending::Succeed,
        Ending::Succeed,
        Ending::Retry,
        Ending::Release,
        Ending::Unclaim,
        Ending::Kill,
    ]);
    let step = prop_oneof![
        8 => (0..4usize, 0..KEYS_PER_GROUP).prop_map(|(group, key)| Step::Add(group, key)),
        8 => (0..WORKERS, 1..6usize).prop_map(|(worker, max)| Step::Claim(worker, max)),
        4 => (0..9usize, ending).prop_map(|(which, ending)| Step::Finish(which, ending)),
        6 => (1..60u64).prop_map(Step::Pass),
        1 => (200..4000u64).prop_map(Step::Pass),
        1 => prop_oneof![1..100u64, 1..100_000u64].prop_map(Step::GoBack),
        3 => (0..WORKERS).prop_map(Step::Reopen),
    ];
    prop::collection::vec(step, 1..most)
}

/// The time of a start, and its group. The time is the sum of all forward steps of the clock.
type Start = (Micros, usize);

struct Model<'r> {
    rig: &'r dyn Rig,
    engine: Arc<dyn Engine>,
    /// The queue as each worker has opened it. The workers have separate turns.
    places: Vec<Place>,
    settings: Settings,
    rates: Rates,
    now: Micros,
    advanced: Micros,
    has_gone_back: bool,
    starts: Vec<Start>,
    held: Vec<Delivery>,
}

/// Applies `steps` to a new queue of the engine, with or without groups. Checks the times of the starts.
pub(crate) async fn check(
    rig: &dyn Rig,
    queue: &str,
    group_by: Option<&str>,
    rates: Rates,
    steps: &[Step],
) {
    let engine = rig.engine();
    let settings =
        Settings { group_by: group_by.map(Arc::from), rate: rates.queue, ..Settings::default() };
    let mut places = Vec::new();
    for _ in 0..WORKERS {
        places.push(engine.open_queue(queue, settings.clone()).await.expect("the queue opens"));
    }
    assert_eq!(places[0].rate, rates.queue);
    if group_by.is_some() {
        for (group, &rate) in rates.groups.iter().enumerate() {
            let change = GroupChange::Rate(rate);
            engine.change_group(&places[0], &name(group), change).await.expect("changed");
        }
        let limit = GroupChange::Limit(Some(LIMIT));
        engine.change_group(&places[0], &name(3), limit).await.expect("changed");
        for group in engine.list_groups(&places[0], None, 9).await.expect("listed") {
            let rate = rates.groups.get(group_of(&group.name)).copied().flatten();
            assert_eq!(group.rate, rate, "{group:?}");
        }
    }
    let (starts, held) = (Vec::new(), Vec::new());
    let (now, advanced, has_gone_back) = (BEGIN, 0, false);
    let mut model =
        Model { rig, engine, places, settings, rates, now, advanced, has_gone_back, starts, held };
    for step in steps {
        model.pass(1).await;
        model.step(step).await;
    }
    model.drain().await;
    model.check_starts();
}

fn name(group: usize) -> String {
    format!("g{group}")
}

fn group_of(name: &str) -> usize {
    name[1..2].parse().expect("a number")
}

impl Model<'_> {
    fn is_grouped(&self) -> bool {
        self.places[0].group_by.is_some()
    }

    async fn pass(&mut self, time: Micros) {
        self.now += time;
        self.advanced += time;
        self.rig.set_time(self.now).await;
    }

    async fn step(&mut self, step: &Step) {
        match *step {
            Step::Add(group, number) => {
                let add = Ask::new(format!("{}:{number}", name(group)), Add::now());
                let group = self.is_grouped().then(|| name(group).into());
                let added = self.engine.add_keys(&self.places[0], vec![Ask { group, ..add }]);
                added.await.expect("added");
            }
            Step::Claim(worker, max) => _ = self.claim(worker, max).await,
            Step::Finish(which, ending) => self.finish(which, ending).await,
            Step::Pass(time) => self.pass(time.cast_signed()).await,
            Step::GoBack(time) => {
                self.has_gone_back = true;
                self.now -= time.cast_signed();
                self.rig.set_time(self.now).await;
            }
            Step::Reopen(worker) => {
                let place = &mut self.places[worker];
                let opened = self.engine.open_queue(&place.name, self.settings.clone()).await;
                *place = opened.expect("the queue opens");
            }
        }
    }

    async fn finish(&mut self, which: usize, ending: Ending) {
        if which >= self.held.len() {
            return;
        }
        let out = self.held.remove(which);
        let (asked, error) = (out.asked, "no".to_owned());
        let how = match ending {
            Ending::Succeed => Finish::Succeed,
            Ending::Retry => Finish::Retry(failing(), Failure::new(asked, error)),
            Ending::Release => Finish::Release(asked),
            Ending::Unclaim => Finish::Unclaim(asked, out.queued),
            Ending::Kill => return,
        };
        let ends = vec![End { key: out.key, epoch: out.epoch, how }];
        self.engine.finish_deliveries(&self.places[0], ends).await.expect("answered");
    }

    /// Claims until a claim finds no key. Checks that no key may start then. Returns the time until the next claim.
    async fn claim(&mut self, worker: usize, max: usize) -> Option<Duration> {
        let mut left = max;
        loop {
            let claim =
                Claim { max: left, oldest: 0, lease: LEASE, expired: failing(), poll: LEASE };
            let claimed = self.engine.claim_keys(&self.places[worker], claim).await;
            let Claimed { items, next, is_rated, .. } = claimed.expect("claimed");
            let count = items.len();
            assert!(count <= left, "{count} keys instead of {left}");
            let of_group = |out: &Delivery| self.rates.groups.get(group_of_key(&out.key))?.as_ref();
            let has_rate = self.is_grouped() && items.iter().any(|out| of_group(out).is_some());
            assert!(is_rated || !has_rate && self.rates.queue.is_none());
            self.starts.extend(items.iter().map(|out| (self.advanced, group_of_key(&out.key))));
            self.held.extend(items);
            left -= count;
            if left == 0 {
                return Some(Duration::ZERO);
            }
            if count == 0 && next != Some(Duration::ZERO) {
                self.check_nothing_left(next).await;
                return next;
            }
        }
    }

    /// Returns true if the rates permit another start of the group at the time `advanced`.
    fn permits(&self, group: usize, advanced: Micros) -> bool {
        self.scopes().all(|(rate, of)| {
            let Some(rate) = rate else { return true };
            if of.is_some_and(|of| of != group) {
                return true;
            }
            let before = self.starts.iter().filter(|(_, other)| of.is_none_or(|of| of == *other));
            let times: Vec<_> = before.map(|&(at, _)| at).chain([advanced]).collect();
            exceeded_by_last(rate, &times).is_none()
        })
    }

    /// Returns the rates, each with its group. The group is `None` for the rate of the queue.
    fn scopes(&self) -> impl Iterator<Item = (Option<Rate>, Option<usize>)> {
        let groups = if self.is_grouped() { &self.rates.groups[..] } else { &[] };
        let groups = groups.iter().enumerate().map(|(group, &rate)| (rate, Some(group)));
        [(self.rates.queue, None)].into_iter().chain(groups)
    }

    /// Checks that no further key may start, and that the next claim is not later than the next permitted start.
    async fn check_nothing_left(&self, next: Option<Duration>) {
        // If the clock was set back, the time of the next start is not exact.
        if self.has_gone_back {
            return;
        }
        let place = &self.places[0];
        let entries = self.engine.read_page(place, None, None, 1000).await.expect("a page");
        let mut in_flight = BTreeMap::<usize, u32>::new();
        for entry in entries.iter().filter(|entry| entry.state == State::InFlight) {
            *in_flight.entry(group_of_key(&entry.key)).or_default() += 1;
        }
        let has_room = |group: usize| {
            let running = in_flight.get(&group).copied().unwrap_or_default();
            !self.is_grouped() || group != 3 || running < LIMIT
        };
        let ready = entries.iter().filter(|entry| entry.state == State::Ready);
        for group in ready.map(|entry| group_of_key(&entry.key)).filter(|&group| has_room(group)) {
            assert!(!self.permits(group, self.advanced), "a key of group {group} may start");
            let next = next.expect("a rate permits a start later");
            let before = self.advanced + micros(next) - 1;
            assert!(
                !self.permits(group, before),
                "a key of group {group} may start before {next:?}"
            );
        }
    }

    /// Claims and completes all remaining keys.
    async fn drain(&mut self) {
        if self.has_gone_back {
            // Otherwise, the time of some engines would not advance during these claims.
            self.pass(10_000_000).await;
        }
        for _ in 0..1000 {
            while !self.held.is_empty() {
                self.finish(0, Ending::Succeed).await;
            }
            let next = self.claim(1, 5).await;
            if self.held.is_empty() && next.is_none() {
                let left = self.engine.read_page(&self.places[0], None, None, 9).await;
                assert_eq!(left.expect("a page"), [], "keys are left");
                return;
            }
            if !self.held.is_empty() {
                // These runs complete before their leases expire.
                continue;
            }
            let next = next.map_or(0, micros);
            assert!(next < 10_000_000, "{next} is too late");
            self.pass(next).await;
        }
        panic!("keys are left");
    }

    fn check_starts(&self) {
        for (rate, of) in self.scopes() {
            let Some(rate) = rate else { continue };
            let mut times = Vec::new();
            for &(at, _) in self.starts.iter().filter(|(_, group)| of.is_none_or(|of| of == *group))
            {
                times.push(at);
                if let Some((count, window)) = exceeded_by_last(rate, &times) {
                    panic!(
                        "{count} starts in {window} us exceed {rate} of group {of:?}: {times:?}"
                    );
                }
            }
        }
    }
}

fn group_of_key(key: &Key) -> usize {
    group_of(key.as_str().expect("text"))
}

/// Returns the number of starts and the length of a window that ends with the last start, if the starts in this window
/// exceed the rate.
pub(crate) fn exceeded_by_last(rate: Rate, times: &[Micros]) -> Option<(usize, Micros)> {
    let [starts, per, burst] = rate.parts().map(i128::from);
    let last = *times.last()?;
    times.iter().enumerate().find_map(|(n, &first)| {
        let count = times.len() - n;
        let window = last - first;
        let is_exceeded = (count as i128 - burst) * per > i128::from(window) * starts;
        is_exceeded.then_some((count, window))
    })
}

/// Checks that a worker starts at least 95 % of the keys that a rate of the queue or of a group permits. The claims of
/// the worker take some time.
pub(crate) async fn check_share(rig: &dyn Rig, queue: &str) {
    const KEYS: usize = 300;
    let engine = rig.engine();
    let second = Duration::from_secs(1);
    let mut now = BEGIN;
    for (n, rate) in [
        Rate::new(7, second),
        Rate::new(1000, second).burst(20),
        Rate::new(30_000, second).burst(250),
    ]
    .into_iter()
    .enumerate()
    {
        for grouped in [false, true] {
            let settings = Settings {
                group_by: grouped.then(|| "".into()),
                rate: (!grouped).then_some(rate),
                ..Settings::default()
            };
            let queue = format!("{queue}-{n}-{grouped}");
            let place = engine.open_queue(&queue, settings).await.expect("the queue opens");
            let begin = now;
            rig.set_time(now).await;
            if grouped {
                let change = GroupChange::Rate(Some(rate));
                engine.change_group(&place, "g0", change).await.expect("changed");
            }
            let group = || grouped.then(|| "g0".into());
            let ask = |n| Ask { group: group(), ..Ask::new(format!("g0:{n}"), Add::now()) };
            engine.add_keys(&place, (0..KEYS).map(ask).collect()).await.expect("added");
            let (mut times, mut round) = (Vec::new(), 0);
            while times.len() < KEYS {
                round += 1;
                assert!(round < 10 * KEYS, "{} keys in {round} claims", times.len());
                let claim =
                    Claim { max: 250, oldest: 0, lease: LEASE, expired: failing(), poll: LEASE };
                let claimed = engine.claim_keys(&place, claim).await.expect("claimed");
                times.extend(std::iter::repeat_n(now, claimed.items.len()));
                let ends = claimed.items.into_iter().map(|out| End {
                    key: out.key,
                    epoch: out.epoch,
                    how: Finish::Succeed,
                });
                let ends: Vec<_> = ends.collect();
                if ends.is_empty() {
                    now += micros(claimed.next.expect("keys are ready"));
                } else {
                    engine.finish_deliveries(&place, ends).await.expect("finished");
                }
                // A claim takes 0 to 6 ms.
                now += (round % 4) as i64 * 2000;
                rig.set_time(now).await;
                assert_eq!(exceeded_by_last(rate, &times), None, "{rate}");
            }
            let [starts, per, _] = rate.parts().map(i128::from);
            let permitted = i128::from(times[KEYS - 1] - begin) * starts / per;
            assert!(100 * KEYS as i128 >= 95 * permitted, "{rate}: {KEYS} of {permitted} starts");
        }
    }
}

/// Checks that only one of several processes sets the first rate, and that all of them receive this rate.
pub(crate) async fn check_first(rig: &dyn Rig, queue: &str) {
    let engine = rig.engine();
    rig.set_time(BEGIN).await;
    // If adds name the groups, Redis creates the queue with one shard. Only such a queue can have a rate.
    let settings = Settings { group_by: Some("".into()), ..Settings::default() };
    let place = engine.open_queue(queue, settings).await.expect("the queue opens");
    let rate = |starts| Rate::new(starts, Duration::from_secs(1));
    let first = async |starts| engine.set_first_rate(&place, rate(starts)).await.expect("set");
    let (one, other) = tokio::join!(first(1), first(2));
    assert_eq!(one, other);
    assert_eq!(first(3).await, one);
    let read = async || engine.read_rate(&place).await.expect("read").map(|found| found.rate);
    assert_eq!(read().await, Some(one));
    assert_eq!(engine.find_queue(queue).await.expect("found").expect("it exists").rate, Some(one));
    engine.set_rate(&place, None).await.expect("set");
    assert_eq!(read().await, None);
    assert_eq!((first(4).await, read().await), (rate(4), Some(rate(4))));
}

/// Checks that the next claim respects a changed rate or the removal of a rate.
pub(crate) async fn check_changes(rig: &dyn Rig, queue: &str) {
    let engine = rig.engine();
    let settings = Settings { group_by: Some("".into()), ..Settings::default() };
    let place = engine.open_queue(queue, settings).await.expect("the queue opens");
    let mut now = BEGIN;
    rig.set_time(now).await;
    let ask = |n| Ask { group: Some("g0".into()), ..Ask::new(format!("g0:{n}"), Add::now()) };
    engine.add_keys(&place, (0..90).map(ask).collect()).await.expect("added");
    let claim = Claim { max: 9, oldest: 0, lease: 1000 * LEASE, expired: failing(), poll: LEASE };
    let count = async || engine.claim_keys(&place, claim).await.expect("claimed").items.len();
    let day = Duration::from_secs(24 * 3600);
    let second = Duration::from_secs(1);
    for is_group in [false, true] {
        let set = async |rate| match is_group {
            false => engine.set_rate(&place, rate).await.expect("set"),
            true => {
                let change = GroupChange::Rate(rate);
                engine.change_group(&place, "g0", change).await.expect("changed");
            }
        };
        let throttle = async || match is_group {
            false => engine.read_rate(&place).await.expect("read"),
            true => {
                let infos = engine.list_groups(&place, None, 9).await.expect("listed");
                let of_group = infos[0].rate.zip(infos[0].next_start);
                of_group.map(|(rate, next_start)| Throttle { rate, next_start })
            }
        };
        assert_eq!(count().await, 9, "no rate");
        assert_eq!(throttle().await, None);
        let rate = Rate::new(1, day).burst(4);
        set(Some(rate)).await;
        assert_eq!(throttle().await, Some(Throttle { rate, next_start: Duration::ZERO }));
        assert_eq!((count().await, count().await), (4, 0), "the burst");
        assert_eq!(throttle().await, Some(Throttle { rate, next_start: day }));
        // The new rate is faster. The next start does not wait as long as the old rate requires.
        let rate = Rate::new(1, second).burst(3);
        set(Some(rate)).await;
        assert_eq!(count().await, 0);
        let next_start = second + Duration::from_micros(1);
        assert_eq!(throttle().await, Some(Throttle { rate, next_start }));
        now += 1_000_001;
        rig.set_time(now).await;
        assert_eq!((count().await, count().await), (1, 0));
        set(None).await;
        assert_eq!(count().await, 9, "no rate again");
    }
    let infos = engine.list_groups(&place, None, 9).await.expect("listed");
    assert_eq!(infos.iter().map(|info| info.rate).collect::<Vec<_>>(), [None]);
}
