//! Checks that the operations conform to the model.

use std::cell::Cell;
use std::sync::Arc;

use proptest::prelude::*;
use requeue_servers::PgBouncer;

use super::mixed::Mixed;
use super::*;
use crate::tests::BoxFuture;
use crate::tests::cancelling::{check_cancels, check_renewals, check_workers};
use crate::tests::conformance::past::check_past;
use crate::tests::conformance::{
    Rig, actions, activity, attempts, cases, check, check_bulk, check_grouped, check_jitter,
    check_queues, check_traces, grouped_steps, groupings, groups, rates, runtime, schedules, steps,
    unclaimed_and_cancelled,
};
use crate::tests::dropping::check_drops;
use crate::tests::parking::check_expired;
use crate::tests::pausing::check_pauses;
use crate::tests::scheduling::check_schedules;

struct Fixture {
    engine: Arc<Postgres>,
    /// The engine under test.
    tested: Arc<dyn Engine>,
}

impl Fixture {
    async fn new(server: &Server) -> Self {
        Self::at(&server.database()).await
    }

    async fn at(url: &str) -> Self {
        // With an interval of zero, each claim scans all keys, and returns the exact due time of the next key.
        let engine = at(url, Duration::ZERO);
        engine.migrate_schema().await.expect("the schema is created");
        stop_time(&engine).await;
        let engine = Arc::new(engine);
        Self { tested: Arc::clone(&engine) as _, engine }
    }

    /// Returns a fixture in which claims by the engine and claims in SQL alternate.
    async fn mixed(url: &str) -> Self {
        let rig = Self::at(url).await;
        Self { tested: Arc::new(Mixed::new(Arc::clone(&rig.engine), url).await), ..rig }
    }
}

impl Rig for Fixture {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.tested)
    }

    fn set_time(&self, now: i64) -> BoxFuture<'_, ()> {
        Box::pin(set_time(&self.engine, now))
    }
}

/// The cases of a random test. Each case uses a separate queue in one database.
struct Runs {
    runtime: tokio::runtime::Runtime,
    rig: Fixture,
    count: Cell<u32>,
}

impl Runs {
    fn new(url: &str) -> Self {
        Self::of(|| Fixture::at(url))
    }

    fn mixed(url: &str) -> Self {
        Self::of(|| Fixture::mixed(url))
    }

    fn of(rig: impl AsyncFnOnce() -> Fixture) -> Self {
        let runtime = runtime();
        let rig = runtime.block_on(rig());
        Self { runtime, rig, count: Cell::new(0) }
    }

    fn check(&self, check: impl AsyncFnOnce(&Fixture, &str)) {
        let number = self.count.replace(self.count.get() + 1);
        self.runtime.block_on(check(&self.rig, &format!("q{number}")));
    }
}

fn conforms(readd_policy: ReaddPolicy) {
    let Some(server) = Server::shared() else { return };
    conforms_at(&server.database(), readd_policy);
}

fn conforms_at(url: &str, readd_policy: ReaddPolicy) {
    runs_conform(&Runs::new(url), readd_policy);
}

fn runs_conform(runs: &Runs, readd_policy: ReaddPolicy) {
    let check =
        |steps: &[_]| runs.check(async |rig, name| check(rig, name, readd_policy, steps).await);
    check(&unclaimed_and_cancelled());
    proptest!(cases(15), |(steps in steps(60))| check(&steps));
}

#[test]
fn groups_keep_their_limits_and_lose_no_key() {
    let Some(server) = Server::shared() else { return };
    let runs = Runs::new(&server.database());
    proptest!(cases(30), |(steps in grouped_steps(60), grouping in groupings())| {
        runs.check(async |rig, name| check_grouped(rig, name, grouping, &steps).await);
    });
}

#[test]
fn schedules_fire_once_for_each_time() {
    let Some(server) = Server::shared() else { return };
    let runs = Runs::new(&server.database());
    proptest!(cases(8), |(steps in schedules::steps(60), has_groups: bool)| {
        let group_by = has_groups.then_some("");
        runs.check(async |rig, name| schedules::check(rig, name, group_by, &steps).await);
    });
    runs.check(async |rig, name| schedules::check_missed(rig, name).await);
}

#[test]
fn the_numbers_per_minute_are_those_of_a_map() {
    let Some(server) = Server::shared() else { return };
    let runs = Runs::new(&server.database());
    proptest!(cases(8), |(steps in activity::steps(60))| {
        runs.check(async |rig, name| activity::check(rig, name, &steps).await);
    });
}

#[test]
fn the_last_actions_are_those_of_a_list() {
    let Some(server) = Server::shared() else { return };
    let runs = Runs::new(&server.database());
    proptest!(cases(4), |(steps in actions::steps(20))| {
        runs.check(async |rig, name| actions::check(rig, name, &steps).await);
    });
}

#[test]
fn rates_are_kept_and_reached() {
    let Some(server) = Server::shared() else { return };
    let runs = Runs::new(&server.database());
    let run = (rates::rates(), any::<bool>(), rates::steps(60));
    proptest!(cases(8), |((rates, grouped, steps) in run)| {
        let by = grouped.then_some("");
        runs.check(async |rig, name| rates::check(rig, name, by, rates, &steps).await);
    });
}

#[tokio::test]
async fn slow_claims_reach_a_rate() {
    let Some(server) = Server::shared() else { return };
    rates::check_share(&Fixture::new(server).await, "q").await;
}

#[tokio::test]
async fn the_first_rate_is_kept() {
    let Some(server) = Server::shared() else { return };
    rates::check_first(&Fixture::new(server).await, "q").await;
}

#[tokio::test]
async fn a_rate_changes() {
    let Some(server) = Server::shared() else { return };
    rates::check_changes(&Fixture::new(server).await, "q").await;
}

#[tokio::test]
async fn groups_take_turns_by_weight() {
    let Some(server) = Server::shared() else { return };
    groups::check_turns(&Fixture::new(server).await, "q").await;
}

#[tokio::test]
async fn no_group_gets_two_turns_in_a_row() {
    let Some(server) = Server::shared() else { return };
    groups::check_second_visit(&Fixture::new(server).await, "q").await;
}

#[tokio::test]
async fn a_claim_ends_a_priority_before_it_begins_the_next() {
    let Some(server) = Server::shared() else { return };
    groups::check_priorities(&Fixture::new(server).await, "q").await;
}

#[tokio::test]
async fn the_oldest_ready_key_is_found_in_each_group() {
    let Some(server) = Server::shared() else { return };
    groups::check_oldest_ready(&Fixture::new(server).await, "q").await;
}

#[tokio::test]
async fn a_freed_group_is_found_without_a_search() {
    let Some(server) = Server::shared() else { return };
    groups::check_freed_groups(&Fixture::new(server).await, "q").await;
}

#[test]
fn replaces_as_the_model_does() {
    conforms(ReaddPolicy::Replace);
}

#[test]
fn holds_as_the_model_does() {
    conforms(ReaddPolicy::Hold);
}

#[test]
fn workers_in_sql_and_in_rust_do_as_the_model_does() {
    let Some(server) = Server::shared() else { return };
    let runs = Runs::mixed(&server.database());
    for readd_policy in [ReaddPolicy::Replace, ReaddPolicy::Hold] {
        runs_conform(&runs, readd_policy);
    }
    proptest!(cases(15), |(steps in grouped_steps(60), grouping in groupings())| {
        runs.check(async |rig, name| check_grouped(rig, name, grouping, &steps).await);
    });
    let run = (rates::rates(), any::<bool>(), rates::steps(60));
    proptest!(cases(8), |((rates, grouped, steps) in run)| {
        let by = grouped.then_some("");
        runs.check(async |rig, name| rates::check(rig, name, by, rates, &steps).await);
    });
}

#[test]
fn does_so_through_a_pooler() {
    let Some(server) = Server::shared() else { return };
    for readd_policy in [ReaddPolicy::Replace, ReaddPolicy::Hold] {
        let Some(pooler) = PgBouncer::start(server, 2) else { return };
        let url = format!("{}?pooler=transaction", pooler.url(name(&server.database())));
        conforms_at(&url, readd_policy);
    }
}

#[tokio::test]
async fn claims_name_the_keys_that_they_park() {
    let Some(server) = Server::shared() else { return };
    check_expired(&Fixture::new(server).await, "q").await;
}

#[tokio::test]
async fn trace_contexts_stay_with_a_run_until_it_succeeds() {
    let Some(server) = Server::shared() else { return };
    check_traces(&Fixture::new(server).await, "q").await;
}

#[tokio::test]
async fn the_last_runs_are_kept_with_the_key() {
    let Some(server) = Server::shared() else { return };
    check_past(&Fixture::new(server).await, "q", Settings::default()).await;
}

#[tokio::test]
async fn the_last_failures_are_kept() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let rig = Fixture::at(&url).await;
    let count = || server.psql(super::name(&url), "select count(*) from requeue.attempts");
    attempts::check_attempts(&rig, "q").await;
    assert_eq!(count(), "0");
    attempts::check_drop(&rig, "dropped").await;
    assert_eq!(count(), "0");
    attempts::check_bound(&rig, "many").await;
}

#[tokio::test]
async fn keys_that_fail_at_once_do_not_come_back_at_once() {
    let Some(server) = Server::shared() else { return };
    check_jitter(&Fixture::new(server).await, "q").await;
}

#[tokio::test]
async fn a_store_lists_its_queues() {
    let Some(server) = Server::shared() else { return };
    let store = crate::Store::connect(&server.database()).await.expect("the store connects");
    let error = crate::types::error::chain(&store.queues().await.expect_err("there is no schema"));
    assert!(error.contains("the store has no schema yet"), "{error}");
    store.migrate().await.expect("the schema is created");
    check_queues(&store, "q").await;
}

#[tokio::test]
async fn many_keys_are_changed_at_once() {
    let Some(server) = Server::shared() else { return };
    let store = crate::Store::connect(&server.database()).await.expect("the store connects");
    store.migrate().await.expect("the schema is created");
    check_bulk(&store, "q").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_queue_is_gone_for_all_who_have_it_open() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = async || crate::Store::connect(&url).await.expect("the store connects");
    let one = store().await;
    one.migrate().await.expect("the schema is created");
    check_drops(&one, &store().await, "drop").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_applies_to_all_processes() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = async || crate::Store::connect(&url).await.expect("the store connects");
    let one = store().await;
    one.migrate().await.expect("the schema is created");
    check_pauses(&one, &store().await, "q").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_processes_fire_schedules() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = async || crate::Store::connect(&url).await.expect("the store connects");
    let one = store().await;
    one.migrate().await.expect("the schema is created");
    check_schedules(&one, &store().await, "q").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_reaches_its_process() {
    let Some(server) = Server::shared() else { return };
    let url = server.database();
    let store = async || crate::Store::connect(&url).await.expect("the store connects");
    let one = store().await;
    one.migrate().await.expect("the schema is created");
    check_cancels(&one, &store().await, "q").await;
    check_workers(&one, &store().await, "r").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_is_found_by_a_renewal_through_a_pooler() {
    let Some(server) = Server::shared() else { return };
    let Some(pooler) = PgBouncer::start(server, 2) else { return };
    let url = server.database();
    let direct = crate::Store::connect(&url).await.expect("the store connects");
    direct.migrate().await.expect("the schema is created");
    let pooled = format!("{}?pooler=transaction", pooler.url(name(&url)));
    let pooled = crate::Store::connect(&pooled).await.expect("the store connects");
    check_renewals(&pooled, &direct, "q").await;
    check_renewals(&pooled, &pooled, "r").await;
}
