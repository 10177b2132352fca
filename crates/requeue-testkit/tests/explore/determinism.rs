//! The same number gives the same run, as far as the code under test is deterministic.
//!
//! The website example is not: it writes the real time, and a write within the same second as an earlier one changes
//! nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use requeue_testkit::explore::{World, record};
use serde_json::json;
use tokio::time::sleep;

/// Counts the changes of ConfigMaps in one of them.
async fn count(world: World) {
    world.run_replicas(2, |process| async move {
        let maps = Api::<ConfigMap>::namespaced(process.client(), "default");
        let events = watcher(maps.clone(), watcher::Config::default()).default_backoff();
        let mut events = events.touched_objects().boxed();
        for n in 0.. {
            if let Some(Ok(map)) = events.next().await
                && map.metadata.name.as_deref() != Some("count")
            {
                let map = json!({ "apiVersion": "v1", "kind": "ConfigMap", "data": { "n": n.to_string() } });
                let apply = PatchParams::apply(&process.name().replace(' ', "-")).force();
                maps.patch("count", &apply, &Patch::Apply(map)).await?;
            }
        }
        Ok::<_, kube::Error>(())
    });
    let maps = Api::<ConfigMap>::namespaced(world.client(), "default");
    for name in ["a", "b", "c", "d"] {
        sleep(Duration::from_millis(world.draw(0..5_000))).await;
        crate::create(&maps, json!({ "metadata": { "name": name } })).await;
    }
    sleep(Duration::from_secs(120)).await;
}

/// Runs on another thread, because each thread has other random seeds for hash maps.
fn record_apart(number: u64) -> Vec<String> {
    let run = move || record(number, count).expect("it passes");
    std::thread::spawn(run).join().expect("no panic")
}

#[test]
fn a_seed_gives_the_same_requests_twice() {
    let mut different = BTreeSet::new();
    for seed in 0..10 {
        let number = seed << 16 | 0xffff;
        let (first, second) = (record_apart(number), record_apart(number));
        let differ = first.iter().zip(&second).position(|(first, second)| first != second);
        assert_eq!(differ, None, "{:?}", differ.map(|n| (&first[n], &second[n])));
        assert_eq!(first.len(), second.len());
        different.insert(first);
    }
    assert_eq!(different.len(), 10, "different seeds give different runs");
}
