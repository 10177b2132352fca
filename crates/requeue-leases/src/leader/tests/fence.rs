//! Tests of the patches of a fence. The test applies them as an API server does.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Patch;
use requeue::Time;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::leader::leadership::{Led, Shared, View};
use crate::leader::{Config, Fence, FencingToken, Leadership, LeadershipLost};

/// Returns a leader of this term. The term never ends.
fn leader(term: &str) -> Leadership {
    let led = Led { until: Time::NEVER, ..Led::default() };
    let let_go = CancellationToken::new();
    let shared = Shared {
        lease: "default/web".into(),
        identity: "me".into(),
        config: Config::new("default", "web"),
        clock: Clock::new(),
        view: watch::Sender::new(View { holder: None, led: Some(led) }),
        wake: Notify::new(),
        let_go: let_go.clone(),
        gauge: OnceLock::new(),
    };
    Leadership {
        token: Arc::new(FencingToken::parse(term).unwrap()),
        shared: Arc::new(shared),
        _hold: Arc::new(let_go.drop_guard()),
    }
}

/// An object in an API server that can apply JSON patches.
struct Object(Value);

impl Object {
    fn new() -> Self {
        Self(json!({ "metadata": { "name": "web", "resourceVersion": "1" }, "data": {} }))
    }

    fn read(&self) -> ConfigMap {
        serde_json::from_value(self.0.clone()).unwrap()
    }

    /// Applies a patch, and returns true if all of its operations succeeded.
    fn patch(&mut self, patch: &Patch<()>) -> bool {
        let Patch::Json(patch) = patch else { panic!("not a JSON patch") };
        // The patch is serialized and parsed, as on its way to an API server.
        let patch: json_patch::Patch =
            serde_json::from_value(serde_json::to_value(patch).unwrap()).unwrap();
        let accepted = json_patch::patch(&mut self.0, &patch).is_ok();
        let version: u64 = self.0["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        self.0["metadata"]["resourceVersion"] = json!((version + u64::from(accepted)).to_string());
        accepted
    }
}

fn write(fence: &Fence, value: &str) -> Patch<()> {
    let write = json!([{ "op": "add", "path": "/data/by", "value": value }]);
    fence.patch(serde_json::from_value(write).unwrap())
}

async fn claim(fence: &Fence, object: &Object) -> Option<Patch<()>> {
    fence.claim(&object.read()).await.unwrap()
}

#[tokio::test]
async fn a_late_write_of_an_earlier_term_is_refused() {
    let (old, new) = (leader("uid/1").fence(), leader("uid/2").fence());
    let mut object = Object::new();
    assert!(!object.patch(&write(&old, "unclaimed")));

    let claimed = claim(&old, &object).await.unwrap();
    assert!(object.patch(&claimed));
    assert!(object.patch(&write(&old, "old")));
    assert!(claim(&old, &object).await.is_none(), "one claim per term");

    // The old leader has prepared this write, and is frozen before it sends it.
    let late = write(&old, "late");
    let claimed = claim(&new, &object).await.unwrap();
    assert!(object.patch(&claimed));
    assert!(!object.patch(&late));
    assert!(object.patch(&write(&new, "new")));
    assert!(!object.patch(&late));
    assert_eq!(object.0["data"]["by"], "new");
    assert_eq!(
        old.claim(&object.read()).await.unwrap_err(),
        LeadershipLost::Fenced(FencingToken::new("uid", 2))
    );
}

#[tokio::test]
async fn a_late_claim_is_refused() {
    let (old, new) = (leader("uid/1").fence(), leader("uid/2").fence());
    let mut object = Object::new();
    let late = claim(&old, &object).await.unwrap();
    let claimed = claim(&new, &object).await.unwrap();
    assert!(object.patch(&claimed));
    assert!(!object.patch(&late));
}

#[tokio::test]
async fn other_annotations_and_other_fences_are_kept() {
    let mut object = Object::new();
    object.0["metadata"]["annotations"] = json!({ "team/owner": "me" });
    let leader = leader("uid/1");
    let other = leader.fence().with_annotation("example.com/other~term");
    for fence in [leader.fence(), other.clone()] {
        let claimed = claim(&fence, &object).await.unwrap();
        assert!(object.patch(&claimed) && object.patch(&write(&fence, "me")));
    }
    let expected = BTreeMap::from([
        ("team/owner".to_owned(), "me".to_owned()),
        ("requeue/leader-term".to_owned(), "uid/1".to_owned()),
        other.annotation(),
    ]);
    assert_eq!(object.read().metadata.annotations, Some(expected));
}

#[tokio::test]
async fn a_term_of_another_lease_is_claimed_by_who_can_renew_only() {
    let mut object = Object::new();
    let claimed = claim(&leader("before/9").fence(), &object).await.unwrap();
    assert!(object.patch(&claimed));

    let leader = leader("after/0");
    let fence = leader.fence();
    let map = object.read();
    let mut claiming = Box::pin(fence.claim(&map));
    tokio::select! {
        biased;
        _ = &mut claiming => panic!("claimed without a renewal"),
        () = leader.shared.wake.notified() => {}
    }
    leader.shared.change_term(|led| led.renewed = Time::NEVER);
    let claimed = claiming.await.unwrap().unwrap();
    assert!(object.patch(&claimed));

    leader.shared.change_term(|led| led.lost = Some(LeadershipLost::Deleted));
    let refused = fence.claim(&object.read()).await.unwrap_err();
    assert_eq!(refused, LeadershipLost::Deleted);
}

#[test]
fn a_token_is_read_as_it_is_written() {
    let token = FencingToken::parse("5c9a/12").unwrap();
    assert_eq!((token.uid(), token.transitions(), &*token.to_string()), ("5c9a", 12, "5c9a/12"));
    for bad in ["", "5c9a", "/12", "5c9a/x", "5c9a/99999999999"] {
        assert_eq!(FencingToken::parse(bad), None, "{bad}");
    }
}
