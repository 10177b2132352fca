//! Simulations, in which the time of a thread is the time of its tokio runtime.

use std::cell::Cell;

use k8s_openapi::jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

thread_local! {
    /// The start of the simulation on this thread, as a time of day and as a time of the runtime's clock.
    static BEGIN: Cell<Option<(Timestamp, Instant)>> = const { Cell::new(None) };
}

/// A guard for a simulation. Dropping it ends the simulation.
#[derive(Debug)]
pub struct Simulation {
    before: Option<(Timestamp, Instant)>,
}

/// Begins a simulation of several processes on this thread. The simulated time of day is now `begin`.
///
/// During the simulation, elections and shard groups use the clock of the current runtime and the random numbers of
/// `fastrand`. Several controllers may then have the same name, because they are in different simulated processes.
#[must_use]
pub fn simulate(begin: Timestamp) -> Simulation {
    Simulation { before: BEGIN.replace(Some((begin, Instant::now()))) }
}

/// Returns true if this thread runs a simulation.
#[must_use]
pub fn is_simulated() -> bool {
    BEGIN.get().is_some()
}

/// Returns the time of day, for example for the field `lastTransitionTime` of an object.
///
/// The result is [`Timestamp::now`], except in a test with `explore` of requeue-testkit. There, it is the time of the
/// simulated API server. Two runs with the same seed then write the same objects.
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

/// Returns an identifier that is different in each process and at each call.
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
