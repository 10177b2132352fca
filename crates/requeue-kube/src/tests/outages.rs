//! Tests of replicas that start while the API server cannot be reached, or that cannot list the objects of a shard.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher;
use requeue_leases::testing::{self, Api, with_runtime_clock};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

use crate::controller::{Action, HeldShards, Readiness, Watched};
use crate::leader::{Config, LeaderElector, Status};
use crate::membership::ShardGroup;
use crate::shared::SharedWatch;
use crate::{Controller, Manager, policy};

/// The retry period of groups and elections by default.
const PERIOD: Duration = Duration::from_secs(2);
const MINUTE: Duration = Duration::from_secs(60);

fn group(api: &Api) -> ShardGroup {
    with_runtime_clock(ShardGroup::new("things", "ns").count(8).with_client(api.client()))
}

fn elector(api: &Api) -> LeaderElector {
    testing::elector(api.client(), Config::new("ns", "things")).0
}

fn name() -> String {
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    format!("outage {}", NAMES.fetch_add(1, Ordering::Relaxed))
}

/// Returns a controller of ConfigMaps that own Secrets. It has the client of its `Api`.
fn controller(api: &Api) -> Controller<ConfigMap> {
    let (client, wc) = (api.client(), watcher::Config::default());
    Controller::new(kube::Api::<ConfigMap>::all(client.clone()), wc.clone())
        .owns(kube::Api::<Secret>::all(client), wc)
        .name(name())
}

/// Returns a controller of the same kinds with shared watches. Their first lists are streaming lists.
fn shared(api: &Api) -> Controller<ConfigMap> {
    let (client, wc) = (api.client(), watcher::Config::default().streaming_lists());
    let maps = SharedWatch::new(kube::Api::<ConfigMap>::all(client.clone()), wc.clone());
    let secrets = SharedWatch::new(kube::Api::<Secret>::all(client), wc);
    Controller::for_shared(&maps).watch_owned(Watched::shared(&secrets)).name(name())
}

async fn reconcile(_: Arc<ConfigMap>, _: Arc<()>) -> Result<Action, Infallible> {
    Ok(Action::await_change())
}

struct Replica {
    held: HeldShards,
    readiness: Readiness,
    /// The status of the election. `None` if the replica has a group.
    status: Option<Status>,
    task: JoinHandle<()>,
}

impl Replica {
    /// Starts a replica with one controller. `options` adds the group or the election to the controller, and returns
    /// the status of the election.
    fn start(
        api: &Api,
        options: impl FnOnce(Controller<ConfigMap>) -> (Controller<ConfigMap>, Option<Status>),
    ) -> Self {
        let (controller, status) = options(controller(api));
        let (held, readiness) = (controller.held_shards(), controller.readiness());
        let stream = controller.run(reconcile, policy::backoff, Arc::new(()));
        Self { held, readiness, status, task: tokio::spawn(stream.for_each(async |_| {})) }
    }

    /// Starts a replica with a manager. `options` adds the group or the election to the manager.
    fn managed(api: &Api, options: impl FnOnce(Manager) -> (Manager, Option<Status>)) -> Self {
        let (mut manager, status) = options(Manager::new());
        let controller = controller(api);
        let (held, readiness) = (controller.held_shards(), controller.readiness());
        manager.add(controller, |it| it.run(reconcile, policy::backoff, Arc::new(())));
        let task = tokio::spawn(async { manager.run().await.unwrap() });
        Self { held, readiness, status, task }
    }

    fn acts(&self) -> bool {
        match &self.status {
            Some(status) => self.readiness.is_ready() && status.is_leading(),
            None => self.held.all().len() == 8,
        }
    }

    /// Waits until the replica leads, or until it holds all shards.
    async fn begins(&self) {
        while !self.acts() {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the longest time between two consecutive lists of the same kind.
fn longest_gap(api: &Api, kind: &str) -> Duration {
    let inner = api.inner();
    let lists = inner.lists.iter().filter(|(path, _)| path.ends_with(kind));
    let times: Vec<_> = lists.map(|(_, at)| *at).collect();
    let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
    gaps.max().expect("several lists")
}

/// Returns the longest time between two consecutive lists of ConfigMaps or of Secrets.
fn longest_gap_of_all(api: &Api) -> Duration {
    longest_gap(api, "/configmaps").max(longest_gap(api, "/secrets"))
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_starts_during_an_outage_begins_one_retry_period_after_it() {
    type Start = fn(&Api) -> Replica;
    let starts: [(&str, Start); 6] = [
        ("a group", |api| Replica::start(api, |it| (it.shard_group(group(api)), None))),
        ("a manager's group", |api| Replica::managed(api, |it| (it.shard_group(group(api)), None))),
        ("an election", |api| {
            let elector = elector(api);
            let status = Some(elector.status());
            Replica::start(api, |it| (it.leader_election(elector), status))
        }),
        ("an election without warmup", |api| {
            let elector = elector(api);
            let status = Some(elector.status());
            Replica::start(api, |it| (it.leader_election(elector).without_warmup(), status))
        }),
        ("a manager's election", |api| {
            let elector = elector(api);
            let status = Some(elector.status());
            Replica::managed(api, |it| (it.leader_election(elector), status))
        }),
        ("a shorter period", |api| {
            let group = group(api).lease(|lease| lease.retry_period(Duration::from_millis(300)));
            Replica::start(api, |it| (it.shard_group(group), None))
        }),
    ];
    for (start, begin) in starts {
        let api = Api::default();
        api.inner().fails = Some(|_, _| true);
        let back = Instant::now() + MINUTE;
        let replica = begin(&api);
        sleep_until(back).await;
        assert!(!replica.acts(), "{start}");
        api.inner().fails = None;
        replica.begins().await;
        let late = back.elapsed();
        // A standby repeats a read of the Lease after at most 2.2 retry periods.
        let most = if replica.status.is_some() { PERIOD * 5 / 2 } else { PERIOD * 5 / 4 };
        assert!(late < most, "{start} begins {late:?} after the outage");
        if start != "an election without warmup" {
            let gap = longest_gap_of_all(&api);
            assert!(gap <= PERIOD + Duration::from_millis(10), "{start}: no list for {gap:?}");
        }
    }
}

/// The former members could not release their Leases, and no new replica knows when these Leases were last renewed.
#[tokio::test(start_paused = true)]
async fn after_an_outage_that_ends_all_members_the_shards_wait_for_one_lease_duration() {
    let api = Api::default();
    let start = || Replica::start(&api, |it| (it.shard_group(group(&api)), None));
    let first = start();
    first.begins().await;
    api.inner().fails = Some(|_, _| true);
    while !first.task.is_finished() {
        sleep(Duration::from_millis(10)).await;
    }
    let second = start();
    sleep(MINUTE).await;
    api.inner().fails = None;
    let back = Instant::now();
    second.begins().await;
    let (late, lease) = (back.elapsed(), Duration::from_secs(15));
    assert!((lease..lease + PERIOD * 5 / 4).contains(&late), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_cannot_be_listed_is_tried_again_after_one_retry_period() {
    let api = Api::default();
    // The list before the join asks for only one object, and succeeds.
    api.inner().fails =
        Some(|path, query| path.ends_with("/configmaps") && !query.contains("limit=1"));
    let replica = Replica::start(&api, |it| (it.shard_group(group(&api)), None));
    sleep(MINUTE).await;
    assert_eq!(replica.held.all().len(), 8);
    let gap = longest_gap(&api, "/configmaps");
    assert!(gap <= PERIOD + Duration::from_millis(10), "no list for {gap:?}");
}

/// A backoff of the user, with a constant delay.
struct Constant;

impl Iterator for Constant {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(Duration::from_secs(10))
    }
}

impl Backoff for Constant {
    fn reset(&mut self) {}
}

/// A shared watch has kube's backoff, even if its controller has a backoff of the user.
#[tokio::test(start_paused = true)]
async fn shared_watches_are_repeated_once_per_retry_period_as_well() {
    for has_backoff in [false, true] {
        let api = Api::default();
        api.inner().fails = Some(|_, _| true);
        let controller = shared(&api).shard_group(group(&api));
        let controller = match has_backoff {
            true => controller.trigger_backoff(Constant),
            false => controller,
        };
        let stream = controller.run(reconcile, policy::backoff, Arc::new(()));
        let task = tokio::spawn(stream.for_each(async |_| {}));
        sleep(MINUTE).await;
        let gap = longest_gap_of_all(&api);
        assert!(gap <= PERIOD + Duration::from_millis(10), "{has_backoff}: no list for {gap:?}");
        task.abort();
    }
}

/// If the process does not need the list in order to lead or to hold shards, kube's backoff or the user's backoff
/// applies without a limit.
#[tokio::test(start_paused = true)]
async fn other_lists_have_their_own_backoff() {
    for is_alone in [true, false] {
        let api = Api::default();
        api.inner().fails = Some(|_, _| true);
        let group = group(&api);
        let _replica = Replica::start(&api, |it| match is_alone {
            true => (it, None),
            false => (it.shard_group(group).trigger_backoff(Constant), None),
        });
        sleep(MINUTE).await;
        let gap = longest_gap_of_all(&api);
        assert!(gap >= Duration::from_secs(9), "{gap:?}");
    }
}
