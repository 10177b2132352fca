//! Leader election: one of several replicas leads, by a Kubernetes Lease.
//!
//! The election uses client-go's algorithm, and works without a controller. For a controller of requeue-kube that must
//! run only while its process leads, pass the elector to `Controller::leader_election`.
//!
//! - **One leader.** No two replicas lead at the same time, even if requests are slow or lost, or a replica is
//!   disconnected. This holds as long as no machine's clock runs 1.5 times as fast as the clock of another machine. The
//!   clocks do not have to show the same time.
//! - **The leader knows when its term ends.** [`Leadership::is_leading`] is exact, by a clock that also counts while
//!   the machine is suspended. The leader is also notified no later than that time.
//! - **Late writes are rejected.** A process that was frozen in the middle of a write completes the
//!   write when it continues. With a [`Fence`], the API server rejects that write.
//! - **Graceful shutdown.** The leader stops, completes its work while it renews the lease, and
//!   releases it. Another replica then leads immediately. If work has not completed in time, the lease
//!   is not released.
//! - **Observability.** The module provides [`Status`], the gauge `leader_election_master_status`
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
//! renewal at its next poll, and waits for the duration of the lease from that time on. It takes over at the following
//! poll. Measured from the last renewal, the takeover takes at most **the lease's duration and 4.4 retry periods**,
//! which is 23.8 s by default.
//!
//! The response times of the API server for these polls and for the write are added. A request without a response
//! counts as failed after half a renew deadline, and is repeated by the next poll. The algorithm is client-go's. The
//! standbys poll at different times.
//!
//! # Differences from client-go
//!
//! - A leader steps down one renew deadline after its last successful renewal was **sent**.
//!   client-go measures from the start of its next renewal, one retry period after the response.
//! - Time during which the machine is suspended counts. If a host pauses or moves a virtual machine, the virtual
//!   machine may have no clock that counts this time. In this case, only a [`Fence`] rejects late writes.
//! - The lease's duration must be whole seconds. client-go writes 2 in the Lease for a duration of
//!   2.9 s.
//! - The identity is new for each elector, and every term has a new number. A [`FencingToken`] therefore identifies one
//!   term. In client-go, a leader that returns under its old name keeps the number.
//! - A deleted Lease ends the term. Replicas that have seen its holder still wait until the Lease would have expired.
//!   client-go creates the Lease again immediately. A replica that has never seen the Lease cannot know about its
//!   holder. If you delete the Lease of a running leader, two replicas may lead until the first leader next renews. If
//!   the first leader cannot renew, this period lasts at most for its renew deadline.
//! - Unknown fields of the Lease are kept.
//! - A release waits for the work, and the lease is renewed during this time. With client-go's `ReleaseOnCancel`, the
//!   caller must wait for the work.
//! - Locks of other kinds, and coordinated leader election, which is alpha, are not supported.
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
