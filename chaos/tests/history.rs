//! A short history of each engine, of processes that are killed and frozen.

use std::time::Duration;

use requeue_chaos::{Plan, run};

async fn is_sound(url: String) {
    let plan = Plan {
        url,
        program: env!("CARGO_BIN_EXE_requeue-chaos").into(),
        processes: 3,
        length: Duration::from_secs(4),
        seed: 1,
    };
    let report = run(&plan).await.expect("it runs to its end");
    assert!(report.is_sound(), "{report}: {report:?}");
    assert!(report.hand_outs() > 100, "{report}");
}

#[tokio::test]
async fn of_a_file() {
    let dir = tempfile::tempdir().expect("a directory");
    is_sound(format!("sqlite:{}", dir.path().join("queues.db").display())).await;
}
