//! Custom resources for the tests.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::runtime::conditions;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, CustomResource, CustomResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A kind with a namespace.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "e2e.example.com", version = "v1", kind = "Task", namespaced)]
#[kube(status = "TaskStatus")]
pub(crate) struct TaskSpec {
    pub(crate) wanted: u32,
}

#[derive(Serialize, Deserialize, Clone, Debug, Default, JsonSchema)]
pub(crate) struct TaskStatus {
    pub(crate) runs: u32,
}

/// A kind without namespaces.
#[derive(CustomResource, Serialize, Deserialize, Clone, Debug, JsonSchema)]
#[kube(group = "e2e.example.com", version = "v1", kind = "Estate")]
pub(crate) struct EstateSpec {}

/// Installs the kinds on the server, and waits until they are served.
pub(crate) async fn install(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    for crd in [Task::crd(), Estate::crd()] {
        let name = crd.metadata.name.clone().unwrap();
        let apply = PatchParams::apply("e2e").force();
        crds.patch(&name, &apply, &Patch::Apply(&crd)).await.unwrap();
        let established = conditions::is_crd_established();
        await_condition(crds.clone(), &name, established).await.unwrap();
    }
}
