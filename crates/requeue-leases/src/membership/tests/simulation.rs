//! A simulation of the replicas of a shard group. Two replicas must never act on one shard at the same time.
//!
//! The clocks of the replicas have different rates. Their times of day differ, and jump by up to years. Requests,
//! responses and events of watches are delayed, lost or repeated. Replicas are disconnected, freeze, crash, stop and
//! join. Runs end slowly. Users change and delete Leases. Then all faults stop, and the shards must become evenly
//! distributed. After a crash, a stop or a join, no shard may be without a holder for longer than the documentation of
//! `membership` states. A replica that stops must release its Lease within a second. A replica in a crash loop must not
//! receive shards.
//!
//! With `REQUEUE_SHARD_SEEDS=100000`, the test simulates 100,000 groups. With `REQUEUE_SHARD_SEED=n`, it begins with
//! the seed n.

mod network;
mod oracle;
mod replica;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use self::replica::Replica;
use crate::leader::Config;
use crate::lease::Lease;
use crate::membership::assignment::{JOINED, Layout};
use crate::membership::protocol::Watched;
use crate::requests::{Answer, Call};
use crate::testing::Server;

/// The real time in nanoseconds. No replica can read it.
type Real = u64;

/// The largest error of a replica's time of day in seconds, about 30 years.
const MAX_WALL: i64 = 1_000_000_000;
const MILLI: Real = 1_000_000;
const SECOND: Real = 1000 * MILLI;

fn nanos(duration: Duration) -> Real {
    u64::try_from(duration.as_nanos()).unwrap()
}

/// A bug that a test adds on purpose. The oracle must detect it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    /// If a Lease seems to have expired, the replica does not read it again.
    NoFreshRead,
    /// Writes of the group object succeed even if the object has changed.
    NoPrecondition,
    /// A holder acts on a shard until it receives the response to its write of the new holder.
    ActsUntilResponse,
    /// A holder acts for another half of the lease duration after its right has ended.
    OverstaysRight,
    /// A holder reports shards as drained while runs are still in flight.
    DrainsEarly,
    /// The clock rates differ by more than the lease duration divided by the renew deadline.
    FastClocks,
    /// When a member has stopped and left the group, some of its runs continue.
    ReleasesEarly,
    /// A replica that has failed to create its Lease tries again under the same name.
    JoinsAgain,
    /// Replicas ignore the members of a group object that was deleted.
    IgnoresForeign,
    /// A member receives shards before it has renewed its Lease for the first time.
    CountsNew,
}

enum What {
    Group(Call),
    Election(Call),
}

enum Answered {
    Group(Answer),
    Election(Answer),
}

enum Event {
    Wake { who: usize, epoch: u64, of: usize, number: u64 },
    Arrives { who: usize, epoch: u64, number: u64, what: What },
    Answered { who: usize, epoch: u64, number: u64, answer: Answered },
    ListArrives { who: usize, epoch: u64, watch: u64 },
    Watched { who: usize, epoch: u64, watch: u64, event: Watched },
    Drained { who: usize, epoch: u64, shards: Vec<usize> },
    Start(usize),
    Chaos,
}

struct World {
    config: Config,
    layout: Layout,
    handover_limit: Duration,
    /// The upper limit of the replicas' clock rates, in thousandths. The lower limit is 1000.
    rates: u64,
    random: fastrand::Rng,
    server: Server,
    replicas: Vec<Option<Replica>>,
    events: BinaryHeap<Reverse<(Real, u64)>>,
    /// The events that are still due. Their indexes are their numbers.
    what: Vec<Option<Event>>,
    now: Real,
    numbers: u64,
    /// The number of consecutive events without an advance of time.
    repeats: u64,
    /// For each shard of each group object, the greatest number in a fencing token so far, and the holder that had this
    /// token.
    tokens: HashMap<(String, usize), (i32, Arc<str>)>,
    deletes_members: bool,
    deletes_group: bool,
    /// True while the simulation causes faults.
    faults: bool,
    planted: Option<Planted>,
    /// For each shard, the time since which no replica acts on it. `None` if a replica acts on it.
    unheld: Vec<Option<Real>>,
    longest_gap: Real,
    /// The last time at which any replica released its Lease.
    left: Real,
    moves: u64,
}

impl World {
    fn new(seed: u64, planted: Option<Planted>) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let lease = [3_u32, 6, 15][random.usize(..3)];
        let renew = f64::from(lease) * [0.5, 0.67, 0.8][random.usize(..3)];
        let config = Config::new("default", "web")
            .lease_duration(Duration::from_secs(lease.into()))
            .renew_deadline(Duration::from_secs_f64(renew))
            .retry_period(Duration::from_secs_f64(renew / 3.5))
            .host("host");
        // The limit is the largest difference of rates that the protocol tolerates.
        let rates = 1000 * config.lease_duration.as_millis() / config.renew_deadline.as_millis();
        let mut rates = u64::try_from(rates).unwrap();
        if planted == Some(Planted::FastClocks) {
            rates *= 3;
        }
        let count = [1, 2, 8, 8, 16, 32][random.usize(..6)];
        let layout = Layout { count, by: "uid".to_owned(), objects: String::new() };
        let replicas = random.usize(2..6);
        let mut world = Self {
            config,
            layout,
            handover_limit: Duration::from_secs_f64(0.3 + 3.0 * random.f64()),
            rates,
            server: Server::default(),
            replicas: (0..replicas).map(|_| None).collect(),
            events: BinaryHeap::new(),
            what: Vec::new(),
            now: 0,
            numbers: 0,
            repeats: 0,
            tokens: HashMap::new(),
            deletes_members: random.u32(..4) == 0,
            deletes_group: false,
            faults: true,
            planted,
            unheld: vec![Some(0); count],
            longest_gap: 0,
            left: 0,
            moves: 0,
            random,
        };
        world.server.ignores_versions = planted == Some(Planted::NoPrecondition);
        world.deletes_group = !world.deletes_members && world.random.u32(..6) == 0;
        if planted == Some(Planted::IgnoresForeign) {
            (world.deletes_group, world.deletes_members) = (true, false);
        }
        for who in 0..replicas {
            let at = world.random.u64(..3 * SECOND);
            world.at(at, Event::Start(who));
        }
        world.at(SECOND, Event::Chaos);
        world
    }

    fn at(&mut self, at: Real, event: Event) {
        self.events.push(Reverse((at, self.what.len() as u64)));
        self.what.push(Some(event));
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        self.faults && self.random.u32(..1000) < per_mille
    }

    fn run_until(&mut self, end: Real) {
        while let Some(&Reverse((at, number))) = self.events.peek()
            && at < end
        {
            self.events.pop();
            self.repeats = if at > self.now { 0 } else { self.repeats + 1 };
            assert!(self.repeats < 10_000, "a replica polls without a pause");
            self.now = self.now.max(at);
            let event = self.what[number as usize].take().expect("an event happens once");
            self.handle(event);
            self.broadcast();
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        let (who, epoch) = match &event {
            Event::Wake { who, epoch, .. }
            | Event::Answered { who, epoch, .. }
            | Event::Watched { who, epoch, .. }
            | Event::Drained { who, epoch, .. } => (*who, *epoch),
            Event::Arrives { .. } | Event::ListArrives { .. } => return self.serve(event),
            Event::Start(who) => {
                let who = *who;
                return if self.replicas[who].is_none() {
                    self.start(who)
                };
            }
            Event::Chaos => return self.chaos(),
        };
        if !self.runs(who, epoch) {
            return;
        }
        let frozen_until = self.replica(who).frozen_until;
        if self.now < frozen_until {
            return self.at(frozen_until, event);
        }
        let now = self.now;
        let local = self.time(who);
        match event {
            Event::Wake { of, number, .. } => {
                if self.replica(who).wakes[of] != number {
                    return;
                }
                if self.chance(10) {
                    let stall = self.random.u64(..nanos(self.config.lease_duration) * 3 / 2);
                    self.replica(who).frozen_until = now + stall;
                    return self.at(now + stall, Event::Wake { who, epoch, of, number });
                }
            }
            Event::Answered { number, answer, .. } => {
                let replica = self.replica(who);
                match answer {
                    Answered::Group(answer) if replica.calls[0] == number => {
                        replica.calls[0] = 0;
                        replica.group.handle_answer(local, answer);
                    }
                    Answered::Election(answer) if replica.calls[1] == number => {
                        replica.calls[1] = 0;
                        if let Some(election) = &mut replica.election {
                            election.handle_answer(local, answer);
                        }
                    }
                    _ => {}
                }
            }
            Event::Watched { watch, event, .. } => {
                if self.replica(who).watch != watch {
                    return;
                }
                let breaks = self.replica(who).breaks;
                let again = self.chance(50);
                let ignores_foreign = self.planted == Some(Planted::IgnoresForeign);
                let counts_new = self.planted == Some(Planted::CountsNew);
                let replica = self.replica(who);
                let mut event = event;
                if let Watched::Apply(lease) | Watched::InitApply(lease) = &mut event {
                    if let Some(group) = replica.group.group()
                        && ignores_foreign
                        && lease.name() != "web"
                    {
                        let joined = serde_json::json!(group.uid());
                        let json = lease
                            .with_annotations([(JOINED.to_owned(), joined)].into_iter().collect());
                        *lease = Lease::from_json(json).unwrap();
                    }
                    if counts_new && lease.name() != "web" {
                        replica.group.handle_event(local, Watched::Apply(before_renewal(lease)));
                    }
                    replica.shown.insert(lease.name().to_owned(), lease.clone());
                }
                if again && matches!(event, Watched::Apply(_) | Watched::Delete(_)) {
                    replica.group.handle_event(local, event.clone());
                }
                replica.group.handle_event(local, event);
                if self.chance(breaks) {
                    self.list(who);
                }
            }
            Event::Drained { shards, .. } => {
                let replica = self.replica(who);
                for shard in &shards {
                    replica.undrained &= !(1 << shard);
                }
                replica.group.mark_drained(local, shards);
            }
            Event::Arrives { .. } | Event::ListArrives { .. } | Event::Start(_) | Event::Chaos => {}
        }
        self.step(who);
    }

    fn chaos(&mut self) {
        if !self.faults {
            return;
        }
        let later = self.now + self.random.u64(1..nanos(self.config.lease_duration));
        self.at(later, Event::Chaos);
        let who = self.random.usize(..self.replicas.len());
        let lease = nanos(self.config.lease_duration);
        let until = self.now + self.random.u64(..lease * 2);
        let kind = self.random.u32(..14);
        if kind < 2 {
            let names: Vec<_> = self.server.leases.keys().cloned().collect();
            if let Some(name) = self.random.choice(names) {
                let value = self.random.u64(..);
                self.server.label(&name, value);
            }
            return;
        }
        if kind == 2 {
            if self.deletes_group && self.random.u32(..3) == 0 {
                self.server.delete("web");
            }
            let names: Vec<_> =
                self.server.leases.keys().filter(|name| *name != "web").cloned().collect();
            if self.deletes_members
                && let Some(name) = self.random.choice(names)
            {
                self.server.delete(&name);
            }
            return;
        }
        let Some(replica) = &mut self.replicas[who] else { return };
        match kind {
            3 => self.end(who),
            4..6 => replica.cut_off_until = until,
            6..9 => replica.frozen_until = until,
            9..12 => replica.stopping = true,
            12 => self.list(who),
            _ => {}
        }
    }
}

/// Returns an earlier version of a Lease. With a planted bug, the replica compares the Lease with this version, and
/// believes that it was renewed.
fn before_renewal(lease: &Lease) -> Lease {
    let mut json = lease.with_annotations(Map::new());
    json["spec"]["renewTime"] = Value::Null;
    json["metadata"]["resourceVersion"] = Value::from((lease.resource_version() - 1).to_string());
    Lease::from_json(json).unwrap()
}

/// Simulates one group, first with faults, and then without faults.
fn simulate(seed: u64, planted: Option<Planted>) -> World {
    let mut world = World::new(seed, planted);
    let lease = nanos(world.config.lease_duration);
    let members = world.replicas.len();
    world.run_until(lease * 20);
    world.faults = false;
    for replica in world.replicas.iter_mut().flatten() {
        (replica.frozen_until, replica.drains) = (replica.frozen_until.min(lease * 21), MILLI);
    }
    for who in 0..members {
        world.at(lease * 20, Event::Start(who));
    }
    // In this time, all Leases and all requests in flight expire. This includes deleted Leases, and Leases of members
    // of a deleted group object.
    world.calm(lease * 10 + 20 * SECOND, members);

    // One replica crashes, and is not replaced.
    let who = world.random.usize(..members);
    world.replicas[who] = None;
    world.refresh();
    world.longest_gap = 0;
    if members > 1 {
        world.calm(lease * 3 + 5 * SECOND, members - 1);
        let gap = Duration::from_nanos(world.longest_gap);
        assert!(
            gap <= world.config.lease_duration + Duration::from_secs(1),
            "{gap:?} after a crash"
        );
    }
    // One replica joins.
    world.at(world.now, Event::Start(who));
    world.calm(10 * SECOND, members);
    let gap = Duration::from_nanos(world.longest_gap);
    assert!(gap <= Duration::from_secs(1), "{gap:?} at a join");
    // One replica stops and another one starts, as in a rolling update.
    let who = world.random.usize(..members);
    world.replica(who).stopping = true;
    let stopped = world.now;
    world.step(who);
    world.broadcast();
    world.calm(10 * SECOND, members);
    let gap = Duration::from_nanos(world.longest_gap);
    assert!(gap <= Duration::from_secs(1) || members == 1, "{gap:?} at a stop");
    let (left, stopped) = (Duration::from_nanos(world.left), Duration::from_nanos(stopped));
    assert!(
        (stopped..=stopped + Duration::from_secs(1)).contains(&left),
        "a replica was stopped at {stopped:?}, and the last release is at {left:?}"
    );
    if members > 1 {
        // One replica crashes, and another one starts before the dead Lease has expired. The new replica must observe
        // this Lease for its whole duration. It is therefore the last one to notice the crash.
        let who = world.random.usize(..members);
        world.replicas[who] = None;
        world.at(world.now + lease / 2, Event::Start(who));
        world.refresh();
        let moves = world.moves;
        world.calm(lease * 3 + 5 * SECOND, members);
        // A survivor keeps a shard of the dead replica, or hands it over to the new replica. Each shard therefore moves
        // at most twice.
        let (moves, share) = (world.moves - moves, world.layout.count.div_ceil(members) as u64);
        assert!(moves <= 2 * share, "{moves} moves after a crash with a replacement");
        let gap = Duration::from_nanos(world.longest_gap);
        let bound = world.config.lease_duration + Duration::from_secs(1);
        assert!(gap <= bound, "{gap:?} after a crash with a replacement");
    }
    world.crash_loop();
    world
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_two_replicas_act_on_one_shard_and_each_shard_has_a_holder_when_all_is_well() {
    let first = variable("REQUEUE_SHARD_SEED").unwrap_or(0);
    let seeds = variable("REQUEUE_SHARD_SEEDS").unwrap_or(50);
    for seed in first..first + seeds {
        let result = catch_unwind(|| simulate(seed, None));
        assert!(result.is_ok(), "REQUEUE_SHARD_SEED={seed} REQUEUE_SHARD_SEEDS=1 fails");
    }
}

/// Simulates groups with a planted bug until the oracle detects the bug. The first group has the seed `first`.
fn detects(planted: Planted, first: u64) {
    let found = (first..first + 400).find_map(|seed| {
        let result = catch_unwind(AssertUnwindSafe(|| drop(simulate(seed, Some(planted)))));
        let message = result.err()?.downcast_ref::<String>().cloned().unwrap_or_default();
        let expected = match planted {
            Planted::CountsNew => "in a crash loop",
            _ => "both act",
        };
        message.contains(expected).then_some((seed, message))
    });
    let (seed, message) = found.unwrap_or_else(|| panic!("{planted:?} was not detected"));
    println!("{planted:?}: seed {seed}: {message}");
}

#[test]
fn a_watch_that_is_believed_without_a_read_is_detected() {
    detects(Planted::NoFreshRead, 10);
}

#[test]
fn a_write_without_a_precondition_is_detected() {
    detects(Planted::NoPrecondition, 80);
}

#[test]
fn a_holder_that_acts_until_the_response_to_its_handover_is_detected() {
    detects(Planted::ActsUntilResponse, 7);
}

#[test]
fn a_holder_that_acts_after_its_right_is_detected() {
    detects(Planted::OverstaysRight, 1);
}

#[test]
fn a_shard_that_is_reported_as_drained_too_early_is_detected() {
    detects(Planted::DrainsEarly, 1);
}

#[test]
fn clocks_beyond_the_ratio_are_detected() {
    detects(Planted::FastClocks, 3);
}

#[test]
fn a_release_before_the_end_of_the_runs_is_detected() {
    detects(Planted::ReleasesEarly, 1);
}

#[test]
fn a_second_attempt_to_join_under_one_name_is_detected() {
    detects(Planted::JoinsAgain, 486);
}

#[test]
fn a_new_group_object_that_ignores_the_members_of_the_former_is_detected() {
    detects(Planted::IgnoresForeign, 163);
}

#[test]
fn a_member_that_receives_shards_before_its_first_renewal_is_detected() {
    detects(Planted::CountsNew, 2);
}

#[test]
fn shards_move_often_enough_for_this_to_be_a_test() {
    let moves: u64 = (0..5).map(|seed| simulate(seed, None).moves).sum();
    assert!(moves > 200, "{moves} moves");
}
