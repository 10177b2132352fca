//! A process of a world. It can crash, and the world then starts it again.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use futures_util::FutureExt;
use kube::Client;
use tokio::time::sleep;

use super::link::{Link, draw_delay};
use super::log::What;
use super::network::Network;
use super::panics::message_of;
use super::plan::Mishap;
use super::state::{Place, State};
use crate::invariants::{Invariant, Writer};

/// A process of a world, from one start to its end or crash. After a crash, the program is
/// called again with another value.
///
/// A crash drops the future of the process, and breaks its connections. Tasks that the process
/// has spawned may continue. However, they can reach neither the API server nor a store.
#[derive(Clone)]
pub struct Process {
    link: Arc<Link>,
}

impl Process {
    /// Returns a client of the API server that is subject to the faults of the seed.
    #[must_use]
    pub fn client(&self) -> Client {
        Network(Arc::clone(&self.link)).client("default")
    }

    /// Returns a client of the world's store that is subject to the faults of the seed.
    ///
    /// The test must first create the schema of the store with
    /// [`World::store`](super::World::store).
    #[cfg(feature = "store")]
    #[cfg_attr(docsrs, doc(cfg(feature = "store")))]
    #[must_use]
    pub fn store(&self) -> requeue_store::Store {
        super::store::connect(&self.link.state, Arc::clone(&self.link))
    }

    /// Returns the name of this start of the process, such as `process 1.0.2`.
    ///
    /// The name is unique in the world, so the process can use it as its identity in an
    /// election.
    #[must_use]
    pub fn name(&self) -> String {
        self.link.writer.to_string()
    }

    /// Marks a point between two effects of a handler. At this point, the process may be
    /// delayed, fail, panic or crash, as the seed determines.
    ///
    /// # Errors
    ///
    /// Returns [`StepFailed`] if a fault of the seed makes this step fail. The handler should
    /// then fail, too.
    ///
    /// # Panics
    ///
    /// Panics if a fault of the seed makes this step panic. This panic does not violate
    /// [`Invariant::NoPanic`](crate::invariants::Invariant::NoPanic).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the step may have been executed or not.
    pub async fn step(&self, name: &str) -> Result<(), StepFailed> {
        let link = &self.link;
        link.stop_if_dead().await;
        link.state.note(Some(link.writer), What::Note(format!("step {name}")));
        link.state.inner().work.steps += 1;
        let mut reached = link.state.reach(Place::Step, link.writer);
        sleep(draw_delay(&mut reached.random)).await;
        match reached.mishap {
            Some(Mishap::Failed) => return Err(StepFailed { name: name.to_owned() }),
            // `resume_unwind` does not call the panic hook, which records the panics of the code
            // under test.
            Some(Mishap::Panicked) => resume_unwind(Box::new(PlannedPanic)),
            Some(Mishap::Late(time)) => sleep(time).await,
            Some(Mishap::CrashBefore | Mishap::CrashAfter) => link.kill(),
            _ => {}
        }
        link.stop_if_dead().await;
        Ok(())
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Process").field(&self.link.writer).finish()
    }
}

/// The payload of a panic that a fault has caused.
struct PlannedPanic;

/// The error of a step that a fault has made fail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepFailed {
    name: String,
}

impl fmt::Display for StepFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the step {} fails, by a fault of the test", self.name)
    }
}

impl std::error::Error for StepFailed {}

/// The output of a test or of a process: `()` or a `Result`.
pub trait Outcome {
    /// Returns the text of the error, or `None` after a success.
    fn error(self) -> Option<String>;
}

impl Outcome for () {
    fn error(self) -> Option<String> {
        None
    }
}

impl<T, E: fmt::Display> Outcome for Result<T, E> {
    fn error(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}

/// Runs a replica of a process until it ends without an error. Starts it again after a crash, an
/// error or a panic.
pub(super) async fn supervise<F, Fut>(state: Arc<State>, set: u32, replica: u32, program: F)
where
    F: Fn(Process) -> Fut,
    Fut: Future,
    Fut::Output: Outcome,
{
    let salt = u64::from(set) << 32 | u64::from(replica);
    let mut random = Rng::with_seed(state.number.seed.rotate_left(17) ^ salt);
    if replica > 0 {
        sleep(Duration::from_millis(random.u64(0..20_000))).await;
    }
    for start in 0.. {
        let writer = Writer::Process { set, replica, start };
        let link = Arc::new(Link::new(Arc::clone(&state), writer));
        state.note(Some(writer), What::Note("starts".to_owned()));
        state.inner().work.starts += 1;
        let process = Process { link: Arc::clone(&link) };
        let running = AssertUnwindSafe(async { program(process).await }).catch_unwind();
        let ended = tokio::select! {
            biased;
            () = link.wait_for_crash() => None,
            ended = running => Some(ended),
        };
        // Tasks that the process has spawned may continue after its future. They must not reach
        // the servers.
        link.kill();
        let what = match ended {
            None => "crashed".to_owned(),
            Some(Ok(outcome)) => match outcome.error() {
                None => {
                    state.note(Some(writer), What::Note("has ended".to_owned()));
                    return;
                }
                Some(error) => format!("has failed: {error}"),
            },
            Some(Err(panic)) if panic.is::<PlannedPanic>() => "has panicked, as planned".to_owned(),
            Some(Err(panic)) => {
                let message = message_of(&*panic);
                state.violate(Invariant::NoPanic, format!("{writer} panicked: {message}"));
                return;
            }
        };
        state.note(Some(writer), What::Note(what));
        // Like a kubelet, the world waits longer before each further start.
        let pause = 1_u64 << start.min(6);
        sleep(Duration::from_millis(random.u64(500..=1_000) * pause)).await;
    }
}
