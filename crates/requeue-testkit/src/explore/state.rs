//! The state of a world, which its clients, its processes and its handles share.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::{Mutex, MutexGuard};
use requeue_leases::simulation::now;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::log::{Log, What};
use super::plan::{Fault, Mishap, Number, Point, draw_plan};
use crate::invariants::{Invariant, Invariants, Sent, Violation, Write, Writer};
use crate::{ApiServer, Cluster};

/// The default number of requests that counts as a hot loop. Only requests after the
/// last fault, and after the last change by the test, are counted.
const MOST_REQUESTS: u64 = 500;

pub(super) struct State {
    pub(super) number: Number,
    pub(super) server: ApiServer,
    #[cfg(feature = "store")]
    pub(super) database: std::sync::OnceLock<requeue_store::simulated::Database>,
    began: Instant,
    inner: Mutex<Inner>,
    failed: Notify,
}

/// The part of the state that changes during a run.
pub(super) struct Inner {
    plan: Vec<Planned>,
    counts: Counts,
    pub(super) random: Rng,
    pub(super) log: Log,
    pub(super) invariants: Invariants,
    violation: Option<Violation>,
    pub(super) work: Work,
    /// The time of the last fault, or of the last change by the test, whichever is
    /// later.
    pub(super) disturbed: Instant,
    /// The number of requests before that time.
    requests_before: u64,
    pub(super) most_requests: u64,
    /// The number of processes that the test has started, each with one or more
    /// replicas.
    pub(super) sets: u32,
    /// The version of the server up to which the removals of objects have been passed
    /// to the invariants.
    known: u64,
}

struct Planned {
    /// The bit of the fault in the number of the run.
    bit: u16,
    fault: Fault,
    has_happened: bool,
}

/// The number of places of each type that processes have reached. It is also the number
/// of the next place.
#[derive(Default)]
struct Counts {
    requests: u64,
    events: u64,
    leases: u64,
    steps: u64,
    operations: u64,
}

/// The work of all processes since the start of the run.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Work {
    /// The number of requests, except requests for Leases, and except watches.
    pub(super) requests: u64,
    /// The number of writes that have changed an object, except Leases and Events.
    pub(super) changes: u64,
    /// The number of steps, and of operations on stores.
    pub(super) steps: u64,
    /// The number of faults that have happened.
    pub(super) faults: u64,
    /// The number of starts of processes.
    pub(super) starts: u64,
}

/// The type of a place at which a fault can happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Request,
    Event,
    Lease,
    Step,
    #[cfg_attr(not(feature = "store"), expect(dead_code, reason = "only stores have operations"))]
    Operation,
}

/// The effect of the faults at a place that a process has reached.
pub(super) struct Reached {
    pub(super) mishap: Option<Mishap>,
    /// A generator of random numbers for this place. Its numbers do not depend on
    /// faults at other places.
    pub(super) random: Rng,
}

impl State {
    pub(super) fn new(number: Number) -> Self {
        let selected = |(n, fault)| {
            let bit = 1_u16.wrapping_shl(n);
            (number.mask & bit != 0).then_some(Planned { bit, fault, has_happened: false })
        };
        let inner = Inner {
            plan: (0..).zip(draw_plan(number.seed)).filter_map(selected).collect(),
            counts: Counts::default(),
            random: Rng::with_seed(number.seed),
            log: Log::default(),
            invariants: Invariants::default(),
            violation: None,
            work: Work::default(),
            disturbed: Instant::now(),
            requests_before: 0,
            most_requests: MOST_REQUESTS,
            sets: 0,
            known: 0,
        };
        Self {
            number,
            server: ApiServer::build(Cluster::new(number.seed, 100_000), Arc::new(now)),
            #[cfg(feature = "store")]
            database: std::sync::OnceLock::new(),
            began: Instant::now(),
            inner: Mutex::new(inner),
            failed: Notify::new(),
        }
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Counts a place that a process has reached. Returns the fault that happens there.
    pub(super) fn reach(&self, place: Place, writer: Writer) -> Reached {
        let mut inner = self.inner();
        let counts = &mut inner.counts;
        let (count, at): (_, fn(u64) -> Point) = match place {
            Place::Request => (&mut counts.requests, Point::Request),
            Place::Event => (&mut counts.events, Point::Event),
            Place::Lease => (&mut counts.leases, Point::Lease),
            Place::Step => (&mut counts.steps, Point::Step),
            Place::Operation => (&mut counts.operations, Point::Operation),
        };
        let (n, at) = (*count, at(*count));
        *count += 1;
        let planned = inner.plan.iter_mut().find(|planned| planned.fault.at == at);
        let fault = planned.map(|planned| {
            planned.has_happened = true;
            planned.fault
        });
        if let Some(fault) = fault {
            inner.work.faults += 1;
            inner.requests_before = inner.work.requests;
            let lasts = match fault.mishap {
                Mishap::Late(time) | Mishap::Delayed(time) | Mishap::Partition(time) => time,
                _ => Duration::ZERO,
            };
            inner.disturbed = inner.disturbed.max(Instant::now() + lasts);
            let at = self.elapsed();
            inner.log.push(at, Some(writer), What::Fault(fault.to_string()));
        }
        let salt = n.wrapping_mul(8).wrapping_add(place as u64).wrapping_mul(0x2545_f491_4f6c_dd1d);
        let random = Rng::with_seed(self.number.seed ^ salt);
        Reached { mishap: fault.map(|fault| fault.mishap), random }
    }

    /// Adds an entry to the log of the run. `writer` is the process, or the user, that
    /// it is about.
    pub(super) fn note(&self, writer: Option<Writer>, what: What) {
        let at = self.elapsed();
        self.inner().log.push(at, writer, what);
    }

    /// Records the time of a change by the test, after which processes have work again.
    pub(super) fn disturb(&self) {
        let mut inner = self.inner();
        inner.disturbed = inner.disturbed.max(Instant::now());
        inner.requests_before = inner.work.requests;
    }

    /// Counts a request of a process. The caller excludes watches, and requests for
    /// Leases.
    pub(super) fn count_request(&self) {
        let mut inner = self.inner();
        inner.work.requests += 1;
        let since = inner.work.requests - inner.requests_before;
        if since == inner.most_requests && inner.invariants.is_enabled(Invariant::Quiet) {
            let what =
                format!("the processes have sent {since} requests since the last change or fault");
            self.fail(&mut inner, Violation { invariant: Invariant::Quiet, what });
        }
    }

    pub(super) fn check_sent(&self, sent: &Sent<'_>) {
        let mut inner = self.inner();
        if let Err(violation) = inner.invariants.check_sent(sent) {
            self.fail(&mut inner, violation);
        }
    }

    pub(super) fn check_write(&self, write: &Write) {
        let mut inner = self.inner();
        let is_bookkeeping = matches!(write.object.plural.as_str(), "leases" | "events");
        if write.writer.is_process() && write.has_changed() && !is_bookkeeping {
            inner.work.changes += 1;
        }
        let (removed, version) = self.server.with_store(|store| {
            let changes = store.changes_after(inner.known);
            let removed = changes.filter(|change| change.after.is_none());
            let removed: Vec<_> = removed.filter_map(|change| change.before.clone()).collect();
            (removed, store.version())
        });
        inner.known = version;
        removed.iter().for_each(|object| inner.invariants.note_removal(object));
        if let Err(violation) = inner.invariants.check_write(write) {
            self.fail(&mut inner, violation);
        }
    }

    /// Ends the run with a violation of this invariant, unless the invariant is
    /// disabled.
    pub(super) fn violate(&self, invariant: Invariant, what: String) {
        let mut inner = self.inner();
        if inner.invariants.is_enabled(invariant) {
            self.fail(&mut inner, Violation { invariant, what });
        }
    }

    fn fail(&self, inner: &mut Inner, violation: Violation) {
        // Only the first violation is kept, because it usually causes the later ones.
        inner.violation.get_or_insert(violation);
        self.failed.notify_one();
    }

    pub(super) fn violation(&self) -> Option<Violation> {
        self.inner().violation.clone()
    }

    /// Waits until an invariant is violated.
    pub(super) async fn wait_for_violation(&self) -> Violation {
        loop {
            if let Some(violation) = self.violation() {
                return violation;
            }
            self.failed.notified().await;
        }
    }

    /// Returns the faults that have happened, and the mask with their bits.
    pub(super) fn happened(&self) -> (Vec<Fault>, u16) {
        let inner = self.inner();
        let happened = inner.plan.iter().filter(|planned| planned.has_happened);
        let bits = happened.clone().fold(0, |bits, planned| bits | planned.bit);
        (happened.map(|planned| planned.fault).collect(), bits)
    }

    /// Returns all objects that the server stores.
    pub(super) fn objects(&self) -> Vec<Arc<Value>> {
        self.server.with_store(|store| store.objects().values().cloned().collect())
    }
}
