//! Failing objects back off, and do not delay other objects.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use requeue::limiter::ExponentialFailure;
use requeue_e2e::{Server, full, until};
use requeue_kube::controller::{Action, Config};
use requeue_kube::{Controller, policy};
use serde_json::json;
use tokio::task::AbortHandle;

use crate::kinds::{Estate, EstateSpec, Task, TaskSpec, TaskStatus, install};

/// The times of each object's runs.
#[derive(Default)]
struct Runs(Mutex<BTreeMap<String, Vec<Instant>>>);

impl Runs {
    fn of(&self, name: &str) -> Vec<Instant> {
        self.0.lock().unwrap().get(name).cloned().unwrap_or_default()
    }
}

struct Context {
    client: Client,
    runs: Runs,
}

/// A reconciler that writes to the object's status, as many reconcilers do, and then fails for some
/// objects.
async fn count(task: Arc<Task>, context: Arc<Context>) -> Result<Action, Failed> {
    let name = task.name_any();
    let runs = {
        let mut all = context.runs.0.lock().unwrap();
        let runs = all.entry(name.clone()).or_default();
        runs.push(Instant::now());
        runs.len() as u32
    };
    let tasks: Api<Task> =
        Api::namespaced(context.client.clone(), task.metadata.namespace.as_deref().unwrap());
    let is_bad = name.starts_with("bad");
    // The write triggers another run. The runs of a good object stop writing after some runs.
    if is_bad || runs < ENOUGH {
        let status = Patch::Merge(json!({ "status": TaskStatus { runs } }));
        let params = PatchParams::default();
        tasks.patch_status(&name, &params, &status).await.map_err(Failed::Api)?;
    }
    if is_bad { Err(Failed::OnPurpose) } else { Ok(Action::await_change()) }
}

/// The number of runs of a good object that write, and thereby trigger the next run.
const ENOUGH: u32 = 20;

#[derive(Debug)]
enum Failed {
    OnPurpose,
    Api(kube::Error),
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OnPurpose => f.write_str("on purpose"),
            Self::Api(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Failed {}

/// A controller that is aborted on drop.
struct Running(AbortHandle);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn task(name: &str) -> Task {
    Task::new(name, TaskSpec { wanted: 1 })
}

#[tokio::test]
async fn whoever_fails_is_spaced_by_its_own_backoff_and_tried_at_once_when_it_is_changed() {
    let Some(server) = Server::shared().await else { return };
    let client = server.client().await;
    install(&client).await;
    let namespace = server.namespace("backoff").await;
    let account = server.access().service_account(&namespace, "controller");
    let rules = json!([
        { "apiGroups": ["e2e.example.com"], "resources": ["tasks"], "verbs": ["list", "watch"] },
        { "apiGroups": ["e2e.example.com"], "resources": ["tasks/status"], "verbs": ["patch"] },
    ]);
    account.allow(rules).await;
    let controllers = account.client().await;
    let tasks: Api<Task> = Api::namespaced(client, &namespace);
    let context = Arc::new(Context { client: controllers.clone(), runs: Runs::default() });
    let (base, failures) = (Duration::from_millis(50), if full() { 8 } else { 5 });
    // The delay after that exceeds the duration of any test.
    let last = base * 2u32.pow(failures - 1);
    let config = Config::default()
        .concurrency(4)
        .rate_limiter(move || Cliff { inner: ExponentialFailure::new(base, last), failures });
    let watched = Api::<Task>::namespaced(controllers, &namespace);
    let stream = Controller::new(watched, watcher::Config::default())
        .name("backoff")
        .with_config(config)
        .run(count, policy::backoff, Arc::clone(&context));
    let _running = Running(tokio::spawn(stream.for_each(async |_| ())).abort_handle());
    for name in ["bad-1", "bad-2", "good-1", "good-2"] {
        tasks.create(&PostParams::default(), &task(name)).await.unwrap();
    }

    let wanted = failures as usize + 1;
    until("the bad ones have failed often enough", async || {
        ["bad-1", "bad-2"].iter().all(|name| context.runs.of(name).len() == wanted)
    })
    .await;
    // The delays are at least client-go's.
    for name in ["bad-1", "bad-2"] {
        let mut client_go = ExponentialFailure::new(base, last);
        for pair in context.runs.of(name).windows(2) {
            let delay =
                requeue::limiter::RateLimiter::delay(&mut client_go, &name, requeue::Time::ZERO);
            let waited = pair[1] - pair[0];
            assert!(waited >= delay, "{name} came after {waited:?} in place of {delay:?}");
        }
    }
    // In the meantime, other objects are not delayed.
    until("the good ones are done", async || {
        ["good-1", "good-2"].iter().all(|name| context.runs.of(name).len() >= ENOUGH as usize)
    })
    .await;

    // Events do not shorten the backoff. A good object has run for the same kind of event, and the
    // bad object has not.
    let before = context.runs.of("good-1").len();
    for number in 0..20 {
        for name in ["bad-1", "good-1"] {
            let label = json!({ "metadata": { "labels": { "number": number.to_string() } } });
            tasks.patch(name, &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
        }
    }
    until("the good one has run", async || context.runs.of("good-1").len() > before).await;
    assert_eq!(context.runs.of("bad-1").len(), wanted);
    // A new generation ends the backoff.
    let spec = json!({ "spec": { "wanted": 2 } });
    tasks.patch("bad-1", &PatchParams::default(), &Patch::Merge(spec)).await.unwrap();
    until("the bad one is tried again", async || context.runs.of("bad-1").len() > wanted).await;
    assert_eq!(context.runs.of("bad-2").len(), wanted);
}

/// A limiter whose delays become very long after a number of failures.
struct Cliff<L> {
    inner: L,
    failures: u32,
}

impl<K, L: requeue::limiter::RateLimiter<K>> requeue::limiter::RateLimiter<K> for Cliff<L> {
    fn delay(&mut self, key: &K, now: requeue::Time) -> Duration {
        let delay = self.inner.delay(key, now);
        let is_over = self.inner.num_requeues(key) > self.failures;
        if is_over { Duration::from_secs(86_400) } else { delay }
    }

    fn forget(&mut self, key: &K) {
        self.inner.forget(key);
    }

    fn num_requeues(&self, key: &K) -> u32 {
        self.inner.num_requeues(key)
    }
}

#[tokio::test]
async fn an_owner_of_the_cluster_with_children_in_three_namespaces_never_overlaps() {
    let Some(server) = Server::shared().await else { return };
    let client = server.client().await;
    install(&client).await;
    let estates: Api<Estate> = Api::all(client.clone());
    let name = server.namespace("estate").await;
    let owner = Estate::new(&name, EstateSpec {});
    let owner = estates.create(&PostParams::default(), &owner).await.unwrap();

    #[derive(Default)]
    struct Overlaps {
        running: AtomicUsize,
        runs: AtomicUsize,
        overlaps: AtomicUsize,
    }
    let reconcile = |_: Arc<Estate>, seen: Arc<Overlaps>| async move {
        if seen.running.fetch_add(1, Ordering::SeqCst) > 0 {
            seen.overlaps.fetch_add(1, Ordering::SeqCst);
        }
        // The sleep is long enough for another run to start.
        tokio::time::sleep(Duration::from_millis(5)).await;
        seen.running.fetch_sub(1, Ordering::SeqCst);
        seen.runs.fetch_add(1, Ordering::SeqCst);
        Ok::<_, kube::Error>(Action::await_change())
    };
    let seen = Arc::new(Overlaps::default());
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let account = server.access().user("estate-controller");
    let rules = json!([
        { "apiGroups": ["e2e.example.com"], "resources": ["estates"], "verbs": ["list", "watch"] },
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"] },
    ]);
    account.allow(rules).await;
    let controllers = account.client().await;
    let stream = Controller::new(Api::<Estate>::all(controllers.clone()), only)
        .owns(Api::<ConfigMap>::all(controllers), watcher::Config::default().labels("e2e=estate"))
        .with_config(Config::default().concurrency(8))
        .run(reconcile, policy::backoff, Arc::clone(&seen));
    let _running = Running(tokio::spawn(stream.for_each(async |_| ())).abort_handle());

    let mut namespaces = Vec::new();
    for _ in 0..3 {
        let namespace = server.namespace("estate").await;
        namespaces.push(Api::<ConfigMap>::namespaced(client.clone(), &namespace));
    }
    let rounds = if full() { 200 } else { 20 };
    for number in 0..rounds {
        let creates = namespaces.iter().map(|maps| {
            let child = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(format!("child-{number}")),
                    labels: Some([("e2e".to_owned(), "estate".to_owned())].into()),
                    owner_references: Some(vec![owner.owner_ref(&()).unwrap()]),
                    ..ObjectMeta::default()
                },
                ..ConfigMap::default()
            };
            async move { maps.create(&PostParams::default(), &child).await.unwrap() }
        });
        futures_util::future::join_all(creates).await;
    }
    until("the object has run several times", async || seen.runs.load(Ordering::SeqCst) >= 5).await;
    assert_eq!(seen.overlaps.load(Ordering::SeqCst), 0);
}
