//! Tests of objects that are deleted, and created again in another shard under the same name.

use super::*;

const TAKES: Duration = Duration::from_secs(10);

/// Returns an object with the name `name`. It has the uid of the object `uid_of`, and is therefore
/// in the shard of `uid_of`.
fn recreated(name: &str, uid_of: &str, version: u32) -> ConfigMap {
    let mut map = map(name, version);
    map.metadata.uid = Some(format!("uid of {uid_of}"));
    map
}

impl Replica {
    /// Returns the number of runs that have begun, and the number of runs that have ended.
    fn counts(&self) -> (usize, usize) {
        let log = self.log.names();
        let count = |suffix| log.iter().filter(|entry| entry.ends_with(suffix)).count();
        (count("begins"), count("ends"))
    }
}

/// Starts a replica that holds the shards in `gained`. During the first run of an object in shard
/// 1, the object is created again, with a uid in shard 2.
async fn recreated_during_a_run(gained: impl IntoIterator<Item = u32>) -> (FakeApi, Replica) {
    let name = name_in(1);
    let api = FakeApi::new(true, [map(&name, 1)]);
    let replica = Replica::start(&api, by_uid(), TAKES);
    replica.ownership.gain(gained);
    replica.log.reaches(1).await;
    api.replace([recreated(&name, &name_in(2), 2)]);
    (api, replica)
}

#[tokio::test(start_paused = true)]
async fn a_release_waits_for_the_run_of_an_object_that_came_to_its_shard() {
    let (_api, replica) = recreated_during_a_run(0..SHARDS).await;
    // The second run is for the object in shard 2, although its key is still in the group of shard
    // 1.
    replica.log.reaches(3).await;
    assert_eq!(replica.counts(), (2, 1));
    let mut release = Box::pin(replica.ownership.release([2]));
    assert!((&mut release).now_or_never().is_none(), "a run is in flight");
    release.await;
    assert_eq!(replica.counts(), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn a_loss_stops_the_run_of_an_object_that_came_to_the_shard() {
    let (_api, replica) = recreated_during_a_run(0..SHARDS).await;
    replica.log.reaches(3).await;
    let lost = tokio::time::Instant::now();
    replica.ownership.lose([2]).await;
    assert!(lost.elapsed() < Duration::from_secs(1));
    sleep(10 * TAKES).await;
    assert_eq!(replica.counts(), (2, 1));
}

/// The run in flight is for the former object, but another replica would run the same key.
#[tokio::test(start_paused = true)]
async fn a_release_waits_for_the_run_of_the_former_object_of_a_key() {
    let (_api, replica) = recreated_during_a_run([1, 2]).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(replica.counts(), (1, 0));
    replica.ownership.release([2]).await;
    assert_eq!(replica.counts(), (1, 1));
    sleep(10 * TAKES).await;
    assert_eq!(replica.counts(), (1, 1), "its pending run is the next holder's");
}

#[tokio::test(start_paused = true)]
async fn an_object_that_came_to_a_shard_runs_after_the_release_of_the_former_shard() {
    let (_api, replica) = recreated_during_a_run([1, 2]).await;
    sleep(Duration::from_secs(5)).await;
    replica.ownership.release([1]).await;
    sleep(10 * TAKES).await;
    assert_eq!(replica.counts(), (2, 2));
    // Since its last run, the key is in the group of shard 2.
    replica.ownership.release([2]).await;
    replica.ownership.gain([2]);
    sleep(10 * TAKES).await;
    assert_eq!(replica.counts(), (3, 3));
}

fn uid_in(shard: u32) -> String {
    format!("uid of {}", name_in(shard))
}

/// Returns the queue of a controller that is attached to `ownership`.
fn attached(ownership: &ChangingShards, forget: impl Fn() + Send + Sync + 'static) -> ObjectQueue {
    let queue =
        config().queue_builder(Some(Arc::clone(ownership.places()))).unwrap().build().unwrap();
    ownership.attach_controller(Attached {
        queue: queue.clone(),
        forget: Box::new(move |_| forget()),
        regroup: Box::new(|_| {}),
    });
    queue
}

#[tokio::test(start_paused = true)]
async fn a_run_begins_only_for_the_known_object_of_a_shard_that_is_held_and_listed() {
    let ownership = by_uid();
    attached(&ownership, || {});
    let key = ObjectKey::new(Some("ns"), "object");
    let begin = |shard: u32| ownership.begin_run(&key, &|| Some(uid_in(shard)));
    assert!(begin(1).is_none(), "not held");
    ownership.gain([1]);
    assert_eq!(ownership.learn_shard(&key, &uid_in(1)), Learned::Held);
    assert!(begin(1).is_none(), "not listed");
    ownership.mark_listed(1);
    assert!(begin(1).is_some());
    assert!(begin(2).is_none(), "the store has another object than the watch");
    assert!(ownership.begin_run(&key, &|| None).is_some(), "a deleted object");

    ownership.gain([2]);
    assert_eq!(ownership.learn_shard(&key, &uid_in(2)), Learned::Moved);
    assert!(begin(1).is_none(), "the store is behind the watch");
    assert!(begin(2).is_none());
    ownership.mark_listed(2);
    let Some(in_flight) = begin(2) else { panic!("it is listed") };
    // The run in flight is now counted for both shards.
    assert_eq!(ownership.learn_shard(&key, &uid_in(1)), Learned::Moved);
    for shard in [1, 2] {
        assert!(!ownership.is_idle(shard));
        let mut release = Box::pin(ownership.release([shard]));
        assert!((&mut release).now_or_never().is_none());
    }
    assert!(begin(1).is_none(), "it is being released");
    drop(in_flight);
    ownership.release([1, 2]).await;
    assert_eq!(ownership.learn_shard(&key, &uid_in(1)), Learned::NotHeld);
    assert!(ownership.begin_run(&key, &|| None).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_run_counts_for_each_shard_into_which_its_object_has_moved() {
    let ownership = by_uid();
    attached(&ownership, || {});
    for is_owner in [false, true] {
        let key = ObjectKey::new(Some("ns"), &format!("object {is_owner}"));
        ownership.gain([1, 3]);
        ownership.learn_shard(&key, &uid_in(1));
        ownership.mark_listed(*ownership.gains().borrow());
        let Some(in_flight) = ownership.begin_run(&key, &|| None) else { panic!("it is listed") };
        assert_eq!(ownership.learn_shard(&key, &uid_in(2)), Learned::Left);
        if is_owner {
            ownership.learn_owner(&key, &uid_in(3), &ObjectMeta::default());
        }
        assert_eq!(ownership.learn_shard(&key, &uid_in(3)), Learned::Held);
        let mut release = Box::pin(ownership.release([3]));
        assert!((&mut release).now_or_never().is_none(), "the run acts on the object in shard 3");
        drop(in_flight);
        release.await;
    }
}

#[tokio::test]
async fn keys_are_dropped_in_one_walk_that_blocks_no_other_shard() {
    let ownership = by_uid();
    let (begun, mut walks) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, may_end) = std::sync::mpsc::channel::<()>();
    let may_end = std::sync::Mutex::new(may_end);
    let queue = attached(&ownership, move || {
        begun.send(()).unwrap();
        may_end.lock().unwrap().recv().unwrap();
    });
    ownership.gain(0..SHARDS);
    ownership.mark_listed(1);
    let keys: Vec<_> = (0..SHARDS).map(|shard| ObjectKey::new(None, &name_in(shard))).collect();
    let add = |shard: u32| {
        let held = ownership.hold(&keys[shard as usize]);
        held.map(|_held| queue.add(keys[shard as usize].clone()))
    };
    for shard in 0..SHARDS {
        ownership.learn_shard(&keys[shard as usize], &uid_in(shard));
        assert!(add(shard).is_some());
    }

    ownership.release([1]).await;
    walks.recv().await.unwrap();
    // While the keys of shard 1 are being dropped, other shards can be used and released.
    assert!((add(1).is_none(), add(2).is_some()) == (true, true));
    ownership.release([3]).await;
    ownership.release([4, 5]).await;
    ownership.gain([1, 4]);
    assert_eq!(ownership.held(), [0, 2, 4, 6, 7].into(), "shard 1 waits for the walk");
    assert_eq!(*ownership.gains().borrow(), 2);

    go_on.send(()).unwrap();
    walks.recv().await.unwrap();
    assert!(ownership.held().contains(&1));
    assert_eq!(*ownership.gains().borrow(), 3, "it is listed after the walk");
    go_on.send(()).unwrap();
    ownership.drops().wait_for(|&drops| drops != 1).await.unwrap();
    assert_eq!(*ownership.drops().borrow(), 2, "one walk for the shards 3 and 5");
    assert!(walks.try_recv().is_err());
    assert_eq!(queue.len(), 5, "the keys of 0, 2, 4, 6 and 7");
}

/// The handler of an event first stores the object's shard, and adds its key last.
#[test]
fn a_shard_is_not_forgotten_while_an_event_is_handled() {
    let ownership = by_uid();
    ownership.gain([1]);
    let (key, places) = (ObjectKey::new(None, "object"), ownership.places());
    places.begin_event();
    ownership.learn_shard(&key, &uid_in(1));
    // In the meantime, the run for the former object ends. The new object is not in the store yet.
    places.forget_shard_of(&key, |_| true);
    assert!(ownership.is_held(&key));
    places.end_event(|_| false);
    assert!(ownership.is_held(&key), "there is an object now");
    places.forget_shard_of(&key, |_| true);
    assert!(!ownership.is_held(&key));
    assert_eq!(places.shard_of(&key), None);
}

#[tokio::test]
async fn a_key_leaves_its_group_if_its_object_is_replaced_in_a_shard_that_is_not_held() {
    let ownership = by_uid();
    attached(&ownership, || {});
    let key = ObjectKey::new(Some("ns"), "object");
    ownership.gain([1]);
    assert_eq!(ownership.learn_shard(&key, &uid_in(1)), Learned::Held);
    assert_eq!(ownership.learn_shard(&key, &uid_in(2)), Learned::Left);
    // A run is in flight, so the key stays in the queue. Its group is changed after the run.
    assert!(ownership.places().regroup(&key, || false));
    ownership.gain([2]);
    assert_eq!(ownership.learn_shard(&key, &uid_in(2)), Learned::Held);
    assert!(ownership.places().regroup(&key, || true));
    assert!(!ownership.places().regroup(&key, || true));
}
