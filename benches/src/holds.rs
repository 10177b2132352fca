//! How long one operation of the core takes at most: so long everybody waits for the lock.

use std::time::{Duration, Instant};

use requeue_core::{Add, Config, Ending, Finish, Group, Order, Queue, Time};

use crate::Scale;
use crate::keys::hash;

/// The operations are the same in each round, so that what an operation takes in all of them is
/// its own; what it takes in one alone is the machine's.
#[derive(Default)]
struct Longest {
    /// Of each operation, the least of all rounds.
    least: Vec<u32>,
    /// Of all operations in all rounds.
    most: u32,
    at: usize,
}

impl Longest {
    fn time<R>(&mut self, operation: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = operation();
        let nanos = u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX);
        self.most = self.most.max(nanos);
        match self.least.get_mut(self.at) {
            Some(least) => *least = nanos.min(*least),
            None => self.least.push(nanos),
        }
        self.at += 1;
        result
    }

    fn print(mut self, name: &str) {
        self.least.sort_unstable();
        let last = self.least.len() - 1;
        let at = |part: f64| micros(self.least[(last as f64 * part) as usize]);
        println!(
            "  {name:<54}{:>9.1}{:>9.1}{:>9.1}{:>14.1}",
            at(0.5),
            at(0.9999),
            at(1.0),
            micros(self.most)
        );
    }
}

fn micros(nanos: u32) -> f64 {
    f64::from(nanos) / 1000.0
}

/// The tables of longest holds.
pub fn run(scale: &Scale) {
    let keys = scale.million as u64;
    println!("longest operation of the core, in microseconds: {keys} u64 keys");
    println!(
        "  {:<54}{:>9}{:>9}{:>9}{:>14}",
        "of each operation, the least of 5 rounds", "median", "p99.99", "longest", "in any round"
    );
    let plain = Config::default;
    let priority =
        || Config { order: Order::Priority { oldest_every: 10 }, track: true, ..plain() };
    let fair = || Config { fair: true, group_limit: Some(10), ..plain() };
    kind("", keys, 1, plain);
    kind("priority and times: ", keys, 1, priority);
    kind("fair, 1000 groups: ", keys, 1000, fair);
    kind("fair, a group each: ", keys, u64::MAX, fair);
    println!();
}

fn kind(name: &str, keys: u64, groups: u64, config: impl Fn() -> Config<u64>) {
    let (mut fill, mut drain) = (Longest::default(), Longest::default());
    let (mut due, mut drop_some) = (Longest::default(), Longest::default());
    for _ in 0..5 {
        round(keys, groups, &config, [&mut fill, &mut drain, &mut due, &mut drop_some]);
    }
    let rows = [
        (fill, "add"),
        (drain, "get, succeed, until none is left"),
        (due, "get, when all fall due at once"),
        (drop_some, "drop_some(256) of all, waiting"),
    ];
    for (longest, what) in rows {
        longest.print(&format!("{name}{what}"));
    }
}

fn round(
    keys: u64,
    groups: u64,
    config: &impl Fn() -> Config<u64>,
    [fill, drain, due, dropping]: [&mut Longest; 4],
) {
    for longest in [&mut *fill, &mut *drain, &mut *due, &mut *dropping] {
        longest.at = 0;
    }
    let add = |queue: &mut Queue<u64>, key, add| {
        let _ = queue.add(key, hash(&key), add, Group::new(key % groups), Time::ZERO);
    };
    let delayed = || {
        let mut queue = Queue::new(config());
        for key in 0..keys {
            let delay = Duration::from_nanos(1 + hash(&key) % 1_000_000);
            add(&mut queue, key, Add::after(delay));
        }
        queue
    };

    let mut queue = Queue::new(config());
    for key in 0..keys {
        fill.time(|| add(&mut queue, key, Add::now()));
    }
    while let Some(out) = drain.time(|| queue.get(Time::ZERO)) {
        let _ = drain.time(|| queue.finish(&out.ticket, Finish::Succeed, Time::ZERO));
    }

    let (mut queue, later) = (delayed(), Time::from_nanos(1 << 62));
    for _ in 0..=keys / 256 {
        if let Some(out) = due.time(|| queue.get(later)) {
            let _ = queue.finish(&out.ticket, Finish::Succeed, later);
        }
    }

    let mut queue = delayed();
    queue.end(Ending::ShutDown);
    while dropping.time(|| queue.drop_some(256)).more {}
}
