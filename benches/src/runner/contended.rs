//! Rows of producers and workers that share a queue.

use super::heat::{Heat, of};
use super::table::{CHANNEL, CLIENT_GO, CONTROLLER, OURS, PRIORITIES, Scale};
use crate::protocol::{Keys, Request, Scenario};

/// Producers and workers.
const CROWDS: [(usize, usize); 6] = [(1, 1), (2, 2), (4, 4), (8, 8), (1, 16), (16, 1)];

pub(super) fn heats(scale: Scale) -> Vec<Heat> {
    let mut heats = Vec::new();
    for (scenario, what) in [(Scenario::Tasks, "tasks"), (Scenario::Threads, "threads")] {
        for (producers, workers) in CROWDS {
            let all = Request { producers, workers, ..of(scenario, scale.n(400_000)) };
            heats.push(
                Heat::new(format!("{producers} × {workers} {what}"), Keys::U64)
                    .side(CLIENT_GO, all)
                    .side(OURS, all)
                    .side(CHANNEL, all)
                    .row(OURS, CLIENT_GO)
                    .row(OURS, CHANNEL),
            );
        }
    }
    let crowd = Request { producers: 4, workers: 4, ..of(Scenario::Threads, scale.n(100_000)) };
    heats.push(
        Heat::new("4 × 4 threads, with priorities", Keys::U64)
            .rounds(5)
            .side(CONTROLLER, crowd)
            .side(PRIORITIES, crowd)
            .row(PRIORITIES, CONTROLLER),
    );
    heats
}
