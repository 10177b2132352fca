//! Leader election: of several replicas, one leads.
//!
//! It is client-go's algorithm, by a Lease, and stands by itself: it needs no controller. A
//! controller that is to run only while it leads takes the elector with
//! [`Controller::leader_election`](crate::Controller::leader_election).
//!
//! - **One leads**: no two replicas lead at once, whatever is slow, lost or cut off, so long as one
//!   machine's clock does not run half as fast again as another's. They need not agree on the time.
//! - **It knows when it no longer does**: [`Leadership::is_leading`] is exact, by a clock that goes
//!   on in a suspended machine; and who leads is told of the end by then.
//! - **Late writes are refused**: a process that was frozen in the middle of a write finishes it
//!   when it thaws. A [`Fence`] has the API server refuse that.
//! - **An orderly end**: stop, finish what is under way while the lease is renewed, release, and
//!   another leads at once. What has not ended in time is not followed by a release.
//! - **It can be seen**: [`Status`], the gauge `leader_election_master_status`
//!   ([`metrics`](LeaderElector::metrics)), Events, and `/healthz` ([`Status::check`]).
//!
//! ```no_run
//! use requeue_kube::leader::{Config, LeaderElector};
//!
//! # async fn serve(_healthy: impl Fn() -> bool) {}
//! # async fn control() {}
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let config = Config::new("default", "web-controller");
//!     let client = config.client(kube::Config::infer().await?)?;
//!     let elector = LeaderElector::new(client, config)?;
//!     let status = elector.status();
//!     tokio::spawn(serve(move || status.check().is_ok()));
//!
//!     let ctrl_c = async { tokio::signal::ctrl_c().await.unwrap() };
//!     elector
//!         .run_until(ctrl_c, async |leadership| {
//!             tokio::select! {
//!                 () = control() => {}
//!                 () = leadership.stopping() => {}
//!             }
//!         })
//!         .await?;
//!     Ok(())
//! }
//! ```
//!
//! # With several controllers
//!
//! One Lease for all of a program, or a [`Fence`] in hand, takes some wiring. Controllers that stand by
//! warm run their watches and stores before they lead, so that they begin at once:
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
//!     // Returning drops the work, wherever it is.
//!     lost = term.lost() => return Err(lost.into()),
//!     ended = &mut work => {
//!         // Something was cut off, and may not be over: the lease is not released, but runs out.
//!         ended?;
//!         // It was told to stop, and has drained, with the lease renewed all the while.
//!         term.release().await?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # How long it takes to take over
//!
//! After a release, until the next look of those who wait: 2.2 retry periods at most, which is 4.4 s
//! unless said. A leader that dies, or is cut off, may have renewed just after another has looked, who
//! sees that at the next look, waits for a lease's duration from there, and takes over at the look
//! after that: from the last renewal on, **a lease and 4.4 retry periods** at most, which is 23.8 s. To
//! that comes what the API server takes to answer these looks and the write; a request that it does not
//! answer counts as failed after half a renew deadline, and the next look makes up for it. That is
//! client-go's algorithm: looks are as far apart so that those who wait do not all ask at once.
//!
//! # How it differs from client-go
//!
//! - A leader steps down a renew deadline after its last good renewal was **sent**. client-go
//!   counts from when it begins to renew once more, a retry period after the answer.
//! - It counts time that the machine was suspended. Time in which a virtual machine was paused or
//!   moved by its host, no clock in it may count: there a [`Fence`] alone keeps late writes out.
//! - The lease's duration has to be whole seconds. client-go cuts 2.9 s to 2 in the Lease.
//! - The identity is new for each elector, and every term has a new number, so that a [`Token`]
//!   names one term. client-go's leader that comes back under its old name keeps the number.
//! - A Lease that was deleted ends the term, and those who have seen it held still wait it out;
//!   client-go creates it at once. Who has never seen it can't know: to delete the Lease of a
//!   leader that lives is to have two until that one next renews, and if it can't, up to its renew
//!   deadline.
//! - Fields of the Lease that it does not know are kept.
//! - Releasing waits for the work, and renews meanwhile. client-go's `ReleaseOnCancel` leaves that
//!   to the caller.
//! - Neither locks of other kinds nor coordinated leader election, which is alpha.
//!
//! # What it may do
//!
//! ```yaml
//! - apiGroups: [coordination.k8s.io]
//!   resources: [leases]
//!   verbs: [get, create, update]
//! - apiGroups: [events.k8s.io]
//!   resources: [events]
//!   verbs: [create, patch]
//! ```

mod calls;
mod clock;
mod config;
mod driver;
mod election;
mod elector;
mod events;
mod fence;
mod leadership;
mod lease;
mod status;
mod term;
#[cfg(test)]
mod tests;

pub use self::config::{Config, ConfigError};
pub use self::elector::LeaderElector;
pub use self::fence::{ClaimError, Fence, ParseTokenError, Token};
pub use self::leadership::{Leadership, LeadershipLost};
pub use self::status::{Overdue, Status};
pub use self::term::{RunError, Term};
