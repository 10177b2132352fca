//! Queues in a store: durable, and shared with other processes and machines.

mod adder;
mod flags;
mod lending;
mod look;
mod warnings;

use std::cell::OnceCell;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use requeue::metrics::Metrics;
use requeue_store::{EarlyAdd, Opening, Queue, Store};
use tokio::sync::oneshot;

pub(crate) use self::adder::add;
pub(crate) use self::flags::{
    AddFlags, CancelFlags, ParkedFlags, Place, ReviveFlags, StatusFlags, StoreCommand, Through,
    WorkFlags,
};
pub(crate) use self::look::{cancel, parked, revive, status};

use self::adder::Reading;
use crate::args::{self, Alone, AtEof, Flags};
use crate::config::{Config, Own};
use crate::exit::{Ended, Exit, Refusal};
use crate::files::identity;
use crate::input::{Format, Kind};
use crate::reader;
use crate::run::{self, Files, Parts};
use crate::serve::Listener;
use crate::source::Input;

tokio::task_local! {
    /// The store of this subcommand, once it is open.
    static OPENED: OnceCell<Store>;
}

/// How long the store may take to close when all is done. A file that another process has locked may
/// take longer; then its log stays beside it.
const CLOSING: Duration = Duration::from_secs(5);

/// Runs `future` on a runtime of its own, and then closes the store that it has opened: after that a
/// file is complete without its log.
fn block_on<T>(future: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    run::block_on(OPENED.scope(OnceCell::new(), async {
        let done = future.await;
        if let Some(store) = OPENED.with(|opened| opened.get().cloned()) {
            let _ = tokio::time::timeout(CLOSING, store.close()).await;
        }
        done
    }))
}

/// `requeue run --store`: what is read goes through a store.
pub(crate) fn run(flags: Flags) -> Result<Ended, Refusal> {
    let Through { store, queue, lease } = flags.through.clone();
    let place = Place { store: store.unwrap_or_default(), queue };
    let early_add = early_add(flags.common.early_add)?;
    let (source, config) = Config::check(flags)?;
    let (input, stopper) = Input::open(&source, config.unfinished.is_some())?;
    let files = Files::open(&config, identity(input.metadata()))?;
    block_on(async {
        let listener = Listener::of(&config).await?;
        let metrics = listener.as_ref().map(Listener::metrics);
        let queue = place.to_work_on(lease, early_add, &config, metrics).await?;
        let lender = Some(Arc::new(queue.clone()) as _);
        let parts = Parts { config, files, listener, stopper: Some(stopper), things: None, lender };
        run::go(parts, |runner| {
            warnings::show(runner);
            reader::spawn(runner, input, Reading::new(runner, queue))
        })
        .await
    })
}

/// `requeue work`.
pub(crate) fn work(flags: WorkFlags) -> Result<Ended, Refusal> {
    let WorkFlags { place, lease, common, stdin, serve, until_empty } = flags;
    let early_add = early_add(common.early_add)?;
    let own = Own {
        name: "work",
        has_priorities: false,
        // For what is written: nothing is read.
        format: Format { kind: Kind::Lines, delimiter: b'\n', max_record: usize::MAX },
        max_keys: usize::MAX,
        stdin,
        at_eof: AtEof::Finish,
        unfinished: None,
    };
    let config = Config::of(common, Alone { serve, ..Alone::default() }, own)?;
    let files = Files::open(&config, None)?;
    block_on(async {
        let listener = Listener::of(&config).await?;
        let metrics = listener.as_ref().map(Listener::metrics);
        let queue = place.to_work_on(lease, early_add, &config, metrics).await?;
        if until_empty {
            queue.shut_down_when_idle();
        }
        let lender = Some(Arc::new(queue) as _);
        let parts = Parts { config, files, listener, stopper: None, things: None, lender };
        run::go(parts, |runner| {
            warnings::show(runner);
            // Nothing is left of an input, as there is none.
            Ok(oneshot::channel().1)
        })
        .await
    })
}

/// `requeue store`.
pub(crate) fn command(command: &StoreCommand) -> Result<Ended, Refusal> {
    let StoreCommand::Init { store } = command;
    block_on(async {
        let _shown = warnings::show_here();
        let store = connect(store).await?;
        store.migrate().await.map_err(refusal)?;
        Ok(Ended::Exit(Exit::Done))
    })
}

impl Place {
    /// The queue, for one who works on it as `config` has it.
    async fn to_work_on(
        &self,
        lease: Duration,
        early_add: Option<EarlyAdd>,
        config: &Config,
        metrics: Option<&Metrics>,
    ) -> Result<Queue, Refusal> {
        self.to_change(early_add, |mut opening| {
            if let Some(metrics) = metrics {
                opening = opening.metrics(metrics);
            }
            let opening = opening.lease(lease).backoff(config.base_delay, config.max_delay);
            match config.retries {
                Some(retries) => opening.max_failures(retries.saturating_add(1)),
                None => opening,
            }
        })
        .await
    }

    /// The queue, which is made if there is none, and so is a file that it is in.
    async fn to_change(
        &self,
        early_add: Option<EarlyAdd>,
        how: impl FnOnce(Opening) -> Opening,
    ) -> Result<Queue, Refusal> {
        let _shown = warnings::show_here();
        let store = connect(&self.store).await?;
        if file(&self.store).is_some() {
            store.migrate().await.map_err(refusal)?;
        }
        let mut opening = how(store.queue(&self.queue));
        if let Some(early_add) = early_add {
            opening = opening.early_add(early_add);
        }
        opening.open().await.map_err(refusal)
    }

    /// The queue, which is there already.
    async fn to_look_at(&self) -> Result<Queue, Refusal> {
        if file(&self.store).is_some_and(|path| !path.exists()) {
            return Err(Refusal::failure(format!("{}: there is no such file", self.store)));
        }
        let _shown = warnings::show_here();
        let store = connect(&self.store).await?;
        store.queue(&self.queue).existing().open().await.map_err(refusal)
    }
}

/// A store that is there for others, too, and after this process.
async fn connect(url: &str) -> Result<Store, Refusal> {
    if file(url) == Some(Path::new(":memory:")) {
        return Err(Refusal::usage(format!("{url}: it would be gone with this process")));
    }
    let store = Store::connect(url).await.map_err(refusal)?;
    // There is one for each subcommand.
    let _ = OPENED.with(|opened| opened.set(store.clone()));
    Ok(store)
}

/// The file that a store is.
fn file(url: &str) -> Option<&Path> {
    let rest = url.strip_prefix("sqlite:")?;
    Some(Path::new(rest.split_once('?').map_or(rest, |(path, _)| path)))
}

/// What was asked for makes no sense, or else the store has said why not.
fn refusal(error: impl Error) -> Refusal {
    match error.source() {
        None => Refusal::usage(error.to_string()),
        Some(_) => Refusal::failure(error.to_string()),
    }
}

fn early_add(flag: Option<args::EarlyAdd>) -> Result<Option<EarlyAdd>, Refusal> {
    match flag {
        None => Ok(None),
        Some(args::EarlyAdd::Replace) => Ok(Some(EarlyAdd::Replace)),
        Some(args::EarlyAdd::Hold) => Ok(Some(EarlyAdd::Hold)),
        Some(args::EarlyAdd::Keep) => {
            Err(Refusal::usage("--early-add keep: a store has replace and hold"))
        }
    }
}
