//! `--wait`: retries to open a store that cannot be reached yet.

use std::error::Error;
use std::time::{Duration, Instant};

use requeue_store::{ConnectError, ErrorKind, MigrateError, OpenError};

use crate::client::connections::Fault;
use crate::duration::{growing_pauses, shown};
use crate::exit::{Exit, Refusal, complain, error_chain};
use crate::output::log;

/// The time between two messages while the program waits for a store.
const EVERY: Duration = Duration::from_secs(60);
/// The longest time between two attempts.
const MOST: Duration = Duration::from_secs(2);

/// The error of an attempt to open a store or a queue.
#[derive(Debug)]
pub(super) struct Unopened {
    pub(super) refusal: Refusal,
    /// True if a later attempt may succeed.
    is_temporary: bool,
}

impl Unopened {
    fn new(kind: ErrorKind, error: &(dyn Error + 'static)) -> Self {
        let exit = if kind == ErrorKind::Invalid { Exit::Usage } else { Exit::Failure };
        let refusal = Refusal { exit, message: error_chain(error) };
        Self { refusal, is_temporary: kind.is_temporary() }
    }
}

impl From<Refusal> for Unopened {
    fn from(refusal: Refusal) -> Self {
        Self { refusal, is_temporary: false }
    }
}

impl From<Fault> for Unopened {
    fn from(fault: Fault) -> Self {
        let is_temporary = fault.kind.is_temporary();
        Self { refusal: fault.into(), is_temporary }
    }
}

impl From<ConnectError> for Unopened {
    fn from(error: ConnectError) -> Self {
        Self::new(error.kind(), &error)
    }
}

impl From<MigrateError> for Unopened {
    fn from(error: MigrateError) -> Self {
        Self::new(error.kind(), &error)
    }
}

impl From<OpenError> for Unopened {
    fn from(error: OpenError) -> Self {
        Self::new(error.kind(), &error)
    }
}

/// Calls `open` once. With `--wait`, calls it until it succeeds, fails permanently, or the time limit is reached.
pub(super) async fn open_patiently<T>(
    wait: Option<Option<Duration>>,
    open: impl AsyncFn() -> Result<T, Unopened>,
) -> Result<T, Refusal> {
    // Nothing else writes to standard error at this time, so log events can be printed directly.
    let _shown = log::show_here();
    let began = Instant::now();
    let mut next_pause = growing_pauses(Duration::from_millis(25), MOST);
    let mut last_said: Option<Instant> = None;
    loop {
        let Unopened { mut refusal, is_temporary } = match open().await {
            Ok(opened) => {
                if last_said.is_some() {
                    complain(&format!("store ready after {}", shown(began.elapsed())));
                }
                return Ok(opened);
            }
            Err(unopened) => unopened,
        };
        if !is_temporary {
            return Err(refusal);
        }
        let Some(limit) = wait else {
            refusal.message += "; --wait retries until the store is ready";
            return Err(refusal);
        };
        let pause = next_pause();
        // The next attempt would come after the time limit, so the program does not wait for it.
        if limit.is_some_and(|limit| began.elapsed() + pause > limit) {
            refusal.message += &format!("; gave up after {}", shown(began.elapsed()));
            return Err(refusal);
        }
        if last_said.is_none_or(|said| said.elapsed() >= EVERY) {
            complain(&format!("store not ready: {}; retrying", refusal.message));
            last_said = Some(Instant::now());
        }
        tokio::time::sleep(pause).await;
    }
}
