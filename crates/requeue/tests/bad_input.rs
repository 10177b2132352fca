//! An argument without a sensible meaning causes an error or a defined result, but never a panic.

mod common;

use std::sync::Arc;

use common::{fake, poll, ready, secs, take_all, timeless};
use requeue::metrics::{MetricsProvider, QueueMetrics};
use requeue::{BuildError, Cursor, GroupId, Order, Queue};

#[test]
fn a_group_limit_of_zero_is_an_error() {
    let error = Queue::<u8>::builder().group_limit(0).build().unwrap_err();
    assert_eq!(error, BuildError::ZeroGroupLimit);
    assert!(error.to_string().contains("group limit"), "{error}");
    assert!(Queue::<u8>::builder().group_limit(1).build().is_ok());
    assert!(Queue::<u8>::builder().group_limit(u32::MAX).build().is_ok());
}

#[test]
fn a_priority_order_that_says_nothing_is_an_error() {
    let order = Order::Priority { oldest_every: 0 };
    let error = Queue::<u8>::builder().order(order).build().unwrap_err();
    assert_eq!(error, BuildError::ZeroOldestEvery);
}

#[test]
fn metrics_without_a_name_are_an_error() {
    struct Quiet;

    impl<K> QueueMetrics<K> for Quiet {}

    impl<K> MetricsProvider<K> for Quiet {
        fn queue(&self, _: &str) -> Arc<dyn QueueMetrics<K>> {
            Arc::new(Self)
        }
    }

    let builder = || Queue::<u8>::builder().metrics_provider(Arc::new(Quiet));
    assert_eq!(builder().build().unwrap_err(), BuildError::Unnamed);
    assert_eq!(builder().name("").build().unwrap_err(), BuildError::Unnamed);
    assert_eq!(builder().name("pods").build().unwrap().name(), Some("pods"));
}

#[test]
fn getting_no_keys_gets_none_and_does_not_wait() {
    let (queue, _clock) = fake();
    assert!(ready(queue.get_many(0)).is_empty());
    assert!(queue.get_many(0).blocking().is_empty());
    queue.add(1);
    assert!(queue.get_many(0).now().is_empty());
    assert!(ready(queue.get_many(0)).is_empty());
    assert_eq!((queue.len(), queue.states().in_flight), (1, 0));
}

#[test]
fn getting_any_number_of_keys_gets_those_there_are() {
    let (queue, clock) = fake();
    assert!(queue.get_many(usize::MAX).now().is_empty());
    for get in [
        |queue: &Queue<u32>| queue.get_many(usize::MAX).now().len(),
        |queue: &Queue<u32>| queue.get_many(usize::MAX).blocking().len(),
        |queue: &Queue<u32>| ready(queue.get_many(usize::MAX)).len(),
    ] {
        queue.add_all(0..1000);
        assert_eq!(get(&queue), 1000);
        // The test has dropped the items without a completion, so their keys are retried.
        clock.advance(secs(600));
    }
}

#[test]
fn adding_nothing_does_nothing() {
    let (queue, _clock) = fake::<u8>();
    assert_eq!(queue.add_all([]), 0);
    assert_eq!(queue.len(), 0);
}

/// The iterator is user code, so it may call the queue.
#[test]
fn an_iterator_of_keys_may_call_the_queue_and_may_panic() {
    let (queue, _clock) = fake();
    let keys = (0..600).inspect(|_| {
        queue.add(1000);
        assert!(queue.len() > 0);
    });
    assert_eq!(queue.add_all(keys), 600);
    assert_eq!(queue.len(), 601);

    let (queue, _clock) = fake();
    let keys = (0..600).inspect(|&key| {
        if key == 300 {
            std::panic::resume_unwind(Box::new(()));
        }
    });
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.add_all(keys)));
    assert!(panicked.is_err());
    assert_eq!(take_all(&queue), (0..256).collect::<Vec<_>>(), "only whole slices are added");
}

/// The group function is user code, so it may call the queue.
#[test]
fn a_group_function_may_call_the_queue_and_may_panic() {
    let handle = Arc::new(std::sync::OnceLock::<Queue<u32>>::new());
    let inner = Arc::clone(&handle);
    let queue = timeless()
        .group_by(move |&key| {
            let queue = inner.get().expect("set before the first add");
            if key == 13 {
                std::panic::resume_unwind(Box::new(()));
            }
            if key < 10 {
                queue.add(key + 10);
            }
            GroupId::of(&queue.len()).weight(0)
        })
        .fair()
        .build()
        .unwrap();
    assert!(handle.set(queue.clone()).is_ok());
    queue.add_all([1, 2]);
    let add_all = std::panic::AssertUnwindSafe(|| queue.add(13));
    assert!(std::panic::catch_unwind(add_all).is_err());
    let mut keys = take_all(&queue);
    keys.sort_unstable();
    assert_eq!(keys, [1, 2, 11, 12]);
}

#[test]
fn any_cursor_and_any_limit_make_a_page() {
    let (queue, _clock) = fake();
    queue.add_all(0..100);
    for bits in [0, 1, u32::MAX / 2, u32::MAX] {
        for limit in [0, 1, 99, usize::MAX] {
            let page = queue.snapshot(Cursor(bits), limit);
            assert!(page.entries.len() <= 100);
        }
    }
    let page = queue.snapshot(Cursor::default(), usize::MAX);
    assert_eq!((page.entries.len(), page.next), (100, None));
}

#[test]
fn keys_that_are_not_there_have_no_state() {
    let (queue, _clock) = fake::<&str>();
    assert!(!queue.cancel("a").any());
    assert!(!queue.done("a"));
    queue.forget(&"a");
    assert_eq!((queue.failures("a"), queue.num_requeues(&"a")), (0, 0));
    assert_eq!(queue.look_up("a"), None);
    assert_eq!(queue.explain("a"), "not in the queue");
}

/// A getter that has returned an item may be polled again. It then waits for another key, like a
/// new getter.
#[test]
fn a_getter_that_has_answered_may_be_polled_again() {
    let (queue, _clock) = fake();
    queue.add_all([1, 2]);
    let mut get = queue.get();
    for _ in 0..2 {
        let waker = std::task::Waker::noop();
        let std::task::Poll::Ready(Some(item)) = poll(&mut get, waker) else { panic!("a key") };
        item.succeed();
    }
    assert!(poll(&mut get, std::task::Waker::noop()).is_pending());
    queue.shut_down();
    let mut drain = queue.shut_down_with_drain().timeout(secs(1));
    for _ in 0..2 {
        assert!(poll(&mut drain, std::task::Waker::noop()).is_ready());
    }
}

#[test]
fn failures_saturate_and_priorities_may_be_extreme() {
    use requeue::Add;
    let queue = timeless().order(Order::Priority { oldest_every: u32::MAX }).build().unwrap();
    for (key, priority) in [("low", i32::MIN), ("middle", 0), ("high", i32::MAX)] {
        queue.add_with(key, Add::now().priority(priority).flags(u32::MAX));
    }
    assert_eq!(take_all(&queue), ["high", "middle", "low"]);
}
