//! Tests parked keys: the effect of adds, the reports about parked keys, and bulk changes.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use requeue::Completion;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;
use crate::engine::parked::OnParked;
use crate::engine::time::{Micros, micros};
use crate::engine::{Ask, Backoff, Claim, Failing, Settings, by_shard};
use crate::tests::conformance::Rig;
use crate::types::add::ParkedAdd;
use crate::types::inspect::{ParkedKey, State};
use crate::types::key::Key;

/// Returns a queue in which adds leave parked keys parked.
fn keeping() -> (Arc<Memory>, Queue) {
    let engine = Arc::new(Memory::new());
    let settings = Settings { parked_add: ParkedAdd::Keep, ..Settings::default() };
    let place = Place::new(1, "q", settings);
    let queue = Queue::new(Arc::clone(&engine) as Arc<dyn Engine>, place, Options::default(), None);
    (engine, queue)
}

async fn park(queue: &Queue, keys: impl IntoIterator<Item = &str>) {
    let mut left = queue.add_all(keys).await.expect("added").len();
    while left > 0 {
        for item in queue.get_many(left).await {
            item.give_up("no").await.expect("the lease is held");
            left -= 1;
        }
    }
}

async fn state(queue: &Queue, key: &str) -> (State, u32) {
    let entry = queue.look_up(key).await.expect("looked up").expect("the key has a state");
    (entry.state, entry.failures)
}

#[tokio::test(start_paused = true)]
async fn an_add_revives_a_parked_key_and_resets_its_failures() {
    let (_, queue) = queue();
    park(&queue, ["a", "b", "c"]).await;
    assert_eq!(queue.add("a").await.expect("added"), Added::Revived);
    assert_eq!(queue.add("a").await.expect("added"), Added::Coalesced);
    assert_eq!(queue.add_after("b", SECOND).await.expect("added"), Added::Revived);
    assert_eq!(state(&queue, "a").await, (State::Ready, 0));
    assert_eq!(state(&queue, "b").await, (State::Waiting, 0));
    let added = queue.add_all(["a", "c", "c", "d"]).await.expect("added");
    assert_eq!(added, [Added::Coalesced, Added::Revived, Added::Coalesced, Added::New]);
    // Adds in the same batch also have separate answers.
    let (_, queue) = self::queue();
    park(&queue, ["e"]).await;
    let both = tokio::join!(queue.add("e"), queue.add("e"));
    let both = [both.0.expect("added"), both.1.expect("added")];
    assert_eq!(both, [Added::Revived, Added::Coalesced]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_may_keep_parked_keys() {
    let (_, queue) = keeping();
    park(&queue, ["a", "b"]).await;
    assert_eq!(queue.add("a").await.expect("answered"), Added::Parked);
    assert_eq!(queue.add_after("a", SECOND).await.expect("answered"), Added::Parked);
    let added = queue.add_all(["a", "a", "c"]).await.expect("answered");
    assert_eq!(added, [Added::Parked, Added::Parked, Added::New]);
    assert_eq!(state(&queue, "a").await, (State::Parked, 1));
    assert_eq!(queue.add_with("a", Add::now().revive()).await.expect("added"), Added::Revived);
    let added = queue.add_all_with(["b"], Add::now().revive()).await.expect("added");
    assert_eq!(added, [Added::Revived]);
}

/// Collects the events about parked and damaged keys, as text.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Mutex<Vec<String>>>);

impl Events {
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!(" {field}={value:?}");
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        matches!(metadata.target(), "requeue_store::parked" | "requeue_store::damaged")
            && *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

async fn parks(mut item: Item, completion: Completion, error: &str) -> bool {
    item.set_error(error);
    item.complete(completion).await.expect("the lease is held").parked
}

#[tokio::test(start_paused = true)]
async fn a_parked_key_is_reported_and_no_other() {
    let events = Events::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let options = Options { max_failures: Some(2), ..Options::default() };
    let (engine, queue) = queue_with(Memory::new(), options);
    queue.add("a").await.expect("added");
    assert!(!parks(get(&queue).await, Completion::Retry, "no 1").await);
    assert_eq!(events.take().len(), 0);
    assert!(parks(get(&queue).await, Completion::RetryAfter(SECOND), "no 2").await);
    let reported = events.take();
    let expected = " message=parked queue=\"q\" key=a failures=2 error=\"no 2\"";
    assert_eq!(reported, [expected]);

    // A key that was added during its run is not parked.
    queue.add("b").await.expect("added");
    let item = get(&queue).await;
    queue.add("b").await.expect("added");
    assert!(!parks(item, Completion::GiveUp, "never").await);
    assert_eq!(events.take().len(), 0);

    // No caller waits for the completion of a dropped item.
    drop(get(&queue).await);
    settle().await;
    drop(get(&queue).await);
    settle().await;
    assert_eq!(events.take().len(), 1);
    assert_eq!(engine.row("b").map(|row| row.parked), Some(true));
    // If the answer was lost, the key is reported once nevertheless.
    queue.add("c").await.expect("added");
    let item = get(&queue).await;
    engine.fail([Mishap::Lost]);
    item.give_up("never").await.expect("the lease is held");
    assert_eq!(events.take().len(), 1);
}

/// The worker dies during the last run that the limit of failures permits.
#[tokio::test(start_paused = true)]
async fn a_key_that_a_claim_parks_is_reported_and_counted() {
    let events = Events::default();
    let _guard = tracing::subscriber::set_default(events.clone());
    let reported = Arc::new(Mutex::new(Vec::new()));
    let on_parked = OnParked::new({
        let reported = Arc::clone(&reported);
        move |parked: &ParkedKey| {
            reported.lock().expect("no panic").push(parked.clone());
            panic!("the queue outlives this");
        }
    });
    let engine = Arc::new(Memory::new());
    let settings = Settings::default();
    let expired =
        Failing { backoff: Options::default().failing_rules().backoff, max_failures: Some(1) };
    let dead = Place::new(1, "q", settings.clone());
    let asks = ["a", "b"].map(|key| Ask::new(key, Add::now()));
    engine.add_keys(&dead, asks.to_vec()).await.expect("added");
    let claim = Claim { max: 2, oldest: 0, lease: SECOND, expired, poll: SECOND };
    assert_eq!(engine.claim_keys(&dead, claim).await.expect("claimed").items.len(), 2);
    let again = Ask::new("b", Add::now());
    engine.add_keys(&dead, vec![again]).await.expect("added");

    let place = Place { on_parked, ..Place::new(1, "q", settings) };
    let options = Options { max_failures: Some(1), ..Options::default() };
    let queue = Queue::new(Arc::clone(&engine) as Arc<dyn Engine>, place, options, None);
    // This key was added during its last run, so it runs again.
    let item = get(&queue).await;
    assert_eq!((item.as_str(), item.attempt()), (Some("b"), 1));
    let expected = " message=parked queue=\"q\" key=a failures=1 error=\"the lease expired\"";
    assert_eq!(events.take(), [expected]);
    let entry = queue.look_up("a").await.expect("looked up").expect("the key has a state");
    assert_eq!((entry.state, entry.error.as_deref()), (State::Parked, Some("the lease expired")));
    queue.recent_counts().await.expect("counted");
    assert_eq!(queue.sample().expect("counted").given_up, 1);
    item.give_up("never").await.expect("the lease is held");
    assert_eq!(queue.sample().expect("counted").given_up, 2);
    let reported: Vec<_> =
        reported.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect();
    let reported: Vec<_> = reported.iter().map(|it| (it.key.as_str(), it.lease_expired)).collect();
    assert_eq!(reported, [(Some("a"), true), (Some("b"), false)]);
}

/// Checks that the answer to a claim has the keys that the claim has parked.
pub(crate) async fn check_expired(rig: &dyn Rig, name: &str) {
    const KEYS: usize = 12;
    const LEASE: Duration = Duration::from_secs(30);
    const BEGIN: Micros = 1_000_000_000_000_000;
    let engine = rig.engine();
    let place = engine.open_queue(name, Settings::default()).await.expect("the queue opens");
    let ask = |n: usize| Ask::new(n.to_string(), Add::now());
    let add = async |asks: Vec<Ask>| {
        for part in by_shard(&*engine, &place, asks, |ask| &ask.key) {
            engine.add_keys(&place, part).await.expect("added");
        }
    };
    let backoff = Backoff { base: SECOND, cap: SECOND, share: 1.0 };
    let expired = Failing { backoff, max_failures: Some(2) };
    let claim = Claim { max: 2 * KEYS, oldest: 0, lease: LEASE, expired, poll: Duration::ZERO };
    rig.set_time(BEGIN).await;
    add((0..KEYS).map(ask).collect()).await;
    for round in 0..2 {
        let claimed = engine.claim_keys(&place, claim).await.expect("claimed");
        assert_eq!((claimed.items.len(), claimed.parked.len()), (KEYS, 0));
        let now = BEGIN + (2 * round + 1) * micros(2 * LEASE);
        rig.set_time(now).await;
        if round == 0 {
            // The first failure of a key does not park it.
            let claimed = engine.claim_keys(&place, claim).await.expect("claimed");
            assert_eq!((claimed.items.len(), claimed.parked.len()), (0, 0));
            rig.set_time(now + micros(2 * SECOND)).await;
        }
    }
    // The first half of the keys is added during their last runs, so these keys are not parked.
    add((0..KEYS / 2).map(ask).collect()).await;
    let claimed = engine.claim_keys(&place, claim).await.expect("claimed");
    assert_eq!(claimed.items.len(), KEYS / 2);
    let parked: BTreeSet<Key> = claimed.parked.iter().map(|parked| parked.key.clone()).collect();
    assert_eq!(parked, (KEYS / 2..KEYS).map(|n| n.to_string().into()).collect());
    for parked in &claimed.parked {
        let entry = engine.look_up(&place, &parked.key).await.expect("looked up");
        let entry = entry.expect("the key has a state");
        let said = (State::Parked, parked.failures, Some(parked.error.clone()));
        assert_eq!((entry.state, entry.failures, entry.error), said);
        assert_eq!((parked.failures, parked.lease_expired), (2, true));
    }
    // Each parked key is reported only once.
    rig.set_time(BEGIN + micros(10 * LEASE)).await;
    assert_eq!(engine.claim_keys(&place, claim).await.expect("claimed").parked, []);
}

#[tokio::test(start_paused = true)]
async fn many_keys_are_revived_in_few_transactions() {
    let (engine, queue) = queue();
    let keys: Vec<String> = (0..2_500).map(|n| format!("{n:04}")).collect();
    park(&queue, keys.iter().map(String::as_str)).await;
    engine.batches();
    assert_eq!(queue.revive_all().await.expect("revived"), 2_500);
    // Each step lists keys, and then changes them.
    assert_eq!(engine.batches(), [1000, 1000, 1000, 1000, 1000, 500]);
    assert_eq!(queue.cancel_keys(keys).await.expect("cancelled"), [true; 2_500]);
    assert_eq!(engine.batches(), [1000, 1000, 500]);
}

#[tokio::test(start_paused = true)]
async fn an_interrupted_change_goes_on_where_it_was() {
    let (engine, queue) = queue();
    let keys: Vec<String> = (0..2_500).map(|n| format!("{n:04}")).collect();
    park(&queue, keys.iter().map(String::as_str)).await;
    let mut reviving = queue.revive_all();
    assert!(reviving.step().await.expect("revived"));
    for mishap in [Mishap::Absent, Mishap::Refused, Mishap::Absent] {
        engine.fail([mishap]);
        let error = chain(&reviving.step().await.expect_err("the store is gone"));
        assert!(error.starts_with("not all keys were revived, only 1000 of them: "), "{error}");
    }
    assert_eq!(reviving.changed(), 1000);
    assert!(reviving.step().await.expect("revived"));
    // If the change is dropped, the other keys stay unchanged.
    drop(reviving);
    let counts = queue.counts().await.expect("counted");
    assert_eq!((counts.ready, counts.parked), (2_000, 500));
    assert_eq!(queue.revive_all().await.expect("revived"), 500);
}

#[tokio::test(start_paused = true)]
async fn a_locked_key_holds_up_no_other_and_is_told() {
    let (engine, queue) = queue();
    let keys: Vec<String> = (0..1_500).map(|n| format!("{n:04}")).collect();
    park(&queue, keys.iter().map(String::as_str)).await;
    for key in ["0007", "0008", "1200"] {
        engine.set_locked(key, true);
    }
    let mut reviving = queue.revive_all();
    while reviving.changed() < 1_497 {
        assert!(reviving.step().await.expect("revived"));
    }
    // All other keys are revived. This key is no longer locked.
    engine.set_locked("0008", false);
    let error = loop {
        match reviving.step().await {
            Ok(more) => assert!(more),
            Err(error) => break chain(&error),
        }
    };
    let expected = "not all keys were revived, only 1498 of them: \
                    other transactions have locked 2 keys; try again later";
    assert_eq!(error, expected);
    assert!(!reviving.step().await.expect("the change is complete"));
    let counts = queue.counts().await.expect("counted");
    assert_eq!((counts.ready, counts.parked), (1_498, 2));
    let error = queue.revive_keys(["0007", "0008"]).await.expect_err("the key is locked");
    let error = chain(&error);
    assert_eq!(
        error,
        "not all keys were revived: another transaction has locked the key; try again later"
    );
    engine.set_locked("0007", false);
    assert_eq!(queue.revive_keys(["0007", "0008"]).await.expect("revived"), [true, false]);
}
