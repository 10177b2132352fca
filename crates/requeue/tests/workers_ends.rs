//! How attempts end, and how the workers do.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use std::future::ready;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use requeue::workers::{Action, Context, Error, Workers};
use requeue::{Added, Queue};
use tokio::time::Instant;

type Seen = Arc<Mutex<Vec<(u32, u32)>>>;

#[tokio::test(start_paused = true)]
async fn the_drain_timeout_holds_while_somebody_else_has_a_dirty_key() {
    let queue = Queue::new();
    queue.add(1);
    let held = queue.try_get_owned().unwrap();
    assert_eq!(queue.add(1), Added::Dirty);
    let before = Instant::now();
    let drained = Workers::new(queue.clone(), |_, _| async { Ok(Action::done()) })
        .concurrency(3)
        .grace(Duration::from_millis(10))
        .drain_timeout(Duration::from_millis(50))
        .run_until(ready(()))
        .await;
    assert_eq!(before.elapsed(), Duration::from_millis(50), "nobody needs the grace period");
    assert_eq!((drained.finished, drained.processing), (false, 1));
    held.succeed();
    assert!(queue.try_get().is_some(), "it is still asked for");
}

#[tokio::test(start_paused = true)]
async fn past_the_drain_timeout_nothing_new_is_begun() {
    let (queue, seen) = (Queue::new(), Seen::default());
    queue.add_all([1, 2]);
    let handler = {
        let seen = Arc::clone(&seen);
        move |key, context: Context| {
            seen.lock().unwrap().push((key, context.attempt()));
            async move {
                context.cancelled().await;
                Ok::<_, Error>(Action::done())
            }
        }
    };
    let before = Instant::now();
    let drained = Workers::new(queue.clone(), handler)
        .drain_timeout(Duration::from_secs(20))
        .run_until(ready(()))
        .await;
    assert_eq!(before.elapsed(), Duration::from_secs(20));
    assert_eq!((drained.finished, drained.ready), (false, 1));
    assert_eq!(*seen.lock().unwrap(), [(1, 1)]);
}
