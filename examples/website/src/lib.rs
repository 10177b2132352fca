//! A complete controller.
//!
//! The controller creates a ConfigMap with the page of each `Website`, and a Deployment that serves the page.
//!
//! This file connects the parts. [`mod@reconcile`] contains the reconciler, and [`api`] the custom resource.

pub mod api;
pub mod reconcile;

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use requeue_http::Site;
use requeue_kube::controller::{Action, Config, Error, Readiness, RunnerError};
use requeue_kube::leader::{self, LeaderElector};
use requeue_kube::metrics::Metrics;
use requeue_kube::{Controller, ObjectQueue, policy};
use tokio::net::TcpListener;

pub use crate::api::Website;
use crate::reconcile::{Context, MANAGED_BY, reconcile};

/// The name of the controller, which is also the name of its Lease and of its field manager, and is used in labels and
/// Events.
pub const CONTROLLER: &str = "website-controller";

/// Runs the controller until SIGTERM, or until it loses its Lease.
///
/// One replica reconciles. The others stand by with up-to-date stores. `listener` serves the dashboard, the metrics and
/// the probes.
///
/// # Errors
///
/// Returns an error if the controller cannot continue, or is no longer the leader. The process should then exit, and be
/// restarted.
pub async fn run(
    config: kube::Config,
    election: leader::Config,
    listener: TcpListener,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);

    let elector = LeaderElector::new(election.client(config.clone())?, election)?.metrics(&metrics);
    let status = elector.status();

    let context =
        Arc::new(Context::new(Client::try_from(config.clone())?, &config.default_namespace));
    let client = Client::try_from(config)?;
    let controller = controller(client, elector).metrics(&metrics).shutdown_on_signal();
    let readiness = controller.readiness();
    controller
        .queue_on_start(|queue| serve(listener, queue, registry, readiness, status))
        .run(reconcile, policy::backoff, context)
        .map(report)
        .try_collect::<()>()
        .await?;
    Ok(())
}

/// Returns the controller, with its watches and settings.
pub fn controller(client: Client, elector: LeaderElector) -> Controller<Website> {
    let ours = watcher::Config::default().labels(&format!("{MANAGED_BY}={CONTROLLER}"));
    Controller::new(Api::<Website>::all(client.clone()), watcher::Config::default())
        .owns(Api::<ConfigMap>::all(client.clone()), ours.clone())
        .owns(Api::<Deployment>::all(client), ours)
        .with_config(
            Config::default()
                .concurrency(4)
                .reconcile_timeout(Duration::from_secs(60))
                .fair_namespaces(),
        )
        .leader_election(elector)
}

/// Logs the result of a run.
///
/// # Errors
///
/// The controller has ended.
pub fn report<E: std::error::Error>(
    result: Result<(ObjectRef<Website>, Action), Error<E, watcher::Error>>,
) -> Result<(), RunnerError> {
    match result {
        Ok((website, _)) => tracing::info!(%website, "reconciled"),
        Err(Error::RunnerError(error)) => return Err(error),
        Err(error) => tracing::warn!(%error),
    }
    Ok(())
}

/// Serves the dashboard, `/metrics`, `/readyz` and `/healthz` on one port.
fn serve(
    listener: TcpListener,
    queue: ObjectQueue,
    registry: Registry,
    readiness: Readiness,
    election: leader::Status,
) {
    let read = |bytes: &[u8]| std::str::from_utf8(bytes).ok()?.parse().ok();
    let site = Site::builder_with(queue, |key| key.to_string().into_bytes().into(), read)
        .title("websites")
        .registry(Arc::new(registry))
        .ready(move || readiness.is_ready())
        .healthy(move || election.check().is_ok())
        // The kubelet and Prometheus use the address of the pod.
        .any_address()
        .build();
    tokio::spawn(async move { site.serve(listener).await });
}
