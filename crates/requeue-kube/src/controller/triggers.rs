//! The methods of a controller that set triggers, and that set when it starts and shuts down.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::{FutureExt, Stream, StreamExt};
use kube::api::Resource;
use serde::de::DeserializeOwned;
use tokio::task::consume_budget;

use super::builder::Controller;
use super::enqueuer::Enqueuer;
use super::request::Request;
use crate::leader::LeaderElector;

impl<K> Controller<K>
where
    K: Clone + Resource + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// Reconciles all objects each time that `trigger` yields an item, for example after the configuration has changed.
    ///
    /// These runs have [low priority](crate::controller::LOW_PRIORITY). Objects that change run first.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use requeue_kube::Controller;
    /// use std::time::Duration;
    ///
    /// use futures_util::stream;
    ///
    /// # let _ = |controller: Controller<ConfigMap>| {
    /// // Reconciles all objects once per hour.
    /// let hours = stream::unfold((), async |()| {
    ///     tokio::time::sleep(Duration::from_secs(3600)).await;
    ///     Some(((), ()))
    /// });
    /// let controller = controller.reconcile_all_on(hours);
    /// # };
    /// ```
    pub fn reconcile_all_on(self, trigger: impl Stream<Item = ()> + Send + 'static) -> Self {
        let store = self.store();
        self.add_trigger(trigger, move |enqueuer, ()| enqueuer.add_all(&store))
    }

    /// Reconciles the objects that `trigger` yields.
    ///
    /// The items of the stream can be [`ObjectRef`](kube::runtime::reflector::ObjectRef)s,
    /// [`ReconcileRequest`](kube::runtime::controller::ReconcileRequest)s, which contain a reason, or [`Request`]s,
    /// which can contain a priority.
    ///
    /// In kube, this method is unstable, and accepts only `ObjectRef`s.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use requeue_kube::Controller;
    /// use futures_util::stream;
    /// use kube::runtime::reflector::ObjectRef;
    ///
    /// # let _ = |controller: Controller<ConfigMap>| {
    /// // For example, webhooks send the names of objects.
    /// let names = stream::iter(["a", "b"].map(|name| ObjectRef::new(name).within("default")));
    /// let controller = controller.reconcile_on(names);
    /// # };
    /// ```
    pub fn reconcile_on<R>(self, trigger: impl Stream<Item = R> + Send + 'static) -> Self
    where
        R: Into<Request<K>> + 'static,
    {
        self.add_trigger(trigger, |enqueuer, request| {
            let (key, priority, reason) = request.into().into_add();
            if enqueuer.is_ours(&key) {
                enqueuer.add(key, priority, reason, None);
            }
        })
    }

    fn add_trigger<T: 'static>(
        mut self,
        trigger: impl Stream<Item = T> + Send + 'static,
        add: impl Fn(&Enqueuer, T) + Send + 'static,
    ) -> Self {
        self.parts.others.triggers.push(Box::new(move |enqueuer: Arc<Enqueuer>| {
            let on_item = move |item| {
                add(&enqueuer, item);
                // The stream may always be ready. It must yield to the other tasks of the runtime from time to time.
                consume_budget()
            };
            trigger.for_each(on_item).boxed()
        }));
        self
    }

    /// Shuts down gracefully when `trigger` completes.
    ///
    /// From then on, no run starts. Runs in flight can complete until the [time limit](super::Config::shutdown_timeout)
    /// has passed. The controller's stream then ends.
    ///
    /// If runs are still in flight at the time limit, the last item of the stream is
    /// [`RunnerError::CutOff`](super::RunnerError::CutOff). If this method is called several times, the first trigger
    /// that completes starts the shutdown.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use requeue_kube::Controller;
    /// use tokio_util::sync::CancellationToken;
    ///
    /// # let _ = |controller: Controller<ConfigMap>| {
    /// let stop = CancellationToken::new();
    /// let controller = controller.graceful_shutdown_on(stop.clone().cancelled_owned());
    /// // The shutdown begins at the call of `stop.cancel()`.
    /// # };
    /// ```
    pub fn graceful_shutdown_on(
        mut self,
        trigger: impl Future<Output = ()> + Send + Sync + 'static,
    ) -> Self {
        self.parts.stops.graceful.push(trigger.boxed());
        self
    }

    /// Shuts down [gracefully](Self::graceful_shutdown_on) at the first Ctrl-C or SIGTERM.
    ///
    /// At the second signal, the controller [drops](super::RunnerError::CutOff) the runs in flight at an `await`, and
    /// its stream ends immediately.
    ///
    /// # Panics
    ///
    /// The stream panics if the handler of a signal cannot be installed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::sync::Arc;
    /// # use futures_util::StreamExt;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::runtime::reflector::ObjectRef;
    /// # use requeue_kube::controller::Action;
    /// # use requeue_kube::{Controller, policy};
    /// # async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> { Ok(Action::await_change()) }
    /// # let _ = async |controller: Controller<ConfigMap>| {
    /// let stream = controller.shutdown_on_signal().run(reconcile, policy::backoff, Arc::new(()));
    /// stream.for_each(async |result| println!("{result:?}")).await;
    /// println!("all runs have ended");
    /// # };
    /// ```
    pub fn shutdown_on_signal(mut self) -> Self {
        self.parts.stops.add_signals();
        self
    }

    /// Delays the start of the controller until `trigger` completes, for example until this process is the leader.
    ///
    /// Until then, the controller is in standby. Its watches run and update the [store](Self::store), unless
    /// [`without_warmup`](Self::without_warmup) is set. No object is queued. At the start, all objects in the store are
    /// queued with [low priority](crate::controller::LOW_PRIORITY).
    ///
    /// If the trigger waits for a Lease, the caller must drop the stream immediately when the Lease is lost. With
    /// [`leader_election`](Self::leader_election), the controller does this itself. To stop while the process still
    /// leads, use [`graceful_shutdown_on`](Self::graceful_shutdown_on).
    ///
    /// # Examples
    ///
    /// A program needs this method if it has its own election, because it uses a [`Fence`](crate::leader::Fence) or has
    /// other work than controllers. In standby, the controller already runs its watches and updates its store. It
    /// therefore starts immediately when the process leads:
    ///
    /// ```no_run
    /// # use std::{pin::pin, sync::Arc};
    /// # use futures_util::StreamExt;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::{Api, Client, runtime::watcher};
    /// # use requeue_kube::{Controller, controller::Action, policy};
    /// # use tokio_util::sync::CancellationToken;
    /// use requeue_kube::controller::Error;
    /// use requeue_kube::leader::LeaderElector;
    ///
    /// # async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> { Ok(Action::await_change()) }
    /// # let _ = async |client: Client, elector: LeaderElector, stop: CancellationToken| {
    /// let lead = CancellationToken::new();
    /// let mut work = pin!(
    ///     Controller::new(Api::<ConfigMap>::all(client), watcher::Config::default())
    ///         .start_on(lead.clone().cancelled_owned())
    ///         .graceful_shutdown_on(stop.cancelled_owned())
    ///         .run(reconcile, policy::backoff, Arc::new(()))
    ///         .fold(Ok(()), async |end, result| match result {
    ///             Err(Error::RunnerError(error)) => Err(error),
    ///             _ => end,
    ///         })
    /// );
    /// let term = tokio::select! {
    ///     term = elector.acquire() => term,
    ///     ended = &mut work => return Ok(ended?),
    /// };
    /// lead.cancel();
    /// tokio::select! {
    ///     biased;
    ///     // The lease was lost. The return drops the work at its current `await`.
    ///     lost = term.lost() => return Err(lost.into()),
    ///     ended = &mut work => {
    ///         // Requests of dropped runs may still take effect, so the lease is not released, but expires.
    ///         ended?;
    ///         // The controller has shut down gracefully. Until now, the election has renewed the lease.
    ///         term.release().await?;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// ```
    pub fn start_on(mut self, trigger: impl Future<Output = ()> + Send + 'static) -> Self {
        self.parts.start.on = Some(trigger.boxed());
        self
    }

    /// Runs the controller only while this process is the leader. One of several replicas reconciles objects. The other
    /// replicas are in standby.
    ///
    /// - **Start.** The controller takes part in the election when its watches have listed their objects. A replica
    ///   that cannot list therefore never leads. [Without warmup](Self::without_warmup), the controller lists after it
    ///   has become the leader, and releases the lease if the list fails. With [`start_on`](Self::start_on), the
    ///   controller takes part only after the trigger has completed. Until this process leads, the controller is in
    ///   standby, as described at `start_on`.
    /// - **Shutdown.** During a [shutdown](Self::graceful_shutdown_on), the controller renews the lease until the runs
    ///   in flight have completed, for at most [`shutdown_timeout`](super::Config::shutdown_timeout). It then releases
    ///   the lease, so that another replica starts immediately. If runs were dropped, it does not release the lease,
    ///   and the lease expires.
    /// - **Loss of the lease.** The controller immediately drops all runs in flight, each at an `await`. The stream
    ///   ends with [`RunnerError::LeadershipLost`](super::RunnerError::LeadershipLost) before another replica can lead.
    ///   The process should then exit, because an elector leads only once.
    ///
    /// The controller cannot drop a run that blocks its thread, and cannot recall a request that it has sent. A
    /// [`Fence`](crate::leader::Fence) protects objects against both. To use a fence, create the election yourself, as
    /// in the example of [`start_on`](Self::start_on). A [`Manager`](crate::Manager::leader_election) runs several
    /// controllers with one lease.
    ///
    /// ```no_run
    /// # use std::{sync::Arc, time::Duration};
    /// # use futures_util::StreamExt;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::{Api, Client, runtime::watcher};
    /// # use requeue_kube::{Controller, controller::Action, policy};
    /// use requeue_kube::leader::{Config, LeaderElector};
    ///
    /// # async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> { Ok(Action::await_change()) }
    /// # let _ = async {
    /// let config = kube::Config::infer().await?;
    /// let election = Config::new(&config.default_namespace, "web-controller");
    /// let elector = LeaderElector::new(election.client(config.clone())?, election)?;
    /// Controller::new(Api::<ConfigMap>::all(Client::try_from(config)?), watcher::Config::default())
    ///     .leader_election(elector)
    ///     .shutdown_on_signal()
    ///     .run(reconcile, policy::backoff, Arc::new(()))
    ///     .for_each(async |result| println!("{result:?}"))
    ///     .await;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # };
    /// ```
    pub fn leader_election(mut self, elector: LeaderElector) -> Self {
        self.parts.start.elector = Some(elector);
        self
    }

    /// Delays the start of the watches until the trigger of [`start_on`](Self::start_on) has completed, or until this
    /// process leads.
    ///
    /// By default, the watches run in standby too, so that a new leader can start without waiting for its lists.
    pub fn without_warmup(mut self) -> Self {
        self.parts.start.is_cold = true;
        self
    }
}
