//! The throughput of a shard group, the bytes that its replicas receive, and its requests when no
//! object changes. The tests in this file assert no figure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use requeue_e2e::{Nanos, Server, full, now, until};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::replica::{Orders, Replica, Said, Work, allow};
use crate::report::publish;

const SHARDS: u32 = 64;

/// The replicas of one controller, and its objects.
struct GroupId {
    server: &'static Server,
    orders: Orders,
    objects: usize,
    replicas: Vec<Replica>,
}

impl GroupId {
    /// Creates the objects. Without shards, there is no group.
    async fn new(server: &'static Server, objects: usize, orders: Orders) -> Self {
        let namespace = server.namespace("costs").await;
        allow(&server.access().service_account(&namespace, "replica")).await;
        let maps: Api<ConfigMap> = Api::namespaced(server.client().await, &namespace);
        stream::iter(0..objects)
            .for_each_concurrent(16, async |number| {
                let metadata =
                    ObjectMeta { name: Some(format!("map-{number}")), ..ObjectMeta::default() };
                let data = Some(BTreeMap::from([("text".to_owned(), "x".repeat(1000))]));
                let map = ConfigMap { metadata, data, ..ConfigMap::default() };
                maps.create(&PostParams::default(), &map).await.unwrap();
            })
            .await;
        let orders = Orders { namespace, default_durations: true, ..orders };
        Self { server, orders, objects, replicas: Vec::new() }
    }

    /// Starts one more replica, and waits until the shards are evenly distributed and no run is in
    /// flight.
    async fn join(&mut self) {
        let number = self.replicas.len();
        self.replicas.push(Replica::start(self.server, number, &self.orders).await);
        let share = self.orders.shards as usize / self.replicas.len();
        until("each replica has its share", async || {
            let listed =
                |replica: &Replica| replica.said().iter().any(|said| matches!(said, Said::Listed));
            let fair = |replica: &Replica| listed(replica) && replica.shards() >= share;
            self.replicas.iter().all(fair)
        })
        .await;
        self.quiet().await;
    }

    async fn quiet(&self) {
        let (mut before, mut bytes) = (0, Vec::new());
        until("nothing runs", async || {
            sleep(Duration::from_secs(1)).await;
            let (ran, received) = (self.ran().len(), self.received());
            // A renewal of a Lease is an event for all members.
            let quiet = ran == before
                && ran >= self.objects
                && received.iter().zip(&bytes).all(|(now, before)| now - before < 20_000);
            let known = received.len() == bytes.len();
            (before, bytes) = (ran, received);
            quiet && known
        })
        .await;
    }

    /// Returns the times at which all runs have ended.
    fn ran(&self) -> Vec<Nanos> {
        let said = self.replicas.iter().flat_map(Replica::said);
        said.filter_map(|said| if let Said::Ran { at } = said { Some(at) } else { None }).collect()
    }

    fn received(&self) -> Vec<u64> {
        self.replicas.iter().map(|replica| replica.proxy.received()).collect()
    }

    /// Runs all objects once, and returns the time per object.
    async fn run_all(&self) -> f64 {
        let before = self.ran().len();
        let start = now();
        self.replicas.iter().for_each(|replica| replica.node.notify());
        let mut ran = Vec::new();
        until("all objects have run", async || {
            ran = self.ran();
            ran.len() >= before + self.objects
        })
        .await;
        let end = ran.into_iter().max().unwrap();
        (end - start) as f64 / self.objects as f64
    }

    /// Changes all objects once, and returns the bytes that each replica receives.
    async fn change_all(&self) -> Vec<u64> {
        let maps: Api<ConfigMap> =
            Api::namespaced(self.server.client().await, &self.orders.namespace);
        let (before, ran) = (self.received(), self.ran().len());
        let changed = Timestamp::now().to_string();
        stream::iter(0..self.objects)
            .for_each_concurrent(16, async |number| {
                let change = Patch::Merge(json!({ "data": { "changed": changed } }));
                let name = format!("map-{number}");
                maps.patch(&name, &PatchParams::default(), &change).await.unwrap();
            })
            .await;
        until("all changes have run", async || self.ran().len() >= ran + self.objects).await;
        self.received().iter().zip(before).map(|(after, before)| after - before).collect()
    }
}

/// Returns the largest number of replicas.
fn most() -> u32 {
    if full() { 4 } else { 2 }
}

fn verdict(reached: bool) -> &'static str {
    if reached { "yes" } else { "NO" }
}

fn mean(values: &[u64]) -> f64 {
    values.iter().sum::<u64>() as f64 / values.len() as f64
}

async fn throughput(server: &'static Server, out: &mut String) {
    let (objects, rounds) = if full() { (2000, 3) } else { (100, 1) };
    let work = Work::Wait(Duration::from_millis(10));
    let orders = Orders { shards: SHARDS, concurrency: 1, work, ..Orders::default() };
    let mut group = GroupId::new(server, objects, orders).await;
    let mut per_second = Vec::new();
    for _ in 1..=most() {
        group.join().await;
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push(group.run_all().await);
        }
        times.sort_unstable_by(f64::total_cmp);
        per_second.push(1e9 / times[rounds / 2]);
    }
    let one = per_second[0];
    _ = writeln!(
        out,
        "  throughput of {objects} objects, one run of 10 ms at a time per replica, median of \
         {rounds}; 1 replica {one:.0}/s",
    );
    for (replicas, per_second) in (1_u32..).zip(per_second).skip(1) {
        let (ratio, limit) = (per_second / one, 0.9 * f64::from(replicas));
        let judged = verdict(ratio >= limit);
        _ = writeln!(
            out,
            "    {replicas} replicas: {ratio:.2} times that; at least {limit:.1}: {judged}"
        );
    }
}

async fn bytes(server: &'static Server, gate: bool, out: &mut String) {
    let objects = if full() { 2000 } else { 60 };
    let work = Work::Wait(Duration::ZERO);
    let orders = Orders { concurrency: 8, work, ..Orders::default() };
    let mut alone = GroupId::new(server, objects, orders.clone()).await;
    alone.join().await;
    let start = mean(&alone.received());
    let changes = mean(&alone.change_all().await);
    let mut group = GroupId::new(server, objects, Orders { shards: SHARDS, ..orders }).await;
    drop(alone);
    let selects = if gate { "selects shards" } else { "ignores the selector" };
    _ = writeln!(
        out,
        "  bytes received, {objects} objects of 1 kB, the server {selects}; without shards {:.0} \
         kB from the start, {:.0} kB for one change of each object",
        start / 1e3,
        changes / 1e3,
    );
    for replicas in 1..=most() {
        group.join().await;
        let joined = *group.received().last().unwrap() as f64 / start;
        if replicas % 2 == 1 {
            continue;
        }
        let received = group.change_all().await;
        let ratio = mean(&received) / changes;
        let most = *received.iter().max().unwrap() as f64 / changes;
        let limit = 1.15 / f64::from(replicas);
        let judged = match gate {
            true => format!("; at most {limit:.2}: {}", verdict(ratio <= limit)),
            false => String::new(),
        };
        _ = writeln!(
            out,
            "    {replicas} replicas: the last one to start {joined:.2} of that; for the changes \
             {ratio:.2} on average, {most:.2} at most{judged}",
        );
    }
}

/// Counts the requests of the replicas in the API server's audit log.
async fn idle(server: &'static Server, audit: &Path, out: &mut String) {
    let period = Duration::from_secs(2);
    let watched = period * if full() { 30 } else { 2 };
    let work = Work::Wait(Duration::ZERO);
    let orders = Orders { shards: SHARDS, concurrency: 8, work, ..Orders::default() };
    let mut group = GroupId::new(server, 20, orders).await;
    for replicas in 1..=most() {
        group.join().await;
        if replicas % 2 == 1 {
            continue;
        }
        // In this time, other members delete the Leases of these members, and their Events are
        // published.
        sleep(period * 3).await;
        let from = Timestamp::now();
        sleep(watched).await;
        let requests = requests(audit, &group.orders.namespace, (from, Timestamp::now()));
        let periods = watched.as_secs_f64() / period.as_secs_f64();
        let renewals = requests.get("update leases").copied().unwrap_or(0);
        let others: usize = requests.values().sum::<usize>() - renewals;
        let limit = (f64::from(replicas) * periods).ceil() as usize + replicas as usize;
        _ = writeln!(
            out,
            "  requests of {replicas} idle replicas in {periods} retry periods of 2 s: {requests:?}; \
             {replicas} renewals per period, and nothing else: {}",
            verdict(others == 0 && renewals <= limit),
        );
    }
}

/// Returns the number of requests in this time, by verb and resource.
fn requests(
    audit: &Path,
    namespace: &str,
    (from, to): (Timestamp, Timestamp),
) -> BTreeMap<String, usize> {
    let user = format!("system:serviceaccount:{namespace}:replica");
    let (mut seen, mut counts) = (BTreeSet::new(), BTreeMap::new());
    for line in std::fs::read_to_string(audit).unwrap().lines() {
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let at = event["requestReceivedTimestamp"].as_str().unwrap().parse::<Timestamp>().unwrap();
        let is_ours = event["impersonatedUser"]["username"] == user && (from..to).contains(&at);
        // The log contains two events for a watch.
        if is_ours && seen.insert(event["auditID"].to_string()) {
            let (verb, resource) = (&event["verb"], &event["objectRef"]["resource"]);
            let name = format!("{} {}", verb.as_str().unwrap(), resource.as_str().unwrap_or("-"));
            *counts.entry(name).or_default() += 1;
        }
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_share_the_work_and_the_costs_are_measured() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (policy, audit) = (dir.join("audit-policy.json"), dir.join("audit.log"));
    let rules = json!([{ "level": "Metadata" }]);
    let json = json!({
        "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules,
        "omitStages": ["RequestReceived"],
    });
    std::fs::write(&policy, json.to_string()).unwrap();
    _ = std::fs::remove_file(&audit);
    let flags = [
        "--feature-gates=ShardedListAndWatch=true".to_owned(),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", audit.display()),
    ];
    let flags = flags.each_ref().map(String::as_str);
    let Some(server) = Server::start_with(&flags).await else { return };
    // The replicas and the server live as long as the test.
    let server: &'static Server = Box::leak(Box::new(server));
    let mut out = "Costs\n".to_owned();
    throughput(server, &mut out).await;
    bytes(server, true, &mut out).await;
    if full()
        && let Some(server) = Server::shared().await
    {
        bytes(server, false, &mut out).await;
    }
    idle(server, &audit, &mut out).await;
    publish(&out);
}
