//! A process that is terminated in the middle of its work.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join;
use requeue_e2e::{Server, full, until};

use crate::faults::{create, names};
use crate::process::{CUT_OFF, Orders, Process, known, overlaps};
use crate::world::World;

/// Creates objects, and terminates the process when it has begun a number of runs.
async fn stopped_amid(
    world: &World,
    made: &[String],
    process: &Process,
    begun: impl Fn(&Process) -> bool,
) -> Option<i32> {
    until("the process has listed", async || process.has_listed()).await;
    let creating = async {
        for names in made.chunks(5) {
            create(world, names).await;
        }
    };
    let stopping = async {
        until("the process is in the middle of its work", async || begun(process)).await;
        process.node.terminate().await.code()
    };
    join(creating, stopping).await.1
}

/// Returns the objects whose runs have begun and not ended.
fn undone(process: &Process) -> BTreeSet<String> {
    let undone = |runs: &Vec<_>| runs.iter().any(|run: &crate::process::Run| run.state.is_none());
    process.runs().into_iter().filter(|(_, runs)| undone(runs)).map(|(name, _)| name).collect()
}

#[tokio::test]
async fn sigterm_drains_and_what_is_cut_off_comes_again_in_the_next_process() {
    let Some(server) = Server::shared().await else { return };
    let world = World::new(server, "sigterm").await;
    let (rounds, count) = if full() { (10, 50) } else { (1, 15) };
    let (mut past, mut drained, mut cut_off) = (Vec::new(), 0, 0);
    for round in 0..rounds {
        // The process completes the runs that have begun, and begins no other runs.
        let process = Process::start(server, &world, Orders::default()).await;
        let made = names(&format!("a{round}"), count);
        let amid = |process: &Process| process.runs().contains_key(&made[count / 3]);
        assert_eq!(stopped_amid(&world, &made, &process, amid).await, Some(0));
        assert!(undone(&process).is_empty(), "{:?}", undone(&process));
        drained += process.runs().values().map(Vec::len).sum::<usize>();
        past.push(process);

        // Runs that take too long are cut off.
        let hanging = format!("hang{round}");
        let orders = Orders {
            hangs_at: Some(hanging.clone()),
            shutdown_timeout: Some(Duration::from_millis(500)),
            ..Orders::default()
        };
        let process = Process::start(server, &world, orders).await;
        let hanging = names(&hanging, 3);
        let made: Vec<_> = hanging.iter().cloned().chain(names(&format!("b{round}"), 5)).collect();
        let amid = |process: &Process| hanging.iter().all(|name| process.runs().contains_key(name));
        assert_eq!(stopped_amid(&world, &made, &process, amid).await, Some(CUT_OFF));
        let (said, undone) = (process.cut_off().into_iter().collect(), undone(&process));
        assert_eq!(undone, said);
        assert!(hanging.iter().all(|name| undone.contains(name)), "{undone:?}");
        cut_off += undone.len();
        past.push(process);
    }
    let last = Process::start(server, &world, Orders::default()).await;
    past.push(last);
    world.is_known_by(|name| known(&past, name)).await;
    let last = &past[past.len() - 1];
    assert!(undone(last).is_empty());
    assert_eq!(last.node.terminate().await.code(), Some(0));
    println!("{drained} runs ended in order, {cut_off} were cut off and came again");
    assert_eq!(overlaps(&past), 0);
}
