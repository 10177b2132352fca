//! Operations on one group.

use std::sync::atomic::{AtomicBool, Ordering};

use requeue_core::{Add, Config, CustomOrder, Finish, GroupId, Order, Queue, Time};

const NOW: Time = Time::ZERO;

/// A custom order: last in, first out.
struct Stack<K>(Vec<K>);

impl<K: Send> CustomOrder<K> for Stack<K> {
    fn push(&mut self, key: K) {
        self.0.push(key);
    }

    fn touch(&mut self, _: &K) {}

    fn pop(&mut self) -> Option<K> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

/// A key whose `clone` panics while `BREAKS` is set.
#[derive(PartialEq, Eq, Debug)]
struct Fragile(u64);

static BREAKS: AtomicBool = AtomicBool::new(false);

impl Clone for Fragile {
    fn clone(&self) -> Self {
        assert!(!BREAKS.load(Ordering::Relaxed), "on purpose");
        Self(self.0)
    }
}

fn get(queue: &mut Queue<Fragile>) -> Option<u64> {
    let popped = queue.get_by_order(NOW, |key| key.0);
    let out = popped.item?;
    let _ = queue.finish(&out.ticket, Finish::Succeed, NOW);
    Some(out.key.0)
}

#[test]
fn a_custom_order_gets_the_keys_again_that_it_returned_during_a_pause() {
    let order = Order::Custom(Box::new(Stack(Vec::new())));
    let mut queue = Queue::new(Config { order, groups: true, ..Config::default() });
    let group = |key: u64| GroupId::new(key / 10);
    for key in [20, 10, 11, 12] {
        let _ = queue.add(Fragile(key), key, Add::now(), group(key), NOW);
    }
    queue.pause_group(group(10));
    assert_eq!(get(&mut queue), Some(20), "the others were skipped");
    assert_eq!(get(&mut queue), None);
    queue.resume_group(group(10));
    assert!(queue.return_skipped(group(10), 1), "there may be more");

    // A `clone` that panics leaves the queue unchanged, so the call can be repeated.
    BREAKS.store(true, Ordering::Relaxed);
    let returned = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        queue.return_skipped(group(10), 2)
    }));
    BREAKS.store(false, Ordering::Relaxed);
    assert!(returned.is_err());
    assert!(!queue.return_skipped(group(10), 3));
    let order: Vec<_> = std::iter::from_fn(|| get(&mut queue)).collect();
    assert_eq!(order, [12, 11, 10], "the oldest was pushed first");
}

#[test]
fn a_sealed_run_is_not_cancelled_with_its_group() {
    let mut queue = Queue::new(Config { groups: true, ..Config::default() });
    for key in [10_u64, 11] {
        let _ = queue.add(key, key, Add::now(), GroupId::new(1), NOW);
    }
    let [sealed, open] = [(); 2].map(|()| queue.get(NOW).expect("both are ready").ticket);
    assert_eq!(queue.seal(&sealed), None);
    let (mut walk, mut epochs) = (queue.walk(), Vec::new());
    queue.cancel_running_group(GroupId::new(1), &mut walk, 10, &mut epochs);
    assert_eq!(epochs, [open.epoch()]);
    assert_eq!(queue.cancel_reason(&sealed), None);
}
