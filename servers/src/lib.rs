//! Starts real servers for tests, as an unprivileged user on this machine, and removes them
//! afterwards.

mod certificate;
mod collector;
mod exposition;
mod keeper;
mod local;
mod messages;
mod pgbouncer;
mod postgres;
mod proxy;
mod redis;

pub use crate::certificate::{
    write_certificate, write_certificate_for, write_certificate_of_authority,
    write_expired_certificate,
};
pub use crate::collector::Collector;
pub use crate::exposition::check_metrics;
pub use crate::local::{did_not_run, free_ports};
pub use crate::messages::Language;
pub use crate::pgbouncer::PgBouncer;
pub use crate::postgres::Postgres;
pub use crate::proxy::{Mishap, Point, Proxy};
pub use crate::redis::{Failover, Redis, RedisCluster};
