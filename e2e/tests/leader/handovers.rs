//! Handovers between leaders that are killed, cut off, frozen and stopped.

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};
use requeue_e2e::{Nanos, Server, full, now};
use serde_json::json;

use crate::replica::{OBJECT, Replica, Said};
use crate::report::{Fault, Report};

/// Returns the running replica that was the first to report `what` after `since`, and the time of
/// the report.
fn first(replicas: &[Replica], what: Said, since: Nanos) -> Option<(usize, Nanos)> {
    replicas.iter().enumerate().find_map(|(index, replica)| {
        Some((index, replica.said(what).into_iter().find(|at| *at > since)?))
    })
}

/// Waits until a running replica reports `what`, and returns the replica and the time of the
/// report.
async fn until(replicas: &[Replica], what: Said, since: Nanos) -> (usize, Nanos) {
    let mut found = None;
    requeue_e2e::until(&format!("a replica says {what:?}"), async || {
        found = first(replicas, what, since);
        found.is_some()
    })
    .await;
    found.expect("the wait has found one")
}

/// The running replicas, and the report about the replicas that have stopped.
struct Fleet {
    server: &'static Server,
    namespace: String,
    running: Vec<Replica>,
    started: usize,
    report: Report,
}

impl Fleet {
    async fn start(&mut self) {
        self.running.push(Replica::start(self.server, &self.namespace, self.started).await);
        self.started += 1;
    }

    /// Replaces replicas whose term has ended, because each replica leads at most once. If the
    /// machine stalls for seconds, a replica may lose the lease without a fault.
    async fn replace_spent(&mut self) {
        while let Some((spent, _)) = first(&self.running, Said::End, 0) {
            let spent = self.running.swap_remove(spent);
            spent.node.kill().await;
            self.report.replica(&spent, None);
            self.start().await;
        }
    }

    /// Injects a fault into the leader, and returns the next leader.
    async fn hand_over(&mut self, leader: usize, fault: Fault) -> usize {
        let leader = [self.running.swap_remove(leader)];
        let [replica] = &leader;
        // The leader is in the middle of its work.
        let (_, begun) = until(&leader, Said::Begin, 0).await;
        until(&leader, Said::Accepted, 0).await;
        for other in &self.running {
            until(std::slice::from_ref(other), Said::Standing, 0).await;
        }
        let start = now();
        // After this time, the stopped process performs no action.
        let mut stopped = None;
        match fault {
            Fault::Kill => {
                replica.node.kill().await;
                stopped = Some(start);
            }
            Fault::Refuse => replica.proxy.down(),
            Fault::Silence => replica.proxy.freeze(),
            Fault::Freeze => {
                replica.node.freeze();
                stopped = Some(start);
            }
            Fault::Stop => assert!(replica.node.terminate().await.success()),
        }
        let (_, led) = until(&self.running, Said::Begin, begun).await;
        let mut found = None;
        requeue_e2e::until("another replica has claimed the object", async || {
            found = first(&self.running, Said::Claimed, begun);
            if found.is_none() {
                self.replace_spent().await;
            }
            found.is_some()
        })
        .await;
        let (next, claimed) = found.expect("the wait has found one");
        if matches!(fault, Fault::Refuse | Fault::Silence | Fault::Freeze) {
            replica.proxy.up();
            replica.proxy.thaw();
            replica.node.thaw();
            // The process continues, and sends the writes that it has prepared.
            requeue_e2e::until("three late writes were answered", async || {
                late(replica, Said::Refused, claimed) + late(replica, Said::Accepted, claimed) >= 3
            })
            .await;
            until(&leader, Said::End, 0).await;
            replica.node.kill().await;
        }
        self.report.replica(replica, stopped);
        let late = (late(replica, Said::Refused, claimed), late(replica, Said::Accepted, claimed));
        self.report.handed_over(fault, led.saturating_sub(start), late);
        next
    }
}

/// Returns the number of answers to writes that the replica sent after another replica had claimed
/// the object.
fn late(replica: &Replica, answer: Said, claimed: Nanos) -> usize {
    replica.said(answer).into_iter().filter(|sent| *sent > claimed).count()
}

/// Creates a role with exactly the permissions of a leader, and an object for its writes.
async fn prepare(server: &Server, namespace: &str) {
    let rules = json!([
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
          "verbs": ["get", "create", "update"] },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"] },
    ]);
    server.access().service_account(namespace, "web").allow(rules).await;
    let metadata = ObjectMeta { name: Some(OBJECT.into()), ..ObjectMeta::default() };
    let map = ConfigMap { metadata, ..ConfigMap::default() };
    let maps = Api::namespaced(server.client().await, namespace);
    maps.create(&PostParams::default(), &map).await.expect("a map");
}

/// Runs a share of the handovers. Shares run in parallel, because most of the time is spent
/// waiting.
async fn hand_overs(replicas: usize, skipped: usize) {
    let Some(server) = Server::shared().await else { return };
    let namespace = server.namespace("leader").await;
    prepare(server, &namespace).await;
    let count = if full() { 50 } else { 5 };
    let (running, report) = (Vec::new(), Report::default());
    let mut fleet = Fleet { server, namespace: namespace.clone(), running, started: 0, report };
    for _ in 0..replicas {
        fleet.start().await;
    }
    let (mut leader, _) = until(&fleet.running, Said::Begin, 0).await;
    for fault in Fault::ALL.into_iter().cycle().skip(skipped).take(count) {
        leader = fleet.hand_over(leader, fault).await;
        fleet.start().await;
    }
    for replica in &fleet.running {
        fleet.report.replica(replica, None);
    }
    fleet.report.print(replicas);
    fleet.report.check(count);

    let events: Api<Event> = Api::namespaced(server.client().await, &namespace);
    let events = events.list(&ListParams::default()).await.expect("a list");
    let notes: Vec<_> = events.into_iter().filter_map(|event| event.note).collect();
    for what in ["became leader", "stopped leading"] {
        assert!(notes.iter().any(|note| note.ends_with(what)), "{notes:?}");
    }
}

#[tokio::test]
async fn two_replicas_never_lead_at_once() {
    hand_overs(2, 0).await;
}

#[tokio::test]
async fn three_replicas_never_lead_at_once() {
    hand_overs(3, 3).await;
}
