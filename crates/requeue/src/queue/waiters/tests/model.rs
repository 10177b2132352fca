//! A random test of the list of waiters. It checks that if a thread waits, some thread wakes itself
//! at the next deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use proptest::prelude::*;
use requeue_core::Time;

use super::super::{Kind, Place, Waiters, Wakes};

/// One step of the test. The number in a variant is the index of a getter.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// The getter checks for a key, for the first time or again, and finds none.
    Check(usize),
    /// The getter stops waiting, with or without a key.
    Leave(usize),
    /// The earliest due time of a key changes to this value. `None` means that no key waits.
    Due(Option<u64>),
    /// The number of keys that can be delivered changes to this value.
    Ready(usize),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0usize..4).prop_map(Op::Check),
        2 => (0usize..4).prop_map(Op::Leave),
        3 => prop::option::weighted(0.9, 1u64..6).prop_map(Op::Due),
        1 => (0usize..3).prop_map(Op::Ready),
    ]
}

/// True if the getter was woken after its last check.
#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Getter {
    kind: Kind,
    place: Option<Place>,
    woken: Arc<Flag>,
    /// The time until which the thread sleeps, unless it is woken.
    sleeps_until: Time,
}

impl Getter {
    fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::Relaxed)
    }

    /// The steps of `Getter::check_or_wait` of the queue, when there is no key.
    fn check(&mut self, waiters: &mut Waiters, due: Time) {
        let waker = Waker::from(Arc::clone(&self.woken));
        drop(waiters.list_waiter(&mut self.place, self.kind, false, waker));
        self.woken.0.store(false, Ordering::Relaxed);
        let leads = self.kind == Kind::Thread && waiters.become_leader(self.place, due);
        self.sleeps_until = if leads { due } else { Time::NEVER };
    }

    /// Returns true if this getter is a thread that will check at the time `due`.
    fn keeps(&self, due: Time) -> bool {
        let waits = self.place.is_some() && self.kind == Kind::Thread;
        waits && (self.is_woken() || self.sleeps_until <= due)
    }
}

/// The steps of `Shared::notify_and_arm` of the queue.
fn settle(waiters: &mut Waiters, keys: usize, due: Time) {
    let mut wakes = Wakes::new();
    waiters.wake_for(keys, &mut wakes);
    if !waiters.is_empty() && due < Time::NEVER {
        waiters.keep_time(due).into_iter().for_each(|waker| wakes.push(waker));
    }
    wakes.wake_each();
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn while_threads_wait_one_of_them_checks_when_a_key_is_due(
        ops in prop::collection::vec(op(), 1..40),
    ) {
        let mut waiters = Waiters::new();
        let mut getters = [Kind::Thread, Kind::Thread, Kind::Thread, Kind::Task].map(|kind| {
            Getter { kind, place: None, woken: Arc::default(), sleeps_until: Time::NEVER }
        });
        let mut due = Time::NEVER;
        for op in ops {
            let mut keys = 0;
            match op {
                Op::Check(which) => getters[which].check(&mut waiters, due),
                Op::Leave(which) => drop(waiters.remove_waiter(&mut getters[which].place)),
                Op::Due(at) => due = at.map_or(Time::NEVER, Time::from_nanos),
                Op::Ready(ready) => keys = ready,
            }
            settle(&mut waiters, keys, due);
            let kept = getters.iter().any(|getter| getter.keeps(due));
            prop_assert!(kept || due == Time::NEVER || !waiters.has_threads(), "no thread keeps the time");
        }
    }
}
