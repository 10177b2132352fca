//! Installs the manifests of the example.

use kube::runtime::conditions;
use kube::runtime::wait::await_condition;
use kube::{Api, Client};
use requeue_e2e::apply;

pub(crate) async fn install(client: &Client) {
    apply(client.clone(), manifest!("manifests/crd.yaml")).await;
    let established = conditions::is_crd_established();
    await_condition(Api::all(client.clone()), "websites.example.com", established)
        .await
        .expect("the kind is established");
    apply(client.clone(), manifest!("manifests/rbac.yaml")).await;
    apply(client.clone(), manifest!("manifests/deployment.yaml")).await;
}
