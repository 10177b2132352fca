//! Real servers for tests, started as an unprivileged user on this machine, and gone after them.

mod keeper;
mod postgres;
mod redis;

pub use crate::postgres::Postgres;
pub use crate::redis::{Redis, RedisCluster};
