//! What else makes a controller look at objects, and what makes it begin and end.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::future::select;
use futures_util::{FutureExt, Stream, StreamExt};
use kube::api::Resource;
use kube::runtime::controller::{ReconcileReason, ReconcileRequest};
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::consume_budget;

use super::Controller;
use super::hub::Hub;
use super::reason::Reason;
use crate::ObjectKey;
use crate::leader::LeaderElector;

impl<K> Controller<K>
where
    K: Clone + Resource + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// All objects are looked at whenever `trigger` has something: after a change of configuration,
    /// say. With [low priority](crate::watch::LOW_PRIORITY), so that what has changed goes first.
    pub fn reconcile_all_on(mut self, trigger: impl Stream<Item = ()> + Send + 'static) -> Self {
        let store = self.store();
        self.triggers.push(Box::new(move |hub: Arc<Hub>| {
            let add_all = move |()| {
                hub.add_all(&store);
                // A stream that is always ready is to leave others their turn.
                consume_budget()
            };
            trigger.for_each(add_all).boxed()
        }));
        self
    }

    /// These objects are looked at: those of a stream of [`ObjectRef`](kube::runtime::reflector::ObjectRef)s,
    /// or of [`ReconcileRequest`]s, which say why. Unstable in kube, which knows the former alone.
    pub fn reconcile_on<R>(mut self, trigger: impl Stream<Item = R> + Send + 'static) -> Self
    where
        R: Into<ReconcileRequest<K>> + 'static,
    {
        self.triggers.push(Box::new(move |hub: Arc<Hub>| {
            let add = move |request: R| {
                let request: ReconcileRequest<K> = request.into();
                let reason = match request.reason {
                    ReconcileReason::Custom { reason } => Reason::Custom(reason),
                    _ => Reason::Unknown,
                };
                hub.add(ObjectKey::from(&request.obj_ref), 0, reason);
                consume_budget()
            };
            trigger.for_each(add).boxed()
        }));
        self
    }

    /// Shuts down when `trigger` is ready: from then on nothing is begun, what runs is waited for
    /// until the [time is out](super::Config::shutdown_timeout), and the stream ends: with a
    /// [`RunnerError::CutOff`](super::RunnerError::CutOff), if something ran still.
    ///
    /// To be called several times; the first that is ready counts.
    pub fn graceful_shutdown_on(
        mut self,
        trigger: impl Future<Output = ()> + Send + Sync + 'static,
    ) -> Self {
        self.graceful.push(trigger.boxed());
        self
    }

    /// Shuts down [gracefully](Self::graceful_shutdown_on) on Ctrl-C or SIGTERM; at the second, the
    /// stream ends at once, and what runs is [dropped](super::RunnerError::CutOff) at an `await`.
    ///
    /// # Panics
    ///
    /// The stream panics if the handler of a signal can't be set up.
    pub fn shutdown_on_signal(mut self) -> Self {
        let (first, shutdown) = oneshot::channel();
        self.graceful.push(shutdown.map(|_| ()).boxed());
        self.forced.push(
            async {
                signal().await;
                tracing::info!("shutting down; a second signal ends what is running");
                // If it is shut down already, that is what was asked for.
                _ = first.send(());
                signal().await;
            }
            .boxed(),
        );
        self
    }

    /// Begins when `trigger` is ready: when this is the leader. Until then it is in standby: watches
    /// and [store](Self::store) run, unless [told otherwise](Self::warmup), but nothing is queued.
    /// Then everything in the store is, with [low priority](crate::watch::LOW_PRIORITY).
    ///
    /// Who has lost the lease has to drop the stream at once, as
    /// [there](crate::leader#with-several-controllers);
    /// [`leader_election`](Self::leader_election) cuts off what runs by itself.
    /// [`graceful_shutdown_on`](Self::graceful_shutdown_on) is for an end while it leads.
    pub fn start_on(mut self, trigger: impl Future<Output = ()> + Send + 'static) -> Self {
        self.start.on = Some(trigger.boxed());
        self
    }

    /// Runs while this process leads: of several replicas, one works, and the others stand by.
    ///
    /// - It stands for election once its watches have listed, so that who can't list never leads; or,
    ///   without [`warmup`](Self::warmup), lists once it leads, and gives the lease back if it can't;
    ///   with [`start_on`](Self::start_on), not before that is ready, either. Until it leads it is in
    ///   standby, as there.
    /// - A [shutdown](Self::graceful_shutdown_on) finishes what runs while the lease is still renewed,
    ///   for as long as [`shutdown_timeout`](super::Config::shutdown_timeout) says and no longer, and
    ///   then gives the lease back, so that another begins at once. If something was cut off it is
    ///   not given back, but runs out.
    /// - Who loses the lease cuts off at once what runs, each at an `await`. The stream ends with
    ///   [`RunnerError::LeadershipLost`](super::RunnerError::LeadershipLost), before another leads;
    ///   the process had better end then, too: an elector leads once.
    ///
    /// Work that blocks its thread can't be cut off, and writes that were sent already can't be called
    /// back: against those there is a [`Fence`](crate::leader::Fence). Who needs one, or has several
    /// controllers to one lease, [wires them up](crate::leader#with-several-controllers).
    ///
    /// ```no_run
    /// # use std::{sync::Arc, time::Duration};
    /// # use futures_util::StreamExt;
    /// # use k8s_openapi::api::core::v1::ConfigMap;
    /// # use kube::{Api, Client, runtime::watcher};
    /// # use requeue_kube::{Controller, controller::Action, policy};
    /// use requeue_kube::leader::{Config, LeaderElector};
    ///
    /// # async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> { unimplemented!() }
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = kube::Config::infer().await?;
    /// let election = Config::new(&config.default_namespace, "web-controller");
    /// let elector = LeaderElector::new(election.client(config.clone())?, election)?;
    /// Controller::new(Api::<ConfigMap>::all(Client::try_from(config)?), watcher::Config::default())
    ///     .leader_election(elector)
    ///     .shutdown_on_signal()
    ///     .run(reconcile, policy::backoff, Arc::new(()))
    ///     .for_each(async |result| println!("{result:?}"))
    ///     .await;
    /// # Ok(())
    /// # }
    /// ```
    pub fn leader_election(mut self, elector: LeaderElector) -> Self {
        self.start.elector = Some(elector);
        self
    }

    /// Whether watches and store run in standby, before [`start_on`](Self::start_on) is ready or this
    /// process leads, so that it begins at once. They do unless said.
    pub fn warmup(mut self, warmup: bool) -> Self {
        self.warmup = warmup;
        self
    }
}

/// Is ready at the next Ctrl-C or SIGTERM.
async fn signal() {
    let interrupt = async {
        if let Err(error) = tokio::signal::ctrl_c().await {
            panic!("Ctrl-C can't be waited for: {error}");
        }
    };
    #[cfg(unix)]
    let terminate = async {
        use tokio::signal::unix::{SignalKind, signal};
        match signal(SignalKind::terminate()) {
            Ok(mut terminate) => _ = terminate.recv().await,
            Err(error) => panic!("SIGTERM can't be waited for: {error}"),
        }
    };
    #[cfg(not(unix))]
    let terminate = std::future::pending::<()>();
    select(interrupt.boxed(), terminate.boxed()).await;
}
