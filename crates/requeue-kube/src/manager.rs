//! A manager runs several controllers in one process. They start together, shut down together, and share an election or
//! a shard group.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::hash::Hash;
use std::pin::pin;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, Stream, StreamExt, future};
use kube::api::Api;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::Controller;
use crate::controller::{
    self, Action, Error, Group, Managed, Readiness, Right, RunnerError, StopTriggers, abandon_join,
    any_of, pass_on,
};
use crate::leader::LeaderElector;
use crate::membership::{Joining, ShardGroup};
use crate::metrics::Metrics;
use crate::shared::SharedWatch;

/// Runs several controllers in one process.
///
/// - **Start.** The watches of all controllers start at the same time. A controller begins to reconcile when all of its
///   watches have listed their objects. If there is an election, the process must also lead.
/// - **Election.** All controllers share one [lease](Self::leader_election). The process takes part in the election
///   when the watches of all controllers have listed their objects.
/// - **Shards.** A manager can have [one shard group](Self::shard_group) instead of an election. The replicas then
///   share the objects of all controllers.
/// - **Readiness.** [One handle](Self::readiness) tells whether the watches of all controllers have listed their
///   objects.
/// - **Shutdown.** One [signal handler](Self::shutdown_on_signal) shuts all controllers down at the same time. The
///   manager then releases the lease.
/// - **Errors.** If a controller cannot continue, the manager stops all controllers, and [`run`](Self::run) returns the
///   name of the first such controller and its error. The manager only logs the results of runs.
/// - **Watches.** [`watch`](Self::watch) returns one [`SharedWatch`] for all controllers that need the same objects.
///
/// ```no_run
/// use std::sync::Arc;
///
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
/// use kube::runtime::watcher;
/// use kube::{Api, Client};
/// use requeue_kube::controller::{Action, Watched};
/// use requeue_kube::{Controller, Manager, policy};
///
/// # async fn map(_: Arc<ConfigMap>, _: Arc<Client>) -> Result<Action, kube::Error> { Ok(Action::await_change()) }
/// # async fn secret(_: Arc<Secret>, _: Arc<Client>) -> Result<Action, kube::Error> { Ok(Action::await_change()) }
/// #[tokio::main]
/// async fn main() -> Result<(), Box<dyn std::error::Error>> {
///     let client = Client::try_default().await?;
///     let context = Arc::new(client.clone());
///     let mut manager = Manager::new().shutdown_on_signal();
///
///     let wc = watcher::Config::default();
///     let secrets = manager.watch(Api::<Secret>::all(client.clone()), wc.clone());
///     let maps = Controller::new(Api::<ConfigMap>::all(client), wc).watch_owned(Watched::shared(&secrets));
///     let of_maps = Arc::clone(&context);
///     manager.add(maps, |maps| maps.run(map, policy::backoff, of_maps));
///     let secrets = Controller::for_shared(&secrets);
///     manager.add(secrets, |secrets| secrets.run(secret, policy::backoff, context));
///
///     manager.run().await?;
///     Ok(())
/// }
/// ```
#[derive(Default)]
#[must_use = "a manager does nothing until it is run"]
pub struct Manager {
    controllers: Vec<(String, Start)>,
    readiness: Readiness,
    watches: HashMap<(TypeId, String), Box<dyn Any + Send>>,
    elector: Option<LeaderElector>,
    shards: Option<ShardGroup>,
    /// The client of the first controller that has one. The shard group uses it.
    client: Option<Client>,
    metrics: Option<Metrics>,
    stops: StopTriggers,
}

/// Runs one controller, with the values that the manager determines.
type Start = Box<dyn FnOnce(Managed) -> BoxFuture<'static, Result<(), RunnerError>> + Send>;

impl Manager {
    /// Creates a manager without controllers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a controller. When the manager runs, it calls `run` with the controller. `run` must return the stream of
    /// [`Controller::run`] or [`Controller::run_refs`]. To see the results, apply `inspect` to this stream.
    ///
    /// Each controller of a manager needs a different [name](Controller::name). The manager sets the start, the
    /// shutdown and the metrics of the controller, and replaces values that were set before. The controller keeps its
    /// [`Config`](controller::Config).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use requeue_kube::{Controller, Manager, controller::Action, policy};
    /// # async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> { Ok(Action::await_change()) }
    /// # let _ = |manager: &mut Manager, maps: Controller<ConfigMap>| {
    /// manager.add(maps, |maps| maps.run(reconcile, policy::backoff, Arc::new(())));
    /// # };
    /// ```
    pub fn add<K, E, S>(
        &mut self,
        controller: Controller<K>,
        run: impl FnOnce(Controller<K>) -> S + Send + 'static,
    ) where
        K: Clone + Resource + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
        K::DynamicType: fmt::Debug + Eq + Hash + Clone,
        E: StdError + Send + 'static,
        S: Stream<Item = Result<(ObjectRef<K>, Action), Error<E, watcher::Error>>> + Send + 'static,
    {
        let name = controller.effective_name();
        self.readiness.add_controller(&name, &controller.readiness());
        // All requests of a group use one client. The client of the first controller suffices.
        self.client = self.client.take().or_else(|| controller.client().cloned());
        let label = name.clone();
        let start = |managed| follow_stream(label, run(controller.set_managed(managed))).boxed();
        self.controllers.push((name, Box::new(start)));
    }

    /// Returns the shared watch of the objects that `api` and `wc` select. Calls with the same kind, namespace and
    /// configuration return the same watch, which uses the client of the first call.
    ///
    /// If the kind is known only at run time, create one [`SharedWatch`], and pass clones of it to the controllers.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    /// # use kube::{Api, runtime::watcher};
    /// # use requeue_kube::{Controller, Manager};
    /// use requeue_kube::controller::Watched;
    ///
    /// # let _ = |manager: &mut Manager, maps: Controller<ConfigMap>, secrets: Api<Secret>| {
    /// let secrets = manager.watch(secrets, watcher::Config::default());
    /// let maps = maps.watch_owned(Watched::shared(&secrets));
    /// let of_secrets = Controller::for_shared(&secrets);
    /// # };
    /// ```
    pub fn watch<K>(&mut self, api: Api<K>, wc: watcher::Config) -> SharedWatch<K>
    where
        K: Clone + Resource + DeserializeOwned + fmt::Debug + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone,
    {
        let objects = (TypeId::of::<K>(), format!("{} {wc:?}", api.resource_url()));
        let known = self.watches.get(&objects).and_then(|watch| watch.downcast_ref());
        known.cloned().unwrap_or_else(|| {
            let watch = SharedWatch::new(api, wc);
            self.watches.insert(objects, Box::new(watch.clone()));
            watch
        })
    }

    /// Runs the controllers only while this process leads. One of several replicas reconciles objects. The other
    /// replicas only keep their stores current.
    ///
    /// The election works as for [one controller](Controller::leader_election). The manager renews the lease until all
    /// controllers have shut down, and then releases it. If the process loses the lease, the manager drops all runs.
    pub fn leader_election(mut self, elector: LeaderElector) -> Self {
        self.elector = Some(elector);
        self
    }

    /// Shares the objects of all controllers with the other replicas of a [group](crate::membership), instead of a
    /// leader election. All replicas reconcile objects, each in an equal number of shards.
    ///
    /// The group works as for [one controller](Controller::shard_group). All controllers together have one membership,
    /// one assignment and one set of Leases:
    ///
    /// - The process joins the group when the watches of all controllers have listed their objects.
    /// - Each controller reconciles the objects of its kind in the shards that the process holds. The shard of an
    ///   object does not depend on its kind. With [`ShardBy::Namespace`](crate::range::ShardBy::Namespace), all objects
    ///   of a namespace are therefore in one shard.
    /// - A shard moves to another replica when no controller has a run in flight for an object in the shard.
    /// - A graceful shutdown hands each shard over as soon as the shard's last run has completed. Runs in other shards
    ///   continue. A run that exceeds the [`handover_timeout`](ShardGroup::handover_timeout), or the
    ///   [`shutdown_timeout`](controller::Config::shutdown_timeout) of its controller, is dropped first. If a forced
    ///   shutdown drops runs, the shards have no holder until the member Lease has expired.
    /// - If the process loses its membership, the manager drops the runs of all controllers, and [`run`](Self::run)
    ///   returns [`RunnerError::Membership`].
    ///
    /// The group's requests use the client of [`ShardGroup::with_client`], or otherwise the client of the first
    /// controller with an `Api`. By default, the group has no [kind](ShardGroup::objects), so that a new version of the
    /// program can have other controllers. For the same reason, the API server cannot detect another program that uses
    /// the same group name. Each program must use a different one.
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    /// # use kube::{Api, Client, runtime::watcher};
    /// # use requeue_kube::{Controller, controller::Action, policy};
    /// use requeue_kube::Manager;
    /// use requeue_kube::range::ShardBy;
    /// use requeue_kube::membership::ShardGroup;
    ///
    /// # async fn map(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> { Ok(Action::await_change()) }
    /// # async fn secret(_: Arc<Secret>, _: Arc<()>) -> Result<Action, kube::Error> { Ok(Action::await_change()) }
    /// # let _ = async {
    /// let config = kube::Config::infer().await?;
    /// let shards = ShardGroup::new("my-controllers", &config.default_namespace).by(ShardBy::Namespace);
    /// let own_connections = shards.client(config.clone())?;
    /// let mut manager = Manager::new()
    ///     .shard_group(shards.with_client(own_connections))
    ///     .shutdown_on_signal();
    ///
    /// let (client, wc) = (Client::try_from(config)?, watcher::Config::default());
    /// let maps = Controller::new(Api::<ConfigMap>::all(client.clone()), wc.clone());
    /// manager.add(maps, |it| it.run(map, policy::backoff, Arc::new(())));
    /// let secrets = Controller::new(Api::<Secret>::all(client), wc);
    /// manager.add(secrets, |it| it.run(secret, policy::backoff, Arc::new(())));
    /// manager.run().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// ```
    pub fn shard_group(mut self, shards: ShardGroup) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Adds the metrics of all controllers, and of the election or the shard group, to a Prometheus registry.
    pub fn metrics(mut self, metrics: &Metrics) -> Self {
        self.metrics = Some(metrics.clone());
        self
    }

    /// Drops the runs of all controllers when `trigger` completes, as at a second signal.
    #[cfg(test)]
    pub(crate) fn forced_shutdown_on(mut self, trigger: BoxFuture<'static, ()>) -> Self {
        self.stops.forced.push(trigger);
        self
    }

    /// Shuts all controllers down [gracefully](Controller::graceful_shutdown_on) when `trigger` completes.
    pub fn graceful_shutdown_on(
        mut self,
        trigger: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        self.stops.graceful.push(trigger.boxed());
        self
    }

    /// Shuts all controllers down gracefully at the first Ctrl-C or SIGTERM. At the second signal, drops the runs in
    /// flight.
    ///
    /// # Panics
    ///
    /// [`run`](Self::run) panics if the handler of a signal cannot be installed.
    pub fn shutdown_on_signal(mut self) -> Self {
        self.stops.add_signals();
        self
    }

    /// Returns a handle for the endpoint `/readyz`. It tells whether the watches of all controllers have received their
    /// first lists. It includes controllers that are added later.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Runs the controllers until all of them have ended.
    ///
    /// # Errors
    ///
    /// Returns an error if a controller cannot continue, after all other controllers have shut down gracefully. Also
    /// returns an error if the process loses its lease or its membership in the shard group. If a setting of the shard
    /// group is invalid, returns an error before any controller starts.
    ///
    /// # Panics
    ///
    /// Panics if it is called outside a tokio runtime, or if a controller's stream panics.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, all controllers stop, and each run is dropped at an `await`. The lease is not
    /// released, but expires.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use requeue_kube::Manager;
    /// # let _ = async |manager: Manager| {
    /// manager.shutdown_on_signal().run().await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// ```
    pub async fn run(mut self) -> Result<(), ManagerError> {
        let group = self.take_group()?;
        let Self { controllers, readiness, watches, elector, metrics, stops, .. } = self;
        // The manager drops its shared watches. A shared watch ends when all controllers that use it have ended.
        drop(watches);
        let [lead, stop, force] = std::array::from_fn(|_| CancellationToken::new());
        let elector = elector.map(|elector| match &metrics {
            Some(metrics) => elector.metrics(metrics),
            None => elector,
        });
        let election = elector.as_ref().map(LeaderElector::status);
        let mut tasks = JoinSet::new();
        for (name, start) in controllers {
            let running = start(Managed {
                lead: election.clone().map(|it| (lead.clone().cancelled_owned().boxed(), it)),
                group: group.clone(),
                graceful: stop.clone().cancelled_owned().boxed(),
                forced: force.clone().cancelled_owned().boxed(),
                metrics: metrics.clone(),
            });
            tasks.spawn(async { (name, running.await) }.in_current_span());
        }
        let pass_on_stops = async {
            let graceful = any_of(stops.graceful).map(|()| stop.cancel());
            let forced = any_of(stops.forced).map(|()| force.cancel());
            // Both are polled at the same time, so that a forced stop has an effect during a graceful stop.
            future::join(graceful, forced).await;
            future::pending::<Infallible>().await
        };
        let controlled = async {
            let mut work = pin!(run_controllers(tasks, &stop));
            let mut joining = None;
            let right = tokio::select! {
                biased;
                // If a controller has failed, the process must not begin to lead.
                (ended, _) = &mut work => Err(ended),
                right = acquire_right(elector, group, &readiness, &stop, &mut joining) => Ok(right?),
            };
            let right = match right {
                Ok(right) => right,
                Err(ended) => {
                    let limit = controller::Config::default().shutdown_timeout;
                    abandon_join(joining, limit, force.cancelled()).await;
                    return ended;
                }
            };
            // The controllers leave their standby, and begin to reconcile.
            lead.cancel();
            let (ended, is_cut_off) = tokio::select! {
                biased;
                // The return drops the controllers and their runs.
                error = right.wait_for_loss() => return Err(error.into()),
                never = leave_after(&right, &stop) => match never {},
                done = &mut work => done,
            };
            match right {
                // The API server may still execute requests of runs that were dropped. In this case, the lease is not
                // released, but expires.
                Right::Term(_) if !is_cut_off => right.release_lease().await,
                Right::Member(sharding) if !(is_cut_off && force.is_cancelled()) => {
                    sharding.leave_now().await;
                }
                _ => {}
            }
            ended
        };
        tokio::select! {
            biased;
            never = pass_on_stops => match never {},
            ended = controlled => ended,
        }
    }

    /// Returns the manager's shard group, if it has one. Returns an error if a setting cannot be combined with the
    /// group.
    fn take_group(&mut self) -> Result<Option<Group>, RunnerError> {
        let Some(shards) = self.shards.take() else { return Ok(None) };
        if self.elector.is_some() {
            return Err(RunnerError::group_conflict("manager", "leader election"));
        }
        let shards = shards.for_controller(String::new(), self.metrics.as_ref().map(AsRef::as_ref));
        Group::new(shards, self.client.take()).map(Some)
    }
}

/// Reads the stream of a controller until it ends, and logs the results.
async fn follow_stream<K, E>(
    name: String,
    stream: impl Stream<Item = Result<(ObjectRef<K>, Action), Error<E, watcher::Error>>>,
) -> Result<(), RunnerError>
where
    K: Resource + 'static,
    E: StdError,
{
    let mut stream = pin!(stream);
    while let Some(result) = stream.next().await {
        match result {
            Ok(_) => {}
            Err(Error::RunnerError(error)) => return Err(error),
            Err(error) => tracing::warn!(controller = name, %error),
        }
    }
    Ok(())
}

/// Waits until all controllers have ended. If one fails, stops the other controllers. The second value of the result is
/// true if runs were dropped.
async fn run_controllers(
    mut tasks: JoinSet<(String, Result<(), RunnerError>)>,
    stop: &CancellationToken,
) -> (Result<(), ManagerError>, bool) {
    let (mut all_ended, mut is_cut_off) = (Ok(()), false);
    while let Some(joined) = tasks.join_next().await {
        let Some((name, Err(error))) = pass_on(joined) else { continue };
        is_cut_off |= matches!(error, RunnerError::CutOff(_));
        // The first error stops all controllers. If the others continued, nobody might notice that one is missing.
        stop.cancel();
        if all_ended.is_ok() {
            all_ended = Err(ManagerError { controller: Some(name), error });
        } else {
            tracing::error!(controller = name, %error, "another controller has failed, too");
        }
    }
    (all_ended, is_cut_off)
}

/// Waits until the controllers may start. If there is an election or a shard group, the process takes part in it when
/// all watches have listed their objects. The function then waits until the process leads or is a member. If `stop` is
/// cancelled during a join, `joining` contains the attempt to join.
async fn acquire_right(
    elector: Option<LeaderElector>,
    group: Option<Group>,
    readiness: &Readiness,
    stop: &CancellationToken,
    joining: &mut Option<Joining>,
) -> Result<Right, RunnerError> {
    let acquired = async {
        if elector.is_some() || group.is_some() {
            readiness.ready().await;
        }
        Right::wait_for_term(elector).await.or_join(group, joining).await
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => future::pending().await,
        right = acquired => right,
    }
}

/// Waits for the graceful stop. Then begins to hand the shards over, each when its runs have completed.
async fn leave_after(right: &Right, stop: &CancellationToken) -> Infallible {
    stop.cancelled().await;
    if let Right::Member(sharding) = right {
        sharding.begin_to_leave();
    }
    future::pending().await
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.controllers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Manager").field("controllers", &names).finish_non_exhaustive()
    }
}

/// The reason why a [`Manager`] cannot continue.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}{error}", name_controller(controller.as_deref()))]
#[non_exhaustive]
pub struct ManagerError {
    /// The [name](Controller::name) of the controller that could not continue. The manager has shut down the other
    /// controllers gracefully. `None` if the manager lost its lease or membership, or could not join its shard group.
    /// In this case, all runs in flight were dropped at an `await`.
    pub controller: Option<String>,
    /// The reason. Its text is part of this error's message.
    pub error: RunnerError,
}

impl From<RunnerError> for ManagerError {
    fn from(error: RunnerError) -> Self {
        Self { controller: None, error }
    }
}

/// Returns the first part of the message, with the name of the controller.
fn name_controller(controller: Option<&str>) -> String {
    controller.map(|name| format!("controller {name:?}: ")).unwrap_or_default()
}
