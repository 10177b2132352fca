//! Tests of the exploration itself.

use std::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::PostParams;
use tokio::time::{Instant, sleep};

use super::*;

#[test]
fn a_failure_names_a_number_that_replays_it() {
    let test = |world: World| async move { assert_ne!(world.draw(0..20), 7) };
    let failure = find_failure(1_000, test).expect("some seed draws a 7");
    assert_eq!(failure.invariant(), Invariant::NoPanic);
    assert!(failure.faults().is_empty(), "{failure}");
    let again = record(failure.number(), test).expect_err("the number fails again");
    assert_eq!(again.violation.what, failure.violation.what);
    assert!(failure.to_string().contains(&format!("REQUEUE_SEED={}", failure.number())));
}

#[test]
fn a_failure_is_shrunk_to_the_necessary_faults() {
    let test = |world: World| async move {
        let failed = Arc::new(Mutex::new(0));
        let steps = Arc::clone(&failed);
        world.run(move |process| {
            let steps = Arc::clone(&steps);
            async move {
                for _ in 0..100 {
                    if process.step("a").await.is_err() {
                        *steps.lock().unwrap() += 1;
                    }
                }
            }
        });
        sleep(Duration::from_secs(3_600)).await;
        assert_eq!(*failed.lock().unwrap(), 0);
    };
    let failure = find_failure(1_000, test).expect("some seed has a failed step");
    assert!(matches!(failure.faults(), [Fault { mishap: Mishap::Failed, .. }]), "{failure}");
    assert!(failure.is_reproducible);
}

#[test]
fn the_failure_of_the_smallest_seed_is_reported_although_seeds_run_at_the_same_time() {
    for first in [0, 1, 7, 98] {
        let begun = AtomicU64::new(0);
        let test = |world: World| {
            begun.fetch_max(world.seed(), Ordering::Relaxed);
            async move { assert!(world.seed() < first) }
        };
        let failure = find_failure(100, test).expect("most seeds fail");
        assert_eq!(failure.number() >> 16, first);
        let cores = thread::available_parallelism().expect("a number of cores").get();
        let last = begun.load(Ordering::Relaxed);
        assert!(last < first + cores as u64, "no seed begins after a failure: {last}");
    }
}

#[test]
fn an_outcome_that_changes_is_reported_as_random() {
    let runs = AtomicU64::new(0);
    let test = |_: World| {
        let is_first = runs.fetch_add(1, Ordering::Relaxed) == 0;
        async move { assert!(!is_first) }
    };
    let failure = find_failure(10, test).expect("the first run fails");
    assert!(failure.to_string().contains("the code under test is random"), "{failure}");
}

#[test]
fn virtual_time_passes_only_while_all_tasks_wait() {
    explore(3, |_| async {
        let begun = Instant::now();
        sleep(Duration::from_secs(86_400)).await;
        assert_eq!(begun.elapsed(), Duration::from_secs(86_400));
    });
}

#[test]
fn a_process_that_fails_or_crashes_is_started_again() {
    let failure = find_failure(200, |world| async move {
        world.run(move |process| async move {
            if process.name() != "process 1.0.3" {
                process.step("a").await?;
                return Err("no luck".into());
            }
            Ok::<_, Box<dyn Error>>(())
        });
        sleep(Duration::from_secs(3_600)).await;
        let starts = world.starts();
        assert_eq!(starts, 4);
    });
    assert!(failure.is_none(), "{failure:?}");
}

#[test]
fn an_error_and_a_panic_of_a_process_are_told_apart() {
    let failure = find_failure(1, |world| async move {
        world.run(|process| async move { assert_eq!(process.name(), "as planned") });
        sleep(Duration::from_secs(60)).await;
    });
    assert_eq!(failure.map(|failure| failure.invariant()), Some(Invariant::NoPanic));
    let failure = find_failure(1, |_| async { Err::<(), _>("as planned") });
    let failure = failure.expect("the test returns an error");
    assert!(failure.to_string().contains("as planned"), "{failure}");
}

/// The fault is at the first request of each run, so it affects the creation of the
/// object.
#[test]
fn an_unanswered_write_has_been_executed_and_a_lost_one_has_not() {
    let seen = Mutex::new(Vec::new());
    for seed in 0..3_000 {
        let number = Number::of_seed(seed);
        let plan = plan::draw_plan(seed);
        let Some(fault) = plan.iter().find(|fault| fault.at == Point::Request(0)) else { continue };
        let result = run_once(number, &|world: World| {
            let seen = &seen;
            async move {
                let answered = Arc::new(Mutex::new(None));
                let answer = Arc::clone(&answered);
                world.run_controller(move |client| {
                    let answer = Arc::clone(&answer);
                    async move {
                        let maps = Api::<ConfigMap>::namespaced(client, "default");
                        let mut map = ConfigMap::default();
                        map.metadata.name = Some("a".into());
                        let created = maps.create(&PostParams::default(), &map).await;
                        answer.lock().unwrap().get_or_insert(created.is_ok());
                    }
                });
                sleep(Duration::from_secs(120)).await;
                let is_there = !world.server().objects("configmaps").is_empty();
                let answered = *answered.lock().unwrap();
                seen.lock().unwrap().push((fault.mishap, answered, is_there));
            }
        });
        assert!(result.is_ok(), "{result:?}");
    }
    let seen = seen.into_inner().unwrap();
    let all = |mishap, expected| {
        let mut found = seen.iter().filter(|seen| seen.0 == mishap).peekable();
        assert!(found.peek().is_some(), "{mishap:?}");
        assert!(found.all(|seen| (seen.1, seen.2) == expected), "{mishap:?}: {seen:?}");
    };
    all(Mishap::Lost, (Some(false), false));
    all(Mishap::Refused(503), (Some(false), false));
    all(Mishap::Unanswered, (Some(false), true));
}
