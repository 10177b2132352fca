//! Many keys that come and go, so that records move and the index splits and merges.

use std::time::Duration;

use requeue_core::EarlyAdd::{Hold, Keep, Replace};
use requeue_core::{EarlyAdd, When};
use requeue_sim::model::Ranking::{Fifo, Priority, Stack};
use requeue_sim::model::{Ask, Ranking, Rules};
use requeue_sim::{How, Lockstep, Op, Setup};

const KEYS: u32 = 12_000;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn key(&mut self) -> u32 {
        self.below(KEYS.into()) as u32
    }

    fn short(&mut self) -> Duration {
        Duration::from_nanos(self.below(50_000))
    }
}

struct Crowd {
    lockstep: Lockstep,
    random: Random,
    steps: u32,
}

impl Crowd {
    fn new(seed: u64, early_add: EarlyAdd, ranking: Ranking, limit: Option<u32>) -> Self {
        let rules = Rules { early_add, ranking, fair: false, limit };
        let setup = Setup { keys: KEYS, teams: 40, track: true, ..Setup::new(rules) };
        Self { lockstep: Lockstep::new(setup), random: Random(seed), steps: 0 }
    }

    fn apply(&mut self, op: &Op) {
        self.lockstep.apply(op);
        self.steps += 1;
        if self.steps.is_multiple_of(64) {
            let sample: Vec<u32> = (0..8).map(|_| self.random.key()).collect();
            self.lockstep.compare(sample.into_iter());
        }
        if self.steps.is_multiple_of(16) {
            let limit = self.random.below(60) as usize;
            self.lockstep.apply(&Op::Page(limit));
        }
    }

    /// Every key once, half of them ready, half waiting; and a third of what is ready is taken.
    fn fill(&mut self) {
        for key in 0..KEYS {
            let when = match key % 2 {
                0 => When::Now,
                _ => When::After(self.random.short() + Duration::from_nanos(1)),
            };
            let priority = self.random.below(4) as i32;
            self.apply(&Op::Add(key, Ask { when, priority, ..Ask::default() }));
            if key % 6 == 0 {
                self.apply(&Op::Get);
            }
        }
    }

    /// Nearly every key is taken out, one way or another.
    fn thin_out(&mut self, leave: usize) {
        while self.lockstep.model().known() > leave {
            let how = match self.random.below(8) {
                0 => How::Fail(self.random.short()),
                1 => How::PutBack,
                _ => How::Succeed,
            };
            let which = self.random.below(1 << 20) as usize;
            let op = match self.random.below(16) {
                0..5 => Op::Get,
                5..10 => Op::Finish(which, how),
                10..14 => Op::Cancel(self.random.key()),
                14 => Op::Advance(self.random.short() / 1_000),
                _ => Op::FinishStale(which, how),
            };
            self.apply(&op);
        }
    }

    fn run(mut self) {
        for leave in [1_000, 0] {
            self.fill();
            self.thin_out(leave);
            self.lockstep.compare(0..KEYS);
        }
    }
}

#[test]
fn records_move_first_in_first_out() {
    Crowd::new(1, Keep, Fifo, None).run();
}

#[test]
fn records_move_among_priorities() {
    Crowd::new(2, Replace, Priority { oldest_every: 4 }, Some(30)).run();
}

#[test]
fn records_move_in_a_custom_order() {
    Crowd::new(3, Hold, Stack { lossy: 50 }, Some(30)).run();
}
