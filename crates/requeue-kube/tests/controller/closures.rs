//! The user's closures are called concurrently, never under a lock that other objects need.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::reflector::ObjectRef;
use requeue::Time;
use requeue::limiter::RateLimiter;
use requeue_kube::controller::{Action, Watched};
use requeue_kube::{ObjectKey, policy};

use super::common::*;

/// Two calls that must be in progress at the same time: the first call blocks until the second call
/// begins.
#[derive(Default)]
struct Meeting {
    arrived: Mutex<usize>,
    both: Condvar,
    missed: AtomicBool,
}

impl Meeting {
    /// Waits for the other call, and gives up after a minute, so that a lock around the calls fails
    /// the test instead of blocking it.
    fn meet(&self) {
        // Other tasks of this thread continue on another thread.
        tokio::task::block_in_place(|| {
            let mut arrived = self.arrived.lock().unwrap();
            *arrived += 1;
            self.both.notify_all();
            let alone = |arrived: &mut usize| *arrived < 2;
            let waited = self.both.wait_timeout_while(arrived, Duration::from_secs(60), alone);
            if waited.unwrap().1.timed_out() {
                self.missed.store(true, Ordering::SeqCst);
            }
        });
    }

    async fn has_begun(&self) {
        while *self.arrived.lock().unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn is_over(&self) {
        while *self.arrived.lock().unwrap() < 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(!self.missed.load(Ordering::SeqCst), "one call blocked the other");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reconciler_that_blocks_before_its_future_keeps_no_other_waiting() {
    let (feed, controller) = controller();
    let meeting = Arc::new(Meeting::default());
    let reconcile = |_: Arc<ConfigMap>, meeting: Arc<Meeting>| {
        meeting.meet();
        std::future::ready(Ok::<_, OnPurpose>(Action::await_change()))
    };
    let controller = controller.with_config(config().concurrency(2));
    let _reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::clone(&meeting)));
    feed.list(&[map("a", 1), map("b", 1)]);
    meeting.is_over().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_error_policy_that_blocks_keeps_no_other_waiting() {
    let (feed, controller) = controller::<ConfigMap>();
    let meeting = Arc::new(Meeting::default());
    let policy = |_: ObjectRef<ConfigMap>, _: &OnPurpose, meeting: Arc<Meeting>| {
        meeting.meet();
        Action::terminal()
    };
    let reconcile = async |_: ObjectRef<ConfigMap>, _: Arc<Meeting>| Err::<Action, _>(OnPurpose);
    let controller = controller.with_config(config().concurrency(2));
    let reconcile = move |object, meeting| Box::pin(reconcile(object, meeting));
    let _reading = Reading::of(controller.run_refs(reconcile, policy, Arc::clone(&meeting)));
    feed.list(&[map("a", 1), map("b", 1)]);
    meeting.is_over().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_predicate_or_mapper_that_blocks_keeps_no_other_watch_waiting() {
    let (feed, controller) = controller::<ConfigMap>();
    let (secrets, events) = Feed::new();
    let meeting = Arc::new(Meeting::default());
    let [in_predicate, in_mapper] = [Arc::clone(&meeting), Arc::clone(&meeting)];
    let predicate = move |_: &ConfigMap| {
        in_predicate.meet();
        None
    };
    let mapper = move |_: Secret| {
        in_mapper.meet();
        None::<ObjectRef<ConfigMap>>
    };
    let controller = controller.filter(predicate).watch_mapped(Watched::stream(events), mapper);
    let _reading = Reading::of(controller.run(note, policy::backoff, Arc::new(Log::new())));
    feed.list(&[map("a", 1)]);
    secrets.list(&[Secret { metadata: map("s", 1).metadata, ..Secret::default() }]);
    meeting.is_over().await;
}

/// A limiter whose `delay` waits for another call.
struct Slow(Arc<Meeting>);

impl RateLimiter<ObjectKey> for Slow {
    fn delay(&mut self, _: &ObjectKey, _: Time) -> Duration {
        self.0.meet();
        Duration::from_secs(3600)
    }

    fn forget(&mut self, _: &ObjectKey) {}

    fn num_requeues(&self, _: &ObjectKey) -> u32 {
        0
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rate_limiter_that_blocks_keeps_no_other_object_waiting() {
    let (feed, controller) = controller();
    let meeting = Arc::new(Meeting::default());
    let limiter = Arc::clone(&meeting);
    let config = config().concurrency(2).rate_limiter(move || Slow(Arc::clone(&limiter)));
    let reconcile = |map: Arc<ConfigMap>, meeting: Arc<Meeting>| {
        std::future::ready(if name(&*map) == "fails" {
            Err(OnPurpose)
        } else {
            meeting.meet();
            Ok(Action::await_change())
        })
    };
    let controller = controller.with_config(config);
    let _reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::clone(&meeting)));
    feed.list(&[map("fails", 1)]);
    meeting.has_begun().await;
    feed.apply(&map("b", 1));
    meeting.is_over().await;
}
