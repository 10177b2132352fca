//! Leader election: one of several replicas leads, by a Kubernetes Lease.
//!
//! The election has client-go's algorithm, and works without a controller. A controller of requeue-kube that must run
//! only while its process leads takes the elector with `Controller::leader_election`.
//!
//! - **One leader.** No two replicas lead at the same time, even if requests are slow or lost, or a replica is
//!   disconnected. This holds as long as no machine's clock runs 1.5 times as fast as the clock of another machine. The
//!   clocks need not show the same time.
//! - **The leader knows when its term ends.** [`Leadership::is_leading`] is exact, by a clock that also counts while
//!   the machine is suspended. The leader is also notified by that time.
//! - **Late writes are rejected.** A process that was frozen in the middle of a write finishes it
//!   when it continues. With a [`Fence`], the API server rejects that write.
//! - **Graceful shutdown.** The leader stops, completes its work while it renews the lease, and
//!   releases it. Another replica then leads immediately. If work has not completed in time, the lease
//!   is not released.
//! - **Observability.** There are [`Status`], the gauge `leader_election_master_status`
//!   ([`metrics`](LeaderElector::metrics)), Events, and `/healthz` ([`Status::check`]).
//!
//! ```no_run
//! use requeue_leases::leader::{Config, LeaderElector};
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
//! # Failover time
//!
//! After a release, another replica leads with its next poll of the Lease: after 2.2 retry periods
//! at most, which is 4.4 s by default.
//!
//! A leader that dies or is disconnected may have renewed just after another replica has polled. That replica sees the
//! renewal at its next poll, waits for the duration of the lease from that moment, and takes over at the poll after
//! that. Measured from the last renewal, this takes at most **the lease's duration and 4.4 retry periods**, which is
//! 23.8 s by default.
//!
//! The response times of the API server to these polls and to the write must be added. A request without a response
//! counts as failed after half a renew deadline, and the next poll makes up for it. The algorithm is client-go's. The
//! standbys poll at different times.
//!
//! # Differences from client-go
//!
//! - A leader steps down one renew deadline after its last successful renewal was **sent**.
//!   client-go measures from the start of its next renewal, one retry period after the response.
//! - Time in which the machine was suspended counts. If a host pauses or moves a virtual machine, the virtual machine
//!   may have no clock that counts this time. In this case, only a [`Fence`] rejects late writes.
//! - The lease's duration must be whole seconds. client-go truncates 2.9 s to 2 in the Lease.
//! - The identity is new for each elector, and every term has a new number. A [`FencingToken`] therefore names one term. In
//!   client-go, a leader that returns under its old name keeps the number.
//! - A deleted Lease ends the term. Replicas that have seen it held still wait until it would have expired; client-go
//!   creates it again immediately. A replica that has never seen the Lease cannot know about it. If you delete the
//!   Lease of a running leader, two replicas may lead until the first leader next renews. If the first leader cannot
//!   renew, this lasts at most for its renew deadline.
//! - Unknown fields of the Lease are kept.
//! - A release waits for the work, and renews the lease during this time. client-go's `ReleaseOnCancel` leaves that to
//!   the caller.
//! - There are no locks of other kinds, and no coordinated leader election, which is alpha.
//!
//! # Permissions
//!
//! ```yaml
//! - apiGroups: [coordination.k8s.io]
//!   resources: [leases]
//!   verbs: [get, create, update]
//! - apiGroups: [events.k8s.io]
//!   resources: [events]
//!   verbs: [create, patch]
//! ```

mod config;
mod driver;
pub(crate) mod election;
mod elector;
mod fence;
mod leadership;
pub(crate) mod lost;
mod status;
mod term;
#[cfg(test)]
mod tests;

pub use self::config::Config;
pub use self::elector::LeaderElector;
pub use self::fence::Fence;
pub(crate) use self::fence::Right;
pub use self::leadership::Leadership;
pub use self::lost::LeadershipLost;
pub use self::status::Status;
pub use self::term::Term;
pub use crate::token::FencingToken;
