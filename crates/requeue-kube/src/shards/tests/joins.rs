//! Processes that join a group, or are refused.

use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::http::{Fake, NAMESPACE};
use crate::leader::Lease;
use crate::shard::ShardBy;
use crate::shards::assignment::{GroupLease, Layout};
use crate::shards::{Shards, ShardsError};

/// Returns a group with times that a busy machine does not exceed.
fn group() -> Shards {
    Shards::new("web", NAMESPACE)
        .count(4)
        .objects("websites")
        .events(false)
        .lease_duration(Duration::from_secs(90))
        .renew_deadline(Duration::from_secs(60))
}

async fn refused(fake: &Fake, shards: Shards) -> ShardsError {
    shards.join(fake.client()).await.expect_err("refused")
}

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

#[tokio::test]
async fn a_join_that_is_dropped_deletes_its_lease() {
    let fake = Fake::new();
    fake.hold(true);
    let mut join = group().join(fake.client()).boxed();
    tokio::select! {
        joined = &mut join => panic!("{joined:?}"),
        () = fake.until(|names| names.len() == 2) => {}
    }
    drop(join);
    fake.hold(false);
    fake.until(|names| names.len() == 1).await;
    assert_eq!(fake.names().first().map(String::as_str), Some("web"));
}

#[tokio::test]
async fn a_join_that_is_dropped_before_it_has_created_a_lease_creates_none() {
    let fake = Fake::new();
    let mut join = group().join(fake.client()).boxed();
    assert!((&mut join).now_or_never().is_none());
    drop(join);
    // Another process joins meanwhile.
    let member = group().join(fake.client()).await.unwrap();
    assert_eq!(fake.names().into_iter().collect::<Vec<_>>(), ["web", member.name()]);
}
