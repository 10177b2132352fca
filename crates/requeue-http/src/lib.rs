//! What a [`requeue`] queue does, seen from outside: a page, `/metrics` for Prometheus, and a small
//! API, as a router for [`axum`] or a server of its own.
//!
//! - **Live**: how many keys are ready, waiting, running and failing; rates and latencies over the
//!   last minutes; each key with its state, since when, its attempt, its next time, and why.
//! - **Read-only**: nothing here changes the queue. `GET` and `HEAD` are all there is.
//! - **Cheap**: no request holds the queue's lock for long or looks at more than 100,000 keys; what
//!   is kept is a sample per second, of the last quarter of an hour.
//! - **By itself**: the page is in the program, and asks no other host for anything.
//! - **Closed to strangers**: requests under a foreign host name are refused, which keeps other
//!   sites' scripts out; the page runs under a strict content security policy. Cursors are
//!   encrypted: they do not reveal hashes of keys. The order of keys in a walk is still that of
//!   their hashes: if strangers choose keys, choose [another hasher](requeue::Builder::hasher).
//!
//! ```
//! use axum::Router;
//! use requeue::Queue;
//! use requeue_http::Site;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let queue: Queue<String> = Queue::builder().name("pods").track_times().build()?;
//! let site = Site::builder(queue).title("pods").build();
//!
//! // In a server that is there already:
//! let app: Router = Router::new().nest_service("/queue", site.router());
//!
//! // Or in one of its own, until `site.end()`:
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let server = tokio::spawn({
//!     let site = site.clone();
//!     async move { site.serve(listener).await }
//! });
//! site.end();
//! server.await??;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
//!
//! Since when a key is where it is, and latencies, are shown only if the queue
//! [keeps times](requeue::Builder::track_times).
//!
//! # What is served
//!
//! | path | what |
//! |---|---|
//! | `/` | the page |
//! | `/metrics` | the registry of [`Builder::registry`]: OpenMetrics for a client whose `Accept` asks for it, else `text/plain; version=0.0.4`; nothing without one |
//! | `/healthz` | 200 as long as this answers, and [`Builder::healthy`] has no objection; else 503 |
//! | `/readyz` | 200 as long as the queue takes work, and [`Builder::ready`] has no objection; else 503 |
//! | `/api/v1/summary` | counts, rates, ages, and what runs longest |
//! | `/api/v1/keys` | a page of keys: `state` (`ready`, `waiting`, `running`, `failing`, which is waiting after a failure, `parked`, or `damaged`, whose row in the store can't be read; all without it), `q` (part of the key as it is shown, in any case), `limit` (1 to 256), `cursor` (the `next` of the page before) |
//! | `/api/v1/key` | one key: `key`, or `key_base64` for what is no text |
//! | `/api/v1/events` | server-sent events: `history` once, `tick` each second, `ended` at the end |
//!
//! A page of keys may be short, or empty, and have a `next` none the less: then there is more to
//! look at. A walk meets each key that is there all along once, in no order of use; that of the
//! running ones, where times are kept, goes from the longest on, and one that starts or ends
//! meanwhile moves the others by one. A cursor is valid until the process ends; any other text is
//! refused with 400.
//!
//! In JSON, a key is given as text, with `\n`, `\\`, `\u{1b}` and `\xff` for what can't be shown, and in
//! base64. Of a key over 4 KiB there is only the beginning, and no base64. All times are in seconds.
//! An error is `{"error": "limit: ...", "parameter": "limit"}`.
//!
//! # Features
//!
//! `store`: `Site::of_store`, the page of a queue of requeue-store.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod builder;
mod cursors;
mod events;
mod exposition;
mod hosts;
mod keys;
mod memory;
mod params;
mod routes;
mod rows;
mod samples;
mod server;
mod site;
mod source;
#[cfg(feature = "store")]
mod store;
mod turns;

pub use builder::Builder;
pub use keys::ShownKey;
pub use rows::Detail;
pub use site::Site;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct PackageReadme;
