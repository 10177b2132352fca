//! Leader election for controllers.
//!
//! [`Controller::leader_election`](crate::Controller::leader_election) runs a controller only while its
//! process leads. [`requeue_leases::leader`] has the guarantees, the failover time, the differences from
//! client-go and the permissions.
//!
//! # Several controllers with one Lease
//!
//! [`Manager::leader_election`](crate::Manager::leader_election) runs several controllers with one
//! Lease. A program with a [`Fence`], or with other work besides controllers, connects the parts
//! itself. In standby, these controllers already run their watches and stores, so that they start
//! immediately when the process leads:
//!
//! ```no_run
//! # use std::{pin::pin, sync::Arc};
//! # use futures_util::StreamExt;
//! # use k8s_openapi::api::core::v1::ConfigMap;
//! # use kube::{Api, Client, runtime::watcher};
//! # use requeue_kube::{Controller, controller::Action, policy};
//! # use tokio_util::sync::CancellationToken;
//! use requeue_kube::controller::Error;
//! use requeue_kube::leader::LeaderElector;
//!
//! # async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> { unimplemented!() }
//! # async fn example(client: Client, elector: LeaderElector, stop: CancellationToken) -> Result<(), Box<dyn std::error::Error>> {
//! let lead = CancellationToken::new();
//! let mut work = pin!(
//!     Controller::new(Api::<ConfigMap>::all(client), watcher::Config::default())
//!         .start_on(lead.clone().cancelled_owned())
//!         .graceful_shutdown_on(stop.cancelled_owned())
//!         .run(reconcile, policy::backoff, Arc::new(()))
//!         .fold(Ok(()), async |end, result| match result {
//!             Err(Error::RunnerError(error)) => Err(error),
//!             _ => end,
//!         })
//! );
//! let term = tokio::select! {
//!     term = elector.acquire() => term,
//!     ended = &mut work => return Ok(ended?),
//! };
//! lead.cancel();
//! tokio::select! {
//!     biased;
//!     // Returning drops the work at its current `await`.
//!     lost = term.lost() => return Err(lost.into()),
//!     ended = &mut work => {
//!         // After an error, dropped runs may still have effects: the lease expires, unreleased.
//!         ended?;
//!         // The controller has shut down gracefully. The lease was renewed in the meantime.
//!         term.release().await?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub use requeue_leases::leader::{
    Config, Fence, FencingToken, LeaderElector, Leadership, LeadershipLost, Overdue, Status, Term,
};
