//! Runs a short history on each engine.

use std::time::Duration;

use requeue_chaos::{Plan, Subject, run};

const ANYWHERE: [&str; 9] = [
    "processes killed",
    "processes frozen",
    "pauses of the queue",
    "pauses of groups",
    "changes of limits",
    "changes of weights",
    "changes of rates",
    "changes of the limit of the queue",
    "arrivals of keys at the limit of their group",
];
const CLOCKS: [&str; 2] =
    ["processes whose clock is an hour ahead", "processes whose clock is an hour behind"];
const CONNECTIONS: [&str; 6] = [
    "connections cut before a request has arrived",
    "connections cut in a request or an answer",
    "connections cut before an answer",
    "requests held up",
    "answers held up",
    "the server killed",
];
const RATE: [&str; 1] = ["changes of the rate of the queue"];
const TRANSACTIONS: [&str; 3] = [
    "transactions open elsewhere",
    "transactions open with an add, committed",
    "transactions open with an add, rolled back",
];
const RESTORED: [&str; 1] = ["backups restored"];
const PROMOTED: [&str; 1] = ["replicas promoted that lagged"];
const CLUSTER: [&str; 1] = ["masters killed, whose replica had missed their last moment"];

async fn is_sound(store: &str, faults: &[&[&str]]) {
    let subject = Subject::start(store).expect("a temporary directory");
    // Without such a server, `start` has added the test to the list of tests that did not run.
    let Some(subject) = subject else { return };
    let plan = Plan {
        subject,
        program: env!("CARGO_BIN_EXE_requeue-chaos").into(),
        processes: 3,
        length: Duration::from_secs(4),
        seed: 1,
    };
    let report = run(&plan).await.expect("the run completes");
    println!("{report}");
    assert!(report.is_sound(), "{report}: {report:?}");
    assert!(report.deliveries() > 100, "{report}");
    let mut faults = faults.concat();
    if !report.has(CLOCKS[0]) && !report.has(CLOCKS[1]) {
        // Without libfaketime, no clock was wrong. The list of tests that did not run names this
        // case.
        faults.retain(|fault| !CLOCKS.contains(fault));
    }
    for fault in faults {
        assert!(report.has(fault), "there were no {fault}: {report}");
    }
}

#[tokio::test]
async fn of_a_file() {
    is_sound("sqlite", &[&ANYWHERE, &RATE, &RESTORED]).await;
}

#[tokio::test]
async fn of_postgresql() {
    let faults = [&ANYWHERE[..], &RATE, &CLOCKS, &CONNECTIONS, &TRANSACTIONS, &PROMOTED, &RESTORED];
    is_sound("postgres", &faults).await;
}

#[tokio::test]
async fn of_postgresql_through_a_pooler() {
    let faults = [&ANYWHERE[..], &CLOCKS, &CONNECTIONS, &TRANSACTIONS, &PROMOTED, &RESTORED];
    is_sound("pgbouncer", &[&faults.concat()[..], &["poolers killed"]]).await;
}

#[tokio::test]
async fn of_redis_that_evicts() {
    is_sound("redis-evicting", &[&ANYWHERE, &CLOCKS, &CONNECTIONS, &["evictions"]]).await;
}

#[tokio::test]
async fn of_redis() {
    is_sound("redis", &[&ANYWHERE, &RATE, &CLOCKS, &CONNECTIONS]).await;
}

#[tokio::test]
async fn of_redis_whose_disk_comes_later() {
    is_sound("redis-everysec", &[&ANYWHERE, &CLOCKS, &CONNECTIONS]).await;
}

#[tokio::test]
async fn of_a_cluster() {
    is_sound("rediscluster", &[&ANYWHERE, &CLOCKS, &CLUSTER]).await;
}

#[tokio::test]
async fn of_a_cluster_that_waits_for_replicas() {
    is_sound("rediscluster-wait", &[&ANYWHERE, &CLOCKS, &CLUSTER]).await;
}
