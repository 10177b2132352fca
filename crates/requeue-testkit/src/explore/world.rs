//! The world of one run: an API server, processes, and a clock.

use std::error::Error;
use std::fmt;
use std::future::{Future, pending};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use super::link::Link;
use super::log::What;
use super::network::Network;
use super::panics::first_panic;
use super::process::{Outcome, Process, supervise};
use super::state::{State, Work};
use crate::ApiServer;
use crate::invariants::{Invariant, Write, Writer, check_end};

/// The default time after the last fault within which the desired state must be reached.
const BOUND: Duration = Duration::from_secs(300);
/// The default time for which nothing may change after the desired state is reached.
const QUIET: Duration = Duration::from_secs(30);
/// The longest time between two checks of the desired state.
const MOST_PAUSE: Duration = Duration::from_secs(15);
/// The maximum number of requests per second in the quiet time. It is not 0, because a controller
/// may read its objects periodically.
const QUIET_RATE: u64 = 10;

/// The world of one run: an API server, processes, and a clock.
///
/// The clock of the world is virtual: it advances only when all tasks wait. Clones are handles to
/// the same world.
#[derive(Clone)]
pub struct World {
    state: Arc<State>,
    client: Client,
    bound: Duration,
    quiet: Duration,
}

impl World {
    pub(super) fn new(state: Arc<State>) -> Self {
        let link = Link::new(Arc::clone(&state), Writer::User);
        let client = Network(Arc::new(link)).client("default");
        Self { state, client, bound: BOUND, quiet: QUIET }
    }

    /// Returns the seed of the run.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.state.number.seed
    }

    /// Returns a random number in the range. It depends only on the seed and on the earlier calls.
    ///
    /// # Panics
    ///
    /// Panics if the range is empty.
    #[must_use]
    pub fn draw(&self, range: Range<u64>) -> u64 {
        self.state.inner().random.u64(range)
    }

    /// Returns the API server of the world.
    #[must_use]
    pub fn server(&self) -> &ApiServer {
        &self.state.server
    }

    /// Returns a client for the test. Faults do not affect its requests.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Creates the schema of the world's store, and returns a client for the test. Faults do not
    /// affect its requests.
    ///
    /// The queues of the store are in a SQLite database in memory, with the same engine as a file.
    /// Its clock is the clock of the world. As with a file, a process notices the adds of other
    /// processes only when it polls.
    ///
    /// # Errors
    ///
    /// Returns an error if SQLite cannot create the schema, for example because there is too
    /// little memory.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schema may be missing. The call can be repeated.
    #[cfg(feature = "store")]
    #[cfg_attr(docsrs, doc(cfg(feature = "store")))]
    pub async fn store(&self) -> Result<requeue_store::Store, requeue_store::MigrateError> {
        let link = Arc::new(Link::new(Arc::clone(&self.state), Writer::User));
        let store = super::store::connect(&self.state, link);
        store.migrate().await?;
        Ok(store)
    }

    /// Sets the time within which [`converges`](Self::converges) must succeed after the last
    /// fault. The default is 5 min.
    #[must_use]
    pub fn bound(mut self, bound: Duration) -> Self {
        self.bound = bound;
        self
    }

    /// Sets the time for which nothing may change after the desired state is reached. The default
    /// is 30 s.
    #[must_use]
    pub fn quiet_for(mut self, quiet: Duration) -> Self {
        self.quiet = quiet;
        self
    }

    /// Sets the number of requests that counts as a hot loop. Only requests after the last fault,
    /// and after the last change by the test, are counted.
    ///
    /// The default is 500. Watches and requests for Leases are not counted.
    pub fn most_requests(&self, most: u64) {
        self.state.inner().most_requests = most;
    }

    /// Disables an invariant in this run.
    pub fn disable(&self, invariant: Invariant) {
        self.state.inner().invariants.disable(invariant);
    }

    /// Adds an invariant. The world calls `check` after each write that the API server has
    /// executed.
    pub fn check(
        &self,
        name: &'static str,
        check: impl FnMut(&Write) -> Result<(), String> + Send + 'static,
    ) {
        self.state.inner().invariants.add_check(name, Box::new(check));
    }

    /// Declares which objects are wanted. If a process deletes one of them, the run fails.
    pub fn wanted(&self, is_wanted: impl Fn(&Value) -> bool + Send + 'static) {
        self.state.inner().invariants.add_wanted(Box::new(is_wanted));
    }

    /// Returns the number of starts of all processes, including those after crashes and errors.
    #[must_use]
    pub fn starts(&self) -> u64 {
        self.state.inner().work.starts
    }

    /// Adds a line to the log of the run. If the run fails, the report contains the last lines of
    /// the log.
    pub fn note(&self, text: impl fmt::Display) {
        self.state.note(Some(Writer::User), What::Note(text.to_string()));
    }

    /// Ends the run, because the condition with this name does not hold. `what` describes the
    /// violation.
    pub fn violated(&self, name: &'static str, what: impl fmt::Display) {
        self.state.violate(Invariant::Custom(name), what.to_string());
    }

    /// Runs a controller as a process, which receives a client. After a crash or an error, the
    /// world starts it again.
    pub fn run_controller<F, Fut>(&self, controller: F)
    where
        F: Fn(Client) -> Fut + 'static,
        Fut: Future + 'static,
        Fut::Output: Outcome,
    {
        self.run(move |process| controller(process.client()));
    }

    /// Runs a process. After a crash or an error, the world starts it again.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a run of [`explore`](super::explore).
    pub fn run<F, Fut>(&self, program: F)
    where
        F: Fn(Process) -> Fut + 'static,
        Fut: Future + 'static,
        Fut::Output: Outcome,
    {
        self.run_replicas(1, program);
    }

    /// Runs several replicas of a process. All of them start within 20 s.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside of a run of [`explore`](super::explore).
    pub fn run_replicas<F, Fut>(&self, replicas: u32, program: F)
    where
        F: Fn(Process) -> Fut + 'static,
        Fut: Future + 'static,
        Fut::Output: Outcome,
    {
        let set = {
            let mut inner = self.state.inner();
            inner.sets += 1;
            inner.sets
        };
        let program = Rc::new(program);
        for replica in 0..replicas {
            let program = Rc::clone(&program);
            let state = Arc::clone(&self.state);
            spawn_local(supervise(state, set, replica, move |process| program(process)));
        }
    }

    /// Waits until `check` succeeds and nothing changes any longer. Then checks the invariants
    /// that must hold at the end of a run.
    ///
    /// `check` receives the client of the test. It must succeed within the [bound](Self::bound)
    /// after the last fault. It must succeed again at the end of the [quiet
    /// time](Self::quiet_for).
    ///
    /// # Cancel safety
    ///
    /// The call changes nothing, so the future can be dropped at any time.
    pub async fn converges<F, E>(&self, check: F)
    where
        F: AsyncFn(Client) -> Result<(), E>,
        E: Into<Box<dyn Error + Send + Sync>>,
    {
        let mut pause = Duration::from_secs(1);
        loop {
            if let Err(error) = check(self.client()).await {
                if self.is_late() {
                    let what = format!("{} after the last fault: {}", self.since(), error.into());
                    return self.violate(Invariant::Converges, what).await;
                }
                sleep(pause).await;
                pause = (pause * 2).min(MOST_PAUSE);
                continue;
            }
            let before = self.work();
            sleep(self.quiet).await;
            let (after, panic) = (self.work(), first_panic());
            if let Some(panic) = panic {
                return self.violate(Invariant::NoPanic, panic).await;
            }
            let requests = after.0.requests - before.0.requests;
            let parts = |work: &Work| (work.changes, work.steps, work.starts);
            let is_quiet = parts(&after.0) == parts(&before.0);
            let is_undisturbed = after.0.faults == before.0.faults && after.1 == before.1;
            if !is_undisturbed || after.1 > Instant::now() - self.quiet {
                continue;
            }
            if !is_quiet && !self.is_late() {
                continue;
            }
            let most = QUIET_RATE.saturating_mul(self.quiet.as_secs().max(1));
            if !is_quiet || requests > most {
                let what = format!(
                    "{} after the last fault, the processes made {requests} requests, {} changes and {} steps \
                     within {:?}, and started {} times",
                    self.since(),
                    after.0.changes - before.0.changes,
                    after.0.steps - before.0.steps,
                    self.quiet,
                    after.0.starts - before.0.starts,
                );
                return self.violate(Invariant::Quiet, what).await;
            }
            if check(self.client()).await.is_err() {
                continue;
            }
            let objects = self.state.objects();
            if let Err(violation) = check_end(objects.iter().map(|object| &**object)) {
                if !self.is_late() {
                    sleep(Duration::from_secs(1)).await;
                    continue;
                }
                return self.violate(violation.invariant, violation.what).await;
            }
            return;
        }
    }

    fn work(&self) -> (Work, Instant) {
        let inner = self.state.inner();
        (inner.work, inner.disturbed)
    }

    fn is_late(&self) -> bool {
        Instant::now().duration_since(self.work().1) > self.bound
    }

    fn since(&self) -> String {
        format!("{:.0?}", Instant::now().duration_since(self.work().1))
    }

    /// Ends the run with a violation of this invariant, unless the invariant is disabled.
    async fn violate(&self, invariant: Invariant, what: String) {
        let is_enabled = self.state.inner().invariants.is_enabled(invariant);
        self.state.violate(invariant, what);
        if is_enabled {
            pending().await
        }
    }
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").field("seed", &self.seed()).finish_non_exhaustive()
    }
}
