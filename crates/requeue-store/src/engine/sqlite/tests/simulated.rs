//! Tests of the database for simulations.

use super::super::simulated::{Database, Link, Way};
use super::*;
use crate::api::store::Store;

/// A connection without faults.
#[derive(Debug)]
struct Direct;

#[async_trait]
impl Link for Direct {
    async fn begin(&self) -> Way {
        Way::Through
    }

    async fn end(&self) {}
}

async fn simulated() -> Fixture {
    let open = |clock| Database::open_with(clock).map(|database| database.engine(Arc::new(Direct)));
    Fixture::with(open).await
}

#[test]
fn a_simulated_database_conforms() {
    let runtime = runtime();
    let policies = prop_oneof![Just(ReaddPolicy::Replace), Just(ReaddPolicy::Hold)];
    proptest!(cases(40), |(policy in policies, steps in steps(80))| {
        runtime.block_on(async { check(&simulated().await, "q", policy, &steps).await });
    });
    proptest!(cases(20), |(steps in grouped_steps(80), grouping in groupings())| {
        runtime.block_on(async { check_grouped(&simulated().await, "q", grouping, &steps).await });
    });
}

#[tokio::test(start_paused = true)]
async fn a_simulated_day_passes_without_waiting() {
    let database = Database::open().expect("the database opens");
    let connect = || Store::simulated(&database, Arc::new(Direct));
    let (store, other) = (connect(), connect());
    store.migrate().await.expect("the schema is created");
    let begun = Instant::now();
    let day = Duration::from_secs(86_400);
    let queue = store.queue("q").open().await.expect("the queue opens");
    queue.add_after("a", day).await.expect("added");
    // Another process of the same database gets the key.
    let item = get(&other.queue("q").open().await.expect("the queue opens")).await;
    assert!((day..2 * day).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    item.succeed().await.expect("the lease is held");
}

#[derive(Debug)]
struct Once(Mutex<Option<Way>>);

#[async_trait]
impl Link for Once {
    async fn begin(&self) -> Way {
        self.0.lock().expect("no panic").take().unwrap_or(Way::Through)
    }

    async fn end(&self) {}
}

/// The client repeats an add whose answer was lost, so the key is in the store in both cases.
#[tokio::test(start_paused = true)]
async fn an_operation_may_be_lost_or_unanswered() {
    for way in [Way::Lost, Way::Unanswered] {
        let database = Database::open().expect("the database opens");
        let link = Arc::new(Once(Mutex::new(None)));
        let store = Store::simulated(&database, Arc::clone(&link) as _);
        store.migrate().await.expect("the schema is created");
        let queue = store.queue("q").open().await.expect("the queue opens");
        *link.0.lock().expect("no panic") = Some(way);
        queue.add("a").await.expect("the client repeats the add");
        assert_eq!(queue.counts().await.expect("counted").ready, 1);
    }
}
