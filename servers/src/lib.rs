//! Real servers for tests, started as an unprivileged user on this machine, and gone after them.

mod keeper;
mod local;
mod postgres;
mod redis;

pub use crate::local::{did_not_run, free_ports};
pub use crate::postgres::Postgres;
pub use crate::redis::{Redis, RedisCluster};
