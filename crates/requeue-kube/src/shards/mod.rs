//! Shard groups (draft).

mod assignment;
mod balance;
mod calls;
mod config;
mod driver;
mod error;
mod group;
mod members;
mod membership;
mod rights;
#[cfg(test)]
mod tests;

pub use self::config::Shards;
pub use self::error::ShardsError;
pub use self::membership::{Change, HeldShard, Membership};
