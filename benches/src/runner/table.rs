//! The rows of the table. A row of time has the limit [`heat::NO_MORE`](super::heat::NO_MORE) if
//! its peer is a library from which users migrate. This file states all other targets.

use super::contended;
use super::heat::{Heat, of};
use super::metric::Metric;
use crate::protocol::{Keys, Request, Scenario};

/// The extent of a run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale {
    /// The rounds of every side.
    pub rounds: usize,
    /// The divisor of the numbers of keys.
    pub part: usize,
    /// The seconds over which keys become due, or during which queues are idle.
    pub seconds: f64,
}

impl Scale {
    /// The scale for figures to publish.
    pub const FULL: Self = Self { rounds: 9, part: 1, seconds: 2.0 };
    /// The scale to check that all measurements work.
    pub const QUICK: Self = Self { rounds: 2, part: 20, seconds: 0.2 };
    /// The scale with which tests check that all measurements would work.
    pub const TINY: Self = Self { rounds: 1, part: 2000, seconds: 0.02 };

    /// Returns `full` divided by `part`.
    #[must_use]
    pub const fn n(self, full: usize) -> usize {
        let n = full / self.part;
        if n == 0 { 1 } else { n }
    }
}

pub(super) const OURS: &str = "requeue";
const ON_TOKIO: &str = "requeue-tokio";
const BY_TSC: &str = "requeue-tsc";
pub(super) const PRIORITIES: &str = "requeue-priorities";
const GROUPS: &str = "requeue-groups";
const CORE: &str = "requeue-core";
pub(super) const CLIENT_GO: &str = "client-go";
pub(super) const CONTROLLER: &str = "controller-runtime";
const KUBE: &str = "kube-runtime";
const FLOOR: &str = "floor";
const SETS: &str = "three-sets";
pub(super) const CHANNEL: &str = "async-channel";
const DELAY_QUEUE: &str = "delay-queue";
const THREAD: &str = "parked-thread";
const SLEEP: &str = "tokio-sleep";

/// The limit for lateness, in nanoseconds. A user may notice 2 ms. Shorter times are not compared,
/// because tokio's timers are exact only to 1 ms.
const ON_TIME: f64 = 2e6;

/// The number of queued keys in the comparison of cycles with client-go.
const DEEP: usize = 65_536;

/// Returns all heats.
#[must_use]
pub fn heats(scale: Scale) -> Vec<Heat> {
    let mut heats = Vec::new();
    for keys in [Keys::U64, Keys::Name] {
        heats.extend(cycles(scale, keys));
        heats.extend(bulk(scale, keys));
        heats.extend(delays(scale, keys));
    }
    heats.extend(contended::heats(scale));
    heats.extend(hand_overs(scale));
    heats.extend(timers(scale));
    heats.extend(memory(scale));
    heats.extend(holds(scale));
    heats
}

fn cycles(scale: Scale, keys: Keys) -> Vec<Heat> {
    let cycle = of(Scenario::Cycle, scale.n(1_000_000));
    let slow = Request { n: scale.n(100_000), ..cycle };
    let deep = |request: Request| Request { depth: scale.n(DEEP), ..request };
    let million = Request { depth: scale.n(1_000_000), ..cycle };
    let batch = Request { scenario: Scenario::Batch, batch: 32, ..cycle };
    let with_metrics = Request { scenario: Scenario::CycleMetrics, ..cycle };
    let waiting = Request { scenario: Scenario::CycleWaiting, ..cycle };
    let mut heats = vec![
        Heat::new("add + get + done", keys)
            .side(CONTROLLER, slow)
            .side(PRIORITIES, cycle)
            .side(KUBE, cycle)
            .side(CLIENT_GO, cycle)
            .side(OURS, cycle)
            .side(FLOOR, cycle)
            .side(CORE, cycle)
            .side(SETS, cycle)
            .side(CHANNEL, cycle)
            .row(OURS, CLIENT_GO)
            .row(PRIORITIES, CONTROLLER)
            .row(OURS, KUBE)
            .row(OURS, FLOOR)
            .row(CORE, FLOOR)
            .row(OURS, SETS)
            .row(OURS, CHANNEL),
        Heat::new("add + get + done, 65,536 queued", keys)
            .side(CONTROLLER, deep(slow))
            .side(PRIORITIES, deep(cycle))
            .side(CLIENT_GO, deep(cycle))
            .side(OURS, deep(cycle))
            .side(FLOOR, deep(cycle))
            .side(CORE, deep(cycle))
            .row(OURS, CLIENT_GO)
            .row(PRIORITIES, CONTROLLER)
            .row(CORE, FLOOR),
        Heat::new("add + get + done, a million queued", keys)
            .rounds(5)
            .side(CLIENT_GO, million)
            .side(OURS, million)
            .row(OURS, CLIENT_GO),
        Heat::new("add + get + done, in batches of 32", keys)
            .side(CLIENT_GO, cycle)
            .side(OURS, batch)
            .row(OURS, CLIENT_GO),
        Heat::new("add + get + done, in batches of 32, 65,536 queued", keys)
            .side(CLIENT_GO, deep(cycle))
            .side(OURS, deep(batch))
            .row(OURS, CLIENT_GO),
        Heat::new("add + get + done, with metrics", keys)
            .side(CLIENT_GO, with_metrics)
            .side(OURS, with_metrics)
            .side(BY_TSC, with_metrics)
            .row(OURS, CLIENT_GO)
            .row(BY_TSC, CLIENT_GO),
        Heat::new("add + get + done, while one waits for an hour", keys)
            .side(CLIENT_GO, waiting)
            .side_as("requeue, one waits", OURS, waiting)
            .side_as("requeue, none waits", OURS, cycle)
            .row("requeue, one waits", "requeue, none waits")
            .row("requeue, one waits", CLIENT_GO),
    ];
    let held = |n, depth| Request { depth, ..of(Scenario::HeldBack, n) };
    heats.push(
        Heat::new("add + get + done, 100,000 held back", keys)
            .rounds(5)
            .side(KUBE, held(scale.n(2000), scale.n(100_000)))
            .side(GROUPS, held(scale.n(500_000), scale.n(100_000)))
            .side_as("requeue-groups, 1,000", GROUPS, held(scale.n(500_000), scale.n(1000)))
            .row(GROUPS, KUBE)
            .row(GROUPS, "requeue-groups, 1,000"),
    );
    heats
}

fn bulk(scale: Scale, keys: Keys) -> Vec<Heat> {
    let known = Request { depth: 1024, ..of(Scenario::AddQueued, scale.n(5_000_000)) };
    let fill = of(Scenario::FillDrain, scale.n(1_000_000));
    let forget = of(Scenario::Forget, scale.n(500_000));
    let retry = Request { scenario: Scenario::RateLimitedAdd, ..forget };
    vec![
        Heat::new("add of a key that is queued", keys)
            .side(CLIENT_GO, known)
            .side(OURS, known)
            .row(OURS, CLIENT_GO),
        Heat::new("fill and drain a million", keys)
            .rounds(7)
            .side(CONTROLLER, Request { n: scale.n(100_000), ..fill })
            .side(PRIORITIES, fill)
            .side(CLIENT_GO, fill)
            .side(OURS, fill)
            .side(FLOOR, fill)
            .row(OURS, CLIENT_GO)
            .row(PRIORITIES, CONTROLLER)
            .row(OURS, FLOOR),
        Heat::new("rate-limited add", keys)
            .rounds(7)
            .side(CLIENT_GO, retry)
            .side(OURS, retry)
            .row(OURS, CLIENT_GO),
        Heat::new("forget", keys)
            .rounds(7)
            .side(CLIENT_GO, forget)
            .side(OURS, forget)
            .row(OURS, CLIENT_GO),
    ]
}

fn delays(scale: Scale, keys: Keys) -> Vec<Heat> {
    let million = scale.n(1_000_000);
    let (add, few) = (of(Scenario::DelayedAdd, million), scale.n(100_000));
    let again = Request { depth: million, ..of(Scenario::DelayedReadd, million) };
    let few_again = Request { n: few, depth: few, ..again };
    vec![
        Heat::new("delayed add, a million", keys)
            .rounds(7)
            .side(CLIENT_GO, add)
            .side(OURS, add)
            .side(DELAY_QUEUE, add)
            .side(KUBE, add)
            .row(OURS, CLIENT_GO)
            .row(OURS, DELAY_QUEUE)
            .row(OURS, KUBE),
        Heat::new("delayed add, 100,000", keys)
            .rounds(7)
            .side(CONTROLLER, Request { n: few, ..add })
            .side(PRIORITIES, Request { n: few, ..add })
            .row(PRIORITIES, CONTROLLER),
        Heat::new("re-add of a waiting key, of a million", keys)
            .rounds(7)
            .side(CLIENT_GO, again)
            .side(OURS, again)
            .side(DELAY_QUEUE, again)
            .side(KUBE, again)
            .row(OURS, CLIENT_GO)
            .row(OURS, DELAY_QUEUE)
            .row(OURS, KUBE),
        Heat::new("re-add of a waiting key, of 100,000", keys)
            .rounds(7)
            .side(CONTROLLER, few_again)
            .side(PRIORITIES, few_again)
            .row(PRIORITIES, CONTROLLER),
    ]
}

fn hand_overs(scale: Scale) -> Vec<Heat> {
    let task = of(Scenario::HandOver, scale.n(20_000));
    let thread = Request { n: scale.n(1000), ..task };
    vec![
        Heat::new("hand-over to a waiting task", Keys::U64)
            .rounds(7)
            .side(CLIENT_GO, task)
            .side(ON_TOKIO, task)
            .row_of(Metric::LatencyP50, ON_TOKIO, CLIENT_GO)
            .row_of(Metric::LatencyP99, ON_TOKIO, CLIENT_GO),
        Heat::new("hand-over to a waiting thread", Keys::U64)
            .rounds(7)
            .side(SETS, thread)
            .side(OURS, thread)
            .side(CHANNEL, thread)
            .row_of(Metric::LatencyP50, OURS, SETS)
            .row_of(Metric::LatencyP50, OURS, CHANNEL),
    ]
}

fn timers(scale: Scale) -> Vec<Heat> {
    let fire = Request { seconds: scale.seconds, ..of(Scenario::Fire, scale.n(200_000)) };
    let sparse = of(Scenario::SparseTimers, (scale.seconds * 100.0) as usize);
    let heat = |path, all: Request| {
        Heat::new(path, Keys::U64)
            .rounds(5)
            .side(CLIENT_GO, all)
            .side(OURS, all)
            .side(THREAD, all)
            .side(ON_TOKIO, all)
            .side(SLEEP, all)
            .side(DELAY_QUEUE, all)
            .row_of(Metric::LatenessP50, OURS, THREAD)
            .row_of(Metric::LatenessP99, OURS, THREAD)
            .at_most(ON_TIME)
            .row_of(Metric::LatenessP50, ON_TOKIO, SLEEP)
            .row_of(Metric::LatenessP99, ON_TOKIO, SLEEP)
            .at_most(ON_TIME)
            .row_of(Metric::LatenessP50, OURS, CLIENT_GO)
            .row_of(Metric::LatenessP50, ON_TOKIO, DELAY_QUEUE)
            .row(OURS, THREAD)
            .row(ON_TOKIO, SLEEP)
    };
    vec![
        heat("200,000 fall due in 2 s", fire)
            .row(OURS, CLIENT_GO)
            .row(ON_TOKIO, CLIENT_GO)
            .row(ON_TOKIO, DELAY_QUEUE),
        heat("one falls due every 10 ms", sparse).row(OURS, CLIENT_GO).row(ON_TOKIO, CLIENT_GO),
        Heat::new("200,000 fall due in 2 s, with priorities", Keys::U64)
            .rounds(3)
            .side(CONTROLLER, fire)
            .side(PRIORITIES, fire)
            .row(PRIORITIES, CONTROLLER)
            .row_of(Metric::LatenessP50, PRIORITIES, CONTROLLER),
    ]
}

fn memory(scale: Scale) -> Vec<Heat> {
    let mut heats = Vec::new();
    // In kube-runtime, due keys go into a bare hash set, and waiting keys into a queue of delays
    // and a map.
    for (scenario, what, most) in
        [(Scenario::Memory, "queued", 60.0), (Scenario::MemoryDelayed, "delayed", 84.0)]
    {
        for (n, count) in
            [(100_000, "100,000"), (300_000, "300,000"), (1_000_000, "1 M"), (2_000_000, "2 M")]
        {
            let all = of(scenario, scale.n(n));
            let mut heat = Heat::new(format!("memory of a {what} key, of {count}"), Keys::U64)
                .rounds(2)
                .side(CLIENT_GO, all)
                .side(OURS, all)
                .row_of(Metric::Bytes, OURS, CLIENT_GO)
                .at_most(most);
            if n == 1_000_000 {
                heat = heat
                    .side(KUBE, all)
                    .row_of(Metric::Bytes, OURS, KUBE)
                    .row_of(Metric::Kept, OURS, CLIENT_GO)
                    .at_most(0.1);
            }
            heats.push(heat);
        }
    }
    let idle = of(Scenario::MemoryIdle, scale.n(10_000));
    for (metrics, what) in [(false, "an idle queue"), (true, "an idle queue with metrics")] {
        let idle = Request { metrics, ..idle };
        heats.push(
            Heat::new(format!("memory of {what}"), Keys::U64)
                .rounds(2)
                .fresh()
                .side(CLIENT_GO, idle)
                .side(OURS, idle)
                .row_of(Metric::Bytes, OURS, CLIENT_GO)
                .at_most(1024.0),
        );
    }
    let idle = Request { seconds: scale.seconds, ..of(Scenario::IdleCpu, scale.n(10_000)) };
    heats.push(
        Heat::new("processor time of 10,000 idle queues", Keys::U64)
            .rounds(3)
            .fresh()
            .side(CLIENT_GO, idle)
            .side(OURS, idle)
            .row_of(Metric::CpuPerSecond, OURS, CLIENT_GO)
            .at_most(100_000.0),
    );
    heats
}

fn holds(scale: Scale) -> Vec<Heat> {
    let million = scale.n(1_000_000);
    let page = |depth| Request { depth, ..of(Scenario::Snapshot, scale.n(10_000)) };
    vec![
        Heat::new("longest hold of the lock, a million due at once", Keys::U64)
            .rounds(2)
            .side(CORE, of(Scenario::HoldsDue, million))
            .row_of(Metric::Longest, CORE, CORE)
            .alone()
            .at_most(1e6),
        Heat::new("longest hold of the lock, growing to a million", Keys::U64)
            .rounds(2)
            .side(CORE, of(Scenario::HoldsGrowing, million))
            .row_of(Metric::Longest, CORE, CORE)
            .alone(),
        Heat::new("a page of a million keys, while others add", Keys::U64)
            .rounds(5)
            .side_as("requeue, a million", OURS, page(million))
            .side_as("requeue, 10,000", OURS, page(scale.n(10_000)))
            .row_of(Metric::LatencyP50, "requeue, a million", "requeue, 10,000"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_of_sides_that_are_there() {
        for heat in heats(Scale::FULL) {
            assert!(!heat.rows.is_empty());
            for row in &heat.rows {
                let there = |tag| heat.sides.iter().any(|side| side.tag == tag);
                assert!(there(row.ours), "{row:?}");
                assert!(row.peer.is_none_or(there), "{row:?}");
            }
        }
    }

    #[test]
    fn no_row_is_there_twice() {
        let heats = heats(Scale::FULL);
        let mut ids: Vec<_> =
            heats.iter().flat_map(|heat| heat.rows.iter().map(|row| row.id(heat.keys))).collect();
        let all = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), all);
    }

    #[test]
    fn every_scenario_is_measured() {
        let heats = heats(Scale::FULL);
        for scenario in Scenario::ALL {
            let measured = |heat: &Heat| heat.sides.iter().any(|s| s.request.scenario == scenario);
            assert!(heats.iter().any(measured), "{scenario:?} is in no row");
        }
    }
}
