//! Compares the schedules of an engine with a small model. Two processes read and fire schedules, sometimes late, while
//! the schedules are changed and the clock is set.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::{BACKOFF, BEGIN, LEASE, Rig};
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::engine::time::{Micros, until};
use crate::engine::{Backoff, Claim, End, Engine, Failing, Finish, Place, Settings};
use crate::tests::Batches as _;
use crate::types::add::Priority;
use crate::types::key::Key;

/// The periods in microseconds.
const PERIODS: [i64; 2] = [1_000, 7_000];
const REFUSED: &str = "no such zone";

#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Stores the schedule of a key. The second number selects the period.
    Put(usize, usize),
    Pause(usize, bool),
    Remove(usize),
    /// The other process refuses a schedule that it has read before.
    Refuse(usize),
    /// The other process reads the schedules.
    Read,
    /// Both processes fire schedules. This process reads them now, and the other process has read them before. With
    /// true, the other process fires first.
    Fire(bool),
    /// Advances the time. A negative value sets the clock back.
    Pass(i64),
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let key = || 0..3usize;
    let step = prop_oneof![
        3 => (key(), 0..PERIODS.len()).prop_map(|(key, period)| Step::Put(key, period)),
        2 => (key(), any::<bool>()).prop_map(|(key, paused)| Step::Pause(key, paused)),
        1 => key().prop_map(Step::Remove),
        1 => key().prop_map(Step::Refuse),
        3 => Just(Step::Read),
        6 => any::<bool>().prop_map(Step::Fire),
        6 => (1..9_000i64).prop_map(Step::Pass),
        1 => (-5_000..0i64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..most)
}

/// A schedule of the model.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Plan {
    period: i64,
    /// The next time. If `is_new` is true, this is an earlier time of the schedule.
    next: Micros,
    is_new: bool,
    is_paused: bool,
    is_refused: bool,
}

impl Plan {
    fn is_due(&self, now: Micros) -> bool {
        !self.is_paused && !self.is_refused && (self.is_new || self.next <= now)
    }

    /// Returns the first time after `now`. Its distance from `self.next` is a whole number of periods.
    fn after(&self, now: Micros) -> Micros {
        let mut next = self.next;
        while next > now {
            next -= self.period;
        }
        while next <= now {
            next += self.period;
        }
        next
    }
}

struct Model<'a> {
    rig: &'a dyn Rig,
    engine: Arc<dyn Engine>,
    place: Place,
    now: Micros,
    plans: BTreeMap<usize, Plan>,
    /// The schedules that the other process has read, and the schedules of the model at that time.
    read: (Agenda, BTreeMap<usize, Plan>),
}

fn key(number: usize) -> Key {
    Key::from(format!("k\u{1}{number}/ü"))
}

fn number(key: &Key) -> usize {
    (0..3).find(|&n| self::key(n) == *key).expect("a key of the test")
}

/// Applies `steps` to a new queue of the engine.
pub(crate) async fn check(rig: &dyn Rig, queue: &str, group_by: Option<&str>, steps: &[Step]) {
    let engine = rig.engine();
    let settings = Settings { group_by: group_by.map(Arc::from), ..Settings::default() };
    let place = engine.open_queue(queue, settings).await.expect("the queue opens");
    rig.set_time(BEGIN).await;
    let (plans, read) = Default::default();
    let mut model = Model { rig, engine, place, now: BEGIN, plans, read };
    for step in steps {
        model.apply(step).await;
        model.check_agenda().await;
    }
}

impl Model<'_> {
    async fn apply(&mut self, step: &Step) {
        let Self { engine, place, .. } = self;
        match *step {
            Step::Put(number, period) => self.put(number, PERIODS[period]).await,
            Step::Pause(number, paused) => {
                let is_there = engine.pause_schedule(place, &key(number), paused).await;
                let plan = self.plans.get_mut(&number);
                assert_eq!(is_there.expect("answered"), plan.is_some());
                if let Some(plan) = plan {
                    if !paused && (plan.is_paused || plan.is_refused) {
                        (plan.is_new, plan.is_refused) = (true, false);
                    }
                    plan.is_paused = paused;
                }
            }
            Step::Remove(number) => {
                let removed = engine.remove_schedule(place, &key(number)).await;
                assert_eq!(removed.expect("answered"), self.plans.remove(&number).is_some());
            }
            Step::Refuse(number) => self.refuse(number).await,
            Step::Read => {
                self.read = (read_next(&**engine, place).await, self.plans.clone());
            }
            Step::Fire(other_first) => self.fire(other_first).await,
            Step::Pass(time) if time < 0 && !self.rig.goes_back() => {}
            Step::Pass(time) => {
                self.now += time;
                self.rig.set_time(self.now).await;
            }
        }
    }

    async fn put(&mut self, number: usize, period: i64) {
        let group = self.place.group_by.as_ref().map(|_| Arc::from("g"));
        let schedule = Scheduled {
            key: key(number),
            spec: format!("every {period}us"),
            zone: String::new(),
            priority: Priority::High,
            group,
            next_at: 0,
            is_new: true,
            is_paused: false,
            error: None,
        };
        let stored = self.engine.put_schedule(&self.place, schedule).await.expect("stored");
        assert_eq!((stored.now, stored.schedules.len()), (self.now, 1));
        let stored = &stored.schedules[0];
        let was = self.plans.get(&number);
        if was.is_none_or(|was| was.period != period) {
            let is_paused = was.is_some_and(|was| was.is_paused);
            let next = self.now;
            let plan = Plan { period, next, is_new: true, is_paused, is_refused: false };
            self.plans.insert(number, plan);
        }
        let plan = &self.plans[&number];
        assert_eq!((stored.next_at, stored.is_new), (plan.next, plan.is_new));
    }

    async fn refuse(&mut self, number: usize) {
        let (agenda, plans) = &self.read;
        let of_key = |schedule: &&Scheduled| schedule.key == key(number);
        let Some(was) = agenda.schedules.iter().find(of_key) else { return };
        let firing = Firing::Refused(REFUSED.to_owned());
        let has_changed = self.engine.fire_schedule(&self.place, was, firing).await;
        let is_current = self.plans.get(&number) == plans.get(&number);
        assert_eq!(has_changed.expect("answered"), is_current);
        if is_current && let Some(plan) = self.plans.get_mut(&number) {
            plan.is_refused = true;
        }
    }

    async fn fire(&mut self, other_first: bool) {
        let agenda = read_next(&*self.engine, &self.place).await;
        let mut processes = [(agenda, self.plans.clone()), self.read.clone()];
        if other_first {
            processes.reverse();
        }
        let mut added = BTreeSet::new();
        for (agenda, plans) in processes {
            for was in agenda.schedules {
                let number = number(&was.key);
                let plan = &plans[&number];
                if !plan.is_due(agenda.now) {
                    continue;
                }
                let next = plan.after(agenda.now);
                let has_fired =
                    self.engine.fire_schedule(&self.place, &was, Firing::Next(next)).await;
                let is_current = self.plans.get(&number) == Some(plan);
                assert_eq!(has_fired.expect("answered"), is_current, "{was:?}");
                if is_current {
                    if !plan.is_new {
                        assert!(added.insert(was.key), "one add for one time");
                    }
                    self.plans.insert(number, Plan { next, is_new: false, ..plan.clone() });
                }
            }
        }
        assert_eq!(self.claim_all().await, added);
    }

    /// Claims and completes all keys, and returns them.
    async fn claim_all(&self) -> BTreeSet<Key> {
        let backoff = Backoff { base: BACKOFF, cap: BACKOFF, share: 1.0 };
        let expired = Failing { backoff, max_failures: None };
        let claim = Claim { max: 9, oldest: 0, lease: LEASE, expired, poll: LEASE };
        let mut keys = BTreeSet::new();
        loop {
            let claimed = self.engine.claim_keys(&self.place, claim).await.expect("claimed");
            if claimed.items.is_empty() {
                let due = self.plans.values().filter(|plan| !plan.is_paused && !plan.is_refused);
                let due = due.map(|plan| if plan.is_new { 0 } else { plan.next }).min();
                let due = due.map(|at| until(self.now, at));
                assert_eq!(claimed.schedule_in, due, "the claim names the next time");
                return keys;
            }
            for out in claimed.items {
                let group = self.place.group_by.as_ref().map(|_| "g");
                assert_eq!((out.asked.priority, out.asked.adds), (Priority::High, 1));
                assert_eq!(out.group.as_deref(), group);
                let end = End { key: out.key.clone(), epoch: out.epoch, how: Finish::Succeed };
                assert_eq!(
                    self.engine.finish_deliveries(&self.place, vec![end]).await.ok(),
                    Some(vec![true])
                );
                assert!(keys.insert(out.key), "delivered once");
            }
        }
    }

    /// Compares both lists of schedules with the model: by key and by due time.
    async fn check_agenda(&self) {
        let listed = self.engine.list_schedules(&self.place, None, 9).await.expect("listed");
        let Agenda { now, mut schedules } = join(listed);
        if !self.rig.is_ordered() {
            schedules.sort_by_key(|schedule| schedule.key.clone());
        }
        assert_eq!(now, self.now);
        let found: BTreeMap<_, _> =
            schedules.iter().map(|found| (number(&found.key), to_plan(found))).collect();
        assert_eq!(found, self.plans);
        assert!(schedules.is_sorted_by_key(|schedule| schedule.key.clone()));
        if let [first, rest @ ..] = &schedules[..] {
            let page = self.engine.list_schedules(&self.place, Some(&first.key), 1).await;
            let mut page = join(page.expect("listed")).schedules;
            page.sort_by_key(|schedule| schedule.key.clone());
            assert_eq!(page.first(), rest.first());
        }
        let next = read_next(&*self.engine, &self.place).await.schedules;
        let mut active: Vec<_> =
            schedules.into_iter().filter(|schedule| schedule.due_at().is_some()).collect();
        assert!(next.is_sorted_by_key(Scheduled::due_at) || !self.rig.is_ordered());
        active.retain(|schedule| !next.contains(schedule));
        assert_eq!(active, [], "{next:?}");
    }
}

/// Reads the first schedules of all shards, in the order of their due times.
async fn read_next(engine: &dyn Engine, place: &Place) -> Agenda {
    let mut agendas = Vec::new();
    for shard in 0..engine.shard_count(place) {
        agendas.push(engine.next_schedules(place, shard, 9).await.expect("read"));
    }
    join(agendas)
}

/// Joins the schedules of all shards. The clocks of the shards must agree.
fn join(agendas: Vec<Agenda>) -> Agenda {
    let now = agendas.iter().map(|agenda| agenda.now).max().expect("a shard");
    assert!(agendas.iter().all(|agenda| agenda.now == now));
    let schedules = agendas.into_iter().flat_map(|agenda| agenda.schedules).collect();
    Agenda { now, schedules }
}

fn to_plan(found: &Scheduled) -> Plan {
    let period = found.spec.trim_start_matches("every ").trim_end_matches("us");
    assert!(found.error.as_ref().is_none_or(|error| error == REFUSED));
    Plan {
        period: period.parse().expect("a number"),
        next: found.next_at,
        is_new: found.is_new,
        is_paused: found.is_paused,
        is_refused: found.error.is_some(),
    }
}

/// Checks that the key is added once if many times of its schedule pass while no process runs.
pub(crate) async fn check_missed(rig: &dyn Rig, queue: &str) {
    let pass = Step::Pass(50 * PERIODS[0] + 1);
    let steps = [Step::Put(0, 0), Step::Fire(false), pass, Step::Fire(false), Step::Fire(true)];
    check(rig, queue, None, &steps).await;
    let engine = rig.engine();
    let place = engine.find_queue(queue).await.expect("found").expect("it exists");
    let agenda = read_next(&*engine, &place).await;
    assert_eq!(agenda.schedules[0].next_at, BEGIN + 51 * PERIODS[0]);
    assert_eq!(until(agenda.now, agenda.schedules[0].next_at), Duration::from_micros(999));
}
