//! Tests of two controllers that repeatedly hand shards over to each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use super::*;

/// The runs in flight of both controllers, and the latest version of each object that any run has
/// seen.
#[derive(Default)]
struct World {
    running: BTreeSet<String>,
    seen: BTreeMap<String, u32>,
    overlaps: usize,
    runs: usize,
}

fn version(map: &ConfigMap) -> u32 {
    map.metadata.resource_version.as_ref().unwrap().parse().unwrap()
}

fn replica(api: &FakeApi, number: usize, world: &Arc<Mutex<World>>) -> (ChangingShards, Reading) {
    let ownership = by_uid();
    let controller = Controller::new(api.maps(), watcher::Config::default())
        .name(format!("hands over {number}"))
        .with_config(Config::default().concurrency(4))
        .owning(ownership.clone());
    let reconcile = |map: Arc<ConfigMap>, world: Arc<Mutex<World>>| async move {
        let name = name(&*map);
        {
            let mut world = world.lock().unwrap();
            world.runs += 1;
            let overlaps = !world.running.insert(name.clone());
            world.overlaps += usize::from(overlaps);
        }
        sleep(Duration::from_millis(fastrand::u64(1..200))).await;
        let mut world = world.lock().unwrap();
        world.running.remove(&name);
        let seen = world.seen.entry(name).or_default();
        *seen = (*seen).max(version(&map));
        Ok::<_, Infallible>(Action::await_change())
    };
    let stream = controller.run(reconcile, policy::backoff, Arc::clone(world));
    (ownership, Reading::of(stream))
}

#[tokio::test(start_paused = true)]
async fn shards_move_between_two_controllers_without_a_gap_or_an_overlap() {
    fastrand::seed(1);
    let names: Vec<_> = (0..40).map(|n| format!("{n}-of-the-maps")).collect();
    let api = FakeApi::new(true, names.iter().map(|name| map(name, 1)));
    let world = Arc::default();
    let replicas = [0, 1].map(|number| replica(&api, number, &world));
    let owners = replicas.each_ref().map(|(ownership, _)| ownership.clone());
    owners[0].gain(0..SHARDS);
    let mut holders = [0; SHARDS as usize];
    for step in 2..200_u32 {
        api.change(|maps| {
            let map = &mut maps[fastrand::usize(..names.len())];
            map.metadata.resource_version = Some(step.to_string());
        });
        sleep(Duration::from_millis(fastrand::u64(..300))).await;
        let shard = fastrand::u32(..SHARDS);
        let holder = &mut holders[shard as usize];
        owners[*holder].release([shard]).await;
        *holder = 1 - *holder;
        owners[*holder].gain([shard]);
    }
    sleep(Duration::from_secs(60)).await;
    let expected: BTreeMap<_, _> = api.all().iter().map(|map| (name(map), version(map))).collect();
    let world = world.lock().unwrap();
    assert_eq!(world.overlaps, 0);
    assert_eq!(world.seen, expected, "each object's last version was reconciled");
    assert!(world.runs > 200, "{} runs", world.runs);
}
