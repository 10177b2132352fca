//! A schedule of faults and changes of the number of replicas, while objects change.
//!
//! Each fleet is a shard group with a separate namespace. A seed determines the events of a fleet,
//! but not the times at which the processes notice these events.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use requeue_e2e::{Server, full, until};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::{JoinSet, LocalSet};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::replica::{CHANGE, Fault, LOST, Orders, Replica, SEEN, Said, Work, allow};
use crate::report::{Report, publish};

const OBJECTS: usize = 64;
const SHARDS: u32 = 16;
/// The number of replicas of a fleet at the start, and its limits.
const REPLICAS: usize = 3;
const LEAST: usize = 2;
const MOST: usize = 5;
/// The longest duration of a fault.
pub(crate) const LONGEST_FAULT: Duration = Duration::from_secs(6);
/// The longest pause between two events.
const LONGEST_PAUSE: Duration = Duration::from_millis(2500);
/// The number of events between two checks that all changes were reconciled.
const BATCH: usize = 10;

/// The time, without a change of the group, after which an object counts as not reconciled.
const PATIENCE: Duration = Duration::from_secs(60);

/// An event of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Fault(Fault),
    ScaleUp,
    ScaleDown,
    /// Each replica is replaced, one after the other.
    RollingUpdate,
}

/// Changes objects, one at a time, unless it is paused.
struct Changes {
    maps: Api<ConfigMap>,
    paused: watch::Sender<bool>,
    /// The number of the last change of each object.
    last: tokio::sync::Mutex<BTreeMap<String, u64>>,
}

impl Changes {
    async fn make(&self) {
        let mut paused = self.paused.subscribe();
        for number in 1.. {
            _ = paused.wait_for(|paused| !paused).await;
            {
                let mut last = self.last.lock().await;
                let name = format!("map-{}", fastrand::usize(..OBJECTS));
                let change = json!({ "data": { CHANGE: number.to_string() } });
                let change = Patch::Merge(change);
                self.maps.patch(&name, &PatchParams::default(), &change).await.unwrap();
                last.insert(name, number);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Returns the objects whose last change was not reconciled.
    async fn unreconciled(&self) -> Vec<String> {
        let last = self.last.lock().await;
        let maps = self.maps.list(&ListParams::default()).await.unwrap();
        let is_seen = |map: &ConfigMap| {
            let Some(last) = last.get(&map.name_any()) else { return true };
            let seen = map.data.as_ref().and_then(|data| data.get(SEEN));
            seen.is_some_and(|seen| *seen == last.to_string())
        };
        maps.into_iter().filter(|map| !is_seen(map)).map(|map| map.name_any()).collect()
    }
}

struct Fleet<'a> {
    server: &'a Server,
    seed: u64,
    random: fastrand::Rng,
    orders: Orders,
    /// The number of replicas that should run.
    desired: usize,
    running: Vec<Arc<Replica>>,
    past: Vec<Arc<Replica>>,
    /// The faults and the shutdowns in progress.
    pending: JoinSet<()>,
    changes: Arc<Changes>,
    events: BTreeMap<Event, usize>,
    lost: Vec<String>,
}

impl<'a> Fleet<'a> {
    async fn new(server: &'a Server, seed: u64) -> Self {
        let namespace = server.namespace("fleet").await;
        allow(&server.access().service_account(&namespace, "replica")).await;
        let maps = Api::namespaced(server.client().await, &namespace);
        join_all((0..OBJECTS).map(async |number| {
            let metadata =
                ObjectMeta { name: Some(format!("map-{number}")), ..ObjectMeta::default() };
            let data = Some(BTreeMap::from([(CHANGE.to_owned(), "0".to_owned())]));
            let map = ConfigMap { metadata, data, ..ConfigMap::default() };
            maps.create(&PostParams::default(), &map).await.unwrap();
        }))
        .await;
        let changes = Changes { maps, paused: watch::Sender::new(false), last: Default::default() };
        let orders = Orders {
            namespace,
            shards: SHARDS,
            default_durations: false,
            concurrency: 8,
            work: Work::Write,
        };
        let (running, past, pending) = (Vec::new(), Vec::new(), JoinSet::new());
        let (events, lost) = (BTreeMap::new(), Vec::new());
        let random = fastrand::Rng::with_seed(seed);
        let changes = Arc::new(changes);
        let desired = REPLICAS;
        Self {
            server,
            seed,
            random,
            orders,
            desired,
            running,
            past,
            pending,
            changes,
            events,
            lost,
        }
    }

    async fn start(&mut self) -> Arc<Replica> {
        let number = self.running.len() + self.past.len();
        let replica = Arc::new(Replica::start(self.server, number, &self.orders).await);
        self.running.push(Arc::clone(&replica));
        replica
    }

    /// Replaces the replicas that have exited or were killed, like a kubelet.
    async fn maintain(&mut self) {
        let (past, running) = self.running.drain(..).partition(|replica| replica.has_exited());
        self.running = running;
        self.past.extend::<Vec<_>>(past);
        while self.running.len() < self.desired {
            self.start().await;
        }
    }

    /// Returns a replica that works, if at least one more replica works.
    fn victim(&mut self) -> Option<Arc<Replica>> {
        let healthy: Vec<_> = self.running.iter().filter(|replica| replica.is_healthy()).collect();
        (healthy.len() > 1).then(|| Arc::clone(healthy[self.random.usize(..healthy.len())]))
    }

    fn remove(&mut self, replica: &Arc<Replica>) {
        self.running.retain(|other| !Arc::ptr_eq(other, replica));
        self.past.push(Arc::clone(replica));
    }

    async fn happen(&mut self, event: Event) {
        *self.events.entry(event).or_default() += 1;
        match event {
            Event::ScaleUp => self.desired += 1,
            Event::ScaleDown => {
                self.desired -= 1;
                let replica = self.until_victim().await;
                self.remove(&replica);
                if replica.reserve() {
                    self.pending.spawn_local(async move { stop(&replica).await });
                }
            }
            Event::RollingUpdate => {
                for _ in 0..self.desired {
                    let next = self.start().await;
                    until("a new replica has shards", async || {
                        next.shards() > 0 || next.has_exited()
                    })
                    .await;
                    let old = self.running.iter().find(|replica| replica.is_healthy()).cloned();
                    let old = old.filter(|old| !Arc::ptr_eq(old, &next) && old.reserve());
                    if let Some(old) = old {
                        self.remove(&old);
                        stop(&old).await;
                    }
                }
            }
            Event::Fault(Fault::Kill) => self.until_victim().await.kill().await,
            Event::Fault(fault) => {
                let duration = self.random_duration(LONGEST_FAULT);
                let mut replica = self.until_victim().await;
                while fault == Fault::Freeze && !until_busy(&replica).await {
                    replica = self.until_victim().await;
                }
                self.pending.spawn_local(async move { replica.disturb(fault, duration).await });
                // The yield lets the fault begin.
                tokio::task::yield_now().await;
            }
        }
    }

    fn random_duration(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.random.f64())
    }

    async fn until_victim(&mut self) -> Arc<Replica> {
        loop {
            if let Some(victim) = self.victim() {
                return victim;
            }
            sleep(Duration::from_millis(50)).await;
            self.maintain().await;
        }
    }

    /// Returns the next event. The probabilities are the same in all parts of the schedule.
    fn next(&mut self) -> Event {
        loop {
            let event = match self.random.u8(..20) {
                0..=2 => Event::Fault(Fault::Kill),
                3..=6 => Event::Fault(Fault::Freeze),
                7..=9 => Event::Fault(Fault::Silence),
                10..=12 => Event::Fault(Fault::Refuse),
                13..=15 => Event::ScaleUp,
                16..=18 => Event::ScaleDown,
                _ => Event::RollingUpdate,
            };
            let is_possible = match event {
                Event::ScaleUp => self.desired < MOST,
                Event::ScaleDown => self.desired > LEAST,
                Event::Fault(_) | Event::RollingUpdate => true,
            };
            if is_possible {
                return event;
            }
        }
    }

    /// Runs the schedule, and returns the report.
    async fn run(mut self, events: usize) -> Report {
        let changes = Arc::clone(&self.changes);
        let changing = AbortOnDropHandle::new(tokio::spawn(async move { changes.make().await }));
        self.maintain().await;
        self.settle(0).await;
        for count in 1..=events {
            self.maintain().await;
            let event = self.next();
            self.happen(event).await;
            let pause = self.random_duration(LONGEST_PAUSE);
            sleep(pause).await;
            if count % BATCH == 0 || count == events {
                self.settle(count).await;
                if !self.lost.is_empty() {
                    break;
                }
            }
        }
        drop(changing);
        self.desired = 0;
        for replica in std::mem::take(&mut self.running) {
            assert!(replica.has_exited() || replica.reserve());
            if replica.over().is_none() {
                stop(&replica).await;
            }
            self.past.push(replica);
        }
        let mut report = Report::new(&self.events, std::mem::take(&mut self.lost));
        report.add(&self.past);
        report.verify();
        if full() || !report.violations.is_empty() {
            self.keep(&report);
        }
        report
    }

    /// Waits until the faults have ended and all changes were reconciled.
    async fn settle(&mut self, count: usize) {
        while let Some(ended) = self.pending.join_next().await {
            ended.unwrap();
        }
        self.maintain().await;
        self.changes.paused.send_replace(true);
        // If the machine stalls, replicas lose their Leases without a fault, and are replaced. The
        // time limit counts from the last such change of the group.
        let started = Instant::now();
        let (mut since, mut members) = (started, self.past.len());
        let mut left = self.changes.unreconciled().await;
        while !left.is_empty() && since.elapsed() < PATIENCE && started.elapsed() < 10 * PATIENCE {
            sleep(Duration::from_millis(100)).await;
            self.maintain().await;
            if self.past.len() != members {
                (since, members) = (Instant::now(), self.past.len());
            }
            left = self.changes.unreconciled().await;
        }
        let lost = left.iter().map(|name| format!("{name}, after event {count}"));
        self.lost.extend(lost);
        self.changes.paused.send_replace(false);
    }

    /// Keeps the logs of all replicas, and the violations.
    fn keep(&self, report: &Report) {
        let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let dir = dir.join(format!("shards-{}-{}", self.seed, self.orders.namespace));
        std::fs::create_dir_all(&dir).unwrap();
        for replica in &self.past {
            let path = dir.join(format!("replica-{}.log", replica.number));
            std::fs::write(path, replica.node.log()).unwrap();
        }
        let faults: Vec<_> = self
            .past
            .iter()
            .map(|replica| {
                format!("{}: {:?}, over {:?}", replica.number, replica.faults(), replica.over())
            })
            .collect();
        let text = format!("{}\n\n{}\n", report.violations.join("\n"), faults.join("\n"));
        std::fs::write(dir.join("violations"), text).unwrap();
        println!("seed {}: the logs are in {}", self.seed, dir.display());
    }
}

async fn stop(replica: &Replica) {
    let status = replica.stop().await;
    // A replica that has just started does not handle the signal yet.
    let is_new = status.signal().is_some() && replica.said().is_empty();
    // If the machine stalls, a Lease may expire while its replica stops.
    let is_expected = is_new || matches!(status.code(), Some(0 | LOST));
    assert!(is_expected, "{status}: {}", replica.node.log());
}

/// Waits for a run in flight, but not long. Returns false if the replica has exited.
async fn until_busy(replica: &Replica) -> bool {
    for _ in 0..100 {
        let said = replica.said();
        let begun = said.iter().filter(|said| matches!(said, Said::Begun { .. })).count();
        let ended = said.iter().filter(|said| matches!(said, Said::Ended(_))).count();
        if begun > ended || !replica.is_healthy() {
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    replica.is_healthy()
}

/// Runs fleets concurrently, because they wait most of the time.
async fn survive(server: &Server, name: &str, skipped: u64) {
    let (fleets, events) = if full() { (2, 250) } else { (1, 10) };
    let number = |name| std::env::var(name).ok().map(|number| number.parse::<u64>().unwrap());
    let events = number("REQUEUE_E2E_EVENTS").map_or(events, |events| events as usize);
    let seed = number("REQUEUE_E2E_SEED").unwrap_or(1);
    let seed = seed + skipped * fleets;
    let running = join_all(
        (0..fleets).map(async |fleet| Fleet::new(server, seed + fleet).await.run(events).await),
    );
    let mut all = Report::default();
    let reports = LocalSet::new().run_until(running).await;
    reports.into_iter().for_each(|report| all.merge(report));
    publish(&format!(
        "{name}: {} events in {fleets} groups, seeds {seed} to {}\n{all}",
        fleets as usize * events,
        seed + fleets - 1
    ));
    assert!(all.violations.is_empty(), "{:#?}", all.violations);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_object_has_two_runs_and_no_change_is_lost_if_the_server_selects_shards() {
    let gate = "--feature-gates=ShardedListAndWatch=true";
    let Some(server) = Server::start_with(&[gate]).await else { return };
    survive(&server, "The server selects shards", 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_object_has_two_runs_and_no_change_is_lost_if_the_server_ignores_the_selector() {
    let Some(server) = Server::shared().await else { return };
    survive(server, "The server ignores the selector", 1).await;
}
