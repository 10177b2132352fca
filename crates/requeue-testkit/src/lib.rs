//! An API server of Kubernetes in memory, for tests of controllers that use kube's client.
//!
//! - [`ApiServer`] is a tower service. [`ApiServer::client`] returns kube's [`Client`](kube::Client) for it, and the
//!   controller under test does not notice a difference. There are no sockets, threads or tasks.
//! - [`Cluster`] is the state machine behind it, without a clock or I/O: the same requests have the same responses.
//! - It knows objects of Kubernetes' own kinds and of custom resources, with their versions, subresources, finalizers
//!   and owners.
//! - It knows merge patches, JSON patches and server-side apply, selectors, pages, past versions of lists, watches and
//!   [permissions](Access).
//! - A request for anything else fails with 501 and a message that names it. The server never pretends.
//! - No controller runs beside it, except for those that end deletions. Nothing creates pods. Of
//!   Kubernetes' own kinds, only pods, workloads, Secrets, Leases and Events have defaults. Only ConfigMaps, Secrets,
//!   Leases, Events, Pods, Deployments, ReplicaSets and roles are validated beyond metadata and types.
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
