//! The execution of a controller: its watches, its workers, and its shutdown.

use std::any::Any;
use std::future::{self, Future};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, select_all};
use futures_util::stream::Stream;
use kube::runtime::reflector::Store;
use kube::runtime::watcher::{self, DefaultBackoff};
use parking_lot::Mutex;
use requeue::workers::Workers;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tracing::{Instrument, Span};

use super::attempt::{Attempts, Item, report_item};
use super::enqueuer::{Enqueuer, OwnStore, Rules};
use super::error::{Error, RunnerError};
use super::names::Name;
use super::parts::{Observers, OnStart, Parts, StopTriggers};
use super::readiness::{Lists, Readiness};
use super::reconcile::{OwnKind, Reconcile};
use super::scope::Scope;
use super::sharding::{Group, abandon_join};
use super::source::{Following, ListTimes, Source, TriggerBackoff};
use super::start_gate::{Right, Start};
use crate::membership::Joining;
use crate::metrics::{Metrics, Series};

/// The maximum number of results in the stream that its reader has not read. Further results are dropped.
const RESULTS: usize = 1024;

/// Returns the controller's stream. The controller starts when the stream is first polled, and stops when the stream is
/// dropped.
pub(super) fn controller_stream<K: OwnKind, R: Reconcile<K>>(
    parts: Parts<K>,
    reconciler: R,
) -> impl Stream<Item = Item<K, R::Error>> + Send {
    let name = parts.effective_name();
    stream! {
        // Another controller can use the name as soon as this stream is dropped.
        let claimed = match Name::claim_name(&name) {
            Ok(claimed) => claimed,
            Err(error) => {
                yield Err(Error::RunnerError(error));
                return;
            }
        };
        let (results, mut items) = mpsc::channel(RESULTS);
        // When the stream is dropped, this set is dropped too, and aborts the controller.
        let mut tasks = JoinSet::new();
        tasks.spawn(run_and_release(parts, reconciler, name, results).in_current_span());
        while let Some(item) = items.recv().await {
            yield item;
        }
        // The name is released before the last poll, so that the reader can start another controller of this name as
        // soon as the stream has ended.
        drop(claimed);
        tasks.join_next().await.map(pass_on);
    }
}

/// Runs a controller until it ends, and then releases its Lease.
async fn run_and_release<K: OwnKind, R: Reconcile<K>>(
    parts: Parts<K>,
    reconciler: R,
    name: String,
    results: mpsc::Sender<Item<K, R::Error>>,
) {
    let mut right = Right::Free;
    let ended = run_controller(parts, reconciler, name, &results, &mut right).await;
    // The API server may still execute requests of the runs that were dropped. The Lease is therefore not released, but
    // expires later.
    let may_run = matches!(ended, Err(RunnerError::CutOff(_) | RunnerError::LeadershipLost(..)));
    if !may_run {
        right.release_lease().await;
    }
    if let Err(error) = ended {
        // The error is the last item of the stream. Unlike a result, it waits until the stream has space.
        _ = results.send(Err(Error::RunnerError(error))).await;
    }
}

/// Waits for the first lists and for the right to run, and then runs the workers. As soon as the controller has the
/// right, it is in `right`.
async fn run_controller<K: OwnKind, R: Reconcile<K>>(
    mut parts: Parts<K>,
    reconciler: R,
    name: String,
    results: &mpsc::Sender<Item<K, R::Error>>,
    right: &mut Right,
) -> Result<(), RunnerError> {
    let period = parts.retry_period();
    let group = parts.take_group()?;
    let Parts { config, own, others, sharding, start, stops, observers, .. } = parts;
    let Observers { lists, status, metrics, on_start } = observers;
    let writes = status.writes;
    writes.set_limits(config.own_writes_timeout, config.suppress_own_writes);
    let mut stops = Stops::new(stops);

    let lease = start.election_status();
    let is_cold = start.is_cold;
    let mut start = Some(start).filter(Start::is_awaited);
    if is_cold && let Some(start) = start.take() {
        lists.expect_nothing();
        let Some(reached) = stops.unless_stopped(start.wait_for_start()).await else {
            return Ok(());
        };
        *right = reached;
    }

    let scope = own.scope.as_ref().map_or_else(Scope::from_type::<K>, Scope::from_discovery);
    let objects = OwnStore::new(own.store.clone(), own.dyntype.clone());
    let rules = Rules {
        ownership: sharding.into_ownership(&scope),
        scope,
        runs_gone: reconciler.runs_gone(),
        in_standby: start.is_some(),
    };
    let enqueuer = Enqueuer::new(&config, &name, rules, objects, writes)?;

    let series = Series::new(name, config.worker_count(), enqueuer.queue.clone());
    show_start(&series, metrics, on_start);

    let store = own.store;
    let times = ListTimes { timeout: config.cache_sync_timeout, period };
    let sources = [(own.make)(own.predicate)].into_iter().chain(others.watches);
    let errors = results.clone();
    let failed = move |error| report_item(&errors, Err(Error::QueueError(error)));
    let backoff = others.backoff;
    let mut watches = Watches::start_watches(sources, &enqueuer, backoff, &lists, times, failed);
    for trigger in others.triggers {
        watches.others.spawn(trigger(Arc::clone(&enqueuer)));
    }

    let mut joining = None;
    let readiness = Readiness::new(lists.clone());
    let started =
        wait_for_start(readiness, times.timeout, start, group, &enqueuer, &store, &mut joining);
    let begun = stops.unless_stopped(watches.until_started(started, right)).await;
    // If the controller was stopped while it joined the group, it leaves the group, because the join may already have
    // created a Lease.
    abandon_join(joining, config.shutdown_timeout, stops.forced.clone()).await;
    let Some(begun) = begun else { return Ok(()) };
    if let Some(begun) = begun? {
        *right = begun;
    }

    let (panics, panicked) = mpsc::unbounded_channel();
    let attempts = Attempts {
        enqueuer,
        store,
        dyntype: own.dyntype,
        reconciler,
        meters: Arc::clone(&series.meters),
        lease,
        held: status.held,
        running: Mutex::default(),
        parent: Span::current(),
        results: results.clone(),
        panics: (!config.recover_panic).then(|| panics.clone()),
        config,
    };
    // `panics` lives until the end of the function. If it were dropped earlier, its closed channel would look like a
    // panic.
    run_workers(Arc::new(attempts), right, stops, watches, panicked, &series.name).await
}

/// Makes a controller visible to the user when it starts: adds its metrics, and passes its queue to the user's
/// callback.
fn show_start(series: &Arc<Series>, metrics: Option<Metrics>, on_start: Option<OnStart>) {
    metrics.iter().for_each(|metrics| metrics.show_series(series));
    if let Some(use_queue) = on_start {
        // The callback is called before the watches start. It therefore receives an empty queue.
        use_queue(series.queue.clone());
    }
}

/// Waits for the first lists, and then for the trigger, the election or the membership in the shard group. The lists
/// come first, so that a replica that cannot list never leads and never holds a shard. Returns `None` if the controller
/// waits for none of these.
async fn wait_for_start<K: OwnKind>(
    readiness: Readiness,
    timeout: Duration,
    start: Option<Start>,
    group: Option<Group>,
    enqueuer: &Enqueuer,
    store: &Store<K>,
    joining: &mut Option<Joining>,
) -> Result<Option<Right>, RunnerError> {
    // If the lists fail, the function returns before the process takes part in an election or a group.
    tokio::time::timeout(timeout, readiness.ready())
        .await
        .map_err(|_| RunnerError::CacheSync(readiness.waiting_for(), timeout))?;
    let mut right = None;
    if let Some(start) = start {
        right = Some(start.wait_for_start().await);
        enqueuer.end_standby(store);
    }
    if group.is_some() {
        right = Some(Right::Free.or_join(group, joining).await?);
    }
    Ok(right)
}

/// Runs the workers until the controller must stop. If this function returns an error, the error names the objects
/// whose runs were dropped.
async fn run_workers<K: OwnKind, R: Reconcile<K>>(
    attempts: Arc<Attempts<K, R>>,
    right: &Right,
    stops: Stops,
    mut watches: Watches,
    mut panicked: mpsc::UnboundedReceiver<Box<dyn Any + Send>>,
    name: &str,
) -> Result<(), RunnerError> {
    let Stops { graceful, mut forced } = stops;
    let enqueuer = Arc::clone(&attempts.enqueuer);
    let handler = {
        let attempts = Arc::clone(&attempts);
        move |key, run| {
            let attempts = Arc::clone(&attempts);
            async move { attempts.run_key(key, run).await }
        }
    };
    let finished = Arc::clone(&enqueuer);
    let config = &attempts.config;
    let workers = Workers::new(enqueuer.queue.clone(), handler)
        .on_finish(move |key| finished.run_finished(key))
        .concurrency(config.worker_count())
        // A drain waits for runs in flight until the time limit of the shutdown. Then the workers drop the remaining
        // runs immediately.
        .grace(Duration::ZERO)
        .drain_timeout(config.shutdown_timeout)
        // The workers create no spans, because each attempt creates its span itself.
        .span(|_, _| Span::none());
    let running = || attempts.running.lock().iter().cloned().collect::<Vec<_>>();
    let mut ended = Ok(());
    let mut cut_off = Vec::new();
    let is_leaving = &mut false;
    let mut hand_over = async || {
        let Right::Member(sharding) = right else { return };
        if std::mem::replace(is_leaving, true) {
            return;
        }
        if !sharding.leave(config.shutdown_timeout).await {
            cut_off = running();
            sharding.cut_off().await;
        }
    };
    let work = async {
        let shutdown = async {
            // If all watches have ended without a shutdown, this process holds its shards until the remaining keys have
            // run.
            if let Some(result) = until_stopped(&enqueuer, graceful, &mut watches).await {
                ended = result;
                hand_over().await;
            }
        };
        let drained = workers.run_until(shutdown).await;
        hand_over().await;
        drained
    };
    let mut lost = None;
    tokio::select! {
        // The loss of the right is polled first. A run that completes at the same time must not be reported as
        // completed, because it may have run without the right.
        biased;
        error = right.wait_for_loss() => lost = Some(error),
        () = &mut forced => {}
        panic = panicked.recv() => panic.map_or((), |panic| resume_unwind(panic)),
        drained = work => {
            tracing::debug!(controller = name, dropped = drained.dropped.len(), "shut down");
        }
    }
    // The workers have been dropped. `running` still has the key of each run that had not completed.
    let mut keys = running();
    if let Some(error) = lost {
        return Err(error.with_interrupted(keys));
    }
    // The same key may also be in `running`, so duplicates are removed.
    keys.extend(cut_off);
    keys.sort_unstable();
    keys.dedup();
    match keys.is_empty() {
        true => ended,
        false => Err(RunnerError::CutOff(keys)),
    }
}

/// Waits for a graceful shutdown, or for the end of all watches. In the first case, it pauses the queue, so that no run
/// starts. In the second case, it returns `None`, and the queue continues, because its remaining keys must still run.
async fn until_stopped(
    enqueuer: &Enqueuer,
    graceful: impl Future<Output = ()>,
    watches: &mut Watches,
) -> Option<Result<(), RunnerError>> {
    let stopped = tokio::select! {
        biased;
        () = graceful => Ok(()),
        ended = watches.wait_for_end() => match ended {
            Ok(()) => {
                enqueuer.end_waits();
                return None;
            }
            Err(error) => Err(error),
        },
    };
    // The pause stops deliveries. Keys that are ready stay in the queue, because no run may start after a shutdown has
    // begun.
    enqueuer.queue.pause();
    Some(stopped)
}

/// The futures with which the user stops a controller.
struct Stops {
    /// When this future completes, no further run starts.
    graceful: BoxFuture<'static, ()>,
    /// When this future completes, runs in flight are also dropped.
    forced: Shared<BoxFuture<'static, ()>>,
}

impl Stops {
    fn new(triggers: StopTriggers) -> Self {
        Self { graceful: any_of(triggers.graceful), forced: any_of(triggers.forced).shared() }
    }

    /// Waits for `future`. Returns `None` if the user stops the controller before the future completes.
    async fn unless_stopped<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            // `biased` polls in this order, so a forced stop has precedence over a graceful stop and over `future`.
            () = &mut self.forced => None,
            () = &mut self.graceful => None,
            value = future => Some(value),
        }
    }
}

/// The tasks of the watches and triggers. They are aborted when this value is dropped.
struct Watches {
    watches: JoinSet<Result<(), RunnerError>>,
    /// The tasks of the triggers. The end of a trigger has no effect on the controller.
    others: JoinSet<()>,
}

impl Watches {
    fn start_watches(
        sources: impl Iterator<Item = Source>,
        enqueuer: &Arc<Enqueuer>,
        backoff: Option<TriggerBackoff>,
        lists: &Lists,
        times: ListTimes,
        failed: impl Fn(watcher::Error) + Send + Sync + 'static,
    ) -> Self {
        let failed = Arc::new(failed);
        let mut watches = JoinSet::new();
        let others = Arc::new(watch::Sender::default());
        let sources: Vec<_> = sources.collect();
        let roles: Vec<_> = sources.iter().map(|source| source.role_among(&sources)).collect();
        for (number, (source, role)) in sources.into_iter().zip(roles).enumerate() {
            // The source with number 0 watches the controller's own kind. It receives no receiver, because it waits for
            // the other sources.
            let other = (number > 0).then(|| others.subscribe());
            let following = Following {
                enqueuer: Arc::clone(enqueuer),
                backoff: (!source.is_shared).then(|| {
                    backoff
                        .clone()
                        .unwrap_or_else(|| Arc::new(Mutex::new(DefaultBackoff::default())))
                }),
                listed: lists.clone(),
                number,
                role,
                name: source.name.clone(),
                kind: source.kind.clone(),
                lists: ListTimes {
                    // If the user has set a backoff, it applies to all attempts without this limit. A shared watch does
                    // not use the user's backoff, so the limit remains.
                    period: times.period.filter(|_| source.is_shared || backoff.is_none()),
                    ..times
                },
                failed: Arc::clone(&failed) as _,
                others: Arc::clone(&others),
                handling: None,
            };
            // The watch is registered before it starts. Otherwise, readiness could be reported before its first list.
            lists.expect_list(number, source.name);
            enqueuer.writes.add_watch(source.kind, number);
            let follow = (source.follow)(following);
            let follow = async move {
                let ended = follow.await;
                // The watch of the controller's own kind continues until the watches of all other kinds have dropped
                // their receivers.
                drop(other);
                ended
            };
            watches.spawn(follow.in_current_span());
        }
        Self { watches, others: JoinSet::new() }
    }

    /// Waits for `started`. Returns an error if this process loses the right to run, or if a watch fails, before
    /// `started` completes.
    async fn until_started<T>(
        &mut self,
        started: impl Future<Output = Result<T, RunnerError>>,
        right: &Right,
    ) -> Result<T, RunnerError> {
        tokio::select! {
            biased;
            error = right.wait_for_loss() => Err(error),
            // If all watches end without an error, the wait for `started` continues.
            Err(error) = self.wait_for_end() => Err(error),
            started = started => started,
        }
    }

    /// Waits until all watches have ended, or until one has failed and its backoff permits no restart. Panics if a task
    /// has panicked, for example in a mapper.
    async fn wait_for_end(&mut self) -> Result<(), RunnerError> {
        loop {
            tokio::select! {
                biased;
                watch = self.watches.join_next() => match watch {
                    Some(ended) => pass_on(ended).unwrap_or(Ok(()))?,
                    None => return Ok(()),
                },
                Some(ended) = self.others.join_next() => { pass_on(ended); }
            }
        }
    }
}

/// Returns the result of a task, or `None` if the task was aborted. If the task panicked, panics with the same payload.
pub(crate) fn pass_on<T>(ended: Result<T, JoinError>) -> Option<T> {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(value) => Some(value),
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(_aborted)) => None,
    }
}

/// Returns a future that completes when one of `futures` completes.
pub(crate) fn any_of(mut futures: Vec<BoxFuture<'static, ()>>) -> BoxFuture<'static, ()> {
    futures.push(future::pending().boxed());
    select_all(futures).map(|_| ()).boxed()
}
