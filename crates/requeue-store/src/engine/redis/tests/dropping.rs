//! Tests drops that are interrupted, and marks that are lost.

use requeue_servers::{Language, Point, Proxy};

use super::cuts::hash_of;
use super::*;
use crate::engine::{Dropped, Finish};
use crate::types::error::{Answer, Kind};

fn kind<T: std::fmt::Debug>(answer: Answer<T>) -> Kind {
    answer.expect_err("the operation fails").kind
}

fn mark(name: &str) -> String {
    format!("requeue:{{{name}/0.0}}:generation")
}

#[tokio::test]
async fn nothing_is_left_of_a_dropped_queue() {
    let Some(server) = Server::shared() else { return };
    let name = name("traces");
    let (engine, place) = engine(&server.url(""), &name).await;
    let _woken = engine.subscribe_wakes(&place);
    for key in ["a", "b", "c"] {
        engine.add_keys(&place, asking(key)).await.expect("added");
    }
    engine.claim_keys(&place, ONE).await.expect("claimed");
    // The engine cannot read this row, and sets it aside.
    server.cli(&["hset", &format!("requeue:{{{name}/0.0}}:rows"), "b", "not a row"]);
    let all = Claim { max: 9, ..ONE };
    assert_eq!(engine.claim_keys(&place, all).await.expect("claimed").damaged.len(), 1);
    let aside = format!("requeue:{{{name}/0.0}}:aside");
    assert_eq!(server.cli(&["zcard", &aside]), "1");
    let dropped = engine.drop_queue(&name, true).await.expect("dropped");
    let had = matches!(dropped, Dropped::Yes(StateCounts { in_flight: 2, damaged: 1, .. }));
    assert!(had, "{dropped:?}");
    // An operation with the old handle creates no Redis key.
    assert_eq!(kind(engine.add_keys(&place, asking("d")).await), Kind::Dropped);
    assert_eq!(kind(engine.claim_keys(&place, ONE).await), Kind::Dropped);
    assert_eq!(server.cli(&["keys", &format!("*{name}*")]), "");
    assert_eq!(server.cli(&["hexists", "requeue:queues", &name]), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drop_whose_count_gets_no_answer_has_changed_nothing() {
    let Some(server) = Server::start() else { return };
    let scripts = Scripts::new(CLOCK);
    let (_, place) = engine(&server.url(""), "q").await;
    for script in [&scripts.open, &scripts.drop] {
        let proxy = Proxy::start(Language::Redis, server.port());
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let late = Redis::connect(options(&url)).await.expect("the engine connects");
        let cut = proxy.cut(&hash_of(script), Point::Answer);
        assert_eq!(kind(late.drop_queue("q", false).await), Kind::Absent);
        cut.happened();
        assert_eq!(server.cli(&["get", &mark("q")]), place.generation.to_string());
    }
}

#[tokio::test]
async fn a_queue_whose_schedules_another_program_has_replaced_can_be_dropped() {
    let Some(server) = Server::shared() else { return };
    for keys_too in [false, true] {
        let name = name("foreign");
        let (engine, _) = engine(&server.url(""), &name).await;
        server.cli(&["set", &format!("requeue:{{{name}/0.0}}:schedules"), "not a hash"]);
        let dropped = engine.drop_queue(&name, keys_too).await.expect("dropped");
        assert_eq!(dropped, Dropped::Yes(StateCounts::default()));
        assert_eq!(server.cli(&["keys", &format!("*{name}*")]), "");
    }
}

#[tokio::test]
async fn a_drop_that_is_interrupted_is_completed_by_the_next() {
    let Some(server) = Server::shared() else { return };
    let name = name("sealed");
    let (engine, place) = engine(&server.url(""), &name).await;
    let of =
        Identity { name: name.clone(), generation: place.generation, floor: 0, grouping: None };
    let shards = names::shards(&Arc::new(of), 1);
    let mut seal = engine.nodes.scripts.drop.on(&shards[0]);
    seal.arg("seal").arg(7);
    engine.nodes.run_script(shards[0].slot, &seal).await.expect("sealed");
    // During a drop, the scripts refuse each operation.
    assert_eq!(kind(engine.add_keys(&place, asking("a")).await), Kind::Unable);
    assert_eq!(kind(engine.claim_keys(&place, ONE).await), Kind::Unable);
    let fault =
        engine.open_queue(&name, Settings::default()).await.expect_err("a drop is in progress");
    assert!(fault.source.to_string().contains("drop it again"), "{}", fault.source);
    let fault = engine.drop_queue(&name, true).await.expect_err("another drop may be in progress");
    assert_eq!(fault.kind, Kind::Absent);
    assert_eq!(fault.source.to_string(), "another process is dropping the queue");
    // The drop has not continued for longer than its time limit.
    server.cli(&["set", &mark(&name), &format!("-{} 7 1000", place.generation)]);
    let dropped = engine.drop_queue(&name, false).await.expect("dropped");
    assert_eq!(dropped, Dropped::Yes(StateCounts::default()));
    assert_eq!(kind(engine.add_keys(&place, asking("a")).await), Kind::Dropped);
    assert_eq!(server.cli(&["keys", &format!("*{name}*")]), "");
}

#[tokio::test]
async fn whoever_opens_a_queue_completes_its_drop_first() {
    let Some(server) = Server::start() else { return };
    for creates in [true, false] {
        let name = name("marked");
        let (engine, place) = engine(&server.url(""), &name).await;
        engine.add_keys(&place, asking("a")).await.expect("added");
        let out = engine.claim_keys(&place, ONE).await.expect("claimed").items.remove(0);
        server.cli(&["set", &mark(&name), &format!("-{} 7 1000", place.generation)]);
        server.cli(&["hset", &format!("requeue:{{{name}}}:queue"), "dropping", "1"]);
        let ahead = out.epoch + 1_000_000_000;
        // Before the interruption, the drop has raised the floor.
        server.cli(&["set", "requeue:dropped", &ahead.to_string()]);
        let listed = engine.list_queues().await.expect("listed");
        assert!(listed.iter().all(|queue| queue.name != name), "{listed:?}");
        if creates {
            let settings = Settings { readd_policy: ReaddPolicy::Hold, ..Settings::default() };
            let new = engine.open_queue(&name, settings).await.expect("the queue is created");
            assert_eq!(new.readd_policy, ReaddPolicy::Hold);
            assert_ne!(new.generation, place.generation);
            assert_eq!(engine.count_keys(&new).await.expect("counted"), StateCounts::default());
            engine.add_keys(&new, asking("a")).await.expect("added");
            let later = engine.claim_keys(&new, ONE).await.expect("claimed").items.remove(0);
            assert!(later.epoch > ahead, "{} after {ahead}", later.epoch);
            let listed = engine.list_queues().await.expect("listed");
            assert_eq!(listed.iter().filter(|queue| queue.name == name).count(), 1);
        } else {
            let found = engine.find_queue(&name).await.expect("looked up");
            assert!(found.is_none(), "{found:?}");
            assert_eq!(server.cli(&["keys", &format!("*{name}*")]), "");
        }
        assert_eq!(kind(engine.add_keys(&place, asking("b")).await), Kind::Dropped);
    }
}

#[tokio::test]
async fn a_mark_that_the_server_has_lost_is_no_drop() {
    let Some(server) = Server::start() else { return };
    let (engine, place) = engine(&server.url(""), "q").await;
    let (record, mark) = ("requeue:{q}:queue", mark("q"));
    for lost in [&[&*mark][..], &[&*mark, record], &[record]] {
        for key in lost {
            assert_eq!(server.cli(&["del", key]), "1", "{key} of {lost:?}");
        }
        engine.add_keys(&place, asking("a")).await.expect("added");
        let out = engine.claim_keys(&place, ONE).await.expect("claimed").items.remove(0);
        let end = End { key: out.key, epoch: out.epoch, how: Finish::Succeed };
        assert_eq!(engine.finish_deliveries(&place, vec![end]).await.expect("finished"), [true]);
        // A process that opens the queue later finds the same queue.
        let again = engine.open_queue("q", Settings::default()).await.expect("the queue opens");
        assert_eq!(again.generation, place.generation, "{lost:?}");
    }
    server.cli(&["flushall"]);
    engine
        .add_keys(&place, asking("a"))
        .await
        .expect("the mark is restored, because the floor is gone as well");
    engine.migrate_schema().await.expect("the schema is created again");
    engine.open_queue("q", Settings::default()).await.expect("the queue opens");
    engine.drop_queue("q", true).await.expect("dropped");
    assert_eq!(kind(engine.add_keys(&place, asking("a")).await), Kind::Dropped);
}

#[tokio::test]
async fn what_a_failover_brings_back_of_a_dropped_queue_is_not_in_a_later_one() {
    let Some(server) = Server::shared() else { return };
    let name = name("back");
    let (engine, place) = engine(&server.url(""), &name).await;
    let (rows, mark) = (format!("requeue:{{{name}/0.0}}:rows"), mark(&name));
    engine.add_keys(&place, asking("a")).await.expect("added");
    let copied = [&rows, &mark].map(|key| server.cli(&["copy", key, &format!("{key}-copy")]));
    assert_eq!(copied, ["1", "1"]);
    engine.drop_queue(&name, true).await.expect("dropped");
    let new = engine.open_queue(&name, Settings::default()).await.expect("the queue is created");
    for key in [&rows, &mark] {
        server.cli(&["rename", &format!("{key}-copy"), key]);
    }
    assert_eq!(
        kind(engine.add_keys(&new, asking("b")).await),
        Kind::Dropped,
        "the mark of the old queue must be rejected"
    );
    let new = engine.open_queue(&name, Settings::default()).await.expect("the queue opens");
    assert_eq!(engine.count_keys(&new).await.expect("counted"), StateCounts::default());
    engine.add_keys(&new, asking("b")).await.expect("added");
    assert_eq!(kind(engine.add_keys(&place, asking("b")).await), Kind::Dropped);
}

/// A process reads the record of a queue. Before it marks the shards, the queue is dropped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_opened_while_it_is_dropped_is_another_one_or_none() {
    let Some(server) = Server::start() else { return };
    let scripts = Scripts::new(CLOCK);
    for shards in [1, 3] {
        let direct_url = format!("{}?shards={shards}", server.url(""));
        for (what, script) in
            [("open", &scripts.open), ("check", &scripts.check), ("mark", &scripts.mark)]
        {
            for creates in [true, false] {
                let name = name("reopened");
                let (direct, old) = engine(&direct_url, &name).await;
                direct.add_keys(&old, asking("a")).await.expect("added");
                if what == "mark" {
                    // The mark was missing, because a mark is confirmed only in this case.
                    server.cli(&["del", &mark(&name)]);
                }
                let proxy = Proxy::start(Language::Redis, server.port());
                let url = format!("redis://127.0.0.1:{}?shards={shards}", proxy.port());
                let late = Redis::connect(options(&url)).await.expect("the engine connects");
                let point = if what == "open" { Point::Answer } else { Point::Request };
                let held = proxy.hold(&hash_of(script), point);
                let opening = tokio::spawn({
                    let name = name.clone();
                    async move {
                        match creates {
                            true => late.open_queue(&name, Settings::default()).await.map(Some),
                            false => late.find_queue(&name).await,
                        }
                        .map(|place| (late, place))
                    }
                });
                held.happened();
                direct.drop_queue(&name, true).await.expect("dropped");
                held.release();
                let (late, place) =
                    opening.await.expect("the task does not panic").expect("the open succeeds");
                let how = format!("{what}, {creates}, {shards} shards");
                assert_eq!(place.is_some(), creates, "{how}");
                assert_eq!(kind(direct.add_keys(&old, asking("b")).await), Kind::Dropped, "{how}");
                assert_eq!(kind(direct.claim_keys(&old, ONE).await), Kind::Dropped, "{how}");
                match place {
                    Some(place) => {
                        assert_ne!(place.generation, old.generation, "{how}");
                        late.add_keys(&place, asking("c")).await.expect("added");
                        let again = direct.open_queue(&name, Settings::default()).await;
                        let again = again.expect("the queue opens");
                        assert_eq!(again.generation, place.generation, "{how}");
                        assert_eq!(
                            direct.count_keys(&again).await.expect("counted").ready,
                            1,
                            "{how}"
                        );
                    }
                    None => assert_eq!(server.cli(&["keys", &format!("*{name}*")]), "", "{how}"),
                }
            }
        }
    }
}

/// The tokens are ahead of the clock, as if the server's clock was set back.
#[tokio::test]
async fn epochs_that_are_ahead_of_the_clock_rise_across_a_drop() {
    let Some(server) = Server::start() else { return };
    for shards in [1, 3] {
        let (url, name) = (format!("{}?shards={shards}", server.url("")), name("ahead"));
        let (engine, place) = engine(&url, &name).await;
        let of =
            Identity { name: name.clone(), generation: place.generation, floor: 0, grouping: None };
        for shard in names::shards(&Arc::new(of), shards) {
            server.cli(&["set", &shard.keys[7], "2000000000000000"]);
        }
        let mut last = 2_000_000_000_000_000 * i64::from(shards);
        let mut place = place;
        for _ in 0..2 {
            engine.add_keys(&place, asking("a")).await.expect("added");
            let out = engine.claim_keys(&place, ONE).await.expect("claimed").items.remove(0);
            assert!(out.epoch > last, "{} after {last}", out.epoch);
            last = out.epoch;
            engine.drop_queue(&name, true).await.expect("dropped");
            place =
                engine.open_queue(&name, Settings::default()).await.expect("the queue is created");
        }
    }
}
