//! Compares the API server in memory with a real one: the same generated requests must have the same answers.
//!
//! `REQUEUE_FIDELITY_SEQUENCES=n` sets the number of sequences, and `REQUEUE_FIDELITY_SEED=n` the first seed. The report
//! is written to `target/tmp/fidelity.txt`.

#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

mod generator;
mod kinds;
mod normal;
mod report;
mod runner;

use std::path::Path;

use futures_util::StreamExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::PostParams;
use kube::{Api, Client};
use requeue_e2e::{Server, full, until};
use requeue_testkit::{ApiServer, Cluster};

use crate::generator::Sequence;
use crate::report::Report;

/// Sequences that run at the same time. The real server waits for its disk in most of them.
const PARALLEL: usize = 12;

/// The least share of equal sequences, in percent, among thousands. It rises with each repair of the testkit.
const LEAST: f64 = 98.5;

/// The least share among a few sequences, of which one is a large part.
const LEAST_OF_FEW: f64 = 92.0;

#[tokio::test(flavor = "multi_thread")]
async fn the_servers_give_the_same_answers() {
    let Some(server) = Server::start().await else { return };
    let real = server.client().await;
    let fake = ApiServer::new();
    for client in [real.clone(), fake.client()] {
        define(client).await;
    }
    let fake = fake.snapshot();
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let count = number("REQUEUE_FIDELITY_SEQUENCES").unwrap_or(if full() { 5_000 } else { 40 });
    let first = number("REQUEUE_FIDELITY_SEED").unwrap_or(1);
    let outcomes = futures_util::stream::iter(first..first + count).map(|seed| {
        let (real, fake) = (real.clone(), fake.clone());
        let run = async move { runner::run(&real, &fake, &Sequence::generate(seed)).await };
        async { tokio::spawn(run).await.unwrap() }
    });
    let mut outcomes = outcomes.buffered(PARALLEL);
    let mut report = Report::default();
    while let Some(outcome) = outcomes.next().await {
        report.add(&outcome);
    }
    let text = report.text();
    println!("{}", text.lines().next().unwrap_or_default());
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fidelity.txt");
    std::fs::write(&file, &text).unwrap();
    let least = if count < 1_000 { LEAST_OF_FEW } else { LEAST };
    assert!(
        report.share() >= least,
        "{:.2} % of the sequences are equal; {} lists the rest",
        report.share(),
        file.display()
    );
}

/// Creates the custom resources of the sequences.
async fn define(client: Client) {
    let api: Api<CustomResourceDefinition> = Api::all(client);
    for definition in kinds::definitions() {
        let definition: CustomResourceDefinition = serde_json::from_value(definition).unwrap();
        let made = api.create(&PostParams::default(), &definition).await.unwrap();
        let name = made.metadata.name.unwrap();
        until("the custom resource is established", async || {
            let found = api.get(&name).await.unwrap();
            let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
            conditions.iter().any(|it| it.type_ == "Established" && it.status == "True")
        })
        .await;
        // The first list starts the cache of the real server, whose history begins there.
        let plural = definition.spec.names.plural.clone();
        until("the custom resource can be listed", async || {
            let list = http::Request::get(format!("{}/{plural}?resourceVersion=0", kinds::CUSTOM));
            let list = list.body(Vec::new()).unwrap();
            api.clone().into_client().request_text(list).await.is_ok()
        })
        .await;
    }
}

/// The same server twice must have equal answers, although its uids, names and versions differ.
#[tokio::test(flavor = "multi_thread")]
async fn the_comparison_finds_no_difference_between_equal_servers() {
    let mut report = Report::default();
    let other = ApiServer::with_cluster(Cluster::new(1, 10_000));
    define(other.client()).await;
    let fake = ApiServer::new();
    define(fake.client()).await;
    for seed in 0..100 {
        let other = ApiServer::with_cluster(other.snapshot()).client();
        report.add(&runner::run(&other, &fake.snapshot(), &Sequence::generate(seed)).await);
    }
    assert_eq!(report.equal_sequences, report.sequences, "{}", report.text());
}
