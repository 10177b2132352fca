//! Checks the memory that a queue needs for each key, and the memory that it returns.
//!
//! This file has one test, in a separate program, because the allocator counts the memory of all
//! threads together.

use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::fast::FixedState;
use prometheus_client::registry::Registry;
use requeue::metrics::Metrics;
use requeue_bench::heap::{cost_of, live};
use requeue_core::{Add, Config, Finish, GroupId, Order, Queue, Ticket, Time};

const HOUR: Duration = Duration::from_secs(3600);
const NOW: Time = Time::from_nanos(1);
const KIB: usize = 1024;

#[test]
fn memory() {
    for (add, most) in [(Add::now(), 60), (Add::after(HOUR), 84)] {
        takes_little_for_each_key(add, most);
    }
    takes_no_more_after_a_million_cycles();
    for stay in [Stay::Nobody, Stay::First, Stay::Last] {
        gives_back(Kind::Fifo, Leave::InOrder, stay, 1_000_000);
    }
    for kind in [Kind::Fifo, Kind::Times, Kind::Priority, Kind::Fair, Kind::FairWithAGroupEach] {
        for leave in [Leave::InOrder, Leave::DoneAtRandom, Leave::Backwards, Leave::AtRandom] {
            for stay in [Stay::Nobody, Stay::First, Stay::Last, Stay::Some, Stay::SomeReady] {
                gives_back(kind, leave, stay, 40_000);
            }
        }
    }
    costs_next_to_nothing_while_empty();
}

/// Checks every number of keys, including the numbers at which a table has just doubled.
fn takes_little_for_each_key(add: Add, most: usize) {
    let start = live();
    let mut case = Case::new(Kind::Fifo);
    for key in 0..2_000_000 {
        case.add(key, add);
        let (keys, bytes) = (key as usize + 1, live() - start);
        assert!(
            keys < 100_000 || bytes <= most * keys,
            "{keys} keys take {bytes} bytes, {:.2} each, and not {most}",
            bytes as f64 / keys as f64
        );
    }
}

fn takes_no_more_after_a_million_cycles() {
    let start = live();
    let mut case = Case::new(Kind::Fifo);
    let keys = 100_000;
    (0..keys).for_each(|key| case.add(key, Add::now()));
    for key in keys..1_000_000 {
        let (_, ticket) = case.get().expect("a key is ready");
        case.succeed(&ticket);
        case.add(key, Add::now());
        let bytes = live() - start;
        assert!(bytes <= 60 * keys as usize, "{keys} keys take {bytes} bytes");
    }
}

/// Checks that most of the memory of many keys is freed when they leave.
fn gives_back(kind: Kind, leave: Leave, stay: Stay, keys: u64) {
    let name = format!("{kind:?}, {leave:?}, {stay:?}");
    let stays = |key| stay.stays(key, keys);
    let mut leaving: Vec<u64> = (0..keys).filter(|&key| !stays(key)).collect();
    let mut tickets: Vec<(u64, Ticket)> = Vec::with_capacity(keys as usize);

    let start = live();
    let mut case = Case::new(kind);
    (0..keys).for_each(|key| case.add(key, if stays(key) { stay.add() } else { Add::now() }));
    let peak = live() - start;
    let each = peak / keys as usize;
    let check = |case: &Case| {
        let (kept, records) = (live() - start, case.queue.records());
        let groups = if kind == Kind::Fair { kind.groups() as usize } else { 0 };
        let most = 4 * (each * records + 400 * groups) + 64 * KIB;
        // The slots of groups do not move.
        let moves = kind != Kind::FairWithAGroupEach;
        let is_few = records * 4 < keys as usize;
        assert!(
            !moves || !is_few || kept <= most,
            "{name}: {records} keys are left of {keys} and keep {kept} bytes of {peak}"
        );
    };
    match leave {
        Leave::InOrder | Leave::DoneAtRandom => {
            while let Some((key, ticket)) = case.get() {
                tickets.push((key, ticket));
                if matches!(leave, Leave::InOrder) && !stays(key) {
                    case.succeed(&ticket);
                    check(&case);
                }
            }
            if matches!(leave, Leave::DoneAtRandom) {
                shuffle(&mut tickets);
                for (_, ticket) in tickets.iter().filter(|(key, _)| !stays(*key)) {
                    case.succeed(ticket);
                    check(&case);
                }
            }
        }
        Leave::Backwards | Leave::AtRandom => {
            if matches!(leave, Leave::AtRandom) {
                shuffle(&mut leaving);
            }
            while let Some(key) = leaving.pop() {
                case.cancel(key);
                check(&case);
            }
        }
    }

    let kept = live() - start;
    let (few, need) = cost_of(|| {
        let mut few = Case::new(kind);
        (0..keys).filter(|&key| stays(key)).for_each(|key| few.add(key, stay.add()));
        few
    });
    assert_eq!(case.queue.records(), few.queue.records(), "{name}");
    // The slots of removed groups remain among the slots of other groups.
    let holes = if kind == Kind::FairWithAGroupEach { peak / 20 } else { 0 };
    let most = 4 * need + 64 * KIB + holes;
    assert!(kept <= most, "{name}: {kept} bytes are kept of {peak}, and {need} needed");
    assert!(kept <= peak / 10 || keys < 1_000_000, "{name}: {kept} bytes are kept of {peak}");
}

fn costs_next_to_nothing_while_empty() {
    let metrics = Metrics::register(&mut Registry::default());
    let with_metrics = |number: usize| {
        let queue = requeue::Queue::builder().name(format!("queue-{number}")).metrics(&metrics);
        queue.build().expect("no other has its name")
    };
    takes_less_than_a_kib("an empty queue", |_| requeue::Queue::new());
    takes_less_than_a_kib("one with metrics", with_metrics);
}

fn takes_less_than_a_kib(what: &str, make: impl Fn(usize) -> requeue::Queue<u64>) {
    const QUEUES: usize = 10_000;
    let (queues, bytes) = cost_of(|| (0..QUEUES).map(make).collect::<Vec<_>>());
    let each = bytes / QUEUES;
    assert!(each < KIB, "{what} takes {each} bytes");
    assert!(queues.iter().all(|queue| queue.states().total() == 0));
}

/// A queue, and the number of its groups.
struct Case {
    queue: Queue<u64>,
    groups: u64,
}

impl Case {
    fn new(kind: Kind) -> Self {
        Self { queue: Queue::new(kind.config()), groups: kind.groups() }
    }

    fn add(&mut self, key: u64, add: Add) {
        let (group, add) = (GroupId::new(key % self.groups), add.priority((key % 5) as i32));
        let _ = self.queue.add(key, hash(key), add, group, NOW);
    }

    fn get(&mut self) -> Option<(u64, Ticket)> {
        self.queue.get(NOW).map(|out| (out.key, out.ticket))
    }

    fn succeed(&mut self, ticket: &Ticket) {
        let finished = self.queue.finish(ticket, Finish::Succeed, NOW);
        assert!(finished.is_some(), "the key was in flight");
    }

    fn cancel(&mut self, key: u64) {
        assert!(self.queue.cancel(&key, hash(key)).is_some(), "the queue had {key}");
    }
}

/// The additional data that a queue keeps for each key.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Fifo,
    Times,
    Priority,
    Fair,
    FairWithAGroupEach,
}

impl Kind {
    fn config(self) -> Config<u64> {
        let plain = Config::default();
        match self {
            Self::Fifo => plain,
            Self::Times => Config { track: true, ..plain },
            Self::Priority => Config { order: Order::Priority { oldest_every: 10 }, ..plain },
            Self::Fair | Self::FairWithAGroupEach => Config { fair: true, ..plain },
        }
    }

    const fn groups(self) -> u64 {
        match self {
            Self::Fifo | Self::Times | Self::Priority => 1,
            Self::Fair => 100,
            Self::FairWithAGroupEach => u64::MAX,
        }
    }
}

/// The way in which keys leave.
#[derive(Clone, Copy, Debug)]
enum Leave {
    /// The keys are delivered and completed, one after the other.
    InOrder,
    /// All keys are delivered, and then completed in random order.
    DoneAtRandom,
    /// The keys are cancelled, the last key first.
    Backwards,
    /// The keys are cancelled in random order.
    AtRandom,
}

/// The keys that remain.
#[derive(Clone, Copy, Debug)]
enum Stay {
    Nobody,
    /// One key that waits for an hour.
    First,
    Last,
    /// One in a thousand keys, at random, which waits for an hour.
    Some,
    /// One in a thousand keys, which is ready or in flight.
    SomeReady,
}

impl Stay {
    fn stays(self, key: u64, keys: u64) -> bool {
        match self {
            Self::Nobody => false,
            Self::First => key == 0,
            Self::Last => key == keys - 1,
            Self::Some | Self::SomeReady => hash(!key).is_multiple_of(1000),
        }
    }

    fn add(self) -> Add {
        match self {
            Self::SomeReady => Add::now(),
            Self::Nobody | Self::First | Self::Last | Self::Some => Add::after(HOUR),
        }
    }
}

fn hash(key: u64) -> u64 {
    FixedState::with_seed(7).hash_one(key)
}

fn shuffle<T>(list: &mut [T]) {
    for last in (1..list.len()).rev() {
        list.swap(last, (hash(last as u64) % (last as u64 + 1)) as usize);
    }
}
