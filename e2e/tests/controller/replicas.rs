//! Replicas of a controller, only one of which works at a time. When a new leader begins, no run of
//! a former leader may be in progress.

use futures_util::future::{Either, select};
use requeue_e2e::{Nanos, Server, full, now, until};
use serde_json::json;

use crate::faults::{create, names};
use crate::process::{LEADERSHIP_LOST, Orders, Process, known, overlaps};
use crate::world::World;

/// A fault of the leader.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Stop,
    Kill,
    /// The leader's connections are cut, and new connections are refused.
    CutOff,
    /// The leader's connections stay open, but no data arrives.
    Silence,
}

impl Fault {
    const ALL: [Self; 4] = [Self::Stop, Self::Kill, Self::CutOff, Self::Silence];

    async fn happen(self, leader: &mut Process) {
        match self {
            Self::Stop => assert_eq!(leader.node.terminate().await.code(), Some(0)),
            Self::Kill => leader.kill().await,
            Self::CutOff => leader.proxy.down(),
            Self::Silence => leader.proxy.freeze(),
        }
    }
}

/// Waits until one of the replicas works.
async fn one_works(replicas: &[Process]) -> usize {
    let mut found = None;
    until("a replica works", async || {
        found = replicas.iter().position(|replica| replica.worked().is_some());
        found.is_some()
    })
    .await;
    found.unwrap()
}

#[tokio::test]
async fn replicas_of_a_controller_hand_over_without_an_overlap() {
    let Some(server) = Server::shared().await else { return };
    let world = World::new(server, "replicas").await;
    let rules = json!([
        { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"],
          "verbs": ["get", "create", "update"] },
        { "apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
    ]);
    world.access(server).allow(rules).await;
    let names = names("a", 10);
    create(&world, &names).await;
    let start =
        async || Process::start(server, &world, Orders { elects: true, ..Orders::default() }).await;
    let (mut past, mut replicas) = (Vec::new(), vec![start().await, start().await]);
    let mut leader = one_works(&replicas).await;
    let rounds = if full() { 20 } else { 3 };
    for (round, fault) in Fault::ALL.into_iter().cycle().take(rounds).enumerate() {
        let mut former = replicas.swap_remove(leader);
        // The fault happens during the leader's work, which never ends.
        let changing = async {
            for number in 0_u32.. {
                let name = &names[number as usize % names.len()];
                world.change(name, number + 1000 * round as u32).await;
            }
        };
        let failing = async {
            let runs = || former.runs().values().map(Vec::len).sum::<usize>();
            let before = runs();
            until("the replica works", async || runs() > before).await;
            let from = now();
            fault.happen(&mut former).await;
            leader = one_works(&replicas).await;
            from
        };
        let from = match select(Box::pin(changing), Box::pin(failing)).await {
            Either::Left(_) => unreachable!("the changes never end"),
            Either::Right((from, _)) => from,
        };
        if matches!(fault, Fault::CutOff | Fault::Silence) {
            assert_eq!(former.node.ended().await.code(), Some(LEADERSHIP_LOST));
        }
        let ((_, ended), (begun, _)) =
            (former.worked().unwrap(), replicas[leader].worked().unwrap());
        assert!(ended < begun, "{fault:?}: one began {} ns too early", ended - begun);
        let ms = |from: Nanos, to: Nanos| to.saturating_sub(from) / 1_000_000;
        println!(
            "{fault:?}: the last run ended after {} ms, and the next one's first began after {} ms",
            ms(from, ended),
            ms(from, begun),
        );
        past.push(former);
        replicas.push(start().await);
    }
    past.extend(replicas);
    world.is_known_by(|name| known(&past, name)).await;
    assert_eq!(overlaps(&past), 0);
}
