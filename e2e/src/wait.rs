//! Waits with a time limit, and the clock that all processes share.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The time limit of every wait. The limit is long because machines may be slow. No test measures
/// time with it.
const PATIENCE: Duration = Duration::from_secs(900);

/// Waits until `condition` holds, and checks it every 20 ms.
///
/// # Panics
/// Panics after 15 minutes. The message contains `what`.
///
/// ```no_run
/// # async fn example(server: &requeue_e2e::Server) {
/// # use {k8s_openapi::api::core::v1::ConfigMap, kube::Api};
/// let maps: Api<ConfigMap> = Api::default_namespaced(server.client().await);
/// requeue_e2e::until("the ConfigMap is gone", async || {
///     maps.get_opt("mine").await.unwrap().is_none()
/// })
/// .await;
/// # }
/// ```
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let asking = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, asking).await.is_err() {
        panic!("after {PATIENCE:?}, still waiting for: {what}");
    }
}

/// Nanoseconds on a clock that all processes of a machine share.
pub type Nanos = u64;

/// Returns the time on the clock that all processes of the machine share.
///
/// # Panics
/// Panics on a system without such a clock.
pub fn now() -> Nanos {
    match clock_gettime(ClockId::CLOCK_MONOTONIC) {
        // The number overflows only after more than 500 years.
        Ok(time) => Duration::from(time).as_nanos() as Nanos,
        Err(err) => panic!("the monotonic clock: {err}"),
    }
}

/// Returns true if the tests run at full length: `make e2e-full` sets `REQUEUE_E2E=full`.
pub fn full() -> bool {
    std::env::var_os("REQUEUE_E2E").is_some_and(|form| form == "full")
}
