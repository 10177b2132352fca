//! Rules of custom resources in CEL.

use kube::api::PostParams;
#[cfg(feature = "cel")]
use kube::api::{Patch, PatchParams};
use requeue_testkit::ApiServer;
use serde_json::json;

use crate::common::refused;

#[cfg(feature = "cel")]
#[tokio::test]
async fn rules_see_the_object_and_its_past() {
    use crate::common::{define, thing, thing_api};
    let client = ApiServer::new().client();
    let spec = json!({
        "type": "object",
        "properties": {
            "min": { "type": "integer" },
            "max": { "type": "integer" },
            "name": {
                "type": "string",
                "x-kubernetes-validations": [
                    { "rule": "self == oldSelf", "message": "the name is immutable" },
                ],
            },
        },
        "x-kubernetes-validations": [
            { "rule": "self.min <= self.max", "message": "min must not exceed max" },
        ],
    });
    define(&client, spec).await;
    let things = thing_api(&client);
    let bad = thing("t", json!({ "min": 2, "max": 1, "name": "a" }));
    let status = refused(things.create(&PostParams::default(), &bad).await);
    assert_eq!(status.code, 422);
    assert!(status.message.contains("min must not exceed max"), "{status:?}");
    let good = thing("t", json!({ "min": 1, "max": 2, "name": "a" }));
    things.create(&PostParams::default(), &good).await.expect("created");
    let patch = Patch::Merge(json!({ "spec": { "name": "b" } }));
    let status = refused(things.patch("t", &PatchParams::default(), &patch).await);
    assert_eq!(status.details.expect("details").causes[0].field, "spec.name");
}

#[cfg(feature = "cel")]
#[tokio::test]
async fn a_rule_that_is_no_cel_is_refused() {
    let client = ApiServer::new().client();
    let definition = crate::common::definition(json!({
        "type": "object",
        "x-kubernetes-validations": [{ "rule": "self.min <=" }],
    }));
    let definitions = kube::Api::all(client);
    let status = refused(definitions.create(&PostParams::default(), &definition).await);
    assert_eq!(status.code, 501);
}

#[cfg(not(feature = "cel"))]
#[tokio::test]
async fn rules_are_refused_without_their_evaluator() {
    let definition = crate::common::definition(json!({
        "type": "object",
        "x-kubernetes-validations": [{ "rule": "self.min <= self.max" }],
    }));
    let definitions = kube::Api::all(ApiServer::new().client());
    let status = refused(definitions.create(&PostParams::default(), &definition).await);
    assert_eq!(status.code, 501);
    assert!(status.message.contains("feature \"cel\""), "{status:?}");
}
