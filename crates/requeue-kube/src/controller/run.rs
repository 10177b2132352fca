//! A controller that runs: its watches, its workers, and its end.

use std::any::Any;
use std::fmt;
use std::future::{self, Future};
use std::hash::Hash;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, select_all};
use futures_util::stream::{self, Stream};
use futures_util::{FutureExt, TryFuture};
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use requeue::workers::Workers;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tracing::{Instrument, Span};

use super::attempt::{Attempts, Item, report};
use super::failures::versions;
use super::hub::Hub;
use super::listed::Readiness;
use super::names::Name;
use super::scope::Scope;
use super::source::{Following, Source};
use super::start::{Mandate, Start};
use super::{Action, Controller, Error, RunnerError};
use crate::metrics::{Meters, Series};

/// How many results wait for a reader of the stream. What comes when so many do is dropped.
const RESULTS: usize = 1024;

/// What outlives the controller's run.
struct Run<'a, T> {
    name: String,
    results: &'a mpsc::Sender<T>,
    /// The right to run, once there is one.
    mandate: &'a mut Mandate,
}

/// What a reconciler is given, and whether it is given what is gone.
pub(super) struct Subject<K: Resource + 'static, T> {
    pub(super) of: fn(&ObjectRef<K>, Option<Arc<K>>) -> Option<T>,
    pub(super) runs_gone: bool,
}

impl<K> Controller<K>
where
    K: Resource + Clone + fmt::Debug + Send + Sync + 'static,
    K::DynamicType: fmt::Debug + Eq + Hash + Clone,
{
    /// The stream that is the controller: it begins when it is polled, and ends when it is dropped.
    pub(super) fn stream<T, F, P, C, Fut>(
        self,
        subject: Subject<K, T>,
        reconcile: F,
        error_policy: P,
        context: Arc<C>,
    ) -> impl Stream<Item = Item<K, Fut::Error>> + Send
    where
        T: Clone + Send + 'static,
        F: Fn(T, Arc<C>) -> Fut + Send + Sync + 'static,
        P: Fn(T, &Fut::Error, Arc<C>) -> Action + Send + Sync + 'static,
        C: Send + Sync + 'static,
        Fut: TryFuture<Ok = Action> + Send + 'static,
        Fut::Error: std::error::Error + Send + 'static,
    {
        let (results, stream) = mpsc::channel(RESULTS);
        let name = self.name.clone().unwrap_or_else(|| default_name::<K>(&self.dyntype));
        let claim = name.clone();
        let engine = async move {
            let mut mandate = Mandate::default();
            let run = Run { name, results: &results, mandate: &mut mandate };
            let ended = self.control(run, subject, reconcile, error_policy, context).await;
            if let Err(error) = mandate.end(ended).await {
                // The last that is heard of it, so it waits for its place.
                _ = results.send(Err(Error::RunnerError(error))).await;
            }
        };
        let state = Running {
            begins: Some((claim, engine.boxed())),
            name: None,
            tasks: JoinSet::new(),
            stream,
        };
        stream::unfold(state, |mut state| async move {
            if let Some((name, engine)) = state.begins.take() {
                match Name::claim(&name) {
                    Ok(name) => state.name = Some(name),
                    Err(error) => return Some((Err(Error::RunnerError(error)), state)),
                }
                state.tasks.spawn(engine.in_current_span());
            }
            if let Some(item) = state.stream.recv().await {
                return Some((item, state));
            }
            state.name = None;
            if let Some(Err(error)) = state.tasks.join_next().await
                && let Ok(panic) = error.try_into_panic()
            {
                resume_unwind(panic);
            }
            None
        })
    }

    async fn control<T, F, P, C, Fut>(
        self,
        run: Run<'_, Item<K, Fut::Error>>,
        subject: Subject<K, T>,
        reconcile: F,
        error_policy: P,
        context: Arc<C>,
    ) -> Result<(), RunnerError>
    where
        T: Clone + Send + 'static,
        F: Fn(T, Arc<C>) -> Fut + Send + Sync + 'static,
        P: Fn(T, &Fut::Error, Arc<C>) -> Action + Send + Sync + 'static,
        C: Send + Sync + 'static,
        Fut: TryFuture<Ok = Action> + Send + 'static,
        Fut::Error: std::error::Error + Send + 'static,
    {
        let Run { name, results, mandate } = run;
        let Self { dyntype, store, main, related, triggers, readiness, config, .. } = self;
        let (mut graceful, mut forced) = (any_of(self.graceful), any_of(self.forced));

        let mut start = Some(self.start).filter(Start::is_awaited);
        if !self.warmup
            && let Some(start) = start.take()
        {
            readiness.expect_nothing();
            tokio::select! {
                biased;
                () = &mut forced => return Ok(()),
                () = &mut graceful => return Ok(()),
                begun = start.reached() => *mandate = begun,
            }
        }

        let leads = start.is_none();
        let versions = versions(store.clone(), dyntype.clone(), config.clear_on_new_generation);
        let mut hub = Hub::new::<K>(&config, &name, subject.runs_gone, leads, versions)?;
        if let Some(scope) = &self.scope {
            hub.scope = Scope::stated(scope);
        }
        let hub = Arc::new(hub);
        let meters = Arc::new(Meters::default());
        let series = Series::new(name, config.workers(), Arc::clone(&meters), hub.queue.clone());
        if let Some(metrics) = &self.metrics {
            metrics.show(&series);
        }
        if let Some(use_queue) = self.on_start {
            use_queue(hub.queue.clone());
        }

        let failed = {
            let results = results.clone();
            move |error| report(&results, Err(Error::QueueError(error)))
        };
        let sources = [main.source()].into_iter().chain(related);
        let mut watches = Watches::begin(sources, |number, name| Following {
            hub: Arc::clone(&hub),
            backoff: self.trigger_backoff.clone().unwrap_or_default(),
            readiness: readiness.clone(),
            number,
            name,
            failed: Arc::new(failed.clone()),
        });
        for trigger in triggers {
            watches.others.spawn(trigger(Arc::clone(&hub)));
        }
        if hub.debounce.is_some() {
            let hub = Arc::clone(&hub);
            watches.others.spawn(async move {
                if let Some(debounce) = &hub.debounce {
                    debounce.hand_over(&hub.queue).await;
                }
            });
        }

        let started = async {
            lists(&readiness, config.cache_sync_timeout).await?;
            let Some(start) = start else { return Ok(None) };
            let mandate = start.reached().await;
            hub.open(&store);
            Ok::<_, RunnerError>(Some(mandate))
        };
        tokio::select! {
            biased;
            () = &mut forced => return Ok(()),
            () = &mut graceful => return Ok(()),
            lost = mandate.lost() => return Err(RunnerError::LeadershipLost { lost, keys: Vec::new() }),
            error = watches.failed() => return Err(error),
            started = started => if let Some(begun) = started? {
                *mandate = begun;
            },
        }

        let (panics, mut panicked) = mpsc::unbounded_channel();
        let attempts = Arc::new(Attempts {
            hub: Arc::clone(&hub),
            store,
            dyntype,
            subject: subject.of,
            reconcile,
            error_policy,
            context,
            timeout: config.reconcile_timeout,
            max_retries: config.max_retries,
            generations: config.clear_on_new_generation,
            meters,
            lease: mandate.status(),
            running: Mutex::default(),
            parent: Span::current(),
            results: results.clone(),
            panics: (!config.recover_panic).then(|| panics.clone()),
        });
        let reconciling = Arc::clone(&attempts);
        let handler = move |key, run| {
            let attempts = Arc::clone(&reconciling);
            async move { attempts.attempt(key, run).await }
        };
        let finished = Arc::clone(&hub);
        let workers = Workers::new(hub.queue.clone(), handler)
            .on_finish(move |key| finished.finished(key))
            .concurrency(config.workers())
            .grace(Duration::ZERO)
            .drain_timeout(config.shutdown_timeout)
            // An attempt has a span of its own.
            .span(|_, _| tracing::Span::none());
        let (mut why, mut lost) = (Ok(()), None);
        let shutdown = async {
            let ended = tokio::select! {
                biased;
                () = &mut graceful => None,
                ended = watches.ended() => Some(ended),
            };
            match ended {
                // Nothing will change any more: what was seen still runs.
                Some(Ok(())) => {
                    if let Some(debounce) = &hub.debounce {
                        debounce.hand_over_all(&hub.queue).await;
                    }
                }
                ended => {
                    // From now on nothing is handed out.
                    hub.queue.pause();
                    why = ended.unwrap_or(Ok(()));
                }
            }
        };
        tokio::select! {
            biased;
            why = mandate.lost() => lost = Some(why),
            () = &mut forced => {}
            panic = panicked.recv() => end_with(panic),
            drained = workers.run_until(shutdown) => {
                tracing::debug!(controller = series.name, dropped = drained.dropped.len(), "shut down");
            }
        }
        let keys: Vec<_> = attempts.running().iter().cloned().collect();
        match lost {
            Some(lost) => Err(RunnerError::LeadershipLost { lost, keys }),
            None if keys.is_empty() => why,
            None => Err(RunnerError::CutOff { keys }),
        }
    }
}

fn default_name<K: Resource>(dyntype: &K::DynamicType) -> String {
    K::kind(dyntype).to_lowercase()
}

/// Waits for the first list of each watch.
async fn lists(readiness: &Readiness, timeout: Duration) -> Result<(), RunnerError> {
    tokio::time::timeout(timeout, readiness.ready())
        .await
        .map_err(|_| RunnerError::CacheSync { watches: readiness.waiting_for(), timeout })
}

/// The controller's task, until it is dropped with the stream.
struct Running<T> {
    /// The name and the task, before it has begun.
    begins: Option<(String, BoxFuture<'static, ()>)>,
    /// Here, so that it is free as soon as the stream is dropped.
    name: Option<Name>,
    tasks: JoinSet<()>,
    stream: mpsc::Receiver<T>,
}

/// The tasks that look out for changes. They end when this is dropped.
struct Watches {
    watches: JoinSet<Result<(), RunnerError>>,
    /// Triggers and the like, which may end at any time.
    others: JoinSet<()>,
}

impl Watches {
    fn begin(
        sources: impl Iterator<Item = Source>,
        following: impl Fn(usize, String) -> Following,
    ) -> Self {
        let mut watches = JoinSet::new();
        for (number, source) in sources.enumerate() {
            let following = following(number, source.name.clone());
            following.readiness.expect(number, source.name);
            watches.spawn((source.follow)(following).in_current_span());
        }
        Self { watches, others: JoinSet::new() }
    }

    /// Is ready when no watch is left, or when one has failed for good. What a mapper or another task
    /// panics with, this does.
    async fn ended(&mut self) -> Result<(), RunnerError> {
        loop {
            tokio::select! {
                watch = self.watches.join_next() => match watch {
                    Some(ended) => pass_on(ended).unwrap_or(Ok(()))?,
                    None => return Ok(()),
                },
                Some(ended) = self.others.join_next() => { pass_on(ended); }
            }
        }
    }

    /// Is ready when a watch has failed for good.
    async fn failed(&mut self) -> RunnerError {
        match self.ended().await {
            Ok(()) => future::pending().await,
            Err(error) => error,
        }
    }
}

/// What a task has returned, unless it was aborted.
fn pass_on<T>(ended: Result<T, JoinError>) -> Option<T> {
    match ended.map_err(JoinError::try_into_panic) {
        Ok(value) => Some(value),
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(_aborted)) => None,
    }
}

fn end_with(panic: Option<Box<dyn Any + Send>>) {
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Is ready when one of these is.
fn any_of(mut futures: Vec<BoxFuture<'static, ()>>) -> impl Future<Output = ()> + Send + Unpin {
    futures.push(future::pending().boxed());
    select_all(futures).map(|_| ())
}
