//! The backoff of failed objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::reflector::ObjectRef;
use requeue_kube::controller::Action;
use requeue_kube::policy;

use super::common::*;

const SECOND: Duration = Duration::from_secs(1);

/// Converts times to whole seconds, because timers have a resolution of a millisecond.
fn seconds(times: &[Duration]) -> Vec<u64> {
    times.iter().map(Duration::as_secs).collect()
}

#[tokio::test(start_paused = true)]
async fn failures_are_spaced_by_their_own_backoff_whatever_events_arrive() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling());
    let reconcile = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        if name(&*map) == "bad" { Err(OnPurpose) } else { Ok(Action::await_change()) }
    };
    let _reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("bad", 0), map("good", 0)]);
    // The object changes ten times per second, as with a reconciler that patches its object's
    // status.
    for version in 1..310 {
        feed.apply(&map("bad", version));
        feed.apply(&map("good", version));
        tokio::time::sleep(SECOND / 10).await;
    }
    // The delays are client-go's delays: 1, 2, 4, 8 and 16 s.
    assert_eq!(seconds(&log.times("bad")), [0, 1, 3, 7, 15]);
    // The other objects are not delayed. Their first version is in the list.
    assert_eq!(log.times("good").len(), 309);
}

#[tokio::test(start_paused = true)]
async fn a_new_generation_is_tried_at_once_and_backs_off_from_the_beginning() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling());
    let _reading = Reading::of(controller.run(fail, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND * 10).await;
    assert_eq!(seconds(&log.times("a")), [0, 1, 3, 7]);
    feed.apply(&generation(map("a", 2), 2));
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!(seconds(&log.times("a"))[4..], [10, 11, 13]);
}

#[tokio::test(start_paused = true)]
async fn a_new_generation_waits_if_asked_to() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling().keep_backoff_on_new_generation());
    let _reading = Reading::of(controller.run(fail, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    for number in 2..100 {
        tokio::time::sleep(SECOND / 10).await;
        feed.apply(&generation(map("a", number), i64::from(number)));
    }
    assert_eq!(seconds(&log.times("a")), [0, 1, 3, 7]);
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_a_generation_that_is_no_more_is_none() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling());
    let slow = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        tokio::time::sleep(SECOND * 3).await;
        if map.metadata.generation == Some(1) { Err(OnPurpose) } else { Ok(Action::await_change()) }
    };
    let reading = Reading::of(controller.run(slow, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND * 2).await;
    feed.apply(&generation(map("a", 2), 2));
    tokio::time::sleep(SECOND * 30).await;
    assert_eq!(seconds(&log.times("a")), [0, 3]);
    assert_eq!(reading.items().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn another_object_under_the_name_has_no_failures() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling());
    let _reading = Reading::of(controller.run(fail, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND * 10).await;
    let mut another = map("a", 2);
    another.metadata.uid = Some("another".into());
    feed.list(&[another]);
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(seconds(&log.times("a")), [0, 1, 3, 7, 10, 11]);
}

#[tokio::test(start_paused = true)]
async fn an_error_policy_says_when_and_no_event_comes_before() {
    let (feed, controller) = controller();
    let log = Log::new();
    let policy = |_: Arc<ConfigMap>, _: &OnPurpose, _: Arc<Log>| Action::requeue_after(SECOND * 5);
    let _reading = Reading::of(controller.run(fail, policy, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    for version in 2..120 {
        tokio::time::sleep(SECOND / 10).await;
        feed.apply(&map("a", version));
    }
    assert_eq!(seconds(&log.times("a")), [0, 5, 10]);
}

#[tokio::test(start_paused = true)]
async fn what_is_terminal_or_awaits_a_change_comes_with_the_next_change() {
    for action in [Action::terminal(), Action::await_change()] {
        let (feed, controller) = controller();
        let log = Log::new();
        let policy = move |_: Arc<ConfigMap>, _: &OnPurpose, _: Arc<Log>| action.clone();
        let _reading = Reading::of(controller.run(fail, policy, Arc::new(log.clone())));
        feed.list(&[map("a", 1)]);
        tokio::time::sleep(SECOND * 1000).await;
        feed.apply(&map("a", 2));
        tokio::time::sleep(SECOND * 1000).await;
        assert_eq!(seconds(&log.times("a")), [0, 1000]);
    }
}

#[tokio::test(start_paused = true)]
async fn after_its_last_retry_an_object_waits_for_a_change() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling().max_retries(2));
    let _reading = Reading::of(controller.run(fail, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND * 100).await;
    feed.apply(&map("a", 2));
    tokio::time::sleep(SECOND * 1000).await;
    // The object has two retries again, and the backoff continues from its last delay.
    assert_eq!(seconds(&log.times("a")), [0, 1, 3, 100, 108, 124]);
}

#[tokio::test(start_paused = true)]
async fn a_success_may_ask_for_backoff() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling());
    let unready = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        Ok::<_, OnPurpose>(Action::backoff())
    };
    let reading = Reading::of(controller.run(unready, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND * 10).await;
    assert_eq!(seconds(&log.times("a")), [0, 1, 3, 7]);
    assert_eq!(reading.items(), ["ok a"; 4]);
}

#[tokio::test(start_paused = true)]
async fn a_requeue_comes_after_its_time_or_with_a_change() {
    let (feed, controller) = controller();
    let log = Log::new();
    let hourly = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        Ok::<_, OnPurpose>(Action::requeue_after(SECOND * 3600))
    };
    let _reading = Reading::of(controller.run(hourly, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND * 5000).await;
    feed.apply(&map("a", 2));
    tokio::time::sleep(SECOND * 3000).await;
    // The change at 5000 s replaces the run at 7200 s.
    assert_eq!(seconds(&log.times("a")), [0, 3600, 5000]);
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_a_failure_of_its_object_alone() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling());
    let reconcile = |map: Arc<ConfigMap>, log: Arc<Log>| {
        log.note(name(&*map));
        assert_ne!(name(&*map), "at the call", "on purpose");
        async move {
            assert_ne!(name(&*map), "in the future", "on purpose");
            Ok::<_, OnPurpose>(Action::await_change())
        }
    };
    let reading = Reading::of(controller.run(reconcile, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("at the call", 1), map("fine", 1), map("in the future", 1)]);
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(seconds(&log.times("at the call")), [0, 1]);
    assert_eq!(seconds(&log.times("in the future")), [0, 1]);
    assert_eq!(seconds(&log.times("fine")), [0]);
    let panicked = reading.items().into_iter().filter(|item| item.contains("panicked: "));
    assert_eq!(panicked.count(), 4, "{:?}", reading.items());
}

#[tokio::test(start_paused = true)]
async fn an_error_policy_that_panics_has_failed_too() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling());
    let policy = |_: Arc<ConfigMap>, _: &OnPurpose, _: Arc<Log>| -> Action { panic!("policy") };
    let _reading = Reading::of(controller.run(fail, policy, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!(seconds(&log.times("a")), [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_takes_too_long_has_failed() {
    let (feed, controller) = controller();
    let log = Log::new();
    let controller = controller.with_config(doubling().reconcile_timeout(SECOND * 2));
    let hang = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        std::future::pending::<()>().await;
        Ok::<_, OnPurpose>(Action::await_change())
    };
    let reading = Reading::of(controller.run(hang, policy::backoff, Arc::new(log.clone())));
    feed.list(&[map("a", 1)]);
    tokio::time::sleep(SECOND * 8).await;
    assert_eq!(seconds(&log.times("a")), [0, 3, 7]);
    assert!(reading.items()[0].ends_with("timed out after 2s"), "{:?}", reading.items());
}

#[tokio::test(start_paused = true)]
async fn what_is_gone_is_tried_again_by_reference() {
    let (feed, controller) = controller::<ConfigMap>();
    let controller = controller.with_config(doubling());
    let log = Log::new();
    let attempts = Arc::new(AtomicUsize::new(0));
    let reconcile = {
        let attempts = Arc::clone(&attempts);
        move |object: ObjectRef<ConfigMap>, log: Arc<Log>| {
            let attempt = attempts.fetch_add(1, Ordering::Relaxed);
            async move {
                log.note(object.name);
                if attempt < 3 { Err(OnPurpose) } else { Ok(Action::await_change()) }
            }
        }
    };
    let _reading =
        Reading::of(controller.run_refs(reconcile, policy::backoff, Arc::new(log.clone())));
    feed.list(&[]);
    feed.delete(&map("a", 1));
    tokio::time::sleep(SECOND * 30).await;
    assert_eq!(seconds(&log.times("a")), [0, 1, 3, 7]);
}
