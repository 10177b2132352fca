//! Checks that the operations conform to the model.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tokio::time::timeout;

use super::*;
use crate::tests::BoxFuture;
use crate::tests::cancelling::{check_cancels, check_workers};
use crate::tests::conformance::past::check_past;
use crate::tests::conformance::{
    PATTERN, Rig, actions, activity, attempts, cases, check, check_bulk, check_grouped,
    check_jitter, check_queues, check_traces, grouped_steps, groupings, groups, one_group, rates,
    runtime, schedules, steps, unclaimed_and_cancelled,
};
use crate::tests::dropping::check_drops;
use crate::tests::parking::check_expired;
use crate::tests::pausing::check_pauses;
use crate::tests::scheduling::check_schedules;

/// Replaces the clock by a Redis key next to each shard.
const CLOCK: &str =
    "local function now() return tonumber(redis.call('GET', KEYS[1] .. ':now') or 1) end";

struct Fixture {
    engine: Arc<Redis>,
    shards: u16,
}

impl Fixture {
    async fn new(url: &str, shards: u16) -> Self {
        let mut options = options(url);
        options.shards = Some(shards);
        let engine = Redis::connect_with(options, CLOCK).await.expect("the engine connects");
        engine.migrate_schema().await.expect("the schema is created");
        Self { engine: Arc::new(engine), shards }
    }

    /// Asserts that a repair of the shard would change nothing.
    async fn assert_whole(&self, shard: &Shard) {
        if shard.queue.grouping.is_none() {
            return;
        }
        let size = async |number: usize, command: &str| {
            let mut size = redis::cmd(command);
            size.arg(&shard.keys[number - 1]);
            let size = self.engine.nodes.run_command(shard.slot, &size).await.expect("answered");
            values::number(size).expect("a number")
        };
        let mut places = 0;
        for number in [2, 3, 4, 5, 7, 11, 15] {
            places += size(number, "ZCARD").await;
        }
        assert_eq!(places, size(1, "HLEN").await, "places of rows");
        let mut numbers = redis::cmd("HGETALL");
        numbers.arg(&shard.keys[15]);
        let numbers = self.engine.nodes.run_command(shard.slot, &numbers).await.expect("answered");
        let mut numbers: BTreeMap<String, i64> = redis::from_redis_value(numbers).expect("numbers");
        let sum = numbers.get("\u{1}").copied().unwrap_or_default();
        assert_eq!(sum, size(5, "ZCARD").await, "keys in flight");
        assert_eq!(numbers.values().sum::<i64>(), 2 * sum, "{numbers:?}");
        numbers.remove("\u{1}");
        assert!(numbers.values().all(|&number| number > 0), "{numbers:?}");
    }
}

impl Rig for Fixture {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine) as _
    }

    fn set_time(&self, now: i64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let queues: Vec<_> = lock(&self.engine.queues).values().map(Arc::clone).collect();
            for queue in queues.iter().map(|shards| &shards[0].queue) {
                let (record, slot) = names::queue(&queue.name);
                let mut set = redis::cmd("SET");
                set.arg(format!("{record}:now")).arg(now);
                self.engine.nodes.run_command(slot, &set).await.expect("the time is set");
            }
            for shard in queues.iter().flat_map(|shards| &**shards) {
                let mut set = redis::cmd("SET");
                set.arg(format!("{}:now", shard.keys[0])).arg(now);
                self.engine.nodes.run_command(shard.slot, &set).await.expect("the time is set");
                self.assert_whole(shard).await;
            }
        })
    }

    fn is_ordered(&self) -> bool {
        self.shards == 1
    }
}

fn conforms(url: &str, shards: u16, readd_policy: ReaddPolicy) {
    let runtime = runtime();
    let check = |steps: &[_]| {
        runtime.block_on(async {
            let rig = Fixture::new(url, shards).await;
            check(&rig, &name("conforming"), readd_policy, steps).await;
        });
    };
    check(&unclaimed_and_cancelled());
    proptest!(cases(8), |(steps in steps(60))| check(&steps));
}

fn groups_conform(url: &str, shards: u16, group_by: &str) {
    let runtime = runtime();
    let check = |policy, steps: &[_]| {
        runtime.block_on(async {
            let rig = Fixture::new(url, shards).await;
            check_grouped(&rig, &name("groups"), (policy, group_by), steps).await;
        });
    };
    check(ReaddPolicy::Hold, &one_group());
    let default = if shards == 1 { 30 } else { 10 };
    proptest!(cases(default), |(steps in grouped_steps(60), (policy, _) in groupings())| {
        check(policy, &steps);
    });
}

#[test]
fn groups_keep_their_limits_and_lose_no_key() {
    let Some(server) = Server::shared() else { return };
    groups_conform(&server.url(""), 1, "");
    groups_conform(&server.url(""), 1, PATTERN);
}

#[test]
fn groups_of_several_shards_keep_their_limits_and_lose_no_key() {
    let Some(server) = Server::shared() else { return };
    groups_conform(&server.url(""), 3, PATTERN);
    let Some(cluster) = Cluster::shared() else { return };
    groups_conform(&cluster.url(), 4, PATTERN);
}

#[test]
fn schedules_fire_once_for_each_time() {
    let Some(server) = Server::shared() else { return };
    let runtime = runtime();
    for shards in [1, 3] {
        proptest!(cases(8), |(steps in schedules::steps(60), has_groups: bool)| {
            runtime.block_on(async {
                let rig = Fixture::new(&server.url(""), shards).await;
                let group_by = has_groups.then_some("");
                schedules::check(&rig, &name("schedules"), group_by, &steps).await;
            });
        });
    }
    let rig = runtime.block_on(Fixture::new(&server.url(""), 1));
    runtime.block_on(schedules::check_missed(&rig, &name("missed")));
}

#[test]
fn the_numbers_per_minute_are_those_of_a_map() {
    let Some(server) = Server::shared() else { return };
    let runtime = runtime();
    let mut urls = vec![server.url("")];
    urls.extend(Cluster::shared().map(Cluster::url));
    for url in urls {
        proptest!(cases(8), |(steps in activity::steps(60))| {
            runtime.block_on(async {
                let rig = Fixture::new(&url, 3).await;
                activity::check(&rig, &name("activity"), &steps).await;
            });
        });
    }
}

#[test]
fn the_last_actions_are_those_of_a_list() {
    let Some(server) = Server::shared() else { return };
    let runtime = runtime();
    let mut urls = vec![server.url("")];
    urls.extend(Cluster::shared().map(Cluster::url));
    for url in urls {
        proptest!(cases(4), |(steps in actions::steps(20))| {
            runtime.block_on(async {
                let rig = Fixture::new(&url, 3).await;
                actions::check(&rig, &name("actions"), &steps).await;
            });
        });
    }
}

fn rates_conform(url: &str, shards: u16, group_by: Option<&str>) {
    let runtime = runtime();
    proptest!(cases(8), |((rates, steps) in (rates::rates(), rates::steps(80)))| {
        runtime.block_on(async {
            let rig = Fixture::new(url, shards).await;
            rates::check(&rig, &name("rates"), group_by, rates, &steps).await;
        });
    });
}

#[test]
fn rates_are_kept_and_reached() {
    let Some(server) = Server::shared() else { return };
    rates_conform(&server.url(""), 1, None);
    rates_conform(&server.url(""), 1, Some(""));
    let Some(cluster) = Cluster::shared() else { return };
    rates_conform(&cluster.url(), 1, Some(""));
}

#[tokio::test]
async fn slow_claims_reach_a_rate() {
    let Some(server) = Server::shared() else { return };
    rates::check_share(&Fixture::new(&server.url(""), 1).await, &name("share")).await;
}

#[tokio::test]
async fn the_first_rate_is_kept() {
    let Some(server) = Server::shared() else { return };
    rates::check_first(&Fixture::new(&server.url(""), 1).await, &name("first")).await;
}

#[tokio::test]
async fn a_rate_changes() {
    let Some(server) = Server::shared() else { return };
    rates::check_changes(&Fixture::new(&server.url(""), 1).await, &name("changes")).await;
}

#[tokio::test]
async fn a_queue_with_several_shards_has_no_rate() {
    let Some(server) = Server::shared() else { return };
    let engine = Fixture::new(&server.url(""), 3).await.engine;
    let place = engine.open_queue(&name("several"), Settings::default()).await.expect("it opens");
    let fault = engine.set_rate(&place, "10/s".parse().ok()).await.expect_err("it has shards");
    let said = fault.source.to_string();
    assert!(
        said.contains("has 3 shards, and only a queue with one shard can have a rate"),
        "{said}"
    );
}

#[tokio::test]
async fn groups_take_turns_by_weight() {
    let Some(server) = Server::shared() else { return };
    groups::check_turns(&Fixture::new(&server.url(""), 1).await, &name("turns")).await;
}

#[tokio::test]
async fn no_group_gets_two_turns_in_a_row() {
    let Some(server) = Server::shared() else { return };
    groups::check_second_visit(&Fixture::new(&server.url(""), 1).await, &name("second")).await;
}

#[tokio::test]
async fn a_claim_ends_a_priority_before_it_begins_the_next() {
    let Some(server) = Server::shared() else { return };
    groups::check_priorities(&Fixture::new(&server.url(""), 1).await, &name("priorities")).await;
}

#[tokio::test]
async fn the_oldest_ready_key_is_found_in_each_group() {
    let Some(server) = Server::shared() else { return };
    groups::check_oldest_ready(&Fixture::new(&server.url(""), 1).await, &name("oldest")).await;
}

#[tokio::test]
async fn a_freed_group_is_found_without_a_search() {
    let Some(server) = Server::shared() else { return };
    groups::check_freed_groups(&Fixture::new(&server.url(""), 1).await, &name("freed")).await;
}

#[test]
fn replaces_as_the_model_does() {
    let Some(server) = Server::shared() else { return };
    conforms(&server.url(""), 1, ReaddPolicy::Replace);
}

#[test]
fn holds_as_the_model_does() {
    let Some(server) = Server::shared() else { return };
    conforms(&server.url(""), 1, ReaddPolicy::Hold);
}

#[test]
fn several_shards_are_one_queue() {
    let Some(server) = Server::shared() else { return };
    conforms(&server.url(""), 3, ReaddPolicy::Hold);
}

#[test]
fn a_cluster_replaces_as_the_model_does() {
    let Some(cluster) = Cluster::shared() else { return };
    conforms(&cluster.url(), 1, ReaddPolicy::Replace);
    conforms(&cluster.url(), 4, ReaddPolicy::Replace);
}

#[test]
fn a_cluster_holds_as_the_model_does() {
    let Some(cluster) = Cluster::shared() else { return };
    conforms(&cluster.url(), 1, ReaddPolicy::Hold);
}

#[tokio::test]
async fn claims_name_the_keys_that_they_park() {
    let Some(server) = Server::shared() else { return };
    for shards in [1, 3] {
        let rig = Fixture::new(&server.url(""), shards).await;
        check_expired(&rig, &name("expired")).await;
    }
}

#[tokio::test]
async fn trace_contexts_stay_with_a_run_until_it_succeeds() {
    let Some(server) = Server::shared() else { return };
    for shards in [1, 3] {
        let rig = Fixture::new(&server.url(""), shards).await;
        check_traces(&rig, &name("traces")).await;
    }
}

#[tokio::test]
async fn the_last_runs_are_kept_with_the_key() {
    let Some(server) = Server::shared() else { return };
    for shards in [1, 3] {
        let rig = Fixture::new(&server.url(""), shards).await;
        for group_by in [None, Some(PATTERN.into())] {
            check_past(&rig, &name("past"), Settings { group_by, ..Settings::default() }).await;
        }
    }
}

#[tokio::test]
async fn the_last_failures_are_kept() {
    let Some(server) = Server::shared() else { return };
    for shards in [1, 3] {
        let rig = Fixture::new(&server.url(""), shards).await;
        for check in 0..3 {
            let queue = name("attempts");
            match check {
                0 => attempts::check_attempts(&rig, &queue).await,
                1 => {
                    let group_by = Some(PATTERN.into());
                    let settings = Settings { group_by, ..Settings::default() };
                    attempts::check_attempts_with(&rig, &queue, settings).await;
                }
                _ => attempts::check_drop(&rig, &queue).await,
            }
            let left = server.cli(&["keys", &format!("requeue:{{{queue}/*:attempts")]);
            assert_eq!(left.trim(), "", "{left}");
        }
    }
    attempts::check_bound(&Fixture::new(&server.url(""), 1).await, &name("attempts")).await;
}

#[tokio::test]
async fn keys_that_fail_at_once_do_not_come_back_at_once() {
    let Some(server) = Server::shared() else { return };
    for shards in [1, 3] {
        let rig = Fixture::new(&server.url(""), shards).await;
        check_jitter(&rig, &name("jitter")).await;
    }
}

#[tokio::test]
async fn a_store_lists_its_queues() {
    let Some(server) = Server::shared() else { return };
    check_queues(&store(&server.url("")).await, &name("queues")).await;
    let Some(cluster) = Cluster::shared() else { return };
    check_queues(&store(&cluster.url()).await, &name("queues")).await;
}

#[tokio::test]
async fn many_keys_are_changed_at_once() {
    let Some(server) = Server::shared() else { return };
    check_bulk(&store(&server.url("")).await, &name("bulk")).await;
    check_bulk(&store(&format!("{}?shards=3", server.url(""))).await, &name("bulk")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_queue_is_gone_for_all_who_have_it_open() {
    let Some(server) = Server::shared() else { return };
    for url in [server.url(""), format!("{}?shards=3", server.url(""))] {
        check_drops(&store(&url).await, &store(&url).await, &name("drop")).await;
    }
    let Some(cluster) = Cluster::shared() else { return };
    check_drops(&store(&cluster.url()).await, &store(&cluster.url()).await, &name("drop")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_applies_to_all_processes() {
    let Some(server) = Server::shared() else { return };
    for url in [server.url(""), format!("{}?shards=3", server.url(""))] {
        check_pauses(&store(&url).await, &store(&url).await, &name("pause")).await;
    }
    let Some(cluster) = Cluster::shared() else { return };
    let url = cluster.url();
    check_pauses(&store(&url).await, &store(&url).await, &name("pause")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_processes_fire_schedules() {
    let Some(server) = Server::shared() else { return };
    for url in [server.url(""), format!("{}?shards=3", server.url(""))] {
        check_schedules(&store(&url).await, &store(&url).await, &name("schedules")).await;
    }
    let Some(cluster) = Cluster::shared() else { return };
    let url = cluster.url();
    check_schedules(&store(&url).await, &store(&url).await, &name("schedules")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_reaches_its_process() {
    let Some(server) = Server::shared() else { return };
    let (one, other) = (store(&server.url("")).await, store(&server.url("")).await);
    check_cancels(&one, &other, &name("cancel")).await;
    check_workers(&one, &other, &name("cancel")).await;
    let Some(cluster) = Cluster::shared() else { return };
    let (one, other) = (store(&cluster.url()).await, store(&cluster.url()).await);
    check_cancels(&one, &other, &name("cancel")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wake_that_is_passed_on_reaches_another_process() {
    let Some(server) = Server::shared() else { return };
    let name = name("passing");
    let (taker, place) = engine(&server.url(""), &name).await;
    let (waiter, other) = engine(&server.url(""), &name).await;
    let (mut taken, mut passed) = (taker.subscribe_wakes(&place), waiter.subscribe_wakes(&other));
    assert!(taker.claim_keys(&place, ONE).await.expect("claimed").items.is_empty());
    taker.set_paused(&place, false).await.expect("resumed");
    let patience = Duration::from_secs(60);
    timeout(patience, taken.changed()).await.expect("a wake").expect("the engine is open");
    assert!(waiter.claim_keys(&other, ONE).await.expect("claimed").items.is_empty());
    taker.pass_wake_on(&place);
    timeout(patience, passed.changed()).await.expect("a wake").expect("the engine is open");
    assert!(!taken.has_changed().expect("the engine is open"));
}
