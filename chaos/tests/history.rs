//! A short history of each engine, of processes that are killed and frozen.

use std::time::Duration;

use requeue_chaos::{Plan, run};
use requeue_servers::Postgres;

async fn is_sound(url: String, strike: Option<&dyn Fn()>) {
    let plan = Plan {
        url,
        program: env!("CARGO_BIN_EXE_requeue-chaos").into(),
        processes: 3,
        length: Duration::from_secs(4),
        seed: 1,
        strike,
    };
    let report = run(&plan).await.expect("it runs to its end");
    assert!(report.is_sound(), "{report}: {report:?}");
    assert!(report.hand_outs() > 100, "{report}");
}

#[tokio::test]
async fn of_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    is_sound(format!("sqlite:{}", dir.path().join("queues.db").display()), None).await;
}

#[tokio::test]
async fn of_postgresql() {
    // Where there is none, the list of what did not run says so.
    let Some(server) = Postgres::start() else { return };
    let strike = || {
        server.kill();
        server.restart();
    };
    is_sound(server.database(), Some(&strike)).await;
}
