//! The replicas of the simulation, with their clocks, and with the controllers that act on the
//! shards.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use requeue::Time;
use requeue::wait::JitterSource;

use super::{Event, MAX_WALL, MILLI, Planted, Real, SECOND, What, World};
use crate::leader::election::{self, Election};
use crate::leader::lost;
use crate::lease::Lease;
use crate::membership::assignment::{JOINED, LABEL};
use crate::membership::group::Group;
use crate::membership::protocol::{Change, End, Settings, Source, Step, Watched};
use crate::requests::Call;

pub(super) struct Replica {
    pub(super) group: Group,
    pub(super) member: Arc<str>,
    pub(super) election: Option<Election>,
    /// The rate of the replica's clock, in thousandths of the rate of real time.
    pub(super) rate: u64,
    pub(super) offset: u64,
    pub(super) wall: i64,
    pub(super) epoch: u64,
    /// The numbers of the calls in flight: the call of the group, and the call of the election.
    /// Responses to earlier calls are ignored, because they arrive too late.
    pub(super) calls: [u64; 2],
    pub(super) until: Time,
    pub(super) wakes: [u64; 2],
    /// The number of the watch in progress, and the arrival time of its last event.
    pub(super) watch: u64,
    pub(super) watching: bool,
    pub(super) delivered: Real,
    pub(super) stopping: bool,
    pub(super) leaving: bool,
    pub(super) frozen_until: Real,
    pub(super) cut_off_until: Real,
    /// The shards on which the replica acts, as a bit mask, and the real time at which its right
    /// ends.
    pub(super) acting: u64,
    /// With a planted bug, the shards that the replica has reported as drained although runs are in
    /// flight.
    pub(super) undrained: u64,
    pub(super) until_real: Real,
    /// The probabilities of faults, in thousandths.
    pub(super) slow: u32,
    pub(super) lost: u32,
    pub(super) breaks: u32,
    pub(super) lags: u32,
    pub(super) drains: Real,
    /// The last version of each Lease that the watch has shown. Only a planted bug uses it.
    pub(super) shown: HashMap<String, Lease>,
}

impl World {
    pub(super) fn start(&mut self, who: usize) {
        self.numbers += 1;
        let epoch = self.numbers;
        let offset = self.random.u64(..1_000_000 * SECOND);
        // The two extreme rates are chosen often, because a violation is most probable with them.
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

    pub(super) fn replica(&mut self, who: usize) -> &mut Replica {
        self.replicas[who].as_mut().expect("a running replica")
    }

    /// Returns true if the process to which an event belongs still runs.
    pub(super) fn runs(&self, who: usize, epoch: u64) -> bool {
        self.replicas[who].as_ref().is_some_and(|replica| replica.epoch == epoch)
    }

    pub(super) fn time(&mut self, who: usize) -> Time {
        let now = self.now;
        let replica = self.replica(who);
        Time::from_nanos(
            replica.offset + (u128::from(now) * u128::from(replica.rate) / 1000) as u64,
        )
    }

    pub(super) fn real(&mut self, who: usize, time: Time) -> Real {
        let replica = self.replica(who);
        let local = u128::from(time.as_nanos().saturating_sub(replica.offset));
        u64::try_from((local * 1000).div_ceil(u128::from(replica.rate))).unwrap_or(u64::MAX)
    }

    pub(super) fn wall(&mut self, who: usize) -> Timestamp {
        if self.chance(20) {
            let jump = self.random.i64(-100..100);
            // Half of the jumps are seconds, and the others are years.
            let jump = if jump % 2 == 0 { jump } else { jump * 3_000_000 };
            self.replica(who).wall = (self.replica(who).wall + jump).clamp(-MAX_WALL, MAX_WALL);
        }
        let seconds = MAX_WALL + (self.now / SECOND) as i64 + self.replica(who).wall;
        Timestamp::from_second(seconds).unwrap()
    }

    pub(super) fn wake(&mut self, who: usize, of: usize, at: Real) {
        self.numbers += 1;
        let number = self.numbers;
        let replica = self.replica(who);
        replica.wakes[of] = number;
        let epoch = replica.epoch;
        self.at(at.max(self.now), Event::Wake { who, epoch, of, number });
    }

    pub(super) fn list(&mut self, who: usize) {
        self.numbers += 1;
        let watch = self.numbers;
        let slow = self.replica(who).slow;
        let at = self.now + self.delay(slow);
        let local = self.time(who);
        let replica = self.replica(who);
        (replica.watch, replica.watching) = (watch, false);
        replica.group.handle_event(local, Watched::Init);
        let epoch = replica.epoch;
        self.at(at, Event::ListArrives { who, epoch, watch });
    }

    pub(super) fn step(&mut self, who: usize) {
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
                self.left = self.now;
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

    fn step_group(&mut self, who: usize) {
        let local = self.time(who);
        loop {
            let replica = self.replica(who);
            if replica.leaving {
                return;
            }
            if replica.stopping {
                replica.group.stop();
            }
            let right = replica.election.as_ref().and_then(Election::right_times);
            let step = replica.group.poll(local, right.map(|(_, until)| until));
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
                        serde_json::json!({ LABEL: "web" }),
                        serde_json::json!({ JOINED: group }),
                    );
                    let config = if self.planted == Some(Planted::JoinsAgain) {
                        config.allow_retries()
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
                            // A renewal in flight is not aborted, as in the real driver.
                            election.release();
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

    /// Handles the changes of shards as a controller does.
    fn changes(&mut self, who: usize) {
        while let Some(change) = self.replica(who).group.next_change() {
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
                        replica.group.mark_drained(local, shards.clone());
                    }
                    self.at(at, Event::Drained { who, epoch, shards });
                }
                Change::Cancel(shards) => {
                    let at = self.now + self.random.u64(1..SECOND / 10);
                    self.at(at, Event::Drained { who, epoch, shards });
                }
                Change::Gained(gained) => {
                    // If a holder has drained a shard and then keeps it, the shard has not moved.
                    let received = gained.iter().filter(|gain| gain.from != Source::Itself);
                    self.moves += received.count() as u64;
                }
                Change::Lost(shards) => {
                    let now = self.now;
                    // Shards may be lost if a user has deleted the group object, if a bug is
                    // planted, or if the replica's right has ended without its knowledge.
                    let may = self.deletes_group
                        || self.planted.is_some()
                        || now >= self.replica(who).until_real;
                    assert!(may, "{who} has lost {shards:?} to a write of another");
                }
                Change::Moved(_) => {}
            }
        }
    }

    /// The process exits. Another process starts some time later.
    pub(super) fn end(&mut self, who: usize) {
        self.look(who);
        self.replicas[who] = None;
        self.refresh();
        let later = if self.faults { self.random.u64(..10 * SECOND) } else { 1 };
        self.at(self.now + later, Event::Start(who));
    }
}
