//! Leader election: one of several replicas leads. It holds a Kubernetes Lease.
//!
//! The election has client-go's algorithm, and needs no controller. If a controller of requeue-kube must run only while
//! its process leads, pass the elector to `Controller::leader_election`.
//!
//! - **One leader.** No two replicas lead at the same time, even if requests are slow or lost, or if a replica is
//!   disconnected. The clocks of the machines need not show the same time, but no clock may run 1.5 times as fast as
//!   another.
//! - **The leader knows when its term ends.** [`Leadership::is_leading`] is exact. Its clock also advances while the
//!   machine is suspended. The leader is notified at the end of its right at the latest.
//! - **Late writes are rejected.** If a process is frozen in the middle of a write, it completes the write when it
//!   continues, although it may no longer lead. With a [`Fence`], the API server rejects this write.
//! - **Graceful shutdown.** The leader starts no more work, and renews the lease until its work has completed. It then
//!   releases the lease, and another replica leads immediately. If the work does not complete in time, the lease is not
//!   released, but expires.
//! - **Observability.** The module provides [`Status`], the gauge `leader_election_master_status`
//!   ([`metrics`](LeaderElector::metrics)), Kubernetes Events, and a check for `/healthz` ([`Status::check`]).
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
//! After a release, another replica leads when it next polls the Lease. It polls after at most 2.2 retry periods, which
//! are 4.4 s by default.
//!
//! If a leader dies or is disconnected, the takeover takes longer. The leader may have renewed the Lease just after
//! another replica has polled. That replica sees the renewal at its next poll. From that time on, it waits for the
//! lease duration, and takes over at the following poll. From the last renewal to the takeover, this takes at most
//! **the lease duration and 4.4 retry periods**, which is 23.8 s by default.
//!
//! To this time, the response times of the API server are added. A request without a response fails after half a renew
//! deadline, and the next poll repeats it. The algorithm is that of client-go. The standbys poll at different times.
//!
//! # Differences from client-go
//!
//! - A leader steps down one renew deadline after it has **sent** its last successful renewal. In client-go, this time
//!   begins with the next attempt to renew, which is one retry period after the response.
//! - The clock also advances while the machine is suspended. If a host pauses or moves a virtual machine, the virtual
//!   machine may have no such clock. In this case, only a [`Fence`] rejects late writes.
//! - The lease duration must be whole seconds. client-go rounds 2.9 s down, and writes 2 into the Lease.
//! - Each elector has a new identity, and each term has a new number. A [`FencingToken`] therefore identifies one term.
//!   In client-go, a leader that starts again under its old name keeps the number of its term.
//! - If the Lease is deleted, the term ends. A replica that has seen the holder waits until the Lease would have
//!   expired. client-go creates the Lease again immediately. A replica that has never read the Lease does not know of
//!   the holder. If you delete the Lease of a running leader, two replicas may therefore lead until the first one next
//!   renews. If it cannot renew, they may both lead until the first one's renew deadline has passed.
//! - A write keeps the fields of the Lease that this crate does not know.
//! - A release waits until the work has ended, and renews the lease in the meantime. With client-go's
//!   `ReleaseOnCancel`, the caller must wait for the work.
//! - Other kinds of locks are not supported. Coordinated leader election, which is alpha, is not supported either.
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
