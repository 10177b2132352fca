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

/// The time after the last fault in which the desired state must be reached, by default.
const BOUND: Duration = Duration::from_secs(300);
/// The time for which nothing may change after that, by default.
const QUIET: Duration = Duration::from_secs(30);
/// The longest pause between two checks.
const MOST_PAUSE: Duration = Duration::from_secs(15);
/// The most requests per second of that time. A controller may look at its objects now and then.
const QUIET_RATE: u64 = 10;

/// The world of one run.
///
/// Its time is virtual: it passes only while all tasks wait. Clones are handles of the same world.
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

    /// Draws a number from the range, which depends only on the seed and on earlier calls.
    ///
    /// # Panics
    ///
    /// Panics if the range is empty.
    #[must_use]
    pub fn draw(&self, range: Range<u64>) -> u64 {
        self.state.inner().random.u64(range)
    }

    /// Returns the API server.
    #[must_use]
    pub fn server(&self) -> &ApiServer {
        &self.state.server
    }

    /// Returns the client of the test, which no fault affects.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the store of the world, which no fault affects, and creates its schema.
    ///
    /// Its queues are in SQLite in memory: the engine of a file, whose time is that of the world. As with a file, a
    /// process learns of the adds of others when it polls.
    ///
    /// # Errors
    ///
    /// Returns an error if SQLite refuses the schema, for example without memory.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schema may be missing. Repeating the call is harmless.
    #[cfg(feature = "store")]
    #[cfg_attr(docsrs, doc(cfg(feature = "store")))]
    pub async fn store(&self) -> Result<requeue_store::Store, requeue_store::MigrateError> {
        let link = Arc::new(Link::new(Arc::clone(&self.state), Writer::User));
        let store = super::store::connect(&self.state, link);
        store.migrate().await?;
        Ok(store)
    }

    /// Sets the time after the last fault in which [`converges`](Self::converges) must succeed. The default is 5 min.
    #[must_use]
    pub fn bound(mut self, bound: Duration) -> Self {
        self.bound = bound;
        self
    }

    /// Sets the time for which nothing may change in the end. The default is 30 s.
    #[must_use]
    pub fn quiet_for(mut self, quiet: Duration) -> Self {
        self.quiet = quiet;
        self
    }

    /// Sets the number of requests, after the last fault and the last write of the user, that count as a hot loop.
    ///
    /// The default is 500. Requests for Leases, and watches, do not count.
    pub fn most_requests(&self, most: u64) {
        self.state.inner().most_requests = most;
    }

    /// Leaves out an invariant.
    pub fn disable(&self, invariant: Invariant) {
        self.state.inner().invariants.disable(invariant);
    }

    /// Adds an invariant, which is checked after each write that the API server has executed.
    pub fn check(
        &self,
        name: &'static str,
        check: impl FnMut(&Write) -> Result<(), String> + Send + 'static,
    ) {
        self.state.inner().invariants.add_check(name, Box::new(check));
    }

    /// Declares objects as wanted: no process may delete them.
    pub fn wanted(&self, is_wanted: impl Fn(&Value) -> bool + Send + 'static) {
        self.state.inner().invariants.add_wanted(Box::new(is_wanted));
    }

    /// Returns the number of starts of all processes: the first ones, and those after crashes and errors.
    #[must_use]
    pub fn starts(&self) -> u64 {
        self.state.inner().work.starts
    }

    /// Adds a line to the log of the run, which a failure prints.
    pub fn note(&self, text: impl fmt::Display) {
        self.state.note(Some(Writer::User), What::Note(text.to_string()));
    }

    /// Ends the run: the condition of this name does not hold.
    pub fn violated(&self, name: &'static str, what: impl fmt::Display) {
        self.state.violate(Invariant::Custom(name), what.to_string());
    }

    /// Runs a controller with a client, and starts it again after a crash or an error.
    pub fn run_controller<F, Fut>(&self, controller: F)
    where
        F: Fn(Client) -> Fut + 'static,
        Fut: Future + 'static,
        Fut::Output: Outcome,
    {
        self.run(move |process| controller(process.client()));
    }

    /// Runs a process, and starts it again after a crash or an error.
    ///
    /// # Panics
    ///
    /// Panics outside [`explore`](super::explore).
    pub fn run<F, Fut>(&self, program: F)
    where
        F: Fn(Process) -> Fut + 'static,
        Fut: Future + 'static,
        Fut::Output: Outcome,
    {
        self.run_replicas(1, program);
    }

    /// Runs several replicas of a process, which start within 20 s.
    ///
    /// # Panics
    ///
    /// Panics outside [`explore`](super::explore).
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

    /// Waits until `check` succeeds and nothing changes any longer, and checks all invariants of the end.
    ///
    /// `check` gets the client of the test. It must succeed within the [bound](Self::bound) after the last fault, and
    /// again at the end of the [quiet time](Self::quiet_for).
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: it changes nothing.
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

    /// Ends the run, unless the invariant is disabled.
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
