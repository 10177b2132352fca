//! The events that end the wait after a failure, and events that do not.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use futures_util::Stream;
use k8s_openapi::api::core::v1::ConfigMap;
use requeue::limiter::ExponentialFailure;
use requeue_kube::controller::{Action, Config};
use requeue_kube::{ObjectKey, ObjectQueue, policy};

use super::common::*;

const SECOND: Duration = Duration::from_secs(1);

/// Returns the times, in seconds, of the runs of a reconciler that always fails. In each run, the
/// object changes to the result of `change`, whose argument grows. The watch reports the change
/// during the run (`early`), or after it.
async fn runs_of_what_changes_itself(
    config: Config,
    action: Action,
    early: bool,
    change: fn(u32) -> ConfigMap,
) -> Vec<u64> {
    let (feed, controller) = controller();
    let log = Log::new();
    let reconcile = {
        let feed = feed.clone();
        move |_: Arc<ConfigMap>, log: Arc<Log>| {
            let feed = feed.clone();
            async move {
                log.note("a");
                let change = change(u32::try_from(log.names().len()).unwrap() + 1);
                if early {
                    feed.apply(&change);
                    a_moment().await;
                } else {
                    tokio::spawn(async move {
                        a_moment().await;
                        feed.apply(&change);
                    });
                }
                Err(OnPurpose)
            }
        }
    };
    let policy = move |_: Arc<ConfigMap>, _: &OnPurpose, _: Arc<Log>| action.clone();
    let controller = controller.with_config(config);
    let _reading = Reading::of(controller.run(reconcile, policy, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND * 40).await;
    log.times("a").iter().map(Duration::as_secs).collect()
}

#[tokio::test(start_paused = true)]
async fn what_makes_its_own_generations_backs_off() {
    let own = |number| generation(map("a", number), i64::from(number));
    for early in [true, false] {
        let runs = runs_of_what_changes_itself(doubling(), Action::backoff(), early, own).await;
        // Each wait ends early once. The backoff starts again only after the first of these waits.
        assert_eq!(runs, [0, 0, 1, 1, 5, 5, 21, 21], "early: {early}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_and_changes_itself_backs_off() {
    let own = |number| map("a", number);
    for early in [true, false] {
        for action in [Action::terminal(), Action::await_change()] {
            let runs = runs_of_what_changes_itself(doubling(), action, early, own).await;
            assert_eq!(runs, [0, 1, 3, 7, 15, 31], "early: {early}");
        }
        let config = doubling().max_retries(1);
        let runs = runs_of_what_changes_itself(config, Action::backoff(), early, own).await;
        assert_eq!(runs, [0, 1, 3, 7, 15, 31], "early: {early}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_generation_of_what_is_given_up_is_tried_at_once() {
    let (feed, controller) = controller();
    let log = Log::new();
    let policy = |_: Arc<ConfigMap>, _: &OnPurpose, _: Arc<Log>| Action::terminal();
    let limiter = || ExponentialFailure::new(SECOND * 100, SECOND * 1000);
    let controller = controller.with_config(config().rate_limiter(limiter));
    let _reading = Reading::of(controller.run(fail, policy, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND * 50).await;
    feed.apply(&generation(map("a", 2), 2));
    tokio::time::sleep(SECOND * 1000).await;
    let times: Vec<_> = log.times("a").iter().map(Duration::as_secs).collect();
    assert_eq!(times, [0, 50]);
}

/// On the first wake, creates a new generation of the object, and returns when the controller has
/// seen the generation. This wake comes after a reconciler has failed, and before the queue records
/// the failure.
struct InBetween {
    feed: Feed<ConfigMap>,
    queue: Arc<OnceLock<ObjectQueue>>,
    wakes: AtomicUsize,
}

impl Wake for InBetween {
    fn wake(self: Arc<Self>) {
        if self.wakes.fetch_add(1, Ordering::Relaxed) > 0 {
            return;
        }
        // The feed is used on another thread, because this thread is blocked.
        let feed = self.feed.clone();
        std::thread::spawn(move || feed.apply(&generation(map("a", 2), 2))).join().unwrap();
        while self.queue.get().unwrap().totals().adds < 2 {
            std::thread::yield_now();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_generation_in_the_moment_that_a_failure_is_taken_down_is_tried_at_once() {
    let (feed, controller) = controller();
    let log = Log::new();
    let reconcile = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        if map.metadata.generation == Some(1) { Err(OnPurpose) } else { Ok(Action::await_change()) }
    };
    let policy =
        |_: Arc<ConfigMap>, _: &OnPurpose, _: Arc<Log>| Action::requeue_after(SECOND * 3600);
    let queue = Arc::new(OnceLock::new());
    let given = Arc::clone(&queue);
    let controller = controller.queue_on_start(move |queue| given.set(queue).unwrap());
    let mut stream = Box::pin(controller.run(reconcile, policy, Arc::new(log.clone())));
    let in_between = InBetween { feed: feed.clone(), queue, wakes: AtomicUsize::new(0) };
    let waker = Waker::from(Arc::new(in_between));
    assert!(stream.as_mut().poll_next(&mut Context::from_waker(&waker)).is_pending());
    feed.list(&[map("a", 1)]);
    log.reaches(2).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_and_taken_out_of_the_queue_runs_when_it_changes() {
    let (feed, controller) = controller();
    let log = Log::new();
    let policy = |_: Arc<ConfigMap>, _: &OnPurpose, _: Arc<Log>| Action::terminal();
    let queue = Arc::new(OnceLock::new());
    let given = Arc::clone(&queue);
    let controller = controller
        .with_config(doubling())
        .queue_on_start(move |queue: ObjectQueue| given.set(queue).unwrap());
    let _reading = Reading::of(controller.run(fail, policy, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    log.reaches(1).await;
    a_moment().await;
    assert!(queue.get().unwrap().cancel(&ObjectKey::new(Some("ns"), "a")).waiting);
    feed.apply(&map("a", 2));
    log.reaches(2).await;
}

#[tokio::test(start_paused = true)]
async fn what_goes_during_its_run_does_not_come_back() {
    for action in [Action::requeue_after(SECOND * 3600), Action::backoff()] {
        let (feed, controller) = controller();
        let log = Log::new();
        let reconcile = move |map: Arc<ConfigMap>, log: Arc<Log>| {
            let action = action.clone();
            async move {
                log.note(name(&*map));
                tokio::time::sleep(SECOND).await;
                Ok::<_, OnPurpose>(action)
            }
        };
        let queue = Arc::new(OnceLock::new());
        let given = Arc::clone(&queue);
        let controller = controller.queue_on_start(move |queue| given.set(queue).unwrap());
        let stream = controller.run(reconcile, policy::backoff, Arc::new(log.clone()));
        let reading = Reading::of(stream);
        feed.list(&[map("a", 1)]);
        log.reaches(1).await;
        feed.delete(&map("a", 2));
        tokio::time::sleep(SECOND * 2).await;
        assert_eq!(queue.get().unwrap().waiting(), 0);
        assert_eq!(reading.items(), ["ok a"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_generation_during_a_run_that_asks_for_backoff_is_tried_at_once() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling());
    let unready = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        tokio::time::sleep(SECOND).await;
        let is_first = map.metadata.generation == Some(1);
        Ok::<_, OnPurpose>(if is_first { Action::backoff() } else { Action::await_change() })
    };
    let _reading = Reading::of(controller.run(unready, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    log.reaches(1).await;
    feed.apply(&generation(map("a", 2), 2));
    log.reaches(2).await;
    assert_eq!(log.times("a")[1].as_secs(), 1);
}
