//! A Kubernetes API server in memory, for tests of controllers that use kube's client.
//!
//! - [`ApiServer`] is a tower service. [`ApiServer::client`] returns kube's
//!   [`Client`](kube::Client), which calls this service directly. The controller under test
//!   needs no changes. The server uses no sockets, threads or tasks.
//! - [`Cluster`] is the state machine of the server. It has no clock and no I/O, so equal
//!   requests at equal times have equal responses.
//! - The server stores objects of built-in kinds and of custom resources, with their versions,
//!   subresources, finalizers and owners.
//! - It implements merge patches, JSON patches, server-side apply, selectors, pages, lists of
//!   past versions, watches and [permissions](Access).
//! - If a request needs another feature, the response has the status 501 and a message that
//!   names the feature. The server never returns a wrong result instead.
//! - No controllers run, except those that complete deletions. For example, no controller creates
//!   pods. Among the built-in kinds, only pods, workloads, Secrets, Leases and Events have
//!   defaults. The server validates metadata and the types of fields in all built-in kinds. It
//!   validates more only in ConfigMaps, Secrets, Leases, Events, Pods, Deployments, ReplicaSets
//!   and roles.
//!
//! # Examples
//!
//! ```
//! use k8s_openapi::api::core::v1::Namespace;
//! use kube::Api;
//! use requeue_testkit::ApiServer;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> kube::Result<()> {
//! let server = ApiServer::new();
//! let namespaces = Api::<Namespace>::all(server.client());
//! let names = namespaces.list_metadata(&Default::default()).await?;
//! assert_eq!(names.items.len(), 4);
//! # Ok(())
//! # }
//! ```

mod access;
mod cluster;
mod crd;
mod defaults;
mod definition;
mod discovery;
mod events;
pub mod explore;
pub mod invariants;
mod kind;
mod metadata;
mod patch;
mod random;
mod record;
mod request;
mod schema;
mod selector;
mod server;
mod status;
mod store;
mod validation;

pub use crate::access::Access;
pub use crate::cluster::{Cluster, Response, Watch};
pub use crate::record::Record;
pub use crate::server::{ApiServer, ResponseBody};
