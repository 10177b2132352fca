//! Leader election and shard groups for the replicas of a controller, by Kubernetes Leases.
//!
//! [`requeue-kube`](https://docs.rs/requeue-kube) builds on this crate, and re-exports its modules. A program with
//! another controller, or without a controller, can use this crate directly.
//!
//! | task | module |
//! |---|---|
//! | let one of several replicas work | [`leader`] |
//! | share the objects of a kind between replicas | [`membership`] |
//! | find the shard of an object | [`range`] |
//!
//! The guarantees are:
//!
//! - **One leader, and one holder of each shard**, even if requests are slow or lost, or a replica is disconnected.
//!   This holds as long as no machine's clock runs 1.5 times as fast as the clock of another machine.
//! - **Late writes are rejected.** A process that was frozen in the middle of a write completes the write when it
//!   continues. With a [`Fence`](leader::Fence), the API server rejects that write.
//! - **No other component.** The API server stores the Leases. No webhook and no custom resource is needed.
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
// Only requeue-kube and requeue-testkit need this module: they simulate several processes on one thread.
#[doc(hidden)]
pub mod simulation;
// The module is hidden and needs the feature `test-util`, because only the tests of this crate and
// of requeue-kube use it.
#[cfg(any(test, feature = "test-util"))]
#[doc(hidden)]
pub mod testing;
mod token;

pub use crate::error::ConfigError;
pub use crate::metrics::LeaseMetrics;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadme;
