//! Measures a status patch for each object on an API server.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use requeue_bench::meter::Meter;
use requeue_kube::{controller, policy};
use serde_json::json;
use tokio::sync::Notify;

use crate::Result;
use crate::kinds::{Task, TaskStatus};
use crate::protocol::{Answer, Patches, Who};

struct Context {
    tasks: Api<Task>,
    work: Patches,
    /// The objects that were reconciled with their new status.
    settled: Mutex<HashSet<String>>,
    all: Notify,
}

impl Context {
    async fn reconcile(&self, task: &Task) -> kube::Result<()> {
        let name = task.name_any();
        let runs = self.work.number;
        if task.status.as_ref().is_some_and(|status| status.runs == runs) {
            let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
            settled.insert(name);
            if settled.len() == self.work.objects {
                self.all.notify_one();
            }
            return Ok(());
        }
        let status = Patch::Merge(json!({ "status": TaskStatus { runs } }));
        self.tasks.patch_status(&name, &PatchParams::default(), &status).await?;
        Ok(())
    }
}

pub(crate) async fn run(who: Who, work: Patches) -> Result<Answer> {
    let tasks = Api::namespaced(Client::try_default().await?, &work.namespace);
    let context = Arc::new(Context {
        tasks: tasks.clone(),
        work: work.clone(),
        settled: Mutex::default(),
        all: Notify::new(),
    });
    let meter = Meter::start();
    match who {
        Who::Ours => {
            let stream = requeue_kube::Controller::new(tasks, watcher::Config::default())
                .with_config(controller::Config::default().concurrency(work.concurrency))
                .run(ours, policy::backoff, Arc::clone(&context));
            until_all(stream, &context).await?;
        }
        Who::Kube => {
            let config = kube::runtime::controller::Config::default();
            let again = |_, _: &_, _| Action::requeue(Duration::from_secs(1));
            let stream = kube::runtime::Controller::new(tasks, watcher::Config::default())
                .with_config(config.concurrency(work.concurrency))
                .run(kubes, again, Arc::clone(&context));
            until_all(stream, &context).await?;
        }
        Who::Store => return Err("a store patches nothing".into()),
    }
    Answer::of(meter, work.objects)
}

async fn ours(task: Arc<Task>, context: Arc<Context>) -> kube::Result<controller::Action> {
    context.reconcile(&task).await?;
    Ok(controller::Action::await_change())
}

async fn kubes(task: Arc<Task>, context: Arc<Context>) -> kube::Result<Action> {
    context.reconcile(&task).await?;
    Ok(Action::await_change())
}

/// Waits until all objects have settled. Returns an error if a run fails, because a failure would
/// change the amount of work.
async fn until_all<T, E>(
    results: impl Stream<Item = std::result::Result<T, E>>,
    context: &Context,
) -> Result<()>
where
    E: std::error::Error + 'static,
{
    let mut results = pin!(results);
    loop {
        tokio::select! {
            biased;
            result = results.next() => match result {
                Some(result) => drop(result?),
                None => return Err("the controller has ended".into()),
            },
            () = context.all.notified() => return Ok(()),
        }
    }
}
