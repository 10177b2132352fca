//! Kubernetes controllers on kube-rs that back off, order and show themselves.
//!
//! kube's clients, watchers, stores and predicates, with [requeue]'s queue below them. What is
//! promised:
//!
//! - **One at a time**: no object is reconciled twice at once, whoever asks for it and from whichever
//!   namespace; and one that changes meanwhile is reconciled once more afterwards.
//! - **Each backs off by itself**: an object that fails is tried again after its own delay, no
//!   sooner whatever events arrive, and slows no other. A new generation of it is tried at once.
//! - **Nothing is missed**: what was deleted while a watch was cut off is heard of, with the owners
//!   and whomever else it concerned.
//! - **What has changed goes first**: before the first list, resyncs and whatever is done in bulk,
//!   none of which can be kept waiting for ever.
//! - **It ends in order**: a shutdown begins nothing, waits for what runs, and for no longer than it
//!   is told to. Dropping the stream stops everything.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use futures_util::StreamExt;
//! use k8s_openapi::api::core::v1::ConfigMap;
//! use kube::runtime::watcher;
//! use kube::{Api, Client};
//! use requeue_kube::controller::{Action, Controller};
//! use requeue_kube::policy;
//!
//! async fn reconcile(map: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, kube::Error> {
//!     println!("{:?} is to be {:?}", map.metadata.name, map.data);
//!     Ok(Action::await_change())
//! }
//!
//! # async fn example() -> Result<(), kube::Error> {
//! let maps = Api::<ConfigMap>::all(Client::try_default().await?);
//! Controller::new(maps, watcher::Config::default())
//!     .shutdown_on_signal()
//!     .run(reconcile, policy::backoff, Arc::new(()))
//!     .for_each(async |result| println!("{result:?}"))
//!     .await;
//! # Ok(())
//! # }
//! ```
//!
//! Whoever comes from kube's controller changes imports and the error policy:
//! `kube::runtime::controller::{Action, Config, Controller, Error}` and `kube::runtime::finalizer` are
//! [`controller::{Action, Config, Controller, Error}`](controller) and [`finalizer()`] here, and
//! [`policy::backoff`] takes the place of a function that says so many seconds. The reconciler, its
//! policy and their context run on tasks, so that they are `'static`: a closure that borrows has to
//! `move`. `docs/KUBE.md` has all that differs, from there and from controller-runtime, and `examples/website` a whole
//! controller with leader election, metrics, page and manifests.
//!
//! # What it may do
//!
//! A controller by itself lists and watches, and writes nothing. Of a controller of websites, which
//! own Deployments:
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
//! To that comes what its reconciler does, such as `patch` of `websites/status`, and what
//! [leader election](leader#what-it-may-do) needs. The tests against an API server run with no more.

pub mod controller;
pub mod finalizer;
mod key;
pub mod leader;
pub mod metrics;
pub mod policy;
pub mod watch;

pub use crate::controller::Controller;
pub use crate::finalizer::finalizer;
pub use crate::key::{ObjectKey, ParseKeyError};

/// The examples of the page for those who come from elsewhere, so that they compile.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/KUBE.md")]
pub struct FromElsewhere;
