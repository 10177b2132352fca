//! Tests fencing tokens after the server has lost acknowledged transactions, and rates after the server was killed.

use std::sync::Arc;

use super::changing::{MINUTE, asks, claim, end};
use super::*;
use crate::engine::{Delivery, Finish, Settings};
use crate::types::rate::Rate;

/// Delivers the keys `a` and `b`, and completes `b`.
async fn deliver(engine: &Postgres, queue: &Place) -> Vec<Delivery> {
    // When the server stops, connections are closed. A lease from before the stop may still be valid.
    let claimed = loop {
        let added = engine.add_keys(queue, asks(["a", "b"])).await;
        match engine.claim_keys(queue, claim(2, Duration::from_millis(1))).await {
            Ok(claimed) if added.is_ok() && claimed.items.len() == 2 => break claimed.items,
            _ => tokio::task::yield_now().await,
        }
    };
    let b = claimed.iter().find(|out| out.key == "b".into()).expect("both are ready");
    // The lease may already have expired.
    engine.finish_deliveries(queue, end(b, Finish::Succeed)).await.expect("answered");
    claimed
}

/// Asserts that all tokens in `after` are greater than all tokens in `before`.
fn rise(before: &[Delivery], after: &[Delivery]) {
    let last = before.iter().map(|out| out.epoch).max();
    let first = after.iter().map(|out| out.epoch).min();
    assert!(first > last, "{first:?} after {last:?}");
    assert!(after.iter().all(|out| (1..1 << 53).contains(&out.epoch)), "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn epochs_rise_when_a_replica_that_lags_is_promoted_and_when_a_backup_is_restored() {
    let Some(server) = Server::start() else { return };
    let (engine, _) = engine(&server, Duration::ZERO).await;
    let queue = engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect("the queue opens");
    let mut all = vec![deliver(&engine, &queue).await];
    for is_replica in [true, false] {
        tokio::task::block_in_place(|| match is_replica {
            true => {
                server.follow();
                server.leave_behind();
            }
            false => server.back_up(),
        });
        // Neither the replica nor the backup contains the following deliveries.
        for _ in 0..3 {
            all.push(deliver(&engine, &queue).await);
        }
        tokio::task::block_in_place(
            || if is_replica { server.promote() } else { server.restore() },
        );
        all.push(deliver(&engine, &queue).await);
    }
    all.windows(2).for_each(|two| rise(&two[0], &two[1]));
}

#[tokio::test]
async fn epochs_rise_when_the_sequence_is_reset_and_while_the_clock_is_set_back() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, Duration::ZERO).await;
    let queue = engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect("the queue opens");
    stop_time(&engine).await;
    let name = url.rsplit_once('/').expect("the address is valid").1;
    let mut all = Vec::new();
    let year = 365 * 24 * 3_600_000_000;
    // The clock is set back by a year, then forward by a second, and then forward by a year. The sequence is reset only
    // after time has passed.
    for (now, is_reset) in [
        (50 * year, true),
        (49 * year, false),
        (49 * year + 1_000_000, false),
        (50 * year + 1, true),
    ] {
        set_time(&engine, now).await;
        if is_reset {
            server.psql(name, "select setval('requeue.epochs', 1, false)");
        }
        engine.add_keys(&queue, asks(["a", "b"])).await.expect("added");
        let claimed = engine.claim_keys(&queue, claim(2, MINUTE)).await.expect("claimed").items;
        assert_eq!(claimed.len(), 2);
        for out in &claimed {
            assert_eq!(
                engine.finish_deliveries(&queue, end(out, Finish::Succeed)).await.expect("ended"),
                [true]
            );
        }
        all.push(claimed);
    }
    // (Apart from lost tokens, the last time is not later than the tokens of the first delivery.)
    all[..3].windows(2).for_each(|two| rise(&two[0], &two[1]));
    assert!(all[3].iter().all(|out| out.epoch > 50 * year), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_deliveries_have_one_epoch_when_claims_raise_the_sequence_at_once() {
    const KEYS: usize = 400;
    let Some(server) = Server::shared() else { return };
    let (engine, _) = engine(server, Duration::ZERO).await;
    let queue = engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect("the queue opens");
    stop_time(&engine).await;
    let keys: Vec<String> = (0..KEYS).map(|n| n.to_string()).collect();
    engine.add_keys(&queue, asks(keys.iter().map(String::as_str))).await.expect("added");
    let engine = Arc::new(engine);
    let mut claims = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (engine, queue) = (Arc::clone(&engine), queue.clone());
        claims.spawn(async move {
            let mut epochs = Vec::new();
            loop {
                let claimed = engine.claim_keys(&queue, claim(2, MINUTE)).await.expect("claimed");
                if claimed.items.is_empty() {
                    break epochs;
                }
                epochs.extend(claimed.items.iter().map(|out| out.epoch));
            }
        });
    }
    // In each step, the clock is ahead of the sequence by more than the slack.
    let mut now = 1_000_000;
    let mut all = Vec::new();
    while !claims.is_empty() {
        now += 100_000;
        set_time(&engine, now).await;
        while let Some(epochs) = claims.try_join_next() {
            all.extend(epochs.expect("the task does not panic"));
        }
    }
    let many = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), many);
    assert!(many > KEYS / 2 && all.last() > Some(&1_000_000), "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rates_survive_the_death_of_the_server() {
    let Some(server) = Server::start() else { return };
    let (engine, _) = engine(&server, Duration::ZERO).await;
    let rate = Some(Rate::new(1, 1000 * MINUTE).burst(5));
    let settings = Settings { rate, ..Settings::default() };
    let queue = engine.open_queue("q", settings).await.expect("the queue opens");
    engine.add_keys(&queue, asks(["a", "b", "c", "d", "e", "f"])).await.expect("added");
    let claimed = engine.claim_keys(&queue, claim(4, MINUTE)).await.expect("claimed");
    assert_eq!(claimed.items.len(), 4);
    tokio::task::block_in_place(|| {
        server.kill();
        server.restart();
    });
    // The stop of the server has closed the connections.
    let claimed = loop {
        if let Ok(claimed) = engine.claim_keys(&queue, claim(2, MINUTE)).await {
            break claimed;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(claimed.items.len(), 1, "one start is left of the burst");
}
