//! Tests rates while several processes claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::changing::{claim, other};
use super::*;
use crate::engine::GroupChange;
use crate::tests::conformance::rates::exceeded_by_last;
use crate::types::add::Add;
use crate::types::rate::Rate;

const SECOND: Duration = Duration::from_secs(1);
/// No lease expires during a test. Therefore, the row of each key has the time of its only start.
const LEASE: Duration = Duration::from_secs(24 * 3600);

/// Several processes claim the keys of a queue as fast as they can, while the server's clock continues. The stored
/// times of the starts come from this clock.
async fn check_starts(rate: Rate, of_group: Option<Rate>) {
    const WORKERS: usize = 4;
    const KEYS: usize = 240;
    let Some(server) = Server::shared() else { return };
    let (first, url) = engine(server, WHOLE).await;
    let group_by = of_group.map(|_| "".into());
    let settings = Settings { group_by, rate: Some(rate), ..Settings::default() };
    let queue = first.open_queue("q", settings).await.expect("the queue opens");
    if of_group.is_some() {
        let change = GroupChange::Rate(of_group);
        first.change_group(&queue, "g0", change).await.expect("changed");
    }
    let ask = |n: usize| Ask {
        group: of_group.map(|_| format!("g{}", n % 2).into()),
        ..Ask::new(format!("k{n}"), Add::now())
    };
    first.add_keys(&queue, (0..KEYS).map(ask).collect()).await.expect("added");
    let started = Arc::new(AtomicUsize::new(0));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (url, started) = (url.clone(), Arc::clone(&started));
            tokio::spawn(async move {
                let engine = at(&url, WHOLE);
                let queue = engine.find_queue("q").await.expect("found").expect("it exists");
                let mut random = fastrand::Rng::with_seed(worker as u64);
                while started.load(Ordering::SeqCst) < KEYS {
                    let max = random.usize(1..8);
                    let claimed = engine.claim_keys(&queue, claim(max, LEASE)).await;
                    let items = claimed.expect("claimed").items;
                    assert!(items.len() <= max);
                    started.fetch_add(items.len(), Ordering::SeqCst);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.expect("the worker ends");
    }
    let sql = "select run_since, grp from requeue.keys where state = 1 order by run_since";
    let rows = other(&url).await.query(sql, &[]).await.expect("the query succeeds");
    let starts: Vec<(i64, Option<String>)> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(starts.len(), KEYS);
    for (rate, group) in [(Some(rate), None), (of_group, Some("g0"))] {
        let Some(rate) = rate else { continue };
        let of_rate =
            starts.iter().filter(|(_, of)| group.is_none_or(|group| of.as_deref() == Some(group)));
        let times: Vec<i64> = of_rate.map(|&(at, _)| at).collect();
        for n in 1..=times.len() {
            assert_eq!(exceeded_by_last(rate, &times[..n]), None, "{rate} of {group:?}: {times:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_do_not_exceed_the_rate_of_a_queue() {
    check_starts(Rate::new(300, SECOND).burst(3), None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_do_not_exceed_the_rate_of_a_group() {
    check_starts(Rate::new(600, SECOND).burst(7), Some(Rate::new(200, SECOND).burst(2))).await;
}

/// The first rate of a group is set during a claim. The claim has already read the settings of the queue, but not those
/// of the groups.
#[tokio::test]
async fn a_claim_records_starts_by_a_rate_that_is_set_meanwhile() {
    let Some(server) = Server::shared() else { return };
    let (engine, url) = engine(server, WHOLE).await;
    let settings = Settings { group_by: Some("".into()), ..Settings::default() };
    let queue = engine.open_queue("q", settings).await.expect("the queue opens");
    let ask = |key: &str| Ask { group: Some("g".into()), ..Ask::new(key, Add::now()) };
    engine.add_keys(&queue, vec![ask("a"), ask("b")]).await.expect("added");
    let meanwhile = "create or replace function requeue.note_due(in_queue integer, t bigint) \
         returns integer language plpgsql as $$ begin \
         perform requeue.set_group_rate(in_queue, 'g', '{1, 86400000000, 1}'); return 0; end $$";
    server.psql(name(&url), meanwhile);
    for expected in [1, 0] {
        let claimed = engine.claim_keys(&queue, claim(1, LEASE)).await.expect("claimed");
        assert_eq!(claimed.items.len(), expected);
        assert!(claimed.is_rated);
    }
}
