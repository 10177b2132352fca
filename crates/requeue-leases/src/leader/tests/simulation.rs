//! A simulation of several candidates for one Lease. Two candidates must never believe at the same time that they lead.
//!
//! The clocks of the candidates have different rates, and show different times. Requests and responses are delayed or
//! lost. Some requests are executed, and their responses are lost. Candidates are disconnected, stall, crash, and
//! release the Lease.
//!
//! A candidate believes that it leads until its term has ended by its own clock. A candidate that is frozen does not
//! read its clock. The election cannot prevent its late writes, and only a fence can.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet};
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;
use requeue::Time;
use requeue::wait::JitterSource;

use super::config;
use crate::leader::Config;
use crate::leader::election::{Election, Step};
use crate::leader::lost::End;
use crate::requests::{Answer, Call};
use crate::testing::ElectionServer as Server;
use crate::token::FencingToken;

/// The real time in nanoseconds. No candidate can read it.
type Real = u64;

const SECOND: Real = 1_000_000_000;

fn nanos(duration: Duration) -> Real {
    u64::try_from(duration.as_nanos()).unwrap()
}

struct Candidate {
    election: Election,
    /// The rate of the candidate's clock, in thousandths of the rate of real time.
    rate: u64,
    offset: u64,
    wall: i64,
    /// The number of the call in flight. Responses to earlier calls are ignored, because the candidate has already
    /// treated these calls as failed.
    call: u64,
    until: Time,
    token: Option<FencingToken>,
    releasing: bool,
    cut_off_until: Real,
    /// The probabilities of faults, in thousandths. `cuts`: no further response arrives for some time. `slow`: a
    /// message is slow. `lost`: a message is lost.
    cuts: u32,
    slow: u32,
    lost: u32,
}

impl Candidate {
    fn time(&self, real: Real) -> Time {
        Time::from_nanos(self.offset + (u128::from(real) * u128::from(self.rate) / 1000) as u64)
    }

    fn real(&self, time: Time) -> Real {
        let local = u128::from(time.as_nanos().saturating_sub(self.offset));
        u64::try_from((local * 1000).div_ceil(u128::from(self.rate))).unwrap_or(u64::MAX)
    }

    fn leads(&self, real: Real) -> bool {
        let now = self.time(real);
        !self.releasing && self.election.right_times().is_some_and(|(_, until)| now < until)
    }
}

enum Event {
    Wake(usize),
    Arrives { who: usize, call: u64, what: Call },
    Answered { who: usize, call: u64, answer: Answer },
    Label,
}

struct World {
    config: Config,
    /// The upper limit of the candidates' clock rates, in thousandths. The lower limit is 1000.
    rates: u64,
    random: fastrand::Rng,
    server: Server,
    candidates: Vec<Candidate>,
    events: BinaryHeap<Reverse<(Real, u64)>>,
    /// The events that are still due. Their indexes are their numbers.
    what: Vec<Option<Event>>,
    now: Real,
    calls: u64,
    identities: u64,
    tokens: HashSet<String>,
    /// True while the simulation causes faults.
    faults: bool,
    terms: u64,
}

impl World {
    fn new(config: Config, candidates: usize, seed: u64) -> Self {
        // The limit is the largest difference of rates that the election tolerates.
        let rates = 1000 * config.lease_duration.as_millis() / config.renew_deadline.as_millis();
        let mut world = Self {
            config,
            rates: u64::try_from(rates).unwrap().max(1001),
            random: fastrand::Rng::with_seed(seed),
            server: Server::default(),
            candidates: Vec::new(),
            events: BinaryHeap::new(),
            what: Vec::new(),
            now: 0,
            calls: 0,
            identities: 0,
            tokens: HashSet::new(),
            faults: true,
            terms: 0,
        };
        for who in 0..candidates {
            let candidate = world.candidate();
            world.candidates.push(candidate);
            world.at(0, Event::Wake(who));
        }
        world.at(SECOND, Event::Label);
        world
    }

    fn candidate(&mut self) -> Candidate {
        self.identities += 1;
        let offset = self.random.u64(..1_000_000 * SECOND);
        // The two extreme rates are chosen often, because a violation is most probable with them.
        let rates = [1000, self.rates - 1, self.random.u64(1000..self.rates)];
        let rate = rates[self.random.usize(..3)];
        let jitter = JitterSource::new(self.random.u64(..));
        let now =
            Time::from_nanos(offset + (u128::from(self.now) * u128::from(rate) / 1000) as u64);
        let identity = format!("candidate-{}", self.identities);
        Candidate {
            election: Election::new(self.config.clone(), identity, jitter, now),
            rate,
            offset,
            wall: self.random.i64(-1000..1000),
            call: 0,
            until: Time::ZERO,
            token: None,
            releasing: false,
            cut_off_until: 0,
            cuts: self.random.u32(..300),
            slow: self.random.u32(..800) * self.random.u32(..2),
            lost: self.random.u32(..100) * self.random.u32(..2),
        }
    }

    fn at(&mut self, at: Real, event: Event) {
        self.events.push(Reverse((at, self.what.len() as u64)));
        self.what.push(Some(event));
    }

    fn chance(&mut self, per_mille: u32) -> bool {
        self.faults && self.random.u32(..1000) < per_mille
    }

    /// Returns the delay of a message. In most cases it is short. With the candidate's probability `slow`, it can
    /// exceed the request's time limit.
    fn delay(&mut self, who: usize) -> Real {
        let limit = nanos(self.config.request_limit());
        let most = if self.chance(self.candidates[who].slow) { limit * 3 / 2 } else { SECOND / 20 };
        self.random.u64(1000..most)
    }

    fn run_until(&mut self, end: Real) {
        while let Some(&Reverse((at, number))) = self.events.peek()
            && at < end
        {
            self.events.pop();
            self.now = self.now.max(at);
            match self.what[number as usize].take().expect("an event happens once") {
                Event::Wake(who) => self.wake(who),
                Event::Arrives { who, call, what } => {
                    let answer = self.server.answer(what);
                    if !self.chance(self.candidates[who].lost) {
                        let later = self.now + self.delay(who);
                        self.at(later, Event::Answered { who, call, answer });
                    }
                }
                Event::Answered { who, call, answer } => {
                    if self.chance(self.candidates[who].cuts) {
                        // No later response arrives for some time, and this one may be delayed.
                        let end = at + self.random.u64(..nanos(self.config.renew_deadline * 2));
                        self.candidates[who].cut_off_until = end;
                    }
                    let candidate = &mut self.candidates[who];
                    if candidate.call == call {
                        candidate.call = 0;
                        candidate.election.handle_answer(candidate.time(self.now), answer);
                        self.step(who);
                    }
                }
                Event::Label if !self.faults => {}
                Event::Label => {
                    self.server.label(at);
                    let later = at + self.random.u64(1..nanos(self.config.lease_duration));
                    self.at(later, Event::Label);
                }
            }
        }
        self.now = end;
    }

    fn wake(&mut self, who: usize) {
        let candidate = &self.candidates[who];
        if candidate.call != 0 && candidate.time(self.now) < candidate.until {
            return;
        }
        if self.chance(20) {
            // The candidate stalls, and handles this event later.
            let later = self.now + self.random.u64(..nanos(self.config.lease_duration));
            return self.at(later, Event::Wake(who));
        }
        if self.chance(2) {
            // The candidate crashes, and a new candidate takes its place.
            self.candidates[who] = self.candidate();
        }
        self.step(who);
    }

    fn step(&mut self, who: usize) {
        self.look(who);
        if self.candidates[who].leads(self.now) && self.chance(10) {
            self.candidates[who].releasing = true;
            self.candidates[who].election.release();
        }
        let candidate = &mut self.candidates[who];
        let wall = Timestamp::from_second((self.now / SECOND) as i64 + candidate.wall).unwrap();
        candidate.call = 0;
        match candidate.election.poll(candidate.time(self.now), wall) {
            Step::Wait(at) => {
                let at = candidate.real(at);
                self.at(at, Event::Wake(who));
            }
            Step::Call { call: what, until } => {
                self.calls += 1;
                let call = self.calls;
                (candidate.call, candidate.until) = (call, until);
                let cut_off = self.now < candidate.cut_off_until && self.faults;
                let end = candidate.real(until);
                self.at(end, Event::Wake(who));
                if !cut_off && !self.chance(self.candidates[who].lost) {
                    let later = self.now + self.delay(who);
                    self.at(later, Event::Arrives { who, call, what });
                }
            }
            Step::Ended(end) => {
                assert!(end != End::Released || candidate.releasing);
                self.candidates[who] = self.candidate();
                self.at(self.now, Event::Wake(who));
            }
        }
        self.look(who);
    }

    /// Checks that no other candidate leads while this one leads. Also checks that no two terms have the same token.
    fn look(&mut self, who: usize) {
        if !self.candidates[who].leads(self.now) {
            return;
        }
        for other in (0..self.candidates.len()).filter(|&other| other != who) {
            assert!(
                !self.candidates[other].leads(self.now),
                "{who} and {other} both lead at {:?}",
                Duration::from_nanos(self.now)
            );
        }
        let candidate = &mut self.candidates[who];
        let token = candidate.election.fencing_token().expect("the candidate leads").clone();
        if candidate.token.as_ref() != Some(&token) {
            assert!(self.tokens.insert(token.to_string()), "{token} was given before");
            candidate.token = Some(token);
            self.terms += 1;
        }
    }

    fn leaders(&self) -> usize {
        self.candidates.iter().filter(|candidate| candidate.leads(self.now)).count()
    }
}

fn configs() -> impl Strategy<Value = Config> {
    (2_u32..20, 0.3..0.95, 0.02..0.8).prop_map(|(lease, renew, retry)| {
        let lease = f64::from(lease);
        let renew = lease * renew;
        config(lease, renew, renew / 1.2 * retry)
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_two_lead_at_once_and_one_leads_when_all_is_well(
        config in configs(),
        candidates in 2..5_usize,
        seed in any::<u64>(),
    ) {
        let mut world = World::new(config.clone(), candidates, seed);
        let faulty = nanos(config.lease_duration * 30);
        world.run_until(faulty);
        world.faults = false;
        // In this time, each lease and each request expires, even by the slowest clock, and each candidate takes a
        // step.
        let healed = config.request_limit() * 3 + config.lease_duration * 3 + config.retry_period * 5;
        world.run_until(faulty + nanos(healed) * world.rates / 1000);
        prop_assert_eq!(world.leaders(), 1);
    }
}

/// The limit on the rates of clocks is necessary: if one clock can run three times as fast as another, two candidates
/// lead at the same time.
#[test]
fn a_clock_that_runs_faster_than_lease_over_renew_deadline_lets_two_lead() {
    let panic = std::panic::catch_unwind(|| {
        for seed in 0..200 {
            let mut world = World::new(config(15.0, 10.0, 2.0), 3, seed);
            world.rates = 3000;
            world.run_until(2000 * SECOND);
        }
    });
    let message = panic.expect_err("two leaders were not detected");
    let message = message.downcast_ref::<String>().expect("a message");
    assert!(message.contains("both lead"), "{message}");
}

#[test]
fn leadership_changes_hands_often_enough_for_this_to_be_a_test() {
    let mut world = World::new(config(15.0, 10.0, 2.0), 3, 7);
    world.run_until(3600 * SECOND);
    assert!(world.terms > 50, "{} terms", world.terms);
}
