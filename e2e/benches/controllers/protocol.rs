//! What the runner asks of a contestant, and what it is told.

use std::fs;

use requeue_bench::meter::Meter;
use serde::{Deserialize, Serialize};

use crate::Result;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Who {
    Ours,
    Kube,
    /// kube's store alone, which both of them have: what is left when nothing is reconciled.
    Store,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) who: Who,
    pub(crate) work: Work,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    Patches(Patches),
    Memory(Memory),
}

/// Each object of a namespace has its status patched, and is reconciled once more for that.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Patches {
    pub(crate) namespace: String,
    pub(crate) objects: usize,
    pub(crate) concurrency: u16,
    /// What the status is to be, which it has not been before.
    pub(crate) number: u32,
}

/// Events that come from memory, for a reconciler that does nothing: each object changes in turn, so
/// many times. The objects of a pass are all queued before those of the next change.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) objects: usize,
    pub(crate) passes: usize,
}

/// What it took.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) count: usize,
    pub(crate) wall_ns: u64,
    /// User and system.
    pub(crate) cpu_ns: u64,
    /// Of the process, at its largest.
    pub(crate) peak_kb: u64,
}

impl Answer {
    pub(crate) fn of(meter: Meter, count: usize) -> Result<Self> {
        let took = meter.stop(count);
        let status = fs::read_to_string("/proc/self/status")?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak =
            peak.and_then(|rest| rest.split_whitespace().next()).ok_or("there is no VmHWM")?;
        Ok(Self { count, wall_ns: took.wall_ns, cpu_ns: took.cpu_ns, peak_kb: peak.parse()? })
    }
}
