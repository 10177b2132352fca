//! The subcommands on queues in a store, which are durable and shared with other machines.

pub(crate) mod adder;
pub(crate) mod look;
mod reaching;
mod remote;
mod warnings;
pub(crate) mod work;

use std::cell::RefCell;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use os_display::Quotable;
use requeue::metrics::Metrics;
use requeue_store::{OpenOptions, ParkedAdd, Queue, ReAdd, Store};

use self::reaching::{Unopened, patiently};
use crate::args::config::Config;
use crate::args::store::{self as flags, Place};
use crate::exit::{Refusal, chain};
use crate::runner::launch;

tokio::task_local! {
    /// The store of this subcommand, once it is open.
    static OPENED: RefCell<Option<Store>>;
}

/// How long the store may take to close when all is done. A file that another process has locked may
/// take longer; then its log stays beside it.
const CLOSING: Duration = Duration::from_secs(5);

/// Runs `future` on a runtime of its own, and then closes the store that it has opened: after that a
/// file is complete without its log.
fn block_on<T>(future: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    launch::block_on(OPENED.scope(RefCell::default(), async {
        let done = future.await;
        if let Some(store) = OPENED.with(RefCell::take) {
            let _ = tokio::time::timeout(CLOSING, store.close()).await;
        }
        done
    }))
}

impl Place {
    /// The queue, for a worker as `config` has it; whether it is created if there is none.
    async fn to_work_on(
        &self,
        creates: bool,
        lease: Duration,
        (re_add, parked_add): (Option<ReAdd>, Option<flags::ParkedAdd>),
        worker: Option<String>,
        config: &Config,
        metrics: Option<&Metrics>,
    ) -> Result<Queue, Refusal> {
        let failures = &config.failures;
        let how = |mut opening: OpenOptions| {
            if let Some(metrics) = metrics {
                opening = opening.metrics(metrics);
            }
            let opening = with_settings(opening, re_add, parked_add);
            let opening = opening.lease(lease).backoff(failures.base_delay, failures.max_delay);
            let opening = match &worker {
                Some(worker) => opening.worker(worker),
                None => opening,
            };
            // A command takes longer than a claim: nothing is worth holding keys that do not run.
            let opening = opening.claim_ahead(0);
            match failures.retries {
                Some(retries) => opening.max_failures(retries.saturating_add(1)),
                None => opening,
            }
        };
        if creates {
            return self.to_change(how).await;
        }
        let hint = || {
            let queue = self.queue.maybe_quote();
            format!("; `requeue add --queue {queue}` creates it, and so does --create")
        };
        self.to_find(how, hint).await
    }

    /// The queue, which is created if there is none, and so is a file for it.
    async fn to_change(&self, how: impl Fn(OpenOptions) -> OpenOptions) -> Result<Queue, Refusal> {
        patiently(self.wait.wait, async || {
            let store = connect(&self.store).await?;
            if file(&self.store).is_some() {
                store.migrate().await?;
            }
            Ok(how(store.queue(&self.queue)).open().await?)
        })
        .await
    }

    /// The queue, which exists already.
    async fn to_look_at(&self) -> Result<Queue, Refusal> {
        self.to_find(|opening| opening, String::new).await
    }

    /// The queue, which exists already; `hint` says how to create it.
    async fn to_find(
        &self,
        how: impl Fn(OpenOptions) -> OpenOptions,
        hint: impl Fn() -> String,
    ) -> Result<Queue, Refusal> {
        patiently(self.wait.wait, async || {
            let store = connect_to_look(&self.store, &hint).await?;
            let opened = how(store.queue(&self.queue)).existing().open().await;
            opened.map_err(|error| {
                let is_missing = error.is_missing();
                let mut unopened = Unopened::from(error);
                if is_missing {
                    unopened.refusal.message += &hint();
                }
                unopened
            })
        })
        .await
    }
}

/// With the settings that a new queue gets, and that one which exists has to have.
fn with_settings(
    mut opening: OpenOptions,
    re_add: Option<ReAdd>,
    parked_add: Option<flags::ParkedAdd>,
) -> OpenOptions {
    if let Some(re_add) = re_add {
        opening = opening.re_add(re_add);
    }
    if let Some(parked_add) = parked_add {
        opening = opening.parked_add(match parked_add {
            flags::ParkedAdd::Revive => ParkedAdd::Revive,
            flags::ParkedAdd::Keep => ParkedAdd::Keep,
        });
    }
    opening
}

/// The file that SQLite keeps in memory.
const MEMORY: &str = ":memory:";

/// A store that is there for others, too, and after this process.
async fn connect(url: &str) -> Result<Store, Unopened> {
    if file(url) == Some(Path::new(MEMORY)) {
        return Err(Refusal::usage(format!("{url}: it would be gone with this process")).into());
    }
    let store = Store::connect(url).await?;
    // There is one for each subcommand; that of an attempt before has gone.
    OPENED.with(|opened| opened.replace(Some(store.clone())));
    Ok(store)
}

/// The same, but no file is made; `hint` says how to make one.
async fn connect_to_look(url: &str, hint: impl Fn() -> String) -> Result<Store, Unopened> {
    // Before the file is looked for: with a wrong option it has another name.
    Store::check(url)?;
    if file(url).is_some_and(|path| !path.exists() && path != Path::new(MEMORY)) {
        return Err(Refusal::failure(format!("{url}: there is no such file{}", hint())).into());
    }
    connect(url).await
}

/// The file that a store is.
fn file(url: &str) -> Option<&Path> {
    let rest = url.strip_prefix("sqlite:")?;
    Some(Path::new(rest.split_once('?').map_or(rest, |(path, _)| path)))
}

/// The store has not done what it was asked for.
fn refusal(error: impl Error + 'static) -> Refusal {
    Refusal::failure(chain(&error))
}

fn re_add(flag: Option<ReAdd>) -> Result<Option<ReAdd>, Refusal> {
    if flag == Some(ReAdd::KeepBoth) {
        return Err(Refusal::usage("--re-add keep-both: a store has hold and replace"));
    }
    Ok(flag)
}
