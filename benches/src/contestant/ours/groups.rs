//! A queue with fair groups and a limit for each, which many keys have reached.

use requeue::{GroupId, Queue};

use super::super::Contestant;
use super::super::single::{self, Subject};
use crate::keys::{Key, hash};
use crate::protocol::{Answer, Request, Scenario};

/// The number of groups. The same number of further groups is throttled.
const GROUPS: u64 = 100;

/// A queue in which groups take turns, with at most one key of each in flight.
#[derive(Debug)]
pub(in super::super) struct WithGroups;

impl Contestant for WithGroups {
    const NAME: &'static str = "requeue-groups";
    const SCENARIOS: &'static [Scenario] =
        &[Scenario::Cycle, Scenario::HeldBack, Scenario::FillDrain, Scenario::Memory];

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        let make = || fair(|key: &K| GroupId::new(hash(key) % GROUPS));
        Some(match request.scenario {
            Scenario::Cycle => single::cycle(make(), request),
            Scenario::FillDrain => single::fill_drain(make(), request),
            Scenario::Memory => single::memory(make, request),
            Scenario::HeldBack => held_back::<K>(request),
            _ => return None,
        })
    }
}

fn fair<K: requeue::Key>(group: impl Fn(&K) -> GroupId + Send + Sync + 'static) -> Queue<K> {
    let builder = Queue::builder().group_by(group).fair().group_limit(1);
    builder.build().expect("a limit of 1 makes sense")
}

/// A key that can be throttled.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Held<K> {
    key: K,
    back: bool,
}

struct Free<K: Key> {
    queue: Queue<Held<K>>,
}

impl<K: Key> Subject<K> for Free<K> {
    fn add(&mut self, key: &K) {
        self.queue.add(Held { key: key.clone(), back: false });
    }

    fn take(&mut self) {
        if let Some(item) = self.queue.get().blocking() {
            item.succeed();
        }
    }
}

fn held_back<K: Key>(request: &Request) -> Answer {
    let queue: Queue<Held<K>> = fair(|held: &Held<K>| {
        GroupId::new(hash(&held.key) % GROUPS + if held.back { GROUPS } else { 0 })
    });
    for key in &*K::some(request.depth) {
        queue.add(Held { key: key.clone(), back: true });
    }
    // One key of each group is in flight as long as `at_work` lives.
    let at_work = queue.get_many(GROUPS as usize).now();
    let free = Free { queue: queue.clone() };
    let answer = single::cycle(free, &Request { depth: 0, ..*request });
    drop(at_work);
    answer
}
