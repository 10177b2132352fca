//! Tests of the lists and selectors of a controller whose shards change.

use super::*;

fn range(from: u32, to: u32) -> String {
    let hash = |shard: u32| u128::from(shard) << 61;
    format!("shardRange(object.metadata.uid,'{:#018x}','{:#018x}')", hash(from), hash(to))
}

#[tokio::test(start_paused = true)]
async fn a_release_lists_nothing_and_a_later_list_has_the_narrow_selector() {
    let names: Vec<_> = (0..4).map(name_in).collect();
    let api = FakeApi::new(true, names.iter().map(|name| map(name, 1)));
    let replica = Replica::start(&api, by_uid(), QUICK);
    replica.ownership.gain(0..4);
    assert_eq!(replica.runs().await, sorted(names.clone()));
    assert_eq!(api.take_selectors(), [range(0, 4)]);

    for shard in [0, 1] {
        replica.ownership.release([shard]).await;
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(api.take_selectors(), [""; 0], "the watch goes on");
    assert_eq!(replica.stored(), sorted(names[2..].to_vec()), "they have left the store");

    // The change makes the watch expire, and it lists again.
    api.change(|maps| {
        maps.iter_mut().for_each(|map| map.metadata.resource_version = Some("2".into()));
    });
    sleep(Duration::from_secs(5)).await;
    assert_eq!(replica.runs().await, sorted(names[2..].to_vec()));
    assert_eq!(api.take_selectors(), [range(2, 4)]);

    replica.ownership.gain([0]);
    assert_eq!(replica.runs().await, [names[0].as_str()]);
    assert_eq!(api.take_selectors(), [format!("{}||{}", range(0, 1), range(2, 4))]);
    assert_eq!(replica.stored(), sorted([&names[..1], &names[2..]].concat()));
}

#[tokio::test(start_paused = true)]
async fn the_first_event_of_a_released_shard_narrows_the_watch() {
    for honours in [true, false] {
        let names: Vec<_> = (0..4).map(name_in).collect();
        let api = FakeApi::new(honours, names.iter().map(|name| map(name, 1)));
        let replica = Replica::start(&api, by_uid(), QUICK);
        replica.ownership.gain(0..4);
        assert_eq!(replica.runs().await, sorted(names.clone()));
        assert_eq!(api.take_watched(), [(range(0, 4), 1)]);

        api.take_selectors();
        replica.ownership.release([0, 1]).await;
        api.touch(&names[3]);
        assert_eq!(replica.runs().await, [names[3].as_str()]);
        assert_eq!(api.take_watched(), [], "nothing was wasted");
        for name in &names {
            api.touch(name);
            sleep(Duration::from_secs(1)).await;
        }
        assert_eq!(api.take_watched(), [(range(2, 4), 3)], "from the version of the event");
        assert_eq!(replica.runs().await, sorted(names[2..].to_vec()));
        assert_eq!(api.take_selectors(), [""; 0], "no list is necessary");

        // The controller lists the gained shard, and then watches it.
        replica.ownership.gain([0]);
        assert_eq!(replica.runs().await, [names[0].as_str()]);
        let selector = format!("{}||{}", range(0, 1), range(2, 4));
        assert_eq!(api.take_watched(), [(selector, 6)]);
        api.touch(&names[0]);
        assert_eq!(replica.runs().await, [names[0].as_str()]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_without_shards_watches_nothing() {
    let name = name_in(1);
    let api = FakeApi::new(true, [map(&name, 1)]);
    let replica = Replica::start(&api, by_uid(), QUICK);
    replica.ownership.gain([1]);
    assert_eq!(replica.runs().await, [name.as_str()]);
    api.take_selectors();
    replica.ownership.release([1]).await;
    assert_eq!(replica.runs().await, [""; 0]);
    api.change(|maps| maps[0].metadata.resource_version = Some("2".into()));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(api.take_selectors(), [""; 0]);
    assert_eq!(replica.stored(), [""; 0]);
}

/// If a gain interrupted the list in progress, the shards in this list would have to wait for
/// another list.
#[tokio::test(start_paused = true)]
async fn a_gain_does_not_interrupt_the_list_of_an_earlier_gain() {
    let names: Vec<_> = (0..3).map(name_in).collect();
    let api = FakeApi::new(true, names.iter().map(|name| map(name, 1)));
    let replica = Replica::start(&api, by_uid(), QUICK);
    api.lists_take(10);
    for shard in 0..3 {
        replica.ownership.gain([shard]);
        sleep(Duration::from_secs(4)).await;
    }
    // The first list ends after 10 s, and the objects in its shard run.
    assert_eq!(replica.runs().await, [names[0].as_str()]);
    sleep(Duration::from_secs(20)).await;
    assert_eq!(replica.runs().await, sorted(names[1..].to_vec()));
    assert_eq!(api.take_selectors(), [range(0, 1), range(0, 3)]);
}
