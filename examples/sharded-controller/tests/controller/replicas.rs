//! Three replicas beside an API server in memory, under many seeds: crashes, lost Leases, repeated and late events.

use std::collections::BTreeMap;
use std::error::Error;
use std::future::pending;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::client::Body;
use kube::{Api, Client, ResourceExt};
use requeue_kube::membership::ShardGroup;
use requeue_testkit::explore::{Process, World, explore, find_failure, record, replay};
use requeue_testkit::invariants::Invariant;
use serde_json::{Value, from_value, json};
use sharded_controller::{CONTROLLER, ENTRIES, controller, count_entries, run};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::without_gate;

const REPLICAS: u32 = 3;
const OBJECTS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// At most one replica acts on an object.
const ONE_REPLICA: &str = "one replica acts on an object";

/// Runs a replica whose group and whose work have these clients.
async fn replica(group: Client, work: Client) -> Result<(), String> {
    let shards = ShardGroup::new(CONTROLLER, "default").count(8).with_client(group);
    run(controller(work.clone(), shards), work).await.map_err(|error| error.to_string())
}

/// Checks that each token is used by one replica, and that no former holder writes after the next one. Counts the
/// objects that were written by one replica after another.
fn check_writers(world: &World, moves: &Arc<AtomicU32>) {
    let (mut last, moves) = (BTreeMap::new(), Arc::clone(moves));
    world.check(ONE_REPLICA, move |write| {
        let is_work = write.writer.is_process() && write.object.plural == "configmaps";
        let Some(map) = write.after.as_ref().filter(|_| is_work) else { return Ok(()) };
        let token = map["metadata"]["annotations"]["requeue/shard-term"].as_str();
        let token = token.and_then(|token| token.rsplit_once('/')?.1.parse::<i32>().ok());
        let Some(token) = token else {
            return Err(format!("{} writes {} without a token", write.writer, write.object));
        };
        let uid = map["metadata"]["uid"].to_string();
        match last.insert(uid, (token, write.writer)) {
            Some((before, writer))
                if before > token || before == token && writer != write.writer =>
            {
                Err(format!(
                    "{} writes {} with token {token} after {writer} with token {before}",
                    write.writer, write.object
                ))
            }
            Some((_, writer)) if writer != write.writer => {
                moves.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            _ => Ok(()),
        }
    });
}

/// Creates and changes the objects, and waits until all annotations are right.
async fn use_objects(world: World, changes: u64) {
    let maps = Api::<ConfigMap>::default_namespaced(world.client());
    for name in OBJECTS {
        let labels = json!({ "example.com/count": "true" });
        let map = json!({ "metadata": { "name": name, "labels": labels } });
        let map = from_value(map).expect("a ConfigMap");
        maps.create(&PostParams::default(), &map).await.expect("created");
    }
    for change in 0..changes {
        sleep(Duration::from_millis(world.draw(0..10_000))).await;
        let name = OBJECTS[world.draw(0..OBJECTS.len() as u64) as usize];
        let change = Patch::Merge(json!({ "data": { change.to_string(): "" } }));
        maps.patch(name, &PatchParams::default(), &change).await.expect("changed");
    }
    world.converges(check_entries).await;
}

async fn check_entries(client: Client) -> Result<(), Box<dyn Error + Send + Sync>> {
    for map in Api::<ConfigMap>::default_namespaced(client).list(&ListParams::default()).await? {
        let (found, wanted) = (map.annotations().get(ENTRIES), count_entries(&map));
        if found != Some(&wanted) {
            return Err(format!("{}: {found:?} instead of {wanted:?}", map.name_any()).into());
        }
    }
    Ok(())
}

#[test]
fn at_most_one_replica_acts_on_an_object() {
    let (moves, restarts) = (Arc::new(AtomicU32::new(0)), AtomicU64::new(0));
    explore(8, |world| {
        check_writers(&world, &moves);
        world.run_replicas(REPLICAS, |process: Process| {
            let (group, work) = (process.client(), without_gate(process.client()));
            async move { replica(group, work).await }
        });
        let restarts = &restarts;
        async move {
            use_objects(world.clone(), 16).await;
            restarts.fetch_add(world.starts() - u64::from(REPLICAS), Ordering::Relaxed);
        }
    });
    assert!(moves.load(Ordering::Relaxed) > 0, "no object has moved to another replica");
    assert!(restarts.load(Ordering::Relaxed) > 0, "no replica has crashed or lost its Lease");
}

#[test]
fn replicas_that_ignore_the_shards_are_found() {
    let failure = find_failure(20, |world| {
        check_writers(&world, &Arc::default());
        // Each replica is alone in its group.
        let groups = AtomicU32::new(0);
        world.run_replicas(REPLICAS, move |process: Process| {
            let client = without_gate(process.client());
            let group = groups.fetch_add(1, Ordering::Relaxed);
            async move {
                let shards = ShardGroup::new(format!("group-{group}"), "default").count(8);
                run(controller(client.clone(), shards), client).await.map_err(|it| it.to_string())
            }
        });
        use_objects(world, 20)
    });
    let failure = failure.expect("several replicas act on an object");
    assert_eq!(failure.invariant(), Invariant::Custom(ONE_REPLICA), "{failure}");
}

/// The replica that is frozen in its first write of an annotation. The write is on its way, and arrives after the next
/// holder's.
#[derive(Default)]
struct Frozen {
    /// The name of the process.
    name: Mutex<Option<String>>,
    /// The next holder has written.
    is_replaced: Notify,
    /// The status of the late write.
    late: Mutex<Option<u16>>,
}

impl Frozen {
    /// Returns true if the process is frozen, and freezes it if it is the first one.
    fn freeze(&self, process: &str) -> bool {
        self.name.lock().expect("no panic").get_or_insert_with(|| process.to_owned()) == process
    }

    fn is_frozen(&self, process: &str) -> bool {
        self.name.lock().expect("no panic").as_deref() == Some(process)
    }
}

/// Returns a client for the group of a process. A frozen process reaches no Lease.
fn group_client(process: &Process, frozen: Arc<Frozen>) -> Client {
    let (client, name) = (process.client(), process.name());
    let send = move |request: Request<Body>| {
        let (client, frozen, name) = (client.clone(), Arc::clone(&frozen), name.clone());
        async move {
            if frozen.is_frozen(&name) {
                pending::<()>().await;
            }
            client.send(request).await
        }
    };
    Client::new(tower::service_fn(send), "default")
}

/// Returns a client for the work of a process. Without `fenced`, its writes do not test the token.
fn work_client(process: &Process, frozen: Arc<Frozen>, fenced: bool) -> Client {
    let (client, name) = (without_gate(process.client()), process.name());
    let send = move |request: Request<Body>| {
        let (client, frozen, name) = (client.clone(), Arc::clone(&frozen), name.clone());
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect_bytes().await?;
            let is_work = head.method == Method::PATCH
                && std::str::from_utf8(&body)
                    .is_ok_and(|body| body.contains("example.com~1entries"));
            let mut body = body.to_vec();
            if is_work && !fenced {
                let mut operations: Vec<Value> =
                    serde_json::from_slice(&body).expect("a JSON patch");
                operations.retain(|operation| operation["op"] != "test");
                body = serde_json::to_vec(&operations).expect("it is JSON");
            }
            let request = Request::from_parts(head, Body::from(body));
            if !is_work {
                return client.send(request).await;
            }
            if !frozen.freeze(&name) {
                let written = client.send(request).await;
                frozen.is_replaced.notify_one();
                return written;
            }
            // A task has the request, because a request on its way arrives even if its run is dropped.
            let sent = tokio::spawn(async move {
                frozen.is_replaced.notified().await;
                let answered = client.send(request).await;
                let status = answered.as_ref().map_or(0, |answered| answered.status().as_u16());
                *frozen.late.lock().expect("no panic") = Some(status);
                answered
            });
            sent.await.map_err(|error| kube::Error::Service(error.into()))?
        }
    };
    Client::new(tower::service_fn(send), "default")
}

/// Two replicas, and one object. The first holder is frozen in its write until the second one has written.
async fn write_late(world: World, fenced: bool) {
    check_writers(&world, &Arc::default());
    let frozen = Arc::new(Frozen::default());
    let shared = Arc::clone(&frozen);
    world.run_replicas(2, move |process| {
        let group = group_client(&process, Arc::clone(&shared));
        let work = work_client(&process, Arc::clone(&shared), fenced);
        let (shared, name) = (Arc::clone(&shared), process.name());
        async move {
            let ended = replica(group, work).await;
            if shared.is_frozen(&name) {
                // The process has noticed the loss, and is about to exit.
                pending::<()>().await;
            }
            ended
        }
    });
    let maps = Api::<ConfigMap>::default_namespaced(world.client());
    let labels = json!({ "example.com/count": "true" });
    let map = from_value(json!({ "metadata": { "name": "a", "labels": labels } })).expect("a map");
    maps.create(&PostParams::default(), &map).await.expect("created");
    world.converges(check_entries).await;
    let late = *frozen.late.lock().expect("no panic");
    assert_eq!(late, Some(422), "the API server rejects the late write");
}

/// The number of a run without faults.
const NO_FAULTS: u64 = 0;

#[test]
fn a_late_write_of_a_former_holder_is_rejected() {
    replay(NO_FAULTS, |world| write_late(world, true));
}

#[test]
fn a_late_write_without_a_fence_is_found() {
    let failure = record(NO_FAULTS, |world| write_late(world, false)).expect_err("it is found");
    assert_eq!(failure.invariant(), Invariant::Custom(ONE_REPLICA), "{failure}");
}
