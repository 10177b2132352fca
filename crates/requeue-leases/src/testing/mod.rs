//! API servers in memory that store Leases. The tests of this crate and of requeue-kube use them.
//!
//! The module is part of the published crate, but is compiled only with the feature `test-util`. The crate's
//! documentation does not contain it. It may change in any version.

// If a server receives a request that it cannot parse, the test must fail.
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

/// Creates an elector that uses the runtime's clock, which a test can pause. The second value is the number of
/// nanoseconds for which the machine was suspended. The test can change it.
pub fn elector(client: Client, config: Config) -> (LeaderElector, Arc<AtomicU64>) {
    let suspended = Arc::<AtomicU64>::default();
    let clock = Clock::Runtime(Instant::now(), Arc::clone(&suspended));
    (LeaderElector::with_clock(client, config, clock).expect("a safe configuration"), suspended)
}

/// Returns the same group with the runtime's clock, which a test can pause.
pub fn with_runtime_clock(group: ShardGroup) -> ShardGroup {
    group.clock(Clock::Runtime(Instant::now(), Arc::default()))
}
