//! tokio-util's queue of delays, with a map from keys to their entries for re-adds.

use std::collections::HashMap;
use std::future::poll_fn;
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::runtime::{Builder, Runtime};
use tokio_util::time::{DelayQueue, delay_queue};

use super::Contestant;
use super::fire::{Arrivals, Plan};
use super::several::runtime;
use super::single::{self, Delays as _};
use crate::keys::Key;
use crate::protocol::{Answer, Request, Scenario};
use crate::versions;

/// tokio-util's `DelayQueue`.
#[derive(Debug)]
pub(super) struct Delays;

impl Contestant for Delays {
    const NAME: &'static str = "delay-queue";
    const SCENARIOS: &'static [Scenario] = &[
        Scenario::DelayedAdd,
        Scenario::DelayedReadd,
        Scenario::Fire,
        Scenario::SparseTimers,
        Scenario::MemoryDelayed,
    ];

    fn version() -> String {
        versions::of("tokio-util")
    }

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        // This runtime is never driven, because no timer fires in a scenario without due keys.
        let idle = Builder::new_current_thread().enable_time().build();
        let idle: Runtime = idle.expect("a runtime without threads can be made");
        let _entered = idle.enter();
        let make = Map::<K>::default;
        Some(match request.scenario {
            Scenario::DelayedAdd => single::delayed_add(make(), request),
            Scenario::DelayedReadd => single::delayed_readd(make(), request),
            Scenario::MemoryDelayed => single::memory_delayed(make, request),
            Scenario::Fire | Scenario::SparseTimers => {
                drop(_entered);
                return fire(request);
            }
            _ => return None,
        })
    }
}

struct Map<K> {
    places: HashMap<K, delay_queue::Key, RandomState>,
    queue: DelayQueue<K>,
}

impl<K> Default for Map<K> {
    fn default() -> Self {
        Self { places: HashMap::default(), queue: DelayQueue::new() }
    }
}

impl<K: Key> single::Delays<K> for Map<K> {
    fn add_after(&mut self, key: &K, delay: Duration) {
        match self.places.get(key) {
            Some(place) => self.queue.reset(place, delay),
            None => {
                let place = self.queue.insert(key.clone(), delay);
                self.places.insert(key.clone(), place);
            }
        }
    }

    fn cancel(&mut self, key: &K) -> bool {
        let place = self.places.remove(key);
        place.is_some_and(|place| self.queue.try_remove(&place).is_some())
    }
}

fn fire(request: &Request) -> Option<Answer> {
    let plan = Plan::new(request)?;
    Some(runtime().block_on(async {
        let mut map = Map::<u64>::default();
        plan.add_all(|key, delay| map.add_after(&key, delay));
        let meter = plan.begin();
        let task = tokio::spawn(async move {
            let mut arrivals = Arrivals::new(plan);
            while let Some(expired) = poll_fn(|cx| map.queue.poll_expired(cx)).await {
                arrivals.note(*expired.get_ref());
                map.places.remove(expired.get_ref());
            }
            arrivals
        });
        task.await.expect("polling does not panic").answer(meter)
    }))
}
