//! The subcommands on queues in a store. These queues are durable, and several machines can share them.

pub(crate) mod adder;
mod by_server;
mod export;
pub(crate) mod groups;
pub(crate) mod keys;
pub(crate) mod look;
mod operator;
mod reaching;
pub(crate) mod schedule;
pub(crate) mod serve;
mod text;
pub(crate) mod why;
pub(crate) mod work;

use std::cell::RefCell;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

use os_display::Quotable;
use requeue_store::{
    ErrorKind, OpenOptions, ParkedAdd, Queue, Rate, ReaddPolicy, Store, UpdateError,
};
use tokio::sync::mpsc;

use self::reaching::{Unopened, open_patiently};
use crate::args::config::Config;
use crate::args::groups::GroupSettings;
use crate::args::run::Common;
use crate::args::store::{Place, ServerFlags, StoreUrl};
use crate::args::values::ServerUrl;
use crate::client::Server;
use crate::exit::{Refusal, error_chain};
use crate::key::Key;
use crate::process::spawn::TOKEN_VARIABLE;
use crate::runner::launch;
use crate::runner::remote::ExpiredKeys;
use crate::serve::Metrics;
use crate::tls::Connector;
use crate::token::read_own_token;
use crate::traces::trace_store;

tokio::task_local! {
    /// The store that this subcommand has opened. `None` until it is open.
    static OPENED: RefCell<Option<Store>>;
}

/// The time limit for closing the store at the end of a subcommand. If another process has locked the SQLite file, the
/// close can take longer. The log file then stays beside the SQLite file.
const CLOSING: Duration = Duration::from_secs(5);

/// Runs `future` on a new runtime, and then closes the store that `future` opened. After the close, a SQLite file is
/// complete without its log file.
fn block_on<T>(future: impl Future<Output = Result<T, Refusal>>) -> Result<T, Refusal> {
    launch::block_on(OPENED.scope(RefCell::default(), async {
        let done = future.await;
        if let Some(store) = OPENED.with(RefCell::take) {
            // The close cannot change the result of the subcommand, so its own result is ignored.
            let _ = tokio::time::timeout(CLOSING, store.close()).await;
        }
        done
    }))
}

impl ServerFlags {
    /// Returns the server of `--server`. Returns `None` if the flag is missing. `queue` is the name that the server's
    /// queue must have.
    fn open_server(&self, queue: Option<&str>) -> Result<Option<Server>, Refusal> {
        self.server.as_ref().map(|url| self.server_at(url, queue)).transpose()
    }

    /// Returns the server at `url`, with the token and the authorities of these flags.
    fn server_at(&self, url: &ServerUrl, queue: Option<&str>) -> Result<Server, Refusal> {
        let token = match &self.token_file {
            Some(_) => Some(read_own_token(self.token_file.as_deref())?),
            None => std::env::var_os(TOKEN_VARIABLE).map(|_| read_own_token(None)).transpose()?,
        };
        let tls = match url {
            ServerUrl::Tcp { has_tls: true, .. } => {
                Some(Connector::new(self.server_ca.as_deref())?)
            }
            _ if self.server_ca.is_some() => {
                return Err(Refusal::usage("--server-ca requires --server https://HOST"));
            }
            _ => None,
        };
        Ok(Server::new(url.clone(), token, queue, tls))
    }
}

impl StoreUrl {
    /// Opens the store. Never creates a SQLite file.
    async fn to_look_at(&self) -> Result<Store, Refusal> {
        let url = self.required_url()?;
        open_patiently(self.wait, async || connect_to_look(url, "").await).await
    }
}

impl Place {
    /// Opens the queue for a worker with these settings. Creates a missing queue only if `creates` is true.
    async fn to_work_on(
        &self,
        creates: bool,
        lease: Duration,
        settings: &QueueSettings,
        worker: Option<String>,
        config: &Config,
        metrics: Option<&Metrics>,
    ) -> Result<(Queue, ExpiredKeys), Refusal> {
        let failures = &config.failures;
        let (report, expired) = mpsc::unbounded_channel();
        let how = |opening: OpenOptions| {
            let report = report.clone();
            let opening = opening.on_parked(move |parked| {
                // If a run has completed the delivery, the code that ends this run reports the key.
                if parked.lease_expired {
                    let key = Key::from(&*parked.key);
                    // When the program ends, the receiver may already have been dropped.
                    let _ = report.send((key, parked.failures, parked.error.clone()));
                }
            });
            // A command usually takes longer than a claim. A key that is claimed ahead of its run would only be
            // withheld from other workers.
            let mut opening = trace_store(settings.apply_to(opening))
                .lease(lease)
                .backoff(failures.base_delay, failures.max_delay)
                .claim_ahead(0);
            if let Some(metrics) = metrics {
                opening = opening.metrics(metrics);
            }
            if let Some(worker) = &worker {
                opening = opening.worker(worker);
            }
            if let Some(retries) = failures.retries {
                opening = opening.max_failures(retries.saturating_add(1));
            }
            opening
        };
        if creates {
            return Ok((self.to_change(how).await?, expired));
        }
        let queue = self.queue().maybe_quote();
        let hint = format!("; `requeue add --queue {queue}` or --create creates it");
        Ok((self.to_find(how, &hint).await?, expired))
    }

    /// Opens the queue. Creates the SQLite file and the queue if they do not exist.
    async fn to_change(&self, how: impl Fn(OpenOptions) -> OpenOptions) -> Result<Queue, Refusal> {
        let url = self.store.required_url()?;
        open_patiently(self.store.wait, async || {
            // The connection may be the step that fails, so each attempt connects again.
            let store = connect_to_change(url).await?;
            Ok(how(store.queue(self.queue())).open().await?)
        })
        .await
    }

    /// Opens the queue. Returns `None` if it does not exist. Creates a missing SQLite file.
    async fn to_change_existing(
        &self,
        how: impl Fn(OpenOptions) -> OpenOptions,
    ) -> Result<Option<Queue>, Refusal> {
        let url = self.store.required_url()?;
        open_patiently(self.store.wait, async || {
            let store = connect_to_change(url).await?;
            match how(store.queue(self.queue())).must_exist().open().await {
                Err(error) if error.kind() == ErrorKind::Missing => Ok(None),
                opened => Ok(Some(opened?)),
            }
        })
        .await
    }

    /// Opens a queue that must exist.
    async fn to_look_at(&self) -> Result<Queue, Refusal> {
        self.to_find(|opening| opening, "").await
    }

    /// Opens a queue that must exist. If it does not, `hint` is the end of the error message, and says how to create
    /// the queue.
    async fn to_find(
        &self,
        how: impl Fn(OpenOptions) -> OpenOptions,
        hint: &str,
    ) -> Result<Queue, Refusal> {
        let url = self.store.required_url()?;
        open_patiently(self.store.wait, async || {
            let store = connect_to_look(url, hint).await?;
            let opened = how(store.queue(self.queue())).must_exist().open().await;
            opened.map_err(|error| {
                let is_missing = error.kind() == ErrorKind::Missing;
                let mut unopened = Unopened::from(error);
                if is_missing {
                    unopened.refusal.message += hint;
                }
                unopened
            })
        })
        .await
    }
}

/// The settings of a queue that this subcommand creates. If the queue exists, its settings must be equal.
#[derive(Clone, Debug, Default)]
struct QueueSettings {
    re_add: Option<ReaddPolicy>,
    parked_add: Option<ParkedAdd>,
    groups: GroupSettings,
    rate: Option<Rate>,
}

impl QueueSettings {
    fn apply_to(&self, mut opening: OpenOptions) -> OpenOptions {
        if let Some(re_add) = self.re_add {
            opening = opening.readd_policy(re_add);
        }
        if let Some(parked_add) = self.parked_add {
            opening = opening.parked_add(parked_add);
        }
        if let Some(rate) = self.rate {
            opening = opening.rate(rate);
        }
        self.groups.apply_to(opening)
    }
}

/// The file name with which SQLite opens a database in memory.
const MEMORY: &str = ":memory:";

/// Connects to a store. Refuses a store in memory, because its keys would be lost when this process exits.
async fn connect_store(url: &str) -> Result<Store, Unopened> {
    if sqlite_file(url) == Some(Path::new(MEMORY)) {
        return Err(Refusal::usage(format!(
            "{url}: a store in memory would be lost at the end; name a file, as in sqlite:jobs.db"
        ))
        .into());
    }
    let store = Store::connect(url).await?;
    // If an earlier attempt opened a store, this replaces and drops it. Each subcommand uses one store.
    OPENED.with(|opened| opened.replace(Some(store.clone())));
    Ok(store)
}

/// Connects to a store. For SQLite, also creates or upgrades the database.
async fn connect_to_change(url: &str) -> Result<Store, Unopened> {
    let store = connect_store(url).await?;
    if sqlite_file(url).is_some() {
        store.migrate().await?;
    }
    Ok(store)
}

/// Connects to a store without creating a file. If the file does not exist, `hint` is the end of the error message,
/// and says how to create the queue.
async fn connect_to_look(url: &str, hint: &str) -> Result<Store, Unopened> {
    // The URL is checked before the file. A URL with a wrong option would otherwise be reported as a missing file.
    Store::check(url)?;
    if sqlite_file(url).is_some_and(|path| !path.exists() && path != Path::new(MEMORY)) {
        return Err(Refusal::failure(format!("{url}: no such file{hint}")).into());
    }
    connect_store(url).await
}

/// Returns the path of the SQLite file in `url`. Returns `None` for other stores.
fn sqlite_file(url: &str) -> Option<&Path> {
    let rest = url.strip_prefix("sqlite:")?;
    Some(Path::new(rest.split_once('?').map_or(rest, |(path, _)| path)))
}

/// Returns the message to the user for an error of the store.
fn store_refusal(error: impl Error + 'static) -> Refusal {
    Refusal::failure(error_chain(&error))
}

/// Returns the message to the user for an error of an update. An invalid value is a mistake in the command line.
fn update_refusal(error: UpdateError) -> Refusal {
    match error.kind() {
        ErrorKind::Invalid => Refusal::usage(error_chain(&error)),
        _ => store_refusal(error),
    }
}

/// Removes the rate from the flags, and returns it for the store. The store applies the rate to all workers of the
/// queue, so this process must not apply it a second time.
fn take_rate(flags: &mut Common) -> Result<Option<Rate>, Refusal> {
    let Some(rate) = flags.rate.take() else { return Ok(None) };
    let rate = rate.of_store.map_err(|error| Refusal::usage(format!("--rate: {error}")))?;
    Ok(Some(flags.burst.take().map_or(rate, |burst| rate.burst(burst))))
}

fn re_add(flag: Option<ReaddPolicy>) -> Result<Option<ReaddPolicy>, Refusal> {
    if flag == Some(ReaddPolicy::KeepBoth) {
        return Err(Refusal::usage(
            "--re-add keep-both: not available for a queue in a store; use replace or hold",
        ));
    }
    Ok(flag)
}
