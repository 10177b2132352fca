//! Many keys that are added and removed, so that records move and the index splits and merges.

use std::time::Duration;

use requeue_core::ReaddPolicy::{Hold, KeepBoth, Replace};
use requeue_core::{InFlightPolicy, Pace, ReaddPolicy, When};
use requeue_sim::model::Ranking::{Fifo, Priority, Stack};
use requeue_sim::model::{AddRequest, Ranking, Rules};
use requeue_sim::{How, Lockstep, Op, Setup};

/// A generator of random numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn short(&mut self) -> Duration {
        Duration::from_nanos(self.below(50_000))
    }
}

/// The rules that a test does not change.
const PLAIN: Rules = Rules {
    re_add: Hold,
    rerun: InFlightPolicy::After,
    ranking: Fifo,
    fair: false,
    limit: None,
    pace: None,
};

struct Crowd {
    lockstep: Lockstep,
    random: Random,
    keys: u32,
    /// The number of priorities, and the distance between two of them.
    priorities: (u64, i32),
    steps: u32,
}

impl Crowd {
    fn new(seed: u64, re_add: ReaddPolicy, ranking: Ranking, limit: Option<u32>) -> Self {
        Self::of(12_000, seed, Rules { re_add, ranking, limit, ..PLAIN })
    }

    fn of(keys: u32, seed: u64, rules: Rules) -> Self {
        Self::in_groups(keys, seed, rules, false)
    }

    fn in_groups(keys: u32, seed: u64, rules: Rules, groups: bool) -> Self {
        let setup = Setup { keys, teams: 40, groups, track: true, ..Setup::new(rules) };
        let (lockstep, random) = (Lockstep::new(setup), Random(seed));
        Self { lockstep, random, keys, priorities: (4, 1), steps: 0 }
    }

    fn key(&mut self) -> u32 {
        self.random.below(self.keys.into()) as u32
    }

    fn apply(&mut self, op: &Op) {
        self.lockstep.apply(op);
        self.steps += 1;
        if self.steps.is_multiple_of(64) {
            let sample: Vec<u32> = (0..8).map(|_| self.key()).collect();
            self.lockstep.compare(sample.into_iter());
        }
        if self.steps.is_multiple_of(16) {
            let limit = self.random.below(60) as usize;
            self.lockstep.apply(&Op::Page(limit));
        }
    }

    /// Adds every key once, half of them ready and half of them waiting, and takes a third of the
    /// ready keys.
    fn fill(&mut self) {
        for key in 0..self.keys {
            let when = match key % 2 {
                0 => When::Now,
                _ => When::After(self.random.short() + Duration::from_nanos(1)),
            };
            let (levels, apart) = self.priorities;
            let priority = (self.random.below(levels) as i32 - levels as i32 / 2) * apart;
            let debounce = (key % 8 == 1).then(|| self.random.short());
            self.apply(&Op::Add(
                key,
                AddRequest { when, priority, debounce, ..AddRequest::default() },
            ));
            if key % 6 == 0 {
                self.apply(&Op::Get);
            }
        }
    }

    /// Removes keys in several ways, until only `leave` keys are left.
    fn thin_out(&mut self, leave: usize) {
        while self.lockstep.model().known() > leave {
            let how = match self.random.below(8) {
                0 => How::RetryAfter(self.random.short()),
                1 => How::Release,
                2 => How::Cancelled,
                _ => How::Succeed,
            };
            let which = self.random.below(1 << 20) as usize;
            let op = match self.random.below(16) {
                0..5 => Op::Get,
                5..10 => Op::Finish(which, how),
                10..14 => Op::Cancel(self.key()),
                // Occasionally, the clock advances so far that more keys become due than one
                // operation makes ready.
                14 if self.random.below(64) == 0 => Op::Advance(self.random.short() / 5),
                14 => Op::Advance(self.random.short() / 1_000),
                _ if self.random.below(256) == 0 => {
                    let team = self.random.below(40) as u32;
                    match self.random.below(4) {
                        0 => Op::PauseTeam(team, true),
                        1 => Op::CancelTeam(team),
                        _ => Op::PauseTeam(team, false),
                    }
                }
                _ => Op::FinishStale(which, how),
            };
            self.apply(&op);
        }
    }

    fn run(mut self) {
        for leave in [1_000, 0] {
            self.fill();
            self.thin_out(leave);
            (0..40).for_each(|team| self.apply(&Op::PauseTeam(team, false)));
            self.lockstep.compare(0..self.keys);
        }
    }
}

#[test]
fn records_move_first_in_first_out() {
    Crowd::new(1, KeepBoth, Fifo, None).run();
}

/// The starts of thousands of keys are forgotten, a few at a time, and the remaining starts are
/// compacted.
#[test]
fn starts_are_forgotten_when_their_window_is_over() {
    let pace = Some(Pace::new(2, Duration::from_nanos(20_000)));
    Crowd::of(12_000, 6, Rules { pace, ..PLAIN }).run();
}

#[test]
fn records_move_among_priorities() {
    Crowd::new(2, Replace, Priority { oldest_every: 4 }, Some(30)).run();
}

#[test]
fn records_move_in_a_custom_order() {
    Crowd::new(3, Hold, Stack { lossy: 50 }, Some(30)).run();
}

/// The queue has more priorities than the array of lists holds, as far apart as possible. Its bound
/// is reached only after hundreds of deliveries.
#[test]
fn any_number_of_priorities_and_a_high_bound() {
    for limit in [None, Some(30)] {
        let ranking = Priority { oldest_every: 700 };
        let rules = Rules { re_add: KeepBoth, ranking, limit, ..PLAIN };
        let mut crowd = Crowd::of(3_000, 4, rules);
        crowd.priorities = (64, 1 << 26);
        crowd.run();
    }
}

/// The number of deliveries exceeds the numbers of 16 bits. No ticket of an earlier delivery may
/// have an effect, which the lockstep checks at each delivery.
#[test]
fn a_stale_ticket_does_nothing_after_any_number_of_deliveries() {
    let rules = Rules { re_add: KeepBoth, ..PLAIN };
    let mut lockstep = Lockstep::new(Setup { keys: 4, ..Setup::new(rules) });
    let mut random = Random(5);
    for n in 0..140_000_u32 {
        lockstep.apply(&Op::Add(random.below(4) as u32, AddRequest::default()));
        lockstep.apply(&Op::Get);
        // In most steps, two keys are in flight.
        if n % 64 > 1 {
            lockstep.apply(&Op::Finish(random.below(2) as usize, How::Succeed));
        }
    }
    lockstep.compare(0..4);
}

/// Records move while the walk of a cancel examines them.
#[test]
fn records_move_while_groups_are_paused_and_cancelled() {
    Crowd::in_groups(12_000, 7, PLAIN, true).run();
}

#[test]
fn records_move_in_rows_of_restarts() {
    let rerun = InFlightPolicy::Restart { at_most: Duration::MAX };
    Crowd::of(12_000, 6, Rules { rerun, ..PLAIN }).run();
}
