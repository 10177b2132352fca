//! Tests of gained shards whose objects the API server does not list in time.

use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_gained_shard_that_is_not_listed_in_time_ends_the_controller() {
    let limit = Duration::from_secs(10);
    let api = FakeApi::new(true, [map(&name_in(1), 1)]);
    let config = Config::default().cache_sync_timeout(limit);
    let replica = Replica::with(&api, by_uid(), QUICK, config);
    replica.ownership.gain([1]);
    assert_eq!(replica.runs().await, [name_in(1)]);
    sleep(2 * limit).await;
    api.lists_take(60);
    let begun = Instant::now();
    replica.ownership.gain([2]);
    sleep(limit / 2).await;
    // The second gain leads to a second list. The time limit is still that of the first gain.
    replica.ownership.gain([3]);
    let items = replica.reading.end().await;
    assert_eq!(begun.elapsed().as_secs(), limit.as_secs());
    let error = "runner error: no first list within 10s of ConfigMap.v1 (controlled); check the \
                 connection to the API server, the kind, and the permission to list it";
    assert_eq!(items.last().map(String::as_str), Some(error), "{items:?}");
}

#[tokio::test(start_paused = true)]
async fn a_gained_shard_that_leaves_before_its_list_does_not_end_the_controller() {
    let limit = Duration::from_secs(10);
    let api = FakeApi::new(true, [map(&name_in(1), 1)]);
    let config = Config::default().cache_sync_timeout(limit);
    let replica = Replica::with(&api, by_uid(), QUICK, config);
    assert_eq!(replica.runs().await, [""; 0]);
    api.lists_take(60);
    replica.ownership.gain([1]);
    sleep(limit / 2).await;
    replica.ownership.release([1]).await;
    sleep(2 * limit).await;
    api.lists_take(0);
    replica.ownership.gain([1]);
    assert_eq!(replica.runs().await, [name_in(1)]);
}
