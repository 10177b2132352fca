//! A replica of a sharded controller: the test's program, started again.
//!
//! The replica reports events on standard output, each as one line of JSON.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ObjectMeta, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use requeue_e2e::{Access, Nanos, Node, Proxy, Server, now};
use requeue_kube::controller::{Action, Config, Error, HeldShards, RunnerError, Status};
use requeue_kube::leader::{Fence, LeadershipLost};
use requeue_kube::membership::{HeldShard, ShardGroup};
use requeue_kube::{Controller, ObjectKey, policy};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::task::TaskTracker;

/// The fields of an object's data: its last change, and the last change that was reconciled.
pub(crate) const CHANGE: &str = "change";
pub(crate) const SEEN: &str = "seen";

/// The lease duration in tests. The renew deadline is 2 s, and the retry period 0.5 s.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// The longest time between two polls of a run. If a run is not polled for longer, its process is
/// frozen or gets no processor time.
const STALL: Nanos = 1_000_000_000;

/// The exit code of a replica whose membership was lost.
pub(crate) const LOST: i32 = 4;

const ORDERS: &str = "REQUEUE_E2E_SHARDS";

/// The settings of a replica.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) namespace: String,
    /// The number of shards, or 0 for a controller without a group.
    pub(crate) shards: u32,
    /// True if the lease duration, the renew deadline and the retry period have the defaults of 15,
    /// 10 and 2 s. Otherwise, they are 3, 2 and 0.5 s.
    pub(crate) default_durations: bool,
    pub(crate) concurrency: u16,
    pub(crate) work: Work,
}

/// The work of a run.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) enum Work {
    /// The run writes the last change with the fence of its shard.
    #[default]
    Write,
    /// The run waits, and writes nothing.
    Wait(Duration),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Said {
    /// All watches of the replica have listed their objects.
    Listed,
    /// The replica has joined its group.
    Joined {
        at: Nanos,
    },
    /// The replica holds a shard, with this fencing token.
    Held {
        shard: u32,
        number: i32,
        at: Nanos,
    },
    /// The replica no longer holds a shard, because the runs in flight at a handover have ended, or
    /// because the shard was lost.
    Left {
        shard: u32,
        number: i32,
        at: Nanos,
    },
    Begun {
        run: u64,
        name: String,
        shard: u32,
        number: i32,
        at: Nanos,
    },
    Ended(Ended),
    /// A run of an object whose shard the replica did not hold. The run did nothing.
    Stray {
        name: String,
    },
    /// The replica has claimed an object. From this version on, writes of earlier holders are late.
    Claimed {
        name: String,
        number: i32,
        version: u64,
    },
    /// A write was accepted.
    Written {
        name: String,
        number: i32,
        version: u64,
    },
    /// A write was refused, because a later holder had claimed the object.
    Refused {
        name: String,
        number: i32,
    },
    /// A run without a group, which waits.
    Ran {
        at: Nanos,
    },
    /// The membership was lost.
    Lost {
        reason: String,
        at: Nanos,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) run: u64,
    /// The last time at which the run was active while the replica's Lease had not expired by the
    /// replica's own clock.
    pub(crate) entitled: Option<Nanos>,
    /// The last time at which the run was active.
    pub(crate) active: Nanos,
}

fn say(said: &Said) {
    // Each line is written with a single call, because several tasks report.
    let line = format!("\nsaid {}\n", serde_json::to_string(said).unwrap());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// Returns the permissions of a replica.
pub(crate) async fn allow(access: &Access<'_>) {
    let verbs = ["get", "list", "watch", "create", "update", "delete"];
    let rules = json!([
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
        { "apiGroups": [""], "resources": ["configmaps"],
          "verbs": ["get", "list", "watch", "patch"] },
    ]);
    access.allow(rules).await;
}

/// A fault of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Kill,
    /// The replica gets SIGSTOP, and SIGCONT later.
    Freeze,
    /// The replica's connections stay open, but no data arrives for some time.
    Silence,
    /// The replica's connections are cut, and new connections are refused for some time.
    Refuse,
}

/// A replica in a separate process, with a separate network.
pub(crate) struct Replica {
    pub(crate) number: usize,
    pub(crate) node: Node<'static>,
    pub(crate) proxy: Proxy,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The faults, with their starts.
    faults: Vec<(Fault, Nanos)>,
    /// True if a fault has not ended, or if the replica is being stopped.
    busy: bool,
    /// The time after which the replica performs no action, if it has stopped.
    over: Option<Nanos>,
}

impl Replica {
    pub(crate) async fn start(server: &Server, number: usize, orders: &Orders) -> Self {
        let proxy = server.proxy().await;
        let namespace = &orders.namespace;
        let access = server.access().service_account(namespace, "replica").through(&proxy);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "replica::is_a_replica_when_told_so", "--nocapture"]);
        command.env("KUBECONFIG", access.kubeconfig());
        command.env(ORDERS, serde_json::to_string(orders).unwrap());
        let node = server.spawn(&format!("{namespace}-{number}"), command);
        Self { number, node, proxy, state: Mutex::default() }
    }

    /// Returns the reports of the replica so far.
    pub(crate) fn said(&self) -> Vec<Said> {
        let log = self.node.log();
        // The last line may be incomplete.
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let said = whole.lines().filter_map(|line| line.strip_prefix("said "));
        said.map(|said| serde_json::from_str(said).unwrap()).collect()
    }

    /// Returns the number of shards that the replica holds.
    pub(crate) fn shards(&self) -> usize {
        let mut held = BTreeMap::new();
        for said in self.said() {
            match said {
                Said::Held { shard, number, .. } => _ = held.insert(shard, number),
                Said::Left { shard, .. } => _ = held.remove(&shard),
                _ => {}
            }
        }
        held.len()
    }

    /// Returns the faults of the replica, with their starts.
    pub(crate) fn faults(&self) -> Vec<(Fault, Nanos)> {
        self.state.lock().unwrap().faults.clone()
    }

    /// Returns the time after which the replica performed no action, if it has stopped.
    pub(crate) fn over(&self) -> Option<Nanos> {
        self.state.lock().unwrap().over
    }

    /// Returns true if no fault is in progress, and the replica is not being stopped.
    pub(crate) fn is_healthy(&self) -> bool {
        let state = self.state.lock().unwrap();
        !state.busy && state.over.is_none() && self.node.status().is_none()
    }

    pub(crate) async fn kill(&self) {
        let start = self.fault(Fault::Kill);
        self.node.kill().await;
        self.state.lock().unwrap().over = Some(start);
    }

    /// Injects a fault that ends after this time.
    pub(crate) async fn disturb(&self, fault: Fault, duration: Duration) {
        self.fault(fault);
        match fault {
            Fault::Freeze => self.node.freeze(),
            Fault::Silence => self.proxy.freeze(),
            Fault::Refuse => self.proxy.down(),
            Fault::Kill => unreachable!("it has no end"),
        }
        tokio::time::sleep(duration).await;
        if self.node.status().is_none() {
            self.node.thaw();
        }
        self.proxy.thaw();
        self.proxy.up();
        // A replica whose Lease has expired notices the loss in this time, and exits.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let is_lost = self.said().iter().any(|said| matches!(said, Said::Lost { .. }));
        self.state.lock().unwrap().busy = is_lost;
    }

    /// Records the start of a fault.
    fn fault(&self, fault: Fault) -> Nanos {
        let start = now();
        let mut state = self.state.lock().unwrap();
        state.faults.push((fault, start));
        state.busy = true;
        start
    }

    /// Records that the replica must not suffer faults from now on. Returns false if a fault or a
    /// shutdown is in progress.
    pub(crate) fn reserve(&self) -> bool {
        self.is_healthy() && !std::mem::replace(&mut self.state.lock().unwrap().busy, true)
    }

    /// Shuts the replica down, after [`reserve`](Self::reserve).
    pub(crate) async fn stop(&self) -> ExitStatus {
        let status = match self.node.status() {
            Some(status) => status,
            None => self.node.terminate().await,
        };
        self.state.lock().unwrap().over = Some(now());
        status
    }

    /// Returns true if the replica has exited without a signal from the test, and records the exit.
    pub(crate) fn has_exited(&self) -> bool {
        let Some(status) = self.node.status() else { return self.over().is_some() };
        let log = self.node.log();
        let end = log.len().saturating_sub(4000);
        assert_eq!(status.code(), Some(LOST), "{status}: {}", &log[end..]);
        self.state.lock().unwrap().over.get_or_insert_with(now);
        true
    }
}

struct Context {
    held: HeldShards,
    maps: Api<ConfigMap>,
    work: Work,
    /// The writes in flight. They continue if their run is dropped, like requests that the process has
    /// sent.
    writes: TaskTracker,
}

async fn reconcile(map: Arc<ConfigMap>, context: Arc<Context>) -> Result<Action, kube::Error> {
    let name = map.name_any();
    let key = ObjectKey::from_meta(&map.metadata);
    if let Work::Wait(duration) = context.work {
        tokio::time::sleep(duration).await;
        say(&Said::Ran { at: now() });
        return Ok(Action::await_change());
    }
    let Some(held) = context.held.for_object(&key) else {
        say(&Said::Stray { name });
        return Ok(Action::backoff());
    };
    let mut run = Run::begin(name, &held);
    let (maps, number) = (context.maps.clone(), held.fencing_token().transitions());
    let mut writing = context.writes.spawn(write(maps, held.fence(), number, map));
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    loop {
        tokio::select! {
            biased;
            result = &mut writing => {
                run.observe();
                return result.unwrap().map(|()| Action::await_change());
            }
            _ = ticks.tick() => run.observe(),
        }
    }
}

/// A run, which is also reported if it is dropped.
struct Run {
    fence: Fence,
    /// The object that the fence has claimed.
    claimed: ConfigMap,
    has_stalled: bool,
    ended: Ended,
}

impl Run {
    fn begin(name: String, held: &HeldShard) -> Self {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let (run, at, fence) = (RUNS.fetch_add(1, Ordering::Relaxed), now(), held.fence());
        let (shard, number) = (held.index(), held.fencing_token().transitions());
        say(&Said::Begun { run, name, shard, number, at });
        let annotations = Some(BTreeMap::from([fence.annotation()]));
        let metadata = ObjectMeta { annotations, ..ObjectMeta::default() };
        let claimed = ConfigMap { metadata, ..ConfigMap::default() };
        let ended = Ended { run, entitled: None, active: at };
        let mut run = Self { fence, claimed, has_stalled: false, ended };
        run.observe();
        run
    }

    fn observe(&mut self) {
        let at = now();
        self.has_stalled |= at - self.ended.active > STALL;
        // The claim sends no request, because the object is already claimed.
        let claim = self.fence.claim(&self.claimed).now_or_never();
        let excused = match claim {
            Some(Err(lost)) => match lost {
                LeadershipLost::RenewDeadline(_)
                | LeadershipLost::Taken(_)
                | LeadershipLost::Deleted => true,
                // The group has noticed the loss before the run.
                LeadershipLost::Abandoned => self.has_stalled,
                // For any other reason, the run must not continue, because its shard was handed
                // over.
                _ => false,
            },
            _ => false,
        };
        self.ended.active = at;
        if !excused {
            self.ended.entitled = Some(at);
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        say(&Said::Ended(self.ended.clone()));
    }
}

/// Claims the object, and writes its last change after some time.
async fn write(
    maps: Api<ConfigMap>,
    fence: Fence,
    number: i32,
    map: Arc<ConfigMap>,
) -> Result<(), kube::Error> {
    let name = map.name_any();
    let params = PatchParams::default();
    let version = |map: &ConfigMap| map.resource_version().unwrap().parse().unwrap();
    let mut map = Arc::unwrap_or_clone(map);
    let claim = loop {
        match fence.claim(&map).await {
            Ok(claim) => match claim {
                Some(claim) => match maps.patch(&name, &params, &claim).await {
                    Ok(claimed) => break Some(claimed),
                    // The object has changed since it was read.
                    Err(kube::Error::Api(status)) if status.code == 422 => {
                        map = maps.get(&name).await?;
                    }
                    Err(error) => return Err(error),
                },
                None => break None,
            },
            // A later holder has claimed the object, or this process no longer holds the shard.
            Err(_) => return Ok(()),
        }
    };
    if let Some(claimed) = claim {
        let name = name.clone();
        say(&Said::Claimed { name, number, version: version(&claimed) });
        map = claimed;
    }
    let of = |field| map.data.as_ref().and_then(|data| data.get(field)).cloned();
    let duration = if fastrand::u8(..10) == 0 { 300..1500 } else { 5..50 };
    tokio::time::sleep(Duration::from_millis(fastrand::u64(duration))).await;
    let Some(change) = of(CHANGE).filter(|change| of(SEEN).as_ref() != Some(change)) else {
        return Ok(());
    };
    let write = json!([{ "op": "add", "path": format!("/data/{SEEN}"), "value": change }]);
    let write = fence.patch(serde_json::from_value(write).unwrap());
    match maps.patch(&name, &params, &write).await {
        Ok(written) => say(&Said::Written { name, number, version: version(&written) }),
        Err(kube::Error::Api(status)) if status.code == 422 => {
            say(&Said::Refused { name, number });
        }
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Reports that the replica has joined, and each change of the shards that are held.
async fn report(held: HeldShards, status: Status) {
    let (mut before, mut has_joined) = (BTreeMap::new(), false);
    loop {
        let shards = held.all();
        let at = now();
        if !has_joined && status.shard_group().is_some() {
            has_joined = true;
            say(&Said::Joined { at });
        }
        let shards: BTreeMap<_, _> =
            shards.iter().map(|held| (held.index(), held.fencing_token().transitions())).collect();
        for (&shard, &number) in &before {
            if shards.get(&shard) != Some(&number) {
                say(&Said::Left { shard, number, at });
            }
        }
        for (&shard, &number) in &shards {
            if before.get(&shard) != Some(&number) {
                say(&Said::Held { shard, number, at });
            }
        }
        before = shards;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn is_a_replica_when_told_so() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    let access = kube::Config::infer().await.unwrap();
    let client = Client::try_from(access.clone()).unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(client, &orders.namespace);
    let mut again = signal(SignalKind::user_defined1()).unwrap();
    let again = futures_util::stream::poll_fn(move |context| again.poll_recv(context));
    let mut controller = Controller::new(maps.clone(), watcher::Config::default())
        .with_config(Config::default().concurrency(orders.concurrency))
        .reconcile_all_on(again);
    if orders.shards > 0 {
        let mut shards = ShardGroup::new("maps", &orders.namespace).count(orders.shards);
        if !orders.default_durations {
            shards = shards.lease(|lease| {
                let lease = lease.lease_duration(LEASE).renew_deadline(Duration::from_secs(2));
                lease.retry_period(Duration::from_millis(500))
            });
        }
        let client = shards.client(access).unwrap();
        controller = controller.shard_group(shards.with_client(client));
    }
    let readiness = controller.readiness();
    tokio::spawn(async move {
        readiness.ready().await;
        say(&Said::Listed);
    });
    let held = controller.held_shards();
    tokio::spawn(report(held.clone(), controller.status()));
    let writes = TaskTracker::new();
    let context = Context { held, maps, work: orders.work, writes: writes.clone() };
    let stream = controller.shutdown_on_signal().run(reconcile, policy::backoff, Arc::new(context));
    let mut stream = std::pin::pin!(stream);
    let mut lost = None;
    while let Some(item) = stream.next().await {
        match item {
            Err(Error::RunnerError(error @ RunnerError::Membership(..))) => lost = Some(error),
            Err(Error::RunnerError(other)) => panic!("{other}"),
            _ => {}
        }
    }
    if let Some(error) = lost {
        // The sleep leaves time for the reports of lost shards.
        tokio::time::sleep(Duration::from_millis(20)).await;
        say(&Said::Lost { reason: error.to_string(), at: now() });
        writes.close();
        // The network may be cut for some time.
        _ = tokio::time::timeout(Duration::from_secs(10), writes.wait()).await;
        std::process::exit(LOST);
    }
    // The sleep leaves time for the reports of shards that were handed over.
    tokio::time::sleep(Duration::from_millis(20)).await;
}
