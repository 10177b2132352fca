//! Waits with a time limit, and the clock that all processes share.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// The time limit of every wait. It is long because machines may be slow; nothing is measured by
/// it.
const PATIENCE: Duration = Duration::from_secs(900);

/// Waits until `condition` holds, and checks it every 20 ms.
///
/// # Panics
/// After 15 minutes, with `what`.
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
/// On a system without such a clock.
pub fn now() -> Nanos {
    match clock_gettime(ClockId::CLOCK_MONOTONIC) {
        // It overflows only after more than 500 years.
        Ok(time) => Duration::from(time).as_nanos() as Nanos,
        Err(err) => panic!("the monotonic clock: {err}"),
    }
}

/// Returns true if the tests run at full length: `REQUEUE_E2E=full`, as `make e2e-full` sets it.
pub fn full() -> bool {
    std::env::var_os("REQUEUE_E2E").is_some_and(|form| form == "full")
}
