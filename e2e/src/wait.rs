use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// How long anything here may take before the test has failed. A machine under load is slow, and
/// nothing is measured by it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `condition` holds, which is asked every 20 ms.
///
/// # Panics
/// With `what` is waited for, after two minutes.
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
        panic!("after {PATIENCE:?} it was still not so that {what}");
    }
}

/// Nanoseconds by a clock that all processes of a machine share.
pub type Nanos = u64;

/// What the time is by the clock that all processes of a machine share.
///
/// # Panics
/// On a system that has no such clock.
pub fn now() -> Nanos {
    match clock_gettime(ClockId::CLOCK_MONOTONIC) {
        // It has not gone on for 500 years.
        Ok(time) => Duration::from(time).as_nanos() as Nanos,
        Err(err) => panic!("the monotonic clock: {err}"),
    }
}

/// Whether the tests run in their long form: `REQUEUE_E2E=full`, as `make e2e-full` sets it.
pub fn full() -> bool {
    std::env::var_os("REQUEUE_E2E").is_some_and(|form| form == "full")
}
