//! The hooks before and after the run for an object. They supply the input, write the finalizer, and check the
//! leadership.

use std::sync::Arc;

use requeue_kube::leader::Status;

use super::finalizer::Finalizer;
use super::objects::{Begin, Objects, State};
use super::snapshots::Snapshots;
use crate::process::run_input::RunInput;
use crate::runner::hooks::{BoxFuture, Hooks};

/// The hooks for keys that name objects.
#[derive(Debug)]
pub(crate) struct ObjectHooks {
    pub(crate) objects: Arc<Objects>,
    pub(crate) finalizer: Option<Finalizer>,
    pub(crate) snapshots: Option<Arc<Snapshots>>,
    /// The state of the leader election. `None` if `--leader-election` is missing.
    pub(crate) leading: Option<Status>,
}

impl Hooks for ObjectHooks {
    fn prepare_run<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<RunInput>, String>> {
        Box::pin(async {
            if self.leading.as_ref().is_some_and(|status| !status.is_leading()) {
                // The term is over, and the program is about to terminate all runs. The run therefore never begins.
                std::future::pending::<()>().await;
            }
            match (self.objects.begin_run(key), &self.finalizer) {
                (Some(Begin::Run(mut given)), _) => {
                    if let Some(snapshots) = &self.snapshots {
                        let dir =
                            snapshots.now().await.map_err(|error| format!("--snapshot: {error}"));
                        given.dir = Some(dir?);
                    }
                    Ok(Some(given))
                }
                // The run is skipped. The patch changes the object, and this change adds the key again.
                (Some(Begin::Keep(object)), Some(finalizer)) => {
                    finalizer.write_next(&object).await.map(|()| None)
                }
                (Some(Begin::Keep(_)) | None, _) => Ok(None),
            }
        })
    }

    fn on_success<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async {
            if let Some(finalizer) = &self.finalizer {
                match self.objects.last_run(key) {
                    Some((State::Ending, object)) => finalizer.write_next(&object).await?,
                    Some((State::Strayed, _)) => finalizer.let_go(key).await?,
                    _ => {}
                }
            }
            self.objects.record_success(key);
            Ok(())
        })
    }

    fn on_give_up(&self, key: &[u8]) -> &'static str {
        self.objects.forget_gone(key);
        ""
    }

    fn is_new(&self, key: &[u8]) -> bool {
        self.objects.is_new(key)
    }

    fn after_cut_off(&self) -> &'static str {
        "the next start runs all objects"
    }
}
