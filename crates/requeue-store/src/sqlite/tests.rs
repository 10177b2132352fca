//! Of the file, and of its verbs.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::conformance::{Rig, check, steps};
use crate::engine::BoxFuture;

struct Fixture {
    engine: Arc<Sqlite>,
    now: Arc<AtomicI64>,
    _dir: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let now = Arc::new(AtomicI64::new(0));
        let clock = Arc::clone(&now);
        let clock = Box::new(move || clock.load(Ordering::SeqCst));
        let engine = Sqlite::open_with(&dir.path().join("q"), Synchronous::Normal, clock);
        let engine = Arc::new(engine.expect("the file opens"));
        engine.migrate().await.expect("the schema is made");
        Self { engine, now, _dir: dir }
    }
}

impl Rig for Fixture {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine) as _
    }

    fn set_time(&self, now: i64) -> BoxFuture<'_, ()> {
        self.now.store(now, Ordering::SeqCst);
        Box::pin(std::future::ready(()))
    }
}

fn conforms(early_add: EarlyAdd) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) };
    proptest!(config, |(steps in steps(80))| {
        runtime.block_on(async {
            let rig = Fixture::new().await;
            check(&rig, "q", early_add, &steps).await;
        });
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
