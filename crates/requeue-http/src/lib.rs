//! A dashboard, Prometheus metrics and a JSON API for a [`requeue`] queue, as a router for [`axum`] or as a
//! server.
//!
//! The dashboard shows whether the queue runs, which errors its runs have, and which keys and
//! runs are slow. It plots rates and latencies. For each key, it shows the state, the age, the
//! attempt, the due time, and the reason why the key waits.
//!
//! # Mount it in an axum application
//!
//! ```
//! use axum::Router;
//! use requeue::Queue;
//! use requeue_http::Site;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let queue: Queue<String> = Queue::builder().name("pods").track_times().build()?;
//! let site = Site::builder(queue).title("pods").build();
//! let app: Router = Router::new().nest_service("/queue", site.router());
//! # Ok::<(), requeue::BuildError>(())
//! # }).unwrap();
//! ```
//!
//! The site shows ages and latencies only if the queue [keeps
//! times](requeue::Builder::track_times).
//!
//! # Serve it on a separate port
//!
//! ```
//! # use requeue::Queue;
//! # use requeue_http::Site;
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! # let site = Site::builder(Queue::<String>::new()).build();
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let server = tokio::spawn({
//!     let site = site.clone();
//!     async move { site.serve(listener).await }
//! });
//! // At the end of the program:
//! site.shutdown();
//! server.await??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! The listener can also be a `tokio::net::UnixListener`. The site is then served on a Unix
//! socket.
//!
//! # Other tasks
//!
//! | task | method |
//! |---|---|
//! | serve Prometheus metrics | [`Builder::registry`] |
//! | show more properties of each key | [`Builder::detail`] |
//! | show tables of the program, such as its replicas | [`Builder::section`] |
//! | show keys that are neither text nor bytes | [`Site::builder_with`] |
//! | show past runs, and keys that were given up | [`Builder::history`] |
//! | mark a ready key that waits for too long | [`Builder::target`] |
//! | let clients with a token change the queue | [`Builder::admin`] |
//! | let clients with a token only read, add or work | [`Builder::token`] |
//! | show a queue in a store | `Site::of_store` (feature `store`) |
//! | show all queues of a store | `Site::of_all_queues` (feature `store`) |
//! | decide about `/readyz` and `/healthz` | [`Builder::ready`], [`Builder::healthy`] |
//! | encrypt connections | `TlsListener` (feature `tls`) |
//! | allow a host name, or an address other than loopback | [`Builder::host`], [`Builder::any_address`] |
//!
//! # Paths
//!
//! | path | response |
//! |---|---|
//! | `/` | the dashboard |
//! | `/metrics` | the metrics of [`Builder::registry`], or 404 without one. The format is OpenMetrics if the `Accept` header asks for it, else `text/plain; version=0.0.4` |
//! | `/healthz` | 200, or 503 if [`Builder::healthy`] returns false |
//! | `/readyz` | 200, or 503 if the queue is shut down, its store does not answer within 5 s, the site has ended, or [`Builder::ready`] returns false |
//! | `/api/v1/summary` | counts, rates, ages, and the keys that have run the longest |
//! | `/api/v1/keys` | a page of keys |
//! | `/api/v1/key` | one key, named by `key`, or by `key_base64` if it is not UTF-8 |
//! | `/api/v1/timeline` | the past of a key: its waits by cause, its runs and its adds, if the queue [records](requeue::Builder::record_events) events; with `since`, only of the last seconds |
//! | `/api/v1/recording` | the recorded events of a queue in memory, as the text of a [`Recording`](requeue::history::Recording). The text names the keys of the queue, and `key`. With `hash_keys=true`, the text contains no part of a key. |
//! | `/api/v1/failures` | the errors of failing keys, grouped, with the numbers of their keys |
//! | `/api/v1/groups` | the groups of a queue in a store, with their settings |
//! | `/api/v1/schedules` | the keys of a queue in a store that have a schedule |
//! | `/api/v1/queues` | the queues of a store, with their numbers. The paths of each queue are below `queues/NAME/` |
//! | `/api/v1/sections` | the tables of [`Builder::section`] |
//! | `/api/v1/openapi.json` | a description of the API in OpenAPI 3.1 |
//! | `/api/v1/events` | server-sent events: `history` once, `tick` each second, `ended` at the end |
//!
//! The path `/api/v1/keys` accepts these parameters:
//!
//! | parameter | meaning |
//! |---|---|
//! | `state` | `ready`, `waiting`, `backing_off`, `running` (in flight), `parked`, or `damaged` (the row in the store cannot be read). All keys by default |
//! | `failed` | `true`: only keys whose last run failed, in any state |
//! | `error` | only failing keys of this group of `/api/v1/failures` |
//! | `q` | only keys whose text contains this; ASCII letters match in upper and lower case |
//! | `limit` | the number of keys, 1 to 256, or to 1,000 with `sort`; 100 by default |
//! | `sort`, `order` | the column `key`, `state`, `age`, `attempt` or `due_in`, and `asc` or `desc` |
//! | `cursor` | the `next` of the page before |
//!
//! A page can have fewer keys than `limit`, or none, and still have a `next`. A walk through all
//! pages returns each key that stays in the queue exactly once. In a queue on Redis with over
//! 10,000 keys, a walk returns each key at least once, and a page can have more keys than
//! `limit`. The order of the keys has no meaning, with one exception: if the queue keeps times,
//! `running` keys are listed by age, the oldest first. If a key starts or completes during a walk
//! by age, the other keys move by one place. A cursor is valid until the process stops. If a
//! cursor is invalid, the status of the response is 400.
//!
//! In JSON, a key is given as text, with escapes such as `\n`, `\\`, `\u{1b}` and `\xff`, and
//! also in base64. If a key is longer than 4 KiB, its text is cut, and its base64 is omitted.
//! Times are in seconds. The JSON of an error is `{"error": "limit: ...", "parameter": "limit"}`.
//!
//! # Limits and security
//!
//! - **Read-only** without [`Builder::token`]: the site answers only `GET` and `HEAD`, and no
//!   request changes the queue. If the site has tokens, a `POST` request that contains a token
//!   can change the queue, as far as the roles of this token permit.
//! - **Bounded cost**: a request reads at most 100,000 keys. It reads at most 256 of them at a
//!   time while it holds the queue's lock. The site keeps one sample per second for 15 minutes.
//! - **Self-contained**: the files of the dashboard are part of the program, and the dashboard
//!   sends no request to other hosts.
//! - **Protected from other sites**: the site refuses requests with an unknown host name, so that
//!   scripts of other sites cannot read its responses. Each response has a strict content
//!   security policy.
//! - **No password for reading** unless a token has [`Role::Read`]: each client that can connect
//!   can read all keys. To prevent this, use a token with this role, a loopback address, a Unix
//!   socket, or a proxy that authenticates its clients.
//! - **Encrypted cursors**: a cursor does not reveal the hash of a key. However, a walk returns
//!   the keys in the order of their hashes. If untrusted clients choose the keys, use [another
//!   hasher](requeue::Builder::hasher).
//!
//! # Features
//!
//! - `store`: adds `Site::of_store` and `Site::of_all_queues`, the dashboards of queues of
//!   requeue-store.
//! - `tls`: adds `TlsListener`, which encrypts connections.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod access;
mod actions;
// Contains the types of the JSON. The module is public but hidden, because the program uses the
// types to read responses of a server.
#[doc(hidden)]
pub mod api;
mod builder;
mod control;
mod cursors;
mod events;
mod exposition;
mod failures;
mod groups;
mod history;
mod hosts;
mod keys;
mod memory;
#[cfg(feature = "store")]
mod open_queues;
mod operators;
mod params;
#[cfg(feature = "store")]
mod queues;
mod recording;
mod routes;
mod rows;
mod samples;
mod schedules;
mod sections;
mod server;
mod site;
mod source;
mod state;
#[cfg(feature = "store")]
mod store;
mod time;
mod timeline;
#[cfg(feature = "tls")]
mod tls;
mod trace_context;
mod turns;
mod work;

pub use access::{AccessToken, Role, TokenError};
pub use builder::Builder;
// These items are hidden, because only `requeue run` and `requeue watch` need them to change the
// keys of a run.
#[doc(hidden)]
pub use control::{Control, FailedRun, RunEnd};
pub use history::{History, Run};
pub use keys::ByteKey;
pub use rows::Detail;
pub use sections::Section;
pub use site::Site;
#[cfg(feature = "tls")]
pub use tls::{TlsConnection, TlsListener};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadme;
