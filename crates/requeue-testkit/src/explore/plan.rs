//! The fault plan of a run: the faults, and the requests, events and steps at which they happen.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

/// The maximum number of faults in each half of a plan. The first half is for requests to the API server,
/// the second half for steps and operations on a store.
const HALF: usize = 8;
/// The number of bits that select the faults of a plan, in the number of a run.
const MASK_BITS: u32 = 16;
/// The mask that selects all faults of a plan.
pub(super) const ALL_FAULTS: u16 = u16::MAX;

/// Identifies a run by its seed and by the selected faults of the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Number {
    pub(super) seed: u64,
    /// Bit n is set if fault n of the plan may happen.
    pub(super) mask: u16,
}

impl Number {
    pub(super) const fn of_seed(seed: u64) -> Self {
        Self { seed, mask: ALL_FAULTS }
    }

    pub(super) const fn from_u64(number: u64) -> Self {
        // The cast keeps only the low 16 bits, which are the mask.
        Self { seed: number >> MASK_BITS, mask: number as u16 }
    }

    pub(super) const fn to_u64(self) -> u64 {
        self.seed << MASK_BITS | self.mask as u64
    }
}

/// The place at which a fault happens: the n-th request, event, step or operation. Each type of
/// place is counted from 0, in all processes of the world together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Point {
    /// A request of a process to the API server, except requests for Leases.
    Request(u64),
    /// An event that a watch of a process receives.
    Event(u64),
    /// A request of a process for a Lease.
    Lease(u64),
    /// A call of [`Process::step`](super::Process::step).
    Step(u64),
    /// An operation of a process on a store.
    Operation(u64),
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(n) => write!(f, "request {n}"),
            Self::Event(n) => write!(f, "watch event {n}"),
            Self::Lease(n) => write!(f, "Lease request {n}"),
            Self::Step(n) => write!(f, "step {n}"),
            Self::Operation(n) => write!(f, "store operation {n}"),
        }
    }
}

/// The effect of a fault.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Mishap {
    /// The server does not execute the request, and responds with this status code.
    Refused(u16),
    /// The connection breaks before the server receives the request.
    Lost,
    /// The server executes the request. The connection breaks before the client receives the
    /// response.
    Unanswered,
    /// The request reaches the server after this delay.
    Late(Duration),
    /// Another client changes the object immediately before the server executes this write.
    Conflict,
    /// If the client permits a stale list, the list contains the objects as they were before this
    /// number of changes.
    StaleList(u64),
    /// The process crashes before the server receives the request, or before the step.
    CrashBefore,
    /// The process crashes after the server has executed the request, but before the response
    /// arrives, or after the step.
    CrashAfter,
    /// The stream of the watch ends before this event.
    Cut,
    /// The watch delivers this event twice.
    Repeated,
    /// The watch delivers this event and all later events after this delay.
    Delayed(Duration),
    /// The watch ends with the status 410, so that the client must list the objects again.
    Expired,
    /// For this time, no request of the process for a Lease reaches the server.
    Partition(Duration),
    /// The step returns an error.
    Failed,
    /// The step panics.
    Panicked,
}

impl fmt::Display for Mishap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(code) => write!(f, "refused with status {code}"),
            Self::Lost => f.write_str("lost on its way to the server"),
            Self::Unanswered => f.write_str("executed, but not answered"),
            Self::Late(time) => write!(f, "reaches the server after {time:?}"),
            Self::Conflict => f.write_str("another client changes the object just before"),
            Self::StaleList(changes) => write!(f, "the list is stale by {changes} changes"),
            Self::CrashBefore => f.write_str("the process crashes just before"),
            Self::CrashAfter => f.write_str("executed, and the process crashes before the answer"),
            Self::Cut => f.write_str("the watch is cut just before"),
            Self::Repeated => f.write_str("delivered twice"),
            Self::Delayed(time) => write!(f, "delivered {time:?} late"),
            Self::Expired => f.write_str("the watch ends with status 410"),
            Self::Partition(time) => {
                write!(f, "the process reaches no Lease for {time:?}")
            }
            Self::Failed => f.write_str("fails"),
            Self::Panicked => f.write_str("panics"),
        }
    }
}

/// A fault of a plan: an effect, and the place at which it happens.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fault {
    /// The request, event, step or operation at which the fault happens.
    pub at: Point,
    /// The effect of the fault.
    pub mishap: Mishap,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.at, self.mishap)
    }
}

/// Returns all faults of a seed, in an order that does not depend on the run.
pub(super) fn draw_plan(seed: u64) -> Vec<Fault> {
    let mut random = Rng::with_seed(seed ^ 0x9e37_79b9_7f4a_7c15);
    // The number of faults is random, because many faults can hide a bug that few faults show.
    let most = random.usize(0..=HALF);
    let mut faults = Vec::with_capacity(2 * HALF);
    for _ in 0..most {
        faults.push(draw_server_fault(&mut random));
    }
    // The second half has a separate generator. Its faults therefore do not depend on the number of
    // faults in the first half.
    let mut random = Rng::with_seed(seed ^ 0xd1b5_4a32_d192_ed03);
    for _ in 0..random.usize(0..=HALF) {
        faults.push(draw_step_fault(&mut random));
    }
    faults
}

/// Returns a random place. Early places are more likely, because most bugs need an early fault.
fn draw_place(random: &mut Rng) -> u64 {
    let bound = [8, 24, 72, 200][random.usize(0..4)];
    random.u64(0..bound)
}

/// Returns a random time of up to a minute, in milliseconds. Its order of magnitude is also
/// random, so that short times are not rare.
fn draw_time(random: &mut Rng) -> Duration {
    let longest = [100, 1_000, 10_000, 60_000][random.usize(0..4)];
    Duration::from_millis(random.u64(1..=longest))
}

fn draw_server_fault(random: &mut Rng) -> Fault {
    let place = draw_place(random);
    let (at, mishap) = match random.u8(0..16) {
        0 => (Point::Request(place), Mishap::Refused([429, 500, 503][random.usize(0..3)])),
        1 => (Point::Request(place), Mishap::Lost),
        2 | 3 => (Point::Request(place), Mishap::Unanswered),
        4 => (Point::Request(place), Mishap::Late(draw_time(random))),
        5 => (Point::Request(place), Mishap::Conflict),
        6 => (Point::Request(place), Mishap::CrashBefore),
        7 | 8 => (Point::Request(place), Mishap::CrashAfter),
        9 => (Point::Request(place), Mishap::StaleList(random.u64(1..10))),
        10 => (Point::Event(place), Mishap::Cut),
        11 => (Point::Event(place), Mishap::Repeated),
        12 | 13 => (Point::Event(place), Mishap::Delayed(draw_time(random))),
        14 => (Point::Event(place), Mishap::Expired),
        _ => {
            let time = Duration::from_secs(random.u64(5..60));
            (Point::Lease(place), Mishap::Partition(time))
        }
    };
    Fault { at, mishap }
}

fn draw_step_fault(random: &mut Rng) -> Fault {
    let place = draw_place(random);
    let (at, mishap) = match random.u8(0..12) {
        0 | 1 => (Point::Step(place), Mishap::Failed),
        2 => (Point::Step(place), Mishap::Panicked),
        3 => (Point::Step(place), Mishap::Late(draw_time(random))),
        4 => (Point::Step(place), Mishap::CrashBefore),
        5 | 6 => (Point::Step(place), Mishap::CrashAfter),
        7 => (Point::Operation(place), Mishap::Lost),
        8 => (Point::Operation(place), Mishap::Unanswered),
        9 => (Point::Operation(place), Mishap::Late(draw_time(random))),
        10 => (Point::Operation(place), Mishap::CrashBefore),
        _ => (Point::Operation(place), Mishap::CrashAfter),
    };
    Fault { at, mishap }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_the_seed_and_the_faults() {
        for number in [Number::of_seed(0), Number { seed: 1 << 40, mask: 5 }] {
            assert_eq!(Number::from_u64(number.to_u64()), number);
        }
    }

    #[test]
    fn a_plan_depends_only_on_the_seed_and_fits_the_mask() {
        for seed in 0..1000 {
            let plan = draw_plan(seed);
            assert!(plan.len() <= MASK_BITS as usize);
            assert_eq!(plan, draw_plan(seed));
        }
    }
}
