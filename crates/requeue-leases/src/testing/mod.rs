//! An API server in memory that stores Leases, for the tests of this crate and of requeue-kube.
//!
//! The published crate contains this module, but compiles it only with the feature `test-util`. The documentation of
//! the crate does not show the module, and it may change at any time.

// A request that cannot be read makes the test fail.
#![allow(clippy::unwrap_used)]

mod api;
mod election;
mod http;
mod server;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use kube::Client;
use tokio::time::Instant;

pub use self::api::Api;
pub use self::election::ElectionApi;
#[cfg(test)]
pub(crate) use self::election::Server as ElectionServer;
pub use self::http::{Fake, NAMESPACE};
#[cfg(test)]
pub(crate) use self::server::{Server, lease};
use crate::clock::Clock;
use crate::leader::{Config, LeaderElector};
use crate::membership::ShardGroup;

/// Returns an elector with the runtime's clock, which a test can pause, and the nanoseconds for which
/// the machine was suspended.
pub fn elector(client: Client, config: Config) -> (LeaderElector, Arc<AtomicU64>) {
    let suspended = Arc::<AtomicU64>::default();
    let clock = Clock::Runtime(Instant::now(), Arc::clone(&suspended));
    (LeaderElector::with_clock(client, config, clock).expect("a safe configuration"), suspended)
}

/// Returns the group with the runtime's clock, which a test can pause.
pub fn with_runtime_clock(group: ShardGroup) -> ShardGroup {
    group.clock(Clock::Runtime(Instant::now(), Arc::default()))
}
