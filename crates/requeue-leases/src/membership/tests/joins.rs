//! Tests of processes that join a group, or that are refused.

use std::time::Duration;

use futures_util::FutureExt;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use crate::lease::Lease;
use crate::membership::assignment::{GroupLease, Layout};
use crate::membership::{MembershipError, ShardGroup};
use crate::range::ShardBy;
use crate::testing::{Fake, NAMESPACE};

/// Returns a shard group whose lease duration and renew deadline are long, so that a slow machine
/// does not end a membership.
fn group() -> ShardGroup {
    ShardGroup::new("web", NAMESPACE).count(4).objects("websites").lease(|lease| {
        let lease = lease.lease_duration(Duration::from_secs(90));
        lease.renew_deadline(Duration::from_secs(60)).without_events()
    })
}

async fn refused(fake: &Fake, group: ShardGroup) -> MembershipError {
    group.join(fake.client()).await.expect_err("refused")
}

fn now() -> Timestamp {
    Timestamp::from_second(1_700_000_000).unwrap()
}

#[tokio::test]
async fn a_join_that_is_dropped_deletes_its_lease() {
    let fake = Fake::default();
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
    let fake = Fake::default();
    let mut join = group().join(fake.client()).boxed();
    assert!((&mut join).now_or_never().is_none());
    drop(join);
    // When another process has joined, only the group object and its member Lease exist.
    let member = group().join(fake.client()).await.unwrap();
    assert_eq!(fake.names().into_iter().collect::<Vec<_>>(), ["web", &member.status().member]);
}

#[tokio::test]
async fn each_permission_that_is_missing_is_named_before_a_lease_is_created() {
    for verb in ["get", "list", "watch", "create", "update", "delete"] {
        let fake = Fake::refusing(&[verb]);
        let error = refused(&fake, group()).await;
        assert!(matches!(&error, MembershipError::Config(_)), "{error}");
        assert!(error.to_string().contains(&format!("no permission to {verb} leases")), "{error}");
        assert!(fake.names().is_empty());
    }
}

#[tokio::test]
async fn a_namespace_that_does_not_exist_is_refused() {
    let elsewhere = ShardGroup::new("web", "elsewhere")
        .lease(|lease| lease.lease_duration(Duration::from_secs(90)));
    let error = refused(&Fake::default(), elsewhere).await;
    assert!(matches!(&error, MembershipError::Config(_)), "{error}");
    assert!(error.to_string().contains("\"elsewhere\""), "{error}");
}

#[tokio::test]
async fn a_group_with_other_shards_is_refused() {
    let fake = Fake::default();
    let by = ShardBy::Uid.field().to_owned();
    let layout = Layout { count: 8, by, objects: "websites".to_owned() };
    fake.create(GroupLease::new_object("web", &layout, 90));
    let error = refused(&fake, group()).await;
    assert_eq!(
        error.to_string(),
        "the shard group \"web\" has 8 shards, not 4: configure 8, or stop all members and delete \
         the Lease \"web\""
    );
    // The existing group divides other objects. The error names this difference, and not the
    // different number of shards.
    let error = refused(&fake, group().objects("shops")).await;
    assert_eq!(
        error.to_string(),
        "the shard group \"web\" shards websites by object.metadata.uid, not shops by \
         object.metadata.uid: use another name"
    );
    let error = refused(&fake, group().count(8).by(ShardBy::Namespace)).await;
    assert!(error.to_string().contains("not websites by object.metadata.namespace"), "{error}");
    assert_eq!(fake.names().len(), 1, "no member has joined");
}

#[tokio::test]
async fn the_lease_of_an_election_is_refused() {
    let fake = Fake::default();
    fake.create(Lease::new_object(&json!({ "name": "web" }), "leader", 15, now()));
    let error = refused(&fake, group()).await;
    assert!(error.to_string().contains("is not the object of a shard group"), "{error}");
    assert!(error.to_string().contains("use another name"), "{error}");
}
