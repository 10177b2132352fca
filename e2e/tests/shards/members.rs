//! Members that join, stop and are killed, and replicas that are refused.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, ObjectMeta, PatchParams, PostParams};
use kube::{Api, Client};
use requeue_e2e::{Server, until};
use requeue_kube::membership::{Change, HeldShard, Membership, MembershipError, ShardGroup};
use requeue_kube::range::ShardBy;
use serde_json::json;
use tokio::task::JoinHandle;

/// Returns a group with a lease duration of 3 s, a renew deadline of 2 s and a retry period of 0.5
/// s.
pub(crate) fn group(namespace: &str) -> ShardGroup {
    ShardGroup::new("web", namespace).count(16).lease(|lease| {
        let lease = lease.lease_duration(Duration::from_secs(3));
        lease.renew_deadline(Duration::from_secs(2)).retry_period(Duration::from_millis(500))
    })
}

/// Returns a client with exactly the permissions that the API reference lists.
async fn client(server: &Server, namespace: &str) -> Client {
    let verbs = ["get", "list", "watch", "create", "update", "delete"];
    let rules = json!([
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
        { "apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "patch"] },
    ]);
    let access = server.access().service_account(namespace, "web");
    access.allow(rules).await;
    server.access().service_account(namespace, "web").client().await
}

/// The holders of all shards, which the members in this test update before they release a shard
/// and after they have gained it.
#[derive(Clone, Default)]
struct Holders(Arc<Mutex<BTreeMap<u32, (usize, HeldShard)>>>);

impl Holders {
    fn loads(&self) -> BTreeMap<usize, usize> {
        let mut loads = BTreeMap::new();
        for (member, _) in self.0.lock().unwrap().values() {
            *loads.entry(*member).or_default() += 1;
        }
        loads
    }

    fn of(&self, member: usize) -> Vec<HeldShard> {
        let holders = self.0.lock().unwrap();
        holders
            .values()
            .filter(|(holder, _)| *holder == member)
            .map(|(_, held)| held.clone())
            .collect()
    }

    fn remove(&self, member: usize, shard: u32) {
        let (holder, _) = self.0.lock().unwrap().remove(&shard).expect("the shard is held");
        assert_eq!(holder, member, "shard {shard}");
    }

    async fn balance(&self, what: &str, loads: &[(usize, usize)]) {
        let loads = loads.iter().copied().collect();
        until(what, async || self.loads() == loads).await;
    }
}

struct Member {
    number: usize,
    holders: Holders,
    stop: tokio::sync::oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Member {
    async fn join(shards: ShardGroup, client: Client, number: usize, holders: &Holders) -> Self {
        let membership = shards.join(client).await.expect("a member");
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let task = tokio::spawn(work(membership, number, holders.clone(), stopped));
        Self { number, holders: holders.clone(), stop, task }
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
        assert_eq!(self.holders.of(self.number).len(), 0);
    }

    /// Ends the member without a handover.
    async fn kill(self) -> Vec<HeldShard> {
        self.task.abort();
        let _ = self.task.await;
        let held = self.holders.of(self.number);
        held.iter().for_each(|held| self.holders.remove(self.number, held.index()));
        held
    }
}

async fn work(
    mut membership: Membership,
    number: usize,
    holders: Holders,
    mut stop: tokio::sync::oneshot::Receiver<()>,
) {
    let mut stopping = false;
    loop {
        let change = tokio::select! {
            change = membership.next() => change.expect("the member Lease is renewed"),
            Ok(()) = &mut stop, if !stopping => {
                stopping = true;
                membership.stop();
                continue;
            }
        };
        match change {
            Some(Change::Gained(gained)) => {
                for held in gained {
                    assert!(held.is_held());
                    let before = holders.0.lock().unwrap().insert(held.index(), (number, held));
                    assert!(before.is_none(), "{before:?} was still held");
                }
            }
            Some(Change::Release(shards) | Change::Cancel(shards)) => {
                shards.iter().for_each(|shard| holders.remove(number, *shard));
                membership.drained(shards);
            }
            Some(other) => panic!("{other:?}"),
            None => return,
        }
    }
}

#[tokio::test]
async fn members_join_stop_and_are_killed() {
    let Some(server) = Server::shared().await else { return };
    let namespace = server.namespace("shards").await;
    let client = client(server, &namespace).await;
    let admin = server.client().await;
    let maps: Api<ConfigMap> = Api::namespaced(admin.clone(), &namespace);
    let metadata = ObjectMeta { name: Some("map".into()), ..ObjectMeta::default() };
    maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() })
        .await
        .unwrap();

    let holders = Holders::default();
    let join =
        async |number| Member::join(group(&namespace), client.clone(), number, &holders).await;
    let first = join(1).await;
    holders.balance("the first member holds all shards", &[(1, 16)]).await;
    let second = join(2).await;
    holders.balance("two members share the shards", &[(1, 8), (2, 8)]).await;
    let third = join(3).await;
    until("three members share the shards", async || {
        let loads = holders.loads();
        loads.len() == 3 && loads.values().all(|load| (5..=6).contains(load))
    })
    .await;

    first.stop().await;
    holders.balance("two members are left", &[(2, 8), (3, 8)]).await;

    // The fence of the killed member rejects writes after the next holder has claimed the object.
    let killed = second.kill().await;
    let old = killed[0].fence();
    assert!(!killed[0].is_held());
    holders.balance("the last member has taken the shards over", &[(3, 16)]).await;
    let new = holders.of(3).into_iter().find(|held| held.index() == killed[0].index()).unwrap();
    assert_eq!(new.fencing_token().uid(), killed[0].fencing_token().uid());
    assert!(new.fencing_token().transitions() > killed[0].fencing_token().transitions());
    let params = PatchParams::default();
    let map = maps.get("map").await.unwrap();
    let claim = new.fence().claim(&map).await.unwrap().unwrap();
    maps.patch("map", &params, &claim).await.unwrap();
    let write = serde_json::from_value(json!([{ "op": "add", "path": "/data", "value": {} }]));
    let refused = maps.patch("map", &params, &old.patch(write.unwrap())).await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 422));

    let leases: Api<Lease> = Api::namespaced(admin.clone(), &namespace);
    let count = async || leases.list(&ListParams::default()).await.unwrap().items.len();
    until("the Leases of former members are deleted", async || count().await == 2).await;
    third.stop().await;
    assert_eq!(count().await, 1, "the object of the group");

    let events: Api<Event> = Api::namespaced(admin, &namespace);
    let events = events.list(&ListParams::default()).await.unwrap();
    let notes: Vec<_> = events.into_iter().filter_map(|event| event.note).collect();
    assert!(notes.iter().any(|note| note.contains("took over 8 shards of web-")), "{notes:?}");
}

#[tokio::test]
async fn other_contents_and_missing_permissions_are_refused() {
    let Some(server) = Server::shared().await else { return };
    let namespace = server.namespace("refused").await;
    let client = client(server, &namespace).await;
    let refused =
        async |shards: ShardGroup| shards.join(client.clone()).await.expect_err("refused");
    let member = group(&namespace).join(client.clone()).await.unwrap();

    let error = refused(group(&namespace).count(32)).await;
    assert!(matches!(error, MembershipError::Config(_)), "{error}");
    assert!(error.to_string().contains("has 16 shards, not 32"), "{error}");
    let error = refused(group(&namespace).by(ShardBy::Namespace)).await;
    assert!(error.to_string().contains("object.metadata.namespace"), "{error}");
    let error = refused(group(&namespace).objects("websites.example.com")).await;
    assert!(error.to_string().contains("websites.example.com"), "{error}");
    drop(member);

    let admin: Api<Lease> = Api::namespaced(server.client().await, &namespace);
    let metadata = ObjectMeta { name: Some("elected".into()), ..ObjectMeta::default() };
    admin.create(&PostParams::default(), &Lease { metadata, spec: None }).await.unwrap();
    let elected = ShardGroup::new("elected", &namespace);
    let error = refused(elected).await;
    assert!(error.to_string().contains("is not the object of a shard group"), "{error}");

    let rules = json!([{
        "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
        "verbs": ["get", "list", "create", "update", "delete"],
    }]);
    server.access().service_account(&namespace, "half").allow(rules).await;
    let half = server.access().service_account(&namespace, "half").client().await;
    let error = group(&namespace).join(half).await.expect_err("no permission to watch");
    assert!(error.to_string().contains("no permission to watch"), "{error}");
}

#[tokio::test]
async fn a_group_without_changes_sends_nothing_but_renewals() {
    let Some(server) = Server::shared().await else { return };
    let namespace = server.namespace("idle").await;
    let client = client(server, &namespace).await;
    let holders = Holders::default();
    let join =
        async |number| Member::join(group(&namespace), client.clone(), number, &holders).await;
    let (first, second) = (join(1).await, join(2).await);
    holders.balance("two members share the shards", &[(1, 8), (2, 8)]).await;
    let leases: Api<Lease> = Api::namespaced(server.client().await, &namespace);
    let before = leases.get("web").await.unwrap();
    // Waits until both members have renewed their Leases several times.
    let renewed = async || {
        let members = leases.list(&ListParams::default()).await.unwrap();
        members.into_iter().filter_map(|lease| lease.spec?.renew_time).collect::<Vec<_>>()
    };
    let start = renewed().await;
    until("both have renewed", async || {
        let now = renewed().await;
        now.len() == 2
            && start
                .iter()
                .zip(&now)
                .all(|(start, now)| now.0.duration_since(start.0).as_secs() >= 4)
    })
    .await;
    assert_eq!(
        leases.get("web").await.unwrap().metadata.resource_version,
        before.metadata.resource_version
    );
    first.stop().await;
    second.stop().await;
}
