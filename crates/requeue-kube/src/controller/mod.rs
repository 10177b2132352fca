//! Controllers for Kubernetes objects. They have the interface of kube's
//! [`Controller`](kube::runtime::Controller), and use requeue's queue.
//!
//! A controller calls a reconciler for each object that has changed, or that a trigger names. An
//! object never has two runs at the same time.

mod action;
mod attempt;
pub(crate) mod builder;
mod config;
mod enqueuer;
mod error;
mod failures;
mod names;
mod own_watch;
mod ownership;
mod parts;
mod readiness;
mod reason;
mod reconcile;
mod request;
mod run;
mod scope;
mod sharding;
mod signals;
mod source;
mod span;
mod start_gate;
mod status;
mod triggers;
mod watched;
mod writes;

pub use self::action::Action;
pub use self::config::Config;
pub use self::error::{Error, RunnerError};
pub(crate) use self::parts::StopTriggers;
pub use self::readiness::Readiness;
pub use self::request::Request;
pub(crate) use self::run::{any_of, pass_on};
pub use self::sharding::HeldShards;
pub(crate) use self::sharding::{Group, abandon_join};
pub(crate) use self::start_gate::{Managed, Right};
pub use self::status::Status;
pub use self::watched::Watched;
pub use self::writes::Writes;
pub use crate::watch::LOW_PRIORITY;
