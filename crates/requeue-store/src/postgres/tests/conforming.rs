//! The verbs do what the model does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::*;
use crate::conformance::{Rig, check, steps};
use crate::engine::BoxFuture;

/// Time stands in a table.
const CLOCK: &str = "create table clock (now bigint not null); \
     insert into clock values (0); \
     create or replace function requeue.now() returns bigint language sql volatile \
     return (select now from public.clock)";

struct Fixture {
    engine: Arc<Postgres>,
}

impl Fixture {
    async fn new(server: &Server) -> Self {
        // Each claim looks at all there is, and so says exactly when the next key is due.
        let (engine, _) = engine(server, Duration::ZERO).await;
        let session = engine.sessions.session().await.expect("it is there");
        sessions::run(session.client(), CLOCK).await.expect("the clock is made");
        session.end();
        Self { engine: Arc::new(engine) }
    }
}

impl Rig for Fixture {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine) as _
    }

    fn set_time(&self, now: i64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let set = "update public.clock set now = $1 returning 1";
            self.engine.sessions.row(set, &[&now]).await.expect("the time is set");
        })
    }
}

fn conforms(early_add: EarlyAdd) {
    let Some(server) = Server::shared() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let rig = runtime.block_on(Fixture::new(server));
    let queues = AtomicU32::new(0);
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(15);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    proptest!(config, |(steps in steps(60))| {
        let name = format!("q{}", queues.fetch_add(1, Ordering::Relaxed));
        runtime.block_on(check(&rig, &name, early_add, &steps));
    });
}

#[test]
fn replaces_as_the_model_does() {
    conforms(EarlyAdd::Replace);
}

#[test]
fn holds_as_the_model_does() {
    conforms(EarlyAdd::Hold);
}
