//! Rows of producers and workers that share a queue. The figure is the wall-clock time per key,
//! from the first add to the last completion. All sides get the same keys, each key once.

use super::heat::{Heat, of};
use super::metric::Metric;
use super::table::{CHANNEL, CLIENT_GO, CONTROLLER, OURS, PRIORITIES, Scale};
use crate::protocol::{Keys, Request, Scenario};

/// The numbers of producers and workers.
const CROWDS: [(usize, usize); 5] = [(1, 1), (1, 16), (4, 4), (16, 1), (16, 16)];

/// The nanoseconds that a worker computes for each key, and a number of keys that takes tenths of a
/// second.
const WORK: [(u64, &str, usize); 3] = [
    (0, "no work", 1_000_000),
    (1_000, "1 µs of work", 400_000),
    (10_000, "10 µs of work", 100_000),
];

pub(super) fn heats(scale: Scale) -> Vec<Heat> {
    let mut heats = Vec::new();
    for (scenario, what) in [(Scenario::Tasks, "tasks"), (Scenario::Threads, "threads")] {
        for (work_ns, work, n) in WORK {
            for (producers, workers) in CROWDS {
                let all = Request { producers, workers, work_ns, ..of(scenario, scale.n(n)) };
                let path = format!("contended, {producers} × {workers} {what}, {work}");
                let mut heat = Heat::new(path, Keys::U64).side(CLIENT_GO, all).side(OURS, all);
                heat = heat.row_of(Metric::Wall, OURS, CLIENT_GO);
                if work_ns == 0 {
                    heat = heat.side(CHANNEL, all).row_of(Metric::Wall, OURS, CHANNEL);
                }
                heats.push(match (scenario, work_ns) {
                    (Scenario::Threads, 0) => heat.row_of(Metric::Sleeps, OURS, CHANNEL),
                    (Scenario::Threads, _) => heat.row_of(Metric::Sleeps, OURS, OURS).alone(),
                    _ => heat,
                });
            }
        }
    }
    let crowd = Request { producers: 4, workers: 4, ..of(Scenario::Threads, scale.n(100_000)) };
    heats.push(
        Heat::new("contended, 4 × 4 threads, with priorities", Keys::U64)
            .rounds(5)
            .side(CONTROLLER, crowd)
            .side(PRIORITIES, crowd)
            .row_of(Metric::Wall, PRIORITIES, CONTROLLER),
    );
    heats
}
