//! Leader election and shard groups for the replicas of a controller, based on Kubernetes Leases.
//!
//! [`requeue-kube`](https://docs.rs/requeue-kube) uses this crate, and re-exports its modules. A program without a
//! controller of requeue-kube can use this crate directly.
//!
//! | task | module |
//! |---|---|
//! | let one of several replicas work | [`leader`] |
//! | share the objects of a kind between replicas | [`membership`] |
//! | find the shard of an object | [`range`] |
//!
//! The guarantees are:
//!
//! - **One leader, and one holder of each shard.** This also holds if requests are slow or lost, or if a replica is
//!   disconnected. The only condition is that no machine's clock runs 1.5 times as fast as the clock of another
//!   machine.
//! - **Late writes are rejected.** If a process is frozen in the middle of a write, it completes the write when it
//!   continues, although it may no longer lead. With a [`Fence`](leader::Fence), the API server rejects this write.
//! - **No other component.** The API server stores the Leases. The crate needs no webhook and no custom resource.
//!
//! ```no_run
//! use requeue_leases::leader::{Config, LeaderElector};
//!
//! # async fn work() {}
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::new("default", "web-controller");
//! let client = config.client(kube::Config::infer().await?)?;
//! LeaderElector::new(client, config)?.run(|_leadership| work()).await?;
//! # Ok(())
//! # }
//! ```

mod clock;
mod error;
mod events;
pub mod leader;
mod lease;
pub mod membership;
mod metrics;
pub mod range;
mod requests;
// The module is hidden, because only requeue-kube and requeue-testkit use it. They simulate several processes on one
// thread.
#[doc(hidden)]
pub mod simulation;
// The module is hidden, and needs the feature `test-util`. Only the tests of this crate and of requeue-kube use it.
#[cfg(any(test, feature = "test-util"))]
#[doc(hidden)]
pub mod testing;
mod token;

pub use crate::error::ConfigError;
pub use crate::metrics::LeaseMetrics;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadme;
