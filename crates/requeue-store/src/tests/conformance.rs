//! Compares each engine with the model of the queue in memory. A test applies random operations at times that it sets.
//! After each operation, the visible state of all keys must be the same.

pub(crate) mod actions;
pub(crate) mod activity;
pub(crate) mod attempts;
pub(crate) mod groups;
mod oracle;
pub(crate) mod past;
pub(crate) mod rates;
pub(crate) mod schedules;
mod steps;
mod traces;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::oracle::{check, check_grouped};
pub(crate) use self::steps::{grouped_steps, groupings, one_group, steps, unclaimed_and_cancelled};
pub(crate) use self::traces::check_traces;
use crate::api::store::Store;
use crate::engine::time::Micros;
use crate::engine::{Ask, Backoff, Claim, Engine, Failing, Settings, by_shard};
use crate::tests::Batches as _;
use crate::tests::BoxFuture;
use crate::types::add::{Add, ParkedAdd, ReaddPolicy};
use crate::types::inspect::State;

/// Returns a runtime for a random test.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("the runtime is built")
}

/// Returns the configuration of a random test with `default` cases. The variable PROPTEST_CASES overrides this number.
pub(crate) fn cases(default: u32) -> proptest::test_runner::Config {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok());
    let cases = cases.unwrap_or(default);
    let base = proptest::test_runner::Config::with_cases(cases);
    proptest::test_runner::Config { failure_persistence: None, ..base }
}

/// An engine whose clock the test sets.
pub(crate) trait Rig {
    fn engine(&self) -> Arc<dyn Engine>;

    fn set_time(&self, now: Micros) -> BoxFuture<'_, ()>;

    /// Returns true if the queue has a single shard. All its keys then have one order.
    fn is_ordered(&self) -> bool {
        true
    }

    /// Returns true if the engine drops queues.
    fn drops(&self) -> bool {
        true
    }

    /// Returns true if the engine parks keys.
    fn parks(&self) -> bool {
        true
    }

    /// Returns true if the engine cancels runs.
    fn cancels_runs(&self) -> bool {
        true
    }

    /// Returns true if the time of the engine can go back.
    fn goes_back(&self) -> bool {
        true
    }

    /// Returns true if the engine stores the last failures of a key.
    fn keeps_attempts(&self) -> bool {
        true
    }

    /// Returns true if an unclaimed key returns to its place in the order.
    fn keeps_places(&self) -> bool {
        true
    }
}

const STATES: [State; 4] = [State::Ready, State::Waiting, State::InFlight, State::Parked];
const KEYS: u32 = 6;
/// The number of groups. A claim looks up fewer groups, so the cursor has an effect. The first group has an empty name.
const GROUPS: u32 = 19;
/// The number of keys of a queue with groups. Each group has one key of each priority, and a second key of one
/// priority.
const GROUPED_KEYS: u32 = 4 * GROUPS;
/// The pattern that extracts the groups of these keys. One of the keys has another line break before its group.
pub(crate) const PATTERN: &str = "(?-u)\n([^\n]*)$";
/// A short name, and a name of the maximum length.
const WORKERS: [&str; 2] = [
    "w",
    "\u{20ac}/'\"{x}-99999999999999999999999999999999999999999999999999999999999999999999999999999999999999999",
];
const LEASE: Duration = Duration::from_micros(300);
/// The backoff after each failure. It is constant, so that the test need not know how many failures determine it.
pub(crate) const BACKOFF: Duration = Duration::from_micros(40);
/// The first time of the clock. It is in 2001. An engine could take a time near 0 for a missing value.
const BEGIN: Micros = 1_000_000_000_000_000;

fn failing() -> Failing {
    Failing { backoff: Backoff { base: BACKOFF, cap: BACKOFF, share: 1.0 }, max_failures: None }
}

/// Checks that keys do not become ready at the same time if their leases expire at the same time.
pub(crate) async fn check_jitter(rig: &dyn Rig, name: &str) {
    const KEYS: usize = 40;
    let engine = rig.engine();
    let place = engine.open_queue(name, Settings::default()).await.expect("the queue opens");
    rig.set_time(BEGIN).await;
    let asks = (0..KEYS).map(|n| Ask::new(n.to_string(), Add::now()));
    for part in by_shard(&*engine, &place, asks.collect(), |request| &request.key) {
        engine.add_keys(&place, part).await.expect("added");
    }
    let second = Duration::from_secs(1);
    let backoff = Backoff { base: second, cap: 60 * second, share: 0.37 };
    let expired = Failing { backoff, max_failures: None };
    let claim = Claim { max: 2 * KEYS, oldest: 0, lease: LEASE, expired, poll: LEASE };
    assert_eq!(engine.claim_keys(&place, claim).await.expect("claimed").items.len(), KEYS);
    rig.set_time(BEGIN + crate::engine::time::micros(LEASE)).await;
    assert_eq!(engine.claim_keys(&place, claim).await.expect("claimed").items, []);
    let page = engine.read_page(&place, None, None, 2 * KEYS).await.expect("a page");
    let dues: BTreeSet<_> =
        page.into_iter().map(|entry| entry.due.expect("the key waits")).collect();
    assert!(dues.iter().all(|due| (second / 2..=second).contains(due)), "{dues:?}");
    // Keys of different shards may have the same due time.
    assert!(dues.len() > KEYS / 2, "{dues:?}");
}

/// Checks that the calls revive and cancel more keys than one batch has, and no other keys.
pub(crate) async fn check_bulk(store: &Store, name: &str) {
    const MANY: u64 = 2_500;
    let queue = store.queue(name).open().await.expect("the queue opens");
    let numbered = |what: &'static str| (0..MANY).map(move |n| format!("{what}-{n}"));
    queue.add_all(numbered("parked")).await.expect("added");
    let mut left = MANY;
    while left > 0 {
        for item in queue.get_many(256).await {
            item.give_up("no").await.expect("the lease is held");
            left -= 1;
        }
    }
    queue.add_all(numbered("ready")).await.expect("added");
    let later = Add::after(Duration::from_secs(3600));
    queue.add_all_with(numbered("waiting"), later).await.expect("added");
    let counted = async || {
        let counts = queue.counts().await.expect("counted");
        (counts.ready, counts.waiting, counts.in_flight, counts.parked)
    };
    let held = queue.get_many(3).await;
    assert_eq!(held.len(), 3);
    assert_eq!(counted().await, (MANY - 3, MANY, 3, MANY));

    let named = queue.revive_keys(["parked-7", "ready-8", "parked-7", "parked-8", "none"]).await;
    assert_eq!(named.expect("revived"), [true, false, false, true, false]);
    assert_eq!(queue.revive_all().await.expect("revived"), MANY - 2);
    assert_eq!(counted().await, (2 * MANY - 3, MANY, 3, 0));
    assert_eq!(queue.revive_all().await.expect("revived"), 0);
    let entry = queue.look_up("parked-9").await.expect("looked up").expect("the key has a state");
    assert_eq!((entry.state, entry.failures, entry.error), (State::Ready, 0, None));

    assert_eq!(queue.cancel_all(State::Waiting).await.expect("cancelled"), MANY);
    assert_eq!(queue.cancel_all(State::Parked).await.expect("cancelled"), 0);
    assert_eq!(counted().await, (2 * MANY - 3, 0, 3, 0));
    let named = queue.cancel_keys(["parked-7", "none", "parked-8"]).await;
    assert_eq!(named.expect("cancelled"), [true, false, true]);
    queue.add(held[0].key().clone()).await.expect("added");
    // The number includes the second run of a key in flight.
    assert_eq!(queue.cancel_all(None).await.expect("cancelled"), 2 * MANY - 4);
    assert_eq!(counted().await, (0, 0, 3, 0));
    for item in held {
        item.succeed().await.expect("the lease is held");
    }
    assert_eq!(counted().await, (0, 0, 0, 0));
}

/// Checks that the store lists all its queues, with and without keys.
pub(crate) async fn check_queues(store: &Store, name: &str) {
    let [full, empty, parked, absent] =
        ["full", "empty {x} ü", "parked", "absent"].map(|which| format!("{name}-{which}"));
    store.queue(&full).open().await.expect("the queue opens").add("a").await.expect("added");
    let opening =
        store.queue(&empty).readd_policy(ReaddPolicy::Replace).parked_add(ParkedAdd::Keep);
    let queue = opening.open().await.expect("the queue opens");
    queue.add("a").await.expect("added");
    queue.get().await.expect("the queue is open").succeed().await.expect("the lease is held");
    let queue = store.queue(&parked).open().await.expect("the queue opens");
    queue.add("a").await.expect("added");
    queue.get().await.expect("the queue is open").give_up("no").await.expect("the lease is held");
    store.queue(&absent).must_exist().open().await.expect_err("there is no such queue");

    let queues = store.queues().await.expect("listed");
    assert!(queues.is_sorted_by_key(|queue| queue.name.clone()), "sorted by name");
    let found = |name: &str| {
        let mut of_name = queues.iter().filter(|queue| queue.name == name);
        let found =
            of_name.next().map(|found| (found.readd_policy, found.parked_add, found.is_empty));
        assert!(of_name.next().is_none(), "listed once");
        found
    };
    assert_eq!(found(&full), Some((ReaddPolicy::Hold, ParkedAdd::Revive, false)));
    assert_eq!(found(&empty), Some((ReaddPolicy::Replace, ParkedAdd::Keep, true)));
    assert_eq!(found(&parked), Some((ReaddPolicy::Hold, ParkedAdd::Revive, false)));
    assert_eq!(found(&absent), None);
}
