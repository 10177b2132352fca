//! Tests of controllers and managers with an election or a shard group. The API server is in
//! memory.

mod leader;
mod leading_manager;
mod outages;
mod refused_groups;
mod sharded_manager;

use std::time::Duration;

use crate::leader::Config;

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Returns the configuration of an election with short names and client-go's durations.
fn election() -> Config {
    Config::new("default", "web").host("host")
}
