//! Runs a test with many seeds, with simulated faults and virtual time.
//!
//! A seed determines the delays of all messages, and the faults. The faults are refused, lost
//! and unanswered requests, conflicts, interrupted, late and repeated watches, crashes between
//! any two requests, and partitions from Leases. The same seed results in the same run, if the
//! code under test is deterministic.
//!
//! # Determinism
//!
//! [`explore`] runs each seed on one thread, whose tokio time is paused, and seeds `fastrand`. Seeds run at the same time
//! on several threads. Therefore, a test must not keep state in a `static`, or anywhere else outside the future that its
//! closure returns. The failure of the smallest seed is reported.
//! [`explore`] cannot seed other sources of randomness:
//!
//! - The order of the entries of a `std::collections::HashMap` differs between two runs. If
//!   several runs are in flight, kube's own `Controller` polls them in this order. The
//!   controller of requeue-kube polls them in a fixed order.
//! - `tokio::select!` polls its branches in a random order, unless it begins with `biased`.
//!   `tokio::sync::watch` wakes several receivers in a random order. The client of a store uses
//!   both.
//! - `SystemTime::now`, `Instant::now` of the standard library, and `Timestamp::now` return the
//!   real time. The function `now` of requeue-kube returns the time of the API server. kube's
//!   `Recorder` uses the real time in Events and in their names.
//!
//! A failure that depends on one of these sources may not be repeated. The report then says that
//! a second run of the same number has passed.

mod link;
mod log;
mod network;
mod panics;
mod plan;
mod process;
mod state;
#[cfg(feature = "store")]
mod store;
mod watch;
mod world;

use std::env;
use std::fmt;
use std::future::Future;
use std::mem;
use std::num::NonZero;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use requeue_leases::simulation::simulate;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use self::log::Log;
use self::panics::{Recording, first_panic, message_of};
use self::plan::Number;
pub use self::plan::{Fault, Mishap, Point};
pub use self::process::{Outcome, Process, StepFailed};
use self::state::State;
pub use self::world::World;
use crate::invariants::{Invariant, Violation};
use crate::server::START;

/// The environment variable with the number of the run to replay.
const REPLAY: &str = "REQUEUE_SEED";
/// The environment variable with the number of seeds. It replaces the number in the test.
const SEEDS: &str = "REQUEUE_SEEDS";

/// Runs the test with each of the first `seeds` seeds, on all processors.
///
/// The failure of the smallest seed is shrunk: faults are removed from its plan while the test
/// still fails in the same way. The message contains a number. To run the same seed with the
/// same faults again, pass this number to [`replay`], or set the variable `REQUEUE_SEED`. The
/// variable `REQUEUE_SEEDS` replaces `seeds`.
///
/// # Panics
///
/// Panics if the test fails with a seed: an invariant is violated, the test returns an error, or
/// the code panics.
///
/// # Examples
///
/// ```
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::api::{Api, Patch, PatchParams};
/// use requeue_testkit::explore::explore;
/// use serde_json::json;
///
/// explore(10, |world| async move {
///     // The process fails if its request fails, and is started again.
///     world.run_controller(|client| async move {
///         let maps = Api::<ConfigMap>::default_namespaced(client);
///         let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" } });
///         maps.patch("a", &PatchParams::apply("example"), &Patch::Apply(map)).await
///     });
///     let get = async |client| Api::<ConfigMap>::default_namespaced(client).get("a").await.map(drop);
///     world.converges(get).await;
/// });
/// ```
#[track_caller]
pub fn explore<F, Fut>(seeds: u64, test: F)
where
    F: Fn(World) -> Fut + Sync,
    Fut: Future,
    Fut::Output: Outcome,
{
    if let Some(number) = read_variable(REPLAY) {
        return replay(number, test);
    }
    if let Some(failure) = find_failure(read_variable(SEEDS).unwrap_or(seeds), test) {
        panic!("{failure}");
    }
}

/// Runs the test once. `number` is from the message of a failure, and contains the seed and its
/// faults.
///
/// # Panics
///
/// Panics if the test fails, as [`explore`] does.
#[track_caller]
pub fn replay<F, Fut>(number: u64, test: F)
where
    F: Fn(World) -> Fut,
    Fut: Future,
    Fut::Output: Outcome,
{
    if let Err(failure) = run_once(Number::from_u64(number), &test) {
        panic!("{failure}");
    }
}

/// Runs the test as [`explore`] does. Returns the shrunk failure of the smallest failing seed,
/// or `None` if no seed fails.
///
/// # Examples
///
/// ```
/// use requeue_testkit::explore::find_failure;
///
/// let failure = find_failure(100, |world| async move { assert!(world.draw(0..10) != 3) });
/// assert!(failure.expect("some seed draws a 3").number() > 0);
/// ```
#[must_use]
pub fn find_failure<F, Fut>(seeds: u64, test: F) -> Option<Failure>
where
    F: Fn(World) -> Fut + Sync,
    Fut: Future,
    Fut::Output: Outcome,
{
    let failure = first_failure(seeds, &test)?;
    Some(shrink(failure, &test))
}

/// Runs the test once with a number, and returns the log of its requests with their bodies. If
/// the logs of two runs are equal, the test is deterministic.
///
/// The log omits the names and bodies of Events, because kube's `Recorder` puts the real time
/// into them.
///
/// # Errors
///
/// Returns the failure of the test, if it fails.
pub fn record<F, Fut>(number: u64, test: F) -> Result<Vec<String>, Failure>
where
    F: Fn(World) -> Fut,
    Fut: Future,
    Fut::Output: Outcome,
{
    run_once(Number::from_u64(number), &test).map(|log| log.lines().collect())
}

/// A failed run of a test.
#[derive(Clone, Debug)]
pub struct Failure {
    number: Number,
    violation: Violation,
    faults: Vec<Fault>,
    /// A mask with the bits of the faults that happened in the run.
    happened: u16,
    /// The number of faults that happened before the failure was shrunk.
    faults_before: usize,
    log: Box<[String]>,
    is_reproducible: bool,
}

impl Failure {
    /// Returns the number with which [`replay`] repeats the run.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number.to_u64()
    }

    /// Returns the invariant that was violated.
    #[must_use]
    pub const fn invariant(&self) -> Invariant {
        self.violation.invariant
    }

    /// Returns the faults without which the test does not fail in this way.
    #[must_use]
    pub fn faults(&self) -> &[Fault] {
        &self.faults
    }

    /// Returns true if both runs have failed in the same way: with the same invariant, and, for
    /// a panic, the same message.
    fn is_like(&self, other: &Self) -> bool {
        self.violation.invariant == other.violation.invariant
            && (self.violation.invariant != Invariant::NoPanic
                || self.violation.what == other.violation.what)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.number();
        writeln!(f, "{}: {}", self.violation.invariant, self.violation.what)?;
        writeln!(f, "replay it with {REPLAY}={number} (seed {})", self.number.seed)?;
        if !self.is_reproducible {
            writeln!(f, "a second run of this number passed: the code under test is random")?;
        }
        writeln!(f, "{} of {} faults are necessary:", self.faults.len(), self.faults_before)?;
        for fault in &self.faults {
            writeln!(f, "  {fault}")?;
        }
        writeln!(f, "the end of the log:")?;
        for line in &self.log {
            writeln!(f, "  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Failure {}

/// Runs the seeds on all processors. Returns the failure of the smallest failing seed.
fn first_failure<F, Fut>(seeds: u64, test: &F) -> Option<Failure>
where
    F: Fn(World) -> Fut + Sync,
    Fut: Future,
    Fut::Output: Outcome,
{
    let cores = thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let others = cores.min(seeds).saturating_sub(1);
    let left = Mutex::new(0..seeds);
    let work = || {
        loop {
            let seed = left.lock().next()?;
            if let Err(failure) = run_once(Number::of_seed(seed), test) {
                // The seeds are started in increasing order. All smaller seeds have therefore
                // started, and no larger seed needs to be started.
                *left.lock() = 0..0;
                return Some(failure);
            }
        }
    };
    let failures = thread::scope(|scope| {
        let others: Vec<_> = (0..others).map(|_| scope.spawn(work)).collect();
        let mut failures = vec![work()];
        for other in others {
            failures.push(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        failures
    });
    failures.into_iter().flatten().min_by_key(|failure| failure.number.seed)
}

/// Removes faults from a failing run, while the test fails in the same way.
fn shrink<F, Fut>(failure: Failure, test: &F) -> Failure
where
    F: Fn(World) -> Fut,
    Fut: Future,
    Fut::Output: Outcome,
{
    let faults_before = failure.faults.len();
    let mut best = failure;
    // The first run omits only the faults that did not happen. If it fails in another way or
    // passes, the failure is not reproducible.
    let number = Number { mask: best.happened, ..best.number };
    match run_once(number, test) {
        Err(found) if found.is_like(&best) => best = found,
        _ => return Failure { is_reproducible: false, ..best },
    }
    // The next run has no faults. Many failures need none, and this run is the shortest.
    let none = Number { mask: 0, ..best.number };
    if let Err(found) = run_once(none, test)
        && found.is_like(&best)
    {
        return Failure { faults_before, ..found };
    }
    // After a fault is removed, an earlier one may have become unnecessary. Each pass tries all
    // faults once, and passes are repeated until no fault is removed. This needs fewer runs than
    // a restart after each removal.
    let mut mask_before = 0;
    while mask_before != best.number.mask {
        mask_before = best.number.mask;
        for bit in (0..u16::BITS).map(|n| 1 << n).filter(|bit| mask_before & bit != 0) {
            let number = Number { mask: best.number.mask & !bit, ..best.number };
            if let Err(found) = run_once(number, test)
                && found.is_like(&best)
            {
                best = found;
            }
        }
    }
    Failure { faults_before, ..best }
}

/// Runs the test once. Returns the log of the run, or the failure.
fn run_once<F, Fut>(number: Number, test: &F) -> Result<Log, Failure>
where
    F: Fn(World) -> Fut,
    Fut: Future,
    Fut::Output: Outcome,
{
    // `fastrand` provides the jitter of kube's watchers, of requeue's limiters and of stores.
    fastrand::seed(number.seed);
    let _recording = Recording::start();
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build();
    let runtime = runtime.expect("a process may have another epoll descriptor");
    let _simulation = {
        let _entered = runtime.enter();
        simulate(START)
    };
    let tasks = LocalSet::new();
    let mut state = None;
    let ran = catch_unwind(AssertUnwindSafe(|| {
        tasks.block_on(&runtime, async {
            let new = Arc::new(State::new(number));
            state = Some(Arc::clone(&new));
            let world = World::new(Arc::clone(&new));
            tokio::select! {
                biased;
                violation = new.wait_for_violation() => Err(violation),
                outcome = test(world) => match outcome.error() {
                    Some(what) => Err(Violation { invariant: Invariant::Converges, what }),
                    None => Ok(()),
                },
            }
        })
    }));
    let violation = match ran {
        Ok(Err(violation)) => Some(violation),
        // The last poll of the test can complete it, and also violate an invariant.
        Ok(Ok(())) => state.as_ref().and_then(|state| state.violation()),
        Err(panic) => {
            let what = first_panic().unwrap_or_else(|| message_of(&*panic).to_owned());
            Some(Violation { invariant: Invariant::NoPanic, what })
        }
    };
    // The code under test may have caught a panic, which is a failure nevertheless.
    let is_checked =
        state.as_ref().is_none_or(|state| state.inner().invariants.is_enabled(Invariant::NoPanic));
    let violation = violation.or_else(|| {
        let what = first_panic().filter(|_| is_checked)?;
        Some(Violation { invariant: Invariant::NoPanic, what })
    });
    let Some(state) = state else { return Ok(Log::default()) };
    let result = match violation {
        None => Ok(mem::take(&mut state.inner().log)),
        Some(violation) => {
            let (faults, happened) = state.happened();
            let faults_before = faults.len();
            let log = state.inner().log.tail().into();
            Err(Failure {
                number,
                violation,
                faults,
                happened,
                faults_before,
                log,
                is_reproducible: true,
            })
        }
    };
    // The tasks may panic when they are dropped. This is not a failure of the test.
    _ = catch_unwind(AssertUnwindSafe(move || drop((tasks, runtime))));
    result
}

fn read_variable(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    match value.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{name} must be a number, and is {value:?}"),
    }
}

#[cfg(test)]
mod tests;
