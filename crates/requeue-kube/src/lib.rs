//! Kubernetes controllers on kube-rs, with requeue's work queue: backoff, priorities and metrics
//! for each controller.
//!
//! The clients, watchers, stores and predicates come from kube. The queue comes from [requeue]. The guarantees are:
//!
//! - **One run per object.** No object has two runs at the same time, regardless of the watch or namespace from which a
//!   request comes. An object that changes during its run is reconciled once more afterwards.
//! - **Backoff per object.** A failed object is retried after a separate delay. Events do not start the retry earlier,
//!   and a failed object does not delay other objects. Only a new generation of the object starts a run immediately.
//! - **No missed deletions.** A deletion that happens while a watch is disconnected is reported.
//!   The owners of a deleted object, and the other objects that the deleted object concerned, are
//!   reconciled.
//! - **Changes first.** Changed objects go before the first list, resyncs and other bulk runs.
//!   Changes do not delay bulk runs forever.
//! - **Graceful shutdown.** After a shutdown, no run starts, and the runs in flight can complete
//!   until the time limit. Dropping the stream stops all watches and runs.
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
//! controller, finalizer}` with [`Controller`], [`controller`] and [`finalizer`], whose items have the same names.
//! Replace an error policy that returns a fixed delay with [`policy::backoff`]. `Action::requeue` is
//! [`requeue_after`](controller::Action::requeue_after) here.
//!
//! The reconciler, its policy and their context run on tasks. All three must therefore be `'static`, and a closure that
//! borrows must `move`. `docs/kube/migration.md` lists all differences from kube and from controller-runtime.
//! `examples/website` is a complete controller with leader election, metrics, dashboard and manifests.
//!
//! # Permissions
//!
//! A controller itself only lists and watches, and writes nothing. For example, a controller of
//! websites that own Deployments needs:
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
//! The requests of its reconciler need further permissions, such as `patch` of `websites/status`. [Leader
//! election](leader#permissions) and [shards](membership#permissions) also need further permissions. The tests on an
//! API server run with exactly these permissions.

// The unit tests and the integration tests share helpers, which name this crate `requeue_kube`.
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
// The command `requeue watch` uses this module. The module is not part of the stable interface.
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
