//! A simulation of the replicas of a shard group. At no moment do two of them act on one shard.
//!
//! The clocks of the replicas run at different rates, and show different times of day, which jump by
//! up to years. Requests, responses and events of watches are late, lost or repeated. Replicas are
//! disconnected, freeze, crash, stop and join. Runs drain slowly. Users change and delete Leases.
//! Afterwards all faults stop. Then the shards must be distributed evenly, and a crash, a stop and a
//! join must leave no shard without a holder for longer than promised. A replica in a crash loop must
//! not receive shards.
//!
//! `REQUEUE_SHARD_SEEDS=100000` simulates that number of groups. `REQUEUE_SHARD_SEED=n` sets the
//! first seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use requeue::Time;
use requeue::wait::JitterSource;
use serde_json::{Map, Value};

use super::server::{Server, lease};
use crate::leader::election::{self, Election};
use crate::leader::lost;
use crate::leader::{Config, Lease};
use crate::shards::assignment::{GroupLease, JOINED, LABEL, Layout};
use crate::shards::group::Group;
use crate::shards::protocol::{Answer, Call, Change, End, Settings, Step, Watched};

/// Nanoseconds of real time, which no replica can read.
type Real = u64;

/// The bound of the error of a replica's time of day, in seconds: 30 years.
const MOST_WALL: i64 = 1_000_000_000;
const MILLI: Real = 1_000_000;
const SECOND: Real = 1000 * MILLI;

fn nanos(duration: Duration) -> Real {
    u64::try_from(duration.as_nanos()).unwrap()
}

/// A planted bug that the oracle must detect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Planted {
    /// A Lease that seems to have expired is not read again: the watch is believed.
    NoFreshRead,
    /// Writes of the group object ignore its version.
    NoPrecondition,
    /// A holder acts on a shard until the response to the write of the new holder.
    ActsUntilResponse,
    /// A holder acts for half a lease after its right has ended.
    OverstaysRight,
    /// A holder reports shards as drained while their runs continue.
    DrainsEarly,
    /// The clocks differ by more than the ratio of lease to renew deadline.
    FastClocks,
    /// The runs of a stopping member continue when it has left.
    ReleasesEarly,
    /// A replica that could not create its Lease tries again under the same name.
    JoinsAgain,
    /// Members of a group object that was deleted are ignored.
    IgnoresForeign,
    /// A member receives shards before it has renewed its Lease.
    CountsNew,
}

struct Replica {
    group: Group,
    member: Arc<str>,
    election: Option<Election>,
    /// The rate of the clock, in thousandths of real time.
    rate: u64,
    offset: u64,
    wall: i64,
    epoch: u64,
    /// The calls in flight of the group and of the election. Responses to earlier calls come too
    /// late.
    calls: [u64; 2],
    until: Time,
    wakes: [u64; 2],
    /// The watch in progress, and the time of its last event in flight.
    watch: u64,
    watching: bool,
    delivered: Real,
    stopping: bool,
    leaving: bool,
    frozen_until: Real,
    cut_off_until: Real,
    /// The shards on which it acts, and the end of its right.
    acting: u64,
    /// Shards that were reported as drained while their runs continue: a planted bug.
    undrained: u64,
    until_real: Real,
    /// The frequencies of faults, in thousandths.
    slow: u32,
    lost: u32,
    breaks: u32,
    lags: u32,
    drains: Real,
    /// The last Leases that its watch has shown, for a planted bug.
    shown: HashMap<String, Lease>,
}

enum What {
    Group(Call),
    Election(election::Call),
}

enum Answered {
    Group(Answer),
    Election(election::Answer),
}

enum Event {
    Wake { who: usize, epoch: u64, of: usize, number: u64 },
    Arrives { who: usize, epoch: u64, number: u64, member: Arc<str>, what: What },
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
    /// The upper bound of the rates, in thousandths. The lower bound is 1000.
    rates: u64,
    random: fastrand::Rng,
    server: Server,
    replicas: Vec<Option<Replica>>,
    events: BinaryHeap<Reverse<(Real, u64)>>,
    /// Indexed by the number in `events`.
    what: Vec<Option<Event>>,
    now: Real,
    numbers: u64,
    /// Events at the same time.
    repeats: u64,
    /// The greatest fencing number of each shard of each group object, and its holder.
    tokens: HashMap<(String, usize), (i32, Arc<str>)>,
    deletes_members: bool,
    deletes_group: bool,
    /// Enables faults.
    faults: bool,
    planted: Option<Planted>,
    /// The times since which shards have no acting holder.
    unheld: Vec<Option<Real>>,
    longest_gap: Real,
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
        // The largest difference of rates that the election tolerates.
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

    fn start(&mut self, who: usize) {
        self.numbers += 1;
        let epoch = self.numbers;
        let offset = self.random.u64(..1_000_000 * SECOND);
        // The extreme rates are the most dangerous.
        let rates = [1000, self.rates - 1, self.random.u64(1000..self.rates)];
        let rate = rates[self.random.usize(..3)];
        let member: Arc<str> = format!("web-{epoch}-{}", self.random.u32(..)).into();
        let settings = Settings {
            name: "web".to_owned(),
            member: Arc::clone(&member),
            layout: self.layout.clone(),
            lease_duration: self.config.lease_duration,
            renew_deadline: self.config.renew_deadline,
            request_limit: self.config.request_limit(),
            handover_limit: self.handover_limit,
        };
        let now =
            Time::from_nanos(offset + (u128::from(self.now) * u128::from(rate) / 1000) as u64);
        let jitter = JitterSource::new(self.random.u64(..));
        let often = |random: &mut fastrand::Rng, most: u32| random.u32(..most) * random.u32(..2);
        let replica = Replica {
            group: Group::new(settings, jitter, now),
            member,
            election: None,
            rate,
            offset,
            wall: self.random.i64(-1000..1000),
            epoch,
            calls: [0; 2],
            until: Time::ZERO,
            wakes: [0; 2],
            watch: 0,
            watching: false,
            delivered: 0,
            stopping: false,
            leaving: false,
            frozen_until: 0,
            cut_off_until: 0,
            acting: 0,
            undrained: 0,
            until_real: 0,
            slow: often(&mut self.random, 600),
            lost: often(&mut self.random, 150),
            breaks: often(&mut self.random, 30),
            lags: often(&mut self.random, 200),
            drains: [50, 1000, 8000][self.random.usize(..3)] * MILLI,
            shown: HashMap::new(),
        };
        self.replicas[who] = Some(replica);
        self.list(who);
        self.step(who);
    }

    fn replica(&mut self, who: usize) -> &mut Replica {
        self.replicas[who].as_mut().expect("a running replica")
    }

    /// Returns true if this is still the process that caused an event.
    fn runs(&self, who: usize, epoch: u64) -> bool {
        self.replicas[who].as_ref().is_some_and(|replica| replica.epoch == epoch)
    }

    fn at(&mut self, at: Real, event: Event) {
        self.events.push(Reverse((at, self.what.len() as u64)));
        self.what.push(Some(event));
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        self.faults && self.random.u32(..1000) < per_mille
    }

    /// Returns a delay: short in most cases, sometimes just within the limit, or longer.
    fn delay(&mut self, slow: u32) -> Real {
        let limit = nanos(self.config.request_limit());
        let most = if self.chance(slow) { limit * 2 } else { SECOND / 20 };
        self.random.u64(1000..most)
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
                let counts_new = self.planted == Some(Planted::CountsNew);
                let replica = self.replica(who);
                match answer {
                    Answered::Group(mut answer) if replica.calls[0] == number => {
                        replica.calls[0] = 0;
                        if let Answer::Lease(lease) = &mut answer
                            && counts_new
                        {
                            show_renewed(lease, &replica.member);
                        }
                        replica.group.answer(local, answer);
                    }
                    Answered::Election(answer) if replica.calls[1] == number => {
                        replica.calls[1] = 0;
                        if let Some(election) = &mut replica.election {
                            election.answer(local, answer);
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
                if let Watched::Applied(lease) | Watched::Listed(lease) = &mut event {
                    if let Some(group) = replica.group.group()
                        && ignores_foreign
                        && lease.name() != "web"
                    {
                        let joined = serde_json::json!(group.uid());
                        let json =
                            lease.annotate([(JOINED.to_owned(), joined)].into_iter().collect());
                        *lease = Lease::from_json(json).unwrap();
                    }
                    if counts_new {
                        show_renewed(lease, &replica.member);
                    }
                    replica.shown.insert(lease.name().to_owned(), lease.clone());
                }
                if again && matches!(event, Watched::Applied(_) | Watched::Deleted(_)) {
                    replica.group.watched(local, event.clone());
                }
                replica.group.watched(local, event);
                if self.chance(breaks) {
                    self.list(who);
                }
            }
            Event::Drained { shards, .. } => {
                let replica = self.replica(who);
                for shard in &shards {
                    replica.undrained &= !(1 << shard);
                }
                replica.group.drained(local, shards);
            }
            Event::Arrives { .. } | Event::ListArrives { .. } | Event::Start(_) | Event::Chaos => {}
        }
        self.step(who);
    }

    /// Executes a request at the server. The process that has sent it may have crashed.
    fn serve(&mut self, event: Event) {
        match event {
            Event::Arrives { who, epoch, number, member, what } => {
                let answer = match what {
                    What::Group(Call::Read(name))
                        if self.planted == Some(Planted::NoFreshRead)
                            && name != "web"
                            && self.runs(who, epoch) =>
                    {
                        let shown = self.replica(who).shown.get(&name).cloned();
                        Answered::Group(shown.map_or(Answer::NotFound, Answer::Lease))
                    }
                    What::Group(call) => Answered::Group(self.server.call(call)),
                    What::Election(call) => {
                        let call = match call {
                            election::Call::Get => Call::Read(member.to_string()),
                            election::Call::Create(json) => Call::Create(json),
                            election::Call::Replace(json) => Call::Replace(json),
                        };
                        Answered::Election(match self.server.call(call) {
                            Answer::Lease(lease) => election::Answer::Lease(lease),
                            Answer::NotFound => election::Answer::NotFound,
                            Answer::Conflict => election::Answer::Conflict,
                            Answer::Deleted | Answer::Failed => election::Answer::Failed,
                        })
                    }
                };
                if !self.runs(who, epoch) {
                    return;
                }
                let (lost, slow) = (self.replica(who).lost, self.replica(who).slow);
                if !self.is_cut_off(who) && !self.chance(lost) {
                    let at = self.now + self.delay(slow);
                    self.at(at, Event::Answered { who, epoch, number, answer });
                }
            }
            Event::ListArrives { who, epoch, watch } => {
                if !self.runs(who, epoch) || self.replica(who).watch != watch {
                    return;
                }
                if self.is_cut_off(who) {
                    let at = self.now + SECOND / 2;
                    return self.at(at, Event::ListArrives { who, epoch, watch });
                }
                let slow = self.replica(who).slow;
                let at = self.now + self.delay(slow);
                for event in self.server.list() {
                    self.at(at, Event::Watched { who, epoch, watch, event });
                }
                let replica = self.replica(who);
                (replica.watching, replica.delivered) = (true, at);
            }
            _ => {}
        }
    }

    /// Sends the events of the server to the watches, in order.
    fn broadcast(&mut self) {
        for event in std::mem::take(&mut self.server.events) {
            for who in 0..self.replicas.len() {
                let Some(replica) = &self.replicas[who] else { continue };
                if !replica.watching {
                    continue;
                }
                let (epoch, watch, lags) = (replica.epoch, replica.watch, replica.lags);
                let delivered = replica.delivered;
                let cut_off = if self.faults { replica.cut_off_until } else { 0 };
                let lag = if self.chance(lags) {
                    self.random.u64(..nanos(self.config.lease_duration) * 2)
                } else {
                    self.random.u64(1000..SECOND / 20)
                };
                let at = (self.now + lag).max(delivered).max(cut_off);
                self.replica(who).delivered = at;
                let event = event.clone();
                self.at(at, Event::Watched { who, epoch, watch, event });
            }
        }
    }

    fn is_cut_off(&mut self, who: usize) -> bool {
        self.faults && self.now < self.replica(who).cut_off_until
    }

    fn list(&mut self, who: usize) {
        self.numbers += 1;
        let watch = self.numbers;
        let slow = self.replica(who).slow;
        let at = self.now + self.delay(slow);
        let local = self.time(who);
        let replica = self.replica(who);
        (replica.watch, replica.watching) = (watch, false);
        replica.group.watched(local, Watched::Restart);
        let epoch = replica.epoch;
        self.at(at, Event::ListArrives { who, epoch, watch });
    }

    fn time(&mut self, who: usize) -> Time {
        let now = self.now;
        let replica = self.replica(who);
        Time::from_nanos(
            replica.offset + (u128::from(now) * u128::from(replica.rate) / 1000) as u64,
        )
    }

    fn real(&mut self, who: usize, time: Time) -> Real {
        let replica = self.replica(who);
        let local = u128::from(time.as_nanos().saturating_sub(replica.offset));
        u64::try_from((local * 1000).div_ceil(u128::from(replica.rate))).unwrap_or(u64::MAX)
    }

    fn wall(&mut self, who: usize) -> Timestamp {
        if self.chance(20) {
            // Seconds, or years.
            let most = [100, 300_000_000][self.random.usize(..2)];
            let jump = self.random.i64(-most..most);
            self.replica(who).wall = (self.replica(who).wall + jump).clamp(-MOST_WALL, MOST_WALL);
        }
        let seconds = MOST_WALL + (self.now / SECOND) as i64 + self.replica(who).wall;
        Timestamp::from_second(seconds).unwrap()
    }

    fn wake(&mut self, who: usize, of: usize, at: Real) {
        self.numbers += 1;
        let number = self.numbers;
        let replica = self.replica(who);
        replica.wakes[of] = number;
        let epoch = replica.epoch;
        self.at(at.max(self.now), Event::Wake { who, epoch, of, number });
    }

    fn send(&mut self, who: usize, of: usize, what: What) {
        self.numbers += 1;
        let number = self.numbers;
        let cut_off = self.is_cut_off(who);
        let replica = self.replica(who);
        replica.calls[of] = number;
        let (epoch, member) = (replica.epoch, Arc::clone(&replica.member));
        let (lost, slow) = (replica.lost, replica.slow);
        if !cut_off && !self.chance(lost) {
            let at = self.now + self.delay(slow);
            self.at(at, Event::Arrives { who, epoch, number, member, what });
        }
    }

    fn step(&mut self, who: usize) {
        self.look(who);
        self.step_election(who);
        if self.replicas[who].is_some() {
            self.step_group(who);
        }
        self.look(who);
    }

    fn step_election(&mut self, who: usize) {
        let (local, wall) = (self.time(who), self.wall(who));
        let replica = self.replica(who);
        let in_flight = replica.calls[1] != 0 && local < replica.until;
        let Some(election) = &mut replica.election else { return };
        if in_flight {
            return;
        }
        replica.calls[1] = 0;
        match election.poll(local, wall) {
            election::Step::Wait(at) => {
                let at = self.real(who, at);
                self.wake(who, 1, at);
            }
            election::Step::Call { call, until } => {
                replica.until = until;
                self.send(who, 1, What::Election(call));
                let at = self.real(who, until);
                self.wake(who, 1, at);
            }
            election::Step::Ended(lost::End::Released) => {
                assert!(replica.leaving);
                let member = Arc::clone(&replica.member);
                if let Some(json) = self.server.leases.get(&*member) {
                    let uid = json["metadata"]["uid"].as_str().unwrap().to_owned();
                    let call = Call::Delete { name: member.to_string(), uid, version: 0 };
                    self.send(who, 0, What::Group(call));
                }
                self.end(who);
            }
            election::Step::Ended(lost::End::Lost(_)) => self.end(who),
        }
    }

    /// The process exits. Another one starts later.
    fn end(&mut self, who: usize) {
        self.look(who);
        self.replicas[who] = None;
        self.refresh();
        let later = if self.faults { self.random.u64(..10 * SECOND) } else { 1 };
        self.at(self.now + later, Event::Start(who));
    }

    fn step_group(&mut self, who: usize) {
        let (local, wall) = (self.time(who), self.wall(who));
        loop {
            let replica = self.replica(who);
            if replica.leaving {
                return;
            }
            if replica.stopping {
                replica.group.stop();
            }
            let right = replica.election.as_ref().and_then(Election::times);
            let step = replica.group.poll(local, right.map(|(_, until)| until), wall);
            self.changes(who);
            match step {
                Step::Wait(at) => {
                    let at = self.real(who, at);
                    return self.wake(who, 0, at);
                }
                Step::Call(call) => self.send(who, 0, What::Group(call)),
                Step::Relist => self.list(who),
                Step::Join { group } => {
                    let member = Arc::clone(&self.replica(who).member);
                    let config = self.config.clone().only_create(
                        &member,
                        [(LABEL.to_owned(), "web".to_owned())].into(),
                        [(JOINED.to_owned(), group)].into(),
                    );
                    let config = if self.planted == Some(Planted::JoinsAgain) {
                        config.retries()
                    } else {
                        config
                    };
                    let identity = format!("host_{}", self.replica(who).member);
                    let jitter = JitterSource::new(self.random.u64(..));
                    self.replica(who).election =
                        Some(Election::new(config, identity, jitter, local));
                    return self.step_election(who);
                }
                Step::Ended(End::Left) => {
                    let replica = self.replica(who);
                    match &mut replica.election {
                        Some(election) => {
                            replica.leaving = true;
                            election.release();
                            replica.calls[1] = 0;
                            self.step_election(who);
                        }
                        None => self.end(who),
                    }
                    return;
                }
                Step::Ended(End::Deleted) if self.deletes_group => return self.end(who),
                Step::Ended(End::Lost) => return self.end(who),
                Step::Ended(end) => panic!("the part of {who} has ended: {end:?}"),
            }
        }
    }

    /// Plays the controller.
    fn changes(&mut self, who: usize) {
        while let Some(change) = self.replica(who).group.change() {
            let epoch = self.replica(who).epoch;
            match change {
                Change::Release(shards) => {
                    let most = if self.faults { self.replica(who).drains } else { SECOND / 20 };
                    let at = self.now + self.random.u64(1..most);
                    if self.planted == Some(Planted::DrainsEarly) {
                        let local = self.time(who);
                        let replica = self.replica(who);
                        for shard in &shards {
                            replica.undrained |= 1 << shard;
                        }
                        replica.group.drained(local, shards.clone());
                    }
                    self.at(at, Event::Drained { who, epoch, shards });
                }
                Change::Cancel(shards) => {
                    let at = self.now + self.random.u64(1..SECOND / 10);
                    self.at(at, Event::Drained { who, epoch, shards });
                }
                Change::Gained(gained) => self.moves += gained.len() as u64,
                Change::Lost(shards) => {
                    let now = self.now;
                    // A replica whose right has ended, and that has not noticed, may lose them.
                    let may = self.deletes_group
                        || self.planted.is_some()
                        || now >= self.replica(who).until_real;
                    assert!(may, "{who} has lost {shards:?} to a write of another");
                }
                Change::Moved(_) => {}
            }
        }
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

    /// Updates the shards on which a replica acts, and checks that no other one acts on them.
    fn look(&mut self, who: usize) {
        let Some(replica) = &self.replicas[who] else { return };
        let until = replica.election.as_ref().and_then(Election::times).map(|(_, until)| until);
        let until = until.map_or(0, |until| self.real(who, until));
        let overstays = self.planted == Some(Planted::OverstaysRight);
        let planted = self.planted;
        let replica = self.replicas[who].as_mut().expect("it was there");
        let mut acting = 0_u64;
        let mut tokens = Vec::new();
        for shard in 0..self.layout.count {
            if let Some(number) = replica.group.acts(shard)
                && self.now < until
            {
                acting |= 1 << shard;
                if replica.acting & 1 << shard == 0 {
                    tokens.push((shard, number));
                }
            }
        }
        if planted == Some(Planted::ActsUntilResponse) && replica.calls[0] != 0 {
            acting |= replica.acting;
        }
        acting |= replica.undrained;
        if replica.leaving && planted != Some(Planted::ReleasesEarly) {
            acting = 0;
        }
        if planted == Some(Planted::ReleasesEarly) && replica.stopping {
            acting |= replica.acting;
        }
        (replica.acting, replica.until_real) = (acting, until.max(replica.until_real));
        if overstays {
            replica.until_real = replica.until_real.max(until + nanos(self.config.lease_duration));
        } else if until != 0 {
            replica.until_real = until;
        }
        let (member, until) = (Arc::clone(&replica.member), replica.until_real);
        let uid = replica.group.group().map(|group| group.uid().to_owned()).unwrap_or_default();
        for (shard, number) in tokens {
            let token = self.tokens.entry((uid.clone(), shard)).or_insert((0, Arc::clone(&member)));
            assert!(
                number > token.0 || (number == token.0 && token.1 == member),
                "{member} has number {number} of shard {shard}, after {token:?}"
            );
            *token = (number, Arc::clone(&member));
        }
        if self.now < until {
            for other in (0..self.replicas.len()).filter(|other| *other != who) {
                let Some(other) = &self.replicas[other] else { continue };
                let both = acting & other.acting;
                assert!(
                    both == 0 || self.now >= other.until_real,
                    "{member} and {} both act on shards {both:#b} at {:?}",
                    other.member,
                    Duration::from_nanos(self.now)
                );
            }
        }
        self.refresh();
    }

    /// Measures the times without a holder.
    fn refresh(&mut self) {
        let running =
            self.replicas.iter().flatten().filter(|replica| self.now < replica.until_real);
        let acting = running.fold(0, |all, replica| all | replica.acting);
        for (shard, unheld) in self.unheld.iter_mut().enumerate() {
            if acting & 1 << shard == 0 {
                unheld.get_or_insert(self.now);
            } else if let Some(since) = unheld.take() {
                self.longest_gap = self.longest_gap.max(self.now - since);
            }
        }
    }

    /// Runs without faults until the state must be stable, and checks it.
    fn calm(&mut self, duration: Real, members: usize) {
        self.longest_gap = 0;
        self.run_until(self.now + duration);
        self.refresh();
        let now = self.now;
        let running: Vec<_> = self.replicas.iter().flatten().collect();
        assert_eq!(running.len(), members);
        let loads: Vec<_> =
            running.iter().map(|replica| replica.acting.count_ones() as usize).collect();
        let count = self.layout.count;
        assert!(
            self.unheld.iter().all(Option::is_none)
                && loads
                    .iter()
                    .all(|load| (count / members..=count.div_ceil(members)).contains(load)),
            "{count} shards are distributed as {loads:?} at {:?}",
            Duration::from_nanos(now)
        );
        assert_eq!(self.server.leases.len(), members + 1, "Leases are left");
        let group = lease(&self.server.leases["web"]);
        let group = GroupLease::read(group).unwrap();
        for (shard, slot) in group.assignment.slots().iter().enumerate() {
            let holder =
                running.iter().find(|replica| Some(&replica.member) == slot.holder.as_ref());
            assert!(holder.is_some_and(|replica| replica.acting & 1 << shard != 0));
        }
    }

    /// Starts a further replica again and again. It crashes before it has renewed its Lease.
    fn crash_loop(&mut self) {
        let who = self.replicas.len();
        self.replicas.push(None);
        self.longest_gap = 0;
        let (moves, created) = (self.moves, self.server.created);
        for _ in 0..5 {
            self.at(self.now, Event::Start(who));
            // By the fastest clock.
            self.run_until(self.now + nanos(self.config.retry_period) * 1000 / self.rates);
            self.replicas[who] = None;
            self.refresh();
            let pause = self.random.u64(..nanos(self.config.lease_duration));
            self.run_until(self.now + pause);
        }
        assert!(self.server.created > created, "no Lease was created");
        let (moves, gap) = (self.moves - moves, Duration::from_nanos(self.longest_gap));
        assert_eq!((moves, gap), (0, Duration::ZERO), "moves and gaps in a crash loop");
    }
}

/// Makes the Lease of another member one that was renewed: a planted bug.
fn show_renewed(lease: &mut Lease, member: &str) {
    if lease.name() != "web" && lease.name() != member {
        let mut json = lease.annotate(Map::new());
        json["spec"]["acquireTime"] = Value::Null;
        *lease = Lease::from_json(json).unwrap();
    }
}

/// Simulates one group: with faults, and then without.
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
    // Each Lease and each request in flight expires, and so do Leases that were deleted or belong to
    // a deleted group object.
    world.calm(lease * 10 + 20 * SECOND, members);

    // A crash.
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
    // A join.
    world.at(world.now, Event::Start(who));
    world.calm(10 * SECOND, members);
    let gap = Duration::from_nanos(world.longest_gap);
    assert!(gap <= Duration::from_secs(1), "{gap:?} at a join");
    // A rolling update of one replica: it stops, and another starts.
    let who = world.random.usize(..members);
    world.replica(who).stopping = true;
    world.step(who);
    world.broadcast();
    world.calm(10 * SECOND, members);
    let gap = Duration::from_nanos(world.longest_gap);
    assert!(gap <= Duration::from_secs(1) || members == 1, "{gap:?} at a stop");
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

/// Simulates groups with a planted bug, from the seed `first` on, until the bug is detected.
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
    detects(Planted::NoPrecondition, 57);
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
    detects(Planted::JoinsAgain, 92);
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
