//! Tests of the election without an API server. The algorithm is tested in a simulation, and the
//! requests with a mocked client.

mod algorithm;
mod fence;
mod mocked;
mod simulation;

use std::time::Duration;

use super::Config;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn config(lease: f64, renew: f64, retry: f64) -> Config {
    Config::new("default", "web")
        .lease_duration(seconds(lease))
        .renew_deadline(seconds(renew))
        .retry_period(seconds(retry))
        .host("host")
}
