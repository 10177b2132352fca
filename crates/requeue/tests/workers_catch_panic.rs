//! A panic of user code never stops a worker.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod common;

use std::fmt;
use std::future::Future;
use std::hash::{Hash, Hasher};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use common::on_tokio;
use requeue::workers::{Action, Context, Error, Workers};
use tokio::sync::Notify;

type Errors = Arc<Mutex<Vec<String>>>;

/// A value whose first `drop` panics.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "a bomb");
    }
}

/// Returns a hook that records the error of each key that is given up.
fn listing<K>(errors: &Errors) -> impl Fn(K, Error) + Send + Sync + 'static {
    let errors = Arc::clone(errors);
    move |_, error| errors.lock().unwrap().push(error.to_string())
}

#[tokio::test(start_paused = true)]
async fn a_future_that_panics_when_it_is_dropped_at_a_timeout_is_a_failed_attempt() {
    let (queue, errors) = (on_tokio(), Errors::default());
    queue.add_all([1, 2]);
    queue.close();
    let handler = |key, _| async move {
        if key == 1 {
            let _bomb = Bomb;
            std::future::pending::<()>().await;
        }
        Ok(Action::succeed())
    };
    let drained = Workers::new(queue.clone(), handler)
        .timeout(Duration::from_secs(3))
        .grace(Duration::from_secs(1))
        .max_retries(1)
        .on_give_up(listing(&errors))
        .run()
        .await;
    assert!(drained.finished);
    assert_eq!((queue.sample().panics, queue.totals().deliveries), (2, 3));
    assert_eq!(*errors.lock().unwrap(), ["panicked: a bomb"]);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_panics_when_it_is_dropped_after_its_end_has_failed() {
    struct Explosive(Bomb);
    impl Future for Explosive {
        type Output = Result<Action, Error>;

        fn poll(self: Pin<&mut Self>, _: &mut std::task::Context<'_>) -> Poll<Self::Output> {
            let Self(Bomb) = *self;
            Poll::Ready(Ok(Action::succeed()))
        }
    }
    let (queue, errors) = (on_tokio(), Errors::default());
    queue.add_all([1, 2]);
    queue.close();
    let workers = Workers::new(queue.clone(), |_, _| Explosive(Bomb));
    let drained = workers.max_retries(0).on_give_up(listing(&errors)).run().await;
    assert!(drained.finished);
    assert_eq!(*errors.lock().unwrap(), ["panicked: a bomb"; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_future_that_panics_when_its_workers_are_dropped_gives_its_key_back() {
    let (queue, started) = (on_tokio(), Arc::new(Notify::new()));
    queue.add(1);
    let handler = {
        let started = Arc::clone(&started);
        move |_, _| {
            let bomb = Bomb;
            started.notify_one();
            async move {
                std::future::pending::<()>().await;
                drop(bomb);
                Ok(Action::succeed())
            }
        }
    };
    tokio::select! {
        _ = Workers::new(queue.clone(), handler).run() => unreachable!("the handler never returns"),
        () = started.notified() => {}
    }
    assert_eq!(queue.get().await.map(|item| item.attempt()), Some(2));
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_panics_when_it_is_dropped_is_a_failed_attempt() {
    let (queue, errors) = (on_tokio(), Errors::default());
    queue.add_all([1, 2]);
    queue.close();
    let handler = |_, _| async { std::panic::panic_any(Bomb) };
    let workers = Workers::new(queue.clone(), handler);
    let drained = workers.max_retries(1).on_give_up(listing(&errors)).run().await;
    assert!(drained.finished);
    assert_eq!((queue.sample().panics, queue.sample().given_up), (4, 2));
    assert_eq!(*errors.lock().unwrap(), ["panicked"; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_panics_before_there_is_a_future_says_what_with() {
    fn handler(key: u32, _: Context) -> std::future::Ready<Result<Action, Error>> {
        panic!("no future for {key}")
    }
    let (queue, errors) = (on_tokio(), Errors::default());
    queue.add(7);
    queue.close();
    Workers::new(queue, handler).max_retries(0).on_give_up(listing(&errors)).run().await;
    assert_eq!(*errors.lock().unwrap(), ["panicked: no future for 7"]);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_panics_when_it_is_dropped_is_a_failure_like_others() {
    #[derive(Debug)]
    struct Explosive(#[allow(dead_code, reason = "it is dropped")] Arc<()>);
    impl fmt::Display for Explosive {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("explosive")
        }
    }
    impl std::error::Error for Explosive {}
    impl Drop for Explosive {
        fn drop(&mut self) {
            assert!(std::thread::panicking(), "an explosive error");
        }
    }
    let queue = on_tokio();
    queue.add_all([1, 2]);
    queue.close();
    let handler = |_, _| async { Err::<Action, Error>(Explosive(Arc::default()).into()) };
    let drained = Workers::new(queue.clone(), handler).max_retries(2).run().await;
    assert!(drained.finished);
    assert_eq!((queue.totals().failures, queue.sample().given_up), (6, 2));
}

/// A key with a counter that each clone decrements. When the counter reaches zero, the `clone`
/// panics.
#[derive(Debug)]
struct Clonable(u32, Arc<AtomicUsize>);

impl Clone for Clonable {
    fn clone(&self) -> Self {
        assert_ne!(self.1.fetch_sub(1, Ordering::Relaxed), 1, "on purpose");
        Self(self.0, Arc::clone(&self.1))
    }
}

impl PartialEq for Clonable {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Clonable {}

impl Hash for Clonable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_whose_clone_panics_comes_back_wherever_that_is() {
    for nth in 1..=8 {
        let (queue, left) = (on_tokio(), Arc::new(AtomicUsize::new(usize::MAX / 2)));
        queue.add_all((1..=3).map(|id| Clonable(id, Arc::clone(&left))));
        queue.close();
        left.store(nth, Ordering::Relaxed);
        let ran = Arc::new(Mutex::new(Vec::new()));
        let handler = {
            let ran = Arc::clone(&ran);
            move |key: Clonable, _| {
                ran.lock().unwrap().push(key.0);
                async { Err::<Action, _>(Error::terminal("never")) }
            }
        };
        let given_up = Errors::default();
        let workers = Workers::new(queue.clone(), handler).on_give_up(listing(&given_up));
        let drained = workers.run().await;
        assert!(drained.finished, "clone {nth}");
        assert_eq!(queue.sample().panics, 1, "clone {nth}");
        let mut ran = std::mem::take(&mut *ran.lock().unwrap());
        ran.sort_unstable();
        ran.dedup();
        assert_eq!((ran, given_up.lock().unwrap().len()), (vec![1, 2, 3], 3), "clone {nth}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_can_never_be_taken_is_not_asked_for_all_the_time() {
    struct Never(Arc<AtomicUsize>);
    impl Clone for Never {
        fn clone(&self) -> Self {
            self.0.fetch_add(1, Ordering::Relaxed);
            panic!("on purpose")
        }
    }
    impl fmt::Debug for Never {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("Never")
        }
    }
    impl PartialEq for Never {
        fn eq(&self, _: &Self) -> bool {
            true
        }
    }
    impl Eq for Never {}
    impl Hash for Never {
        fn hash<H: Hasher>(&self, _: &mut H) {}
    }
    let (queue, clones) = (on_tokio(), Arc::new(AtomicUsize::new(0)));
    queue.add(Never(Arc::clone(&clones)));
    let before = tokio::time::Instant::now();
    let drained = Workers::new(queue, |_, _| async { Ok(Action::succeed()) })
        .drain_timeout(Duration::from_secs(60))
        .run_until(std::future::ready(()))
        .await;
    assert!(!drained.finished);
    assert_eq!(before.elapsed(), Duration::from_secs(60), "the panics do not delay the drain");
    assert!((8..100).contains(&clones.load(Ordering::Relaxed)), "{clones:?}");
}
