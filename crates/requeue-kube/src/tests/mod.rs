//! Controllers and managers that lead, or that hold shards, with an API server in memory.

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

/// Returns an election with short names and client-go's times.
fn election() -> Config {
    Config::new("default", "web").host("host")
}
