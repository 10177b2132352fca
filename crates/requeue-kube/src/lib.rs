//! Kubernetes controllers on kube-rs, with requeue's work queue. Each controller has backoff, priorities and metrics.
//!
//! The controllers use kube's clients, watchers, stores and predicates, and the queue of [requeue]. They have these
//! guarantees:
//!
//! - **One run per object.** An object never has two runs at the same time, even if several watches or namespaces
//!   request it. If the object changes during its run, it runs once more afterwards.
//! - **Backoff per object.** Each failed object waits for its own delay before its retry, and does not delay other
//!   objects. Events do not start the retry earlier. Only a new generation of the object starts a run immediately.
//! - **No missed deletions.** If an object is deleted while its watch is disconnected, the controller finds the
//!   deletion in the next list. It reconciles the owners of the object, and the other objects that the object
//!   concerned.
//! - **Changes first.** Objects that have changed run before the objects of the first list and of other bulk triggers.
//!   Changes cannot delay these objects forever.
//! - **Graceful shutdown.** When a shutdown has begun, no further run starts. Runs in flight can complete until the
//!   time limit. If the stream is dropped, all watches and runs stop.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use futures_util::StreamExt;
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::runtime::watcher;
//! use kube::{Api, Client};
//! use requeue_kube::{Controller, controller::Action, policy};
//!
//! async fn reconcile(map: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> {
//!     println!("{:?} contains {:?}", map.metadata.name, map.data);
//!     Ok(Action::await_change())
//! }
//!
//! # let _ = async {
//! let maps = Api::<ConfigMap>::all(Client::try_default().await?);
//! Controller::new(maps, watcher::Config::default())
//!     .shutdown_on_signal()
//!     .run(reconcile, policy::backoff, Arc::new(()))
//!     .for_each(async |result| println!("{result:?}"))
//!     .await;
//! # Ok::<(), kube::Error>(())
//! # };
//! ```
//!
//! # Common tasks
//!
//! | task | item |
//! |---|---|
//! | reconcile the owner when an object that it owns changes | [`Controller::owns`] |
//! | reconcile when another object changes | [`Controller::watches`], [`Controller::reconcile_on`] |
//! | clean up before an object is deleted | [`finalizer`](finalizer::finalizer) |
//! | run several replicas, of which one is active | [`Controller::leader_election`], [`leader`] |
//! | run several controllers in one process | [`Manager`] |
//! | share the objects between replicas | [`Controller::shard_group`], [`Manager::shard_group`], [`membership`] |
//! | shut down gracefully | [`Controller::shutdown_on_signal`], [`Controller::graceful_shutdown_on`] |
//! | watch a kind once for several controllers | [`shared::SharedWatch`] |
//! | find the objects that refer to another object | [`SharedWatch::by_index`](shared::SharedWatch::by_index) |
//! | set concurrency, debounce and backoff | [`controller::Config`] |
//! | write the time into an object | [`now`] |
//! | export metrics | [`Controller::metrics`], [`metrics::Metrics`] |
//!
//! # Migrating from kube's controller
//!
//! To migrate from kube's controller, change the imports and the error policy. Replace `kube::runtime::{Controller,
//! controller, finalizer}` by [`Controller`], [`controller`] and [`finalizer`], whose items have the same names. If an
//! error policy returns a fixed delay, replace it by [`policy::backoff`]. `Action::requeue` has the name
//! [`requeue_after`](controller::Action::requeue_after) in this crate.
//!
//! The reconciler, the error policy and the context are used by several tasks. All three must therefore be `'static`,
//! and a closure that borrows must `move`. `docs/kube/migration.md` lists all differences from kube and from
//! controller-runtime. `examples/website` is a complete controller with leader election, metrics, dashboard and
//! manifests.
//!
//! # Permissions
//!
//! A controller sends only list and watch requests. For example, a controller of websites that own Deployments needs
//! these permissions:
//!
//! ```yaml
//! - apiGroups: [example.com]
//!   resources: [websites]
//!   verbs: [list, watch] # and `patch`, with a finalizer
//! - apiGroups: [apps]
//!   resources: [deployments]
//!   verbs: [list, watch]
//! ```
//!
//! The reconciler sends further requests, which need further permissions, such as `patch` of `websites/status`. [Leader
//! election](leader#permissions) and [shards](membership#permissions) also need permissions. The tests on a real API
//! server run with exactly the permissions that are documented.

// Unit tests and integration tests use the same helpers, which import this crate as `requeue_kube`.
#[cfg(test)]
extern crate self as requeue_kube;

pub mod controller;
pub mod finalizer;
mod intercept;
mod key;
mod manager;
pub mod metrics;
mod optional;
pub mod policy;
mod relist;
pub mod shared;
#[cfg(test)]
mod tests;
// Only the program's command `requeue watch` uses this module. It is not part of the stable interface.
#[doc(hidden)]
pub mod watch;

pub use crate::controller::builder::Controller;
pub use crate::key::{ObjectKey, ObjectQueue, ParseKeyError};
pub use crate::manager::{Manager, ManagerError};
#[doc(inline)]
pub use requeue_leases::{ConfigError, leader, membership, range, simulation::now};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadme;
