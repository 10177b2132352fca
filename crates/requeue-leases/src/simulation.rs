//! Marks a thread whose time is that of a tokio runtime.

use std::cell::Cell;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

thread_local! {
    /// The beginning of the simulation: the time of day, and the time of the runtime's clock.
    static BEGIN: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
}

/// Ends a simulation when it is dropped.
#[derive(Debug)]
pub struct Simulation {
    before: Option<(Timestamp, Instant)>,
}

/// Begins a simulation of several processes on this thread, at this time of day.
///
/// During the simulation, elections and shard groups use the clock of the current runtime and the random numbers of
/// `fastrand`, and several controllers can have the same name.
#[must_use]
pub fn simulate(begin: Timestamp) -> Simulation {
    Simulation { before: BEGIN.replace(Some((begin, Instant::now()))) }
}

/// Returns true during a simulation.
#[must_use]
pub fn is_simulated() -> bool {
    BEGIN.get().is_some()
}

/// Returns the time of day, for fields of objects such as `lastTransitionTime`.
///
/// The result is [`Timestamp::now`], except on the thread of a test with `explore` of requeue-testkit. On that thread,
/// the result is the time of the API server, so that two runs of one seed write the same objects.
///
/// # Examples
///
/// ```
/// use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
///
/// # use requeue_leases::simulation as requeue_kube;
/// let since = Time(requeue_kube::now());
/// assert!(since.0 <= requeue_kube::now());
/// ```
#[must_use]
pub fn now() -> Timestamp {
    match BEGIN.get() {
        Some((begin, since)) => begin.saturating_add(since.elapsed()).unwrap_or(Timestamp::MAX),
        None => Timestamp::now(),
    }
}

/// Returns an identifier that no other process has.
pub(crate) fn unique_id() -> Uuid {
    match is_simulated() {
        true => uuid::Builder::from_random_bytes(fastrand::u128(..).to_ne_bytes()).into_uuid(),
        false => Uuid::new_v4(),
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        BEGIN.set(self.before);
    }
}
