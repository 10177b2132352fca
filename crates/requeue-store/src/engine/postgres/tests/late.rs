//! Tests keys of transactions that commit a long time after their adds.

use std::collections::BTreeSet;

use tokio::time::{sleep, timeout};
use tokio_postgres::Client;

use super::changing::{asks, claim, end, other};
use super::*;
use crate::engine::Finish;
use crate::engine::time::Micros;

/// With this interval, no poll and no scan of all keys happens during the test.
const HOUR: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(900);

struct Rig {
    engine: Postgres,
    queue: Place,
    url: String,
    left: BTreeSet<String>,
    busy: u32,
}

impl Rig {
    async fn new(server: &Server) -> Self {
        let (engine, url) = engine(server, HOUR).await;
        let queue =
            engine.open_queue("q", ReaddPolicy::Replace.into()).await.expect("the queue opens");
        Self { engine, queue, url, left: BTreeSet::new(), busy: 0 }
    }

    /// Returns open transactions. Each of them has added a new key of each priority, and has re-added a ready key.
    async fn adders(&mut self, many: usize) -> Vec<Client> {
        let mut adders = Vec::new();
        for n in 0..many {
            let old = format!("{n}-old");
            self.engine.add_keys(&self.queue, asks([&*old])).await.expect("added");
            let adder = other(&self.url).await;
            adder.batch_execute("begin").await.expect("begun");
            let mut add = async |key: String, priority: &str| {
                let add = format!("select requeue.add('q', '{key}', priority => '{priority}')");
                adder.batch_execute(&add).await.expect("added");
                self.left.insert(key);
            };
            add(old, "normal").await;
            for priority in ["low", "normal", "high"] {
                add(format!("{n}-{priority}"), priority).await;
            }
            adders.push(adder);
        }
        adders
    }

    async fn now(&self) -> Micros {
        let row = self.engine.sessions.query_row("select requeue.now()", &[]).await;
        row.expect("the clock is read").get(0)
    }

    /// Returns true if claims no longer search for keys that were added up to the time `at`.
    fn has_passed(&self, at: Micros) -> bool {
        self.engine
            .claims
            .watermark(&self.queue, |mark| mark.current_lows()[..3].iter().all(|&low| low > at))
    }

    /// Acts as a busy worker: adds a key, claims all ready keys, and completes them.
    async fn round(&mut self) {
        self.busy += 1;
        let key = format!("busy-{}", self.busy);
        self.engine.add_keys(&self.queue, asks([&*key])).await.expect("added");
        let claimed =
            self.engine.claim_keys(&self.queue, claim(9, PATIENCE)).await.expect("claimed");
        assert!(!claimed.items.is_empty());
        for out in claimed.items {
            self.left.remove(&out.key.to_string());
            let ended =
                self.engine.finish_deliveries(&self.queue, end(&out, Finish::Succeed)).await;
            assert_eq!(ended.expect("finished"), [true]);
        }
    }

    async fn rounds_until_passed(&mut self) {
        let at = self.now().await;
        while !self.has_passed(at) {
            self.round().await;
        }
    }

    /// Acts as a waiting worker, and takes all remaining keys. The worker claims when it is woken, and at the times
    /// that claims have returned.
    async fn work(&mut self) {
        let mut wakes = self.engine.subscribe_wakes(&self.queue);
        while !self.left.is_empty() {
            wakes.mark_unchanged();
            let claim = Claim { poll: HOUR, ..claim(2, PATIENCE) };
            let claimed = self.engine.claim_keys(&self.queue, claim).await.expect("claimed");
            for out in &claimed.items {
                self.left.remove(&out.key.to_string());
                let ended =
                    self.engine.finish_deliveries(&self.queue, end(out, Finish::Succeed)).await;
                assert_eq!(ended.expect("finished"), [true]);
            }
            if claimed.items.is_empty() {
                tokio::select! {
                    () = sleep(claimed.next.unwrap_or(HOUR)) => {}
                    changed = wakes.changed() => changed.expect("the listener runs"),
                }
            }
        }
    }

    /// Works while `what` runs, and then until no key remains.
    async fn work_during(&mut self, what: impl Future<Output = ()>) {
        let both = async { tokio::join!(self.work(), what) };
        if timeout(PATIENCE, both).await.is_err() {
            panic!("never delivered: {:?}", self.left);
        }
    }

    /// Makes claims that find no key, as a waiting worker does, until claims have passed the present time.
    async fn waits_until_passed(&mut self) {
        let at = self.now().await;
        while !self.has_passed(at) {
            let claim = Claim { poll: HOUR, ..claim(1, PATIENCE) };
            let claimed = self.engine.claim_keys(&self.queue, claim).await.expect("claimed");
            assert_eq!(claimed.items, []);
        }
    }

    async fn waited_until(&self) -> Micros {
        let row =
            self.engine.sessions.query_row("select waited_until from requeue.queues", &[]).await;
        row.expect("the row is read").get(0)
    }
}

async fn commit(adders: &[Client]) {
    for adder in adders {
        adder.batch_execute("commit").await.expect("committed");
    }
}

#[tokio::test]
async fn who_is_busy_finds_what_is_committed_late() {
    let Some(server) = Server::shared() else { return };
    let mut rig = Rig::new(server).await;
    rig.round().await;
    let adders = rig.adders(3).await;
    rig.rounds_until_passed().await;
    assert_eq!(rig.left.len(), 3 * 4, "the keys are locked: {:?}", rig.left);
    commit(&adders).await;
    let all = async {
        while !rig.left.is_empty() {
            rig.round().await;
        }
    };
    timeout(PATIENCE, all).await.expect("all are found");
    assert_eq!(rig.waited_until().await, 0, "no process may have waited");
}

#[tokio::test]
async fn who_waits_finds_what_is_committed_late() {
    let Some(server) = Server::shared() else { return };
    let mut rig = Rig::new(server).await;
    // This claim tells adds that a process waits.
    let none = rig.engine.claim_keys(&rig.queue, Claim { poll: HOUR, ..claim(1, PATIENCE) }).await;
    assert_eq!(none.expect("claimed").items, []);
    let adders = rig.adders(3).await;
    rig.rounds_until_passed().await;
    rig.work_during(commit(&adders)).await;
}

#[tokio::test]
async fn who_waits_finds_what_the_only_transaction_of_all_commits_late() {
    let Some(server) = Server::start() else { return };
    for is_new in [false, true] {
        let mut rig = Rig::new(&server).await;
        rig.waits_until_passed().await;
        let adders = rig.adders(1).await;
        if is_new {
            rig.engine = at(&rig.url, HOUR);
        }
        // No transaction ends during the wait. Therefore, no snapshot names the transaction of the add.
        rig.waits_until_passed().await;
        rig.work_during(commit(&adders)).await;
    }
}

#[tokio::test]
async fn who_begins_to_wait_after_the_adds_finds_what_is_committed_late() {
    let Some(server) = Server::shared() else { return };
    let mut rig = Rig::new(server).await;
    rig.round().await;
    let adders = rig.adders(3).await;
    rig.rounds_until_passed().await;
    assert_eq!(rig.waited_until().await, 0, "the adds must send no notification");
    // The transactions commit after the worker has begun to wait.
    let claims = rig.engine.claims.clone();
    let queue = rig.queue.clone();
    let waits = async {
        while !claims.watermark(&queue, |mark| mark.has_unaware()) {
            tokio::task::yield_now().await;
        }
        commit(&adders).await;
    };
    rig.work_during(waits).await;
}

#[tokio::test]
async fn a_process_that_is_started_meanwhile_finds_what_is_committed_late() {
    let Some(server) = Server::shared() else { return };
    let mut rig = Rig::new(server).await;
    let adders = rig.adders(3).await;
    rig.engine = at(&rig.url, HOUR);
    rig.rounds_until_passed().await;
    commit(&adders[1..]).await;
    rig.work_during(commit(&adders[..1])).await;
}
