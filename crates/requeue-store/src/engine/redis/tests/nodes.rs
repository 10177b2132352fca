//! Tests how the engine chooses a server if some servers hang, are separated from the others, or wait for others.

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::faults::RIGHTS;
use super::*;
use crate::engine::Finish;

/// Callers repeatedly give up on a server that hangs. The engine then finds the replica of that server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_has_the_place_of_a_server_that_hangs_is_found_by_those_who_give_up() {
    let Some(cluster) = Cluster::start() else { return };
    let engines = [
        engine(&format!("{}?shards=1", cluster.url()), "q").await,
        engine(&cluster.url(), "q").await,
    ];
    let (engine, place) = &engines[0];
    engine.add_keys(place, asking("a")).await.expect("added");
    let (nodes, hung) =
        (cluster.nodes(), engine.shards_of(place).expect("the queue is open")[0].slot);
    let hung = usize::from(hung) * 3 / 16384;
    tokio::task::block_in_place(|| {
        assert_eq!(nodes[hung].cli(&["wait", "1", "60000"]), "1");
        nodes[hung].freeze();
        nodes[hung + 3].cli(&["cluster", "failover", "takeover"]);
    });
    let claims = async {
        let (engine, place) = &engines[0];
        loop {
            if let Ok(claimed) = engine.claim_keys(place, ONE).await {
                break claimed.items.len();
            }
        }
    };
    let adds = async {
        let (engine, place) = &engines[1];
        let brief = Duration::from_millis(200);
        while !matches!(timeout(brief, engine.add_keys(place, asking("b"))).await, Ok(Ok(_))) {}
    };
    assert_eq!(tokio::join!(claims, adds).0, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_was_cut_off_is_not_believed() {
    let Some(cluster) = Cluster::start() else { return };
    let nodes = cluster.nodes();
    tokio::task::block_in_place(|| {
        nodes[0].cli(&["config", "set", "cluster-require-full-coverage", "no"]);
        // The master forgets all other nodes, and continues alone. In Redis 7.0, if another node saw this master
        // without slots, the master could take the slots back from its replica.
        let client = redis::Client::open(nodes[0].url("")).expect("the address is valid");
        let mut connection = client.get_connection().expect("the server answers");
        let mut alone = redis::pipe();
        alone.atomic().cmd("cluster").arg(&["reset", "soft"]);
        alone.cmd("cluster").arg(&["addslotsrange", "0", "5461"]);
        alone.exec(&mut connection).expect("the master is alone");
        until(|| nodes[0].cli(&["cluster", "info"]).contains("cluster_state:ok"));
        nodes[3].cli(&["cluster", "failover", "takeover"]);
        let new = format!(":{}@", nodes[3].port());
        let has_slots = |line: &str| line.contains(&new) && line.contains(" 0-");
        for node in &nodes[1..] {
            until(|| node.cli(&["cluster", "nodes"]).lines().any(has_slots));
        }
    });
    // The first request for the map is sent to the old master.
    let (engine, place) = engine(&cluster.url(), "q").await;
    let keys: Vec<Ask> = (0..64).flat_map(|n| asking(&n.to_string())).collect();
    for part in crate::engine::by_shard(&engine, &place, keys, |ask| &ask.key) {
        engine.add_keys(&place, part).await.expect("added");
    }
    assert_eq!(engine.count_keys(&place).await.expect("counted").ready, 64);
    let count =
        |node: &Server| node.cli(&["dbsize"]).parse::<u32>().expect("the value is a number");
    tokio::task::block_in_place(|| {
        assert_eq!(count(&nodes[0]), 0, "the old master must not receive adds");
        assert!(nodes[1..4].iter().all(|node| count(node) > 0));
    });
}

#[tokio::test]
async fn renewals_and_ends_are_not_held_up_by_adds_that_wait_for_replicas() {
    let Some(server) = Server::start() else { return };
    let (engine, place) = engine(&format!("{}?wait=1", server.url("")), "q").await;
    engine.add_keys(&place, asking("held")).await.expect_err("the server has no replica");
    let held = engine.claim_keys(&place, ONE).await.expect("claimed").items.remove(0);
    let engine = Arc::new(engine);
    let mut adds = JoinSet::new();
    for n in 0..80 {
        let (engine, place) = (Arc::clone(&engine), place.clone());
        adds.spawn(async move { engine.add_keys(&place, asking(&n.to_string())).await });
    }
    // Each add takes 1 s, and adds have four connections.
    waiting(&server, 4).await;
    let (keys, lease) = (vec![(held.key.clone(), held.epoch)], Duration::from_secs(30));
    assert_eq!(engine.renew_leases(&place, keys, lease).await.expect("answered"), [Renewed::Yes]);
    let end = End { key: held.key, epoch: held.epoch, how: Finish::Succeed };
    assert_eq!(engine.finish_deliveries(&place, vec![end]).await.expect("answered"), [true]);
    // A claim is valid even if no replica has its writes.
    let claimed = engine.claim_keys(&place, ONE).await.expect("answered");
    assert_eq!(claimed.items.len(), 1);
    let mut answered = 0;
    while adds.try_join_next().is_some() {
        answered += 1;
    }
    assert!(answered < 40, "{answered} adds were answered before the renewal and the completion");
}

#[tokio::test]
async fn the_rights_that_are_documented_are_enough_for_a_cluster_and_needed() {
    let Some(cluster) = Cluster::shared() else { return };
    let user = |name: &str, rights: &str| {
        for node in cluster.nodes() {
            let rights: Vec<_> = rights.split_whitespace().collect();
            node.cli(&[&["acl", "setuser", name], &rights[..]].concat());
        }
        cluster.url().replacen("://", &format!("://{name}:s3cret@"), 1)
    };
    let (engine, place) = engine(&user("worker", RIGHTS), &name("rights")).await;
    engine.add_keys(&place, asking("a")).await.expect("added");
    assert_eq!(engine.claim_keys(&place, ONE).await.expect("claimed").items.len(), 1);
    for right in ["+cluster|slots", "+cluster|info"] {
        let url = user("poor", &format!("reset {}", RIGHTS.replacen(right, "", 1)));
        let fault = Redis::connect(options(&url)).await.expect_err(right);
        assert_eq!(fault.kind, crate::types::error::Kind::Refused, "{}", fault.source);
    }
}
