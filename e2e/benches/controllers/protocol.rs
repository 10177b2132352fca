//! The requests of the runner, and the answers of contestants.

use std::fs;

use requeue_bench::meter::Meter;
use serde::{Deserialize, Serialize};

use crate::Result;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) enum Who {
    Ours,
    Kube,
    /// kube's store alone, which both controllers contain. It shows the cost without any
    /// reconciliation.
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

/// Work that patches the status of each object of a namespace. Each patch causes one more run of
/// its object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Patches {
    pub(crate) namespace: String,
    pub(crate) objects: usize,
    pub(crate) concurrency: u16,
    /// The value for the status, different from all earlier values.
    pub(crate) number: u32,
}

/// Work with events from memory, for a reconciler that does nothing. Each object changes once per
/// pass. All objects of a pass are queued before the objects of the next pass.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Memory {
    pub(crate) objects: usize,
    pub(crate) passes: usize,
}

/// The cost of the work.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) count: usize,
    pub(crate) wall_ns: u64,
    /// The user and system time, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// The peak memory of the process.
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
