//! A work queue of keys, for programs that bring things into line again and again: Kubernetes'
//! `client-go` workqueue for Rust.
//!
//! - **Coalesced**: a key added ten times before a worker takes it is handed out once.
//! - **Exclusive**: a key is never with two workers at once.
//! - **Never lost**: a key added while it is being worked on is handed out once more afterwards. A
//!   worker that panics, is cancelled or returns early has failed, and its key comes back.
//! - **Delayed and retried**: [`add_after`](Queue::add_after) hands a key out no earlier than its
//!   time; failures back off, each key by itself, until one succeeds.
//! - **Fair**: first in, first out; or [priorities](Order::Priority) that can't starve a key, or
//!   [fair shares](Builder::fair) between groups.
//!
//! ```
//! use requeue::{Added, Queue};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
//! let queue = Queue::new();
//! queue.add("default/web");
//! assert_eq!(queue.add("default/web"), Added::Coalesced);
//!
//! let item = queue.get().await.expect("the queue has not ended");
//! assert_eq!(*item, "default/web");
//! // It changes while we work on it: once more afterwards.
//! assert_eq!(queue.add("default/web"), Added::Dirty);
//! item.succeed();
//!
//! // That run fails, and is retried after a backoff.
//! queue.get().await.expect("the queue has not ended").retry();
//!
//! // From here on no new key is taken. What is known still runs, and then there is no more.
//! queue.close();
//! while let Some(item) = queue.get().await {
//!     assert_eq!(item.attempt(), 2);
//!     item.succeed();
//! }
//! # });
//! ```
//!
//! # Where to find what
//!
//! - [`Queue`] adds, hands out and ends; [`Builder`] says how it is to behave; an [`Item`] is a key
//!   that was handed out, and ends its run.
//! - [`limiter`] has what decides how long a key waits after a failure.
//! - [`clock`] has where the queue gets its time: the system, a tokio runtime, the
//!   processor, or a test.
//! - [`workers`] runs a handler for each key, on tasks or on threads: the loop above, with retries, panics
//!   and shutdown.
//! - [`wait`] has loops that wait: until, poll, backoff. They need no queue.
//! - [`metrics`] has hooks for what happens in a queue.
//!
//! # Which re-add policy
//!
//! [`ReAdd`] is the rule for an add of a key that already waits, or that backs off after a failure.
//! The default is `Hold`: one run is pending, and no event makes a failing key run before its backoff
//! is over. With `Replace`, an event ends the backoff. `KeepBoth` is client-go's rule, under which a
//! key can have two pending runs; [`Queue::client_go`] has it, for code that comes from there.
//!
//! # Which limiter
//!
//! [`BackoffLimiter`](limiter::BackoffLimiter) is the default, and right for most: it backs off
//! per key, with jitter, and counts one failure for each wait.
//! [`default_controller`](limiter::default_controller) is client-go's, which also holds all
//! retries together to ten per second.
//!
//! # How to end
//!
//! At the end of an input, [`close`](Queue::close): whatever the queue knows still runs. On a
//! signal, [`shut_down`](Queue::shut_down), which drops what waits, or
//! [`shut_down_with_drain`](Queue::shut_down_with_drain), which also waits for keys in flight. Then
//! [`get`](Queue::get) is `None`, and workers that loop on it end.
//!
//! # Features
//!
//! Each feature adds items. No feature changes a default, or what a call returns.
//!
//! - `tokio` (default): a clock for tests with paused time, and workers. The queue needs no runtime:
//!   [`get`](Queue::get) works in any runtime, [`get_blocking`](Queue::get_blocking) in any thread. In
//!   tasks of tokio, getters also yield to other tasks when the task's cooperative budget is used up,
//!   and [`wait::handle_crash`] also emits an event of `tracing`.
//! - `prometheus`: a collector for `prometheus-client`.
//! - `tsc`: a clock that reads the processor's counter, for queues with metrics.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod clock;
mod completion;
pub mod metrics;
mod queue;
mod ranked_mutex;
mod sync;
pub mod wait;
pub mod workers;

pub use requeue_core::limiter;
pub use requeue_core::{
    Add, Added, BUCKETS, Cancelled, Counts, Cursor, CustomOrder, Entry, Group, Histogram, Merge,
    Order, Page, Phase, RateLimiter, ReAdd, Time, When,
};

pub use crate::clock::Clock;
pub use crate::completion::Completion;
pub use crate::queue::{
    BuildError, Builder, Drain, Drained, Filter, Get, GetMany, Histograms, Item, Key, Queue,
    SucceedAndGet, Ticket,
};

#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../README.md")]
struct PackageReadme;
