//! The metrics of a controller.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::client::Body;
use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use requeue_kube::controller::Action;
use requeue_kube::leader::{self, LeaderElector};
use requeue_kube::metrics::Metrics;

use super::common::*;

const SECOND: Duration = Duration::from_secs(1);

fn scrape(registry: &Registry) -> String {
    let mut body = String::new();
    text::encode(&mut body, registry).unwrap();
    body
}

/// Returns the lines of `body` that begin with `prefix`, without buckets.
fn values(body: &str, prefix: &str) -> Vec<String> {
    let lines = body.lines().filter(|line| line.starts_with(prefix) && !line.contains("_bucket"));
    lines.map(str::to_owned).collect()
}

/// Returns an elector that has not asked for its Lease yet.
fn elector(lease: &str, metrics: &Metrics) -> LeaderElector {
    let answer = |_: Request<Body>| pending::<Result<Response<Body>, Infallible>>();
    let client = Client::new(tower::service_fn(answer), "default");
    LeaderElector::new(client, leader::Config::new("default", lease)).unwrap().metrics(metrics)
}

async fn by_name(map: Arc<ConfigMap>, log: Arc<Log>) -> Result<Action, OnPurpose> {
    log.note(name(&*map));
    match &*name(&*map) {
        "again" => Ok(Action::backoff()),
        "fails" | "hopeless" => Err(OnPurpose),
        "hangs" => std::future::pending().await,
        "later" => Ok(Action::requeue_after(SECOND * 3600)),
        "panics" => panic!("on purpose"),
        "slow" => {
            tokio::time::sleep(SECOND * 2).await;
            Ok(Action::await_change())
        }
        _ => Ok(Action::await_change()),
    }
}

/// An error policy whose retries come after the end of the test.
fn policy(map: Arc<ConfigMap>, _: &OnPurpose, _: Arc<Log>) -> Action {
    if name(&*map) == "hopeless" {
        Action::terminal()
    } else {
        Action::requeue_after(SECOND * 3600)
    }
}

#[tokio::test(start_paused = true)]
async fn runs_are_counted_as_controller_runtime_does() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (feed, controller) = controller();
    let config = config()
        .concurrency(3)
        .reconcile_timeout(SECOND * 5)
        .rate_limiter(|| requeue::limiter::ExponentialFailure::new(SECOND * 999, SECOND * 9999));
    let controller = controller.name("maps").with_config(config).metrics(&metrics);
    let log = Log::new();
    assert_eq!(values(&scrape(&registry), "controller_runtime"), [""; 0]);
    let reading = Reading::of(controller.run(by_name, policy, Arc::new(log.clone())));
    feed.list(&[]);
    a_moment().await;
    // All counters start at 0.
    let zero = values(&scrape(&registry), "controller_runtime_reconcile_total");
    assert_eq!(
        zero,
        ["success", "error", "requeue", "requeue_after"].map(|result| format!(
            "controller_runtime_reconcile_total{{controller=\"maps\",result=\"{result}\"}} 0"
        ))
    );
    let names = ["again", "fails", "hopeless", "later", "panics", "slow", "succeeds"];
    for name in names {
        feed.apply(&map(name, 1));
    }
    tokio::time::sleep(SECOND * 3).await;
    feed.apply(&map("hangs", 1));
    a_moment().await;
    let active = "controller_runtime_active_workers{controller=\"maps\"} ";
    assert!(scrape(&registry).contains(&format!("\n{active}1\n")));
    tokio::time::sleep(SECOND * 6).await;
    let body = scrape(&registry);
    let expected = [
        "controller_runtime_reconcile_total{controller=\"maps\",result=\"success\"} 2",
        "controller_runtime_reconcile_total{controller=\"maps\",result=\"error\"} 4",
        "controller_runtime_reconcile_total{controller=\"maps\",result=\"requeue\"} 1",
        "controller_runtime_reconcile_total{controller=\"maps\",result=\"requeue_after\"} 1",
        "controller_runtime_reconcile_errors_total{controller=\"maps\"} 4",
        "controller_runtime_terminal_reconcile_errors_total{controller=\"maps\"} 1",
        "controller_runtime_reconcile_panics_total{controller=\"maps\"} 1",
        "controller_runtime_reconcile_timeouts_total{controller=\"maps\"} 1",
        "controller_runtime_reconcile_time_seconds_count{controller=\"maps\"} 8",
        "controller_runtime_max_concurrent_reconciles{controller=\"maps\"} 3",
        "controller_runtime_active_workers{controller=\"maps\"} 0",
        "workqueue_depth{name=\"maps\",controller=\"maps\",priority=\"0\"} 0",
        "workqueue_adds_total{name=\"maps\",controller=\"maps\"} 8",
        // The objects that count are `again`, `fails`, `hangs`, `later` and `panics`.
        "workqueue_retries_total{name=\"maps\",controller=\"maps\"} 5",
        "workqueue_queue_duration_seconds_count{name=\"maps\",controller=\"maps\"} 8",
        "workqueue_work_duration_seconds_count{name=\"maps\",controller=\"maps\"} 8",
        "workqueue_unfinished_work_seconds{name=\"maps\",controller=\"maps\"} 0.0",
        "workqueue_longest_running_processor_seconds{name=\"maps\",controller=\"maps\"} 0.0",
    ];
    _ = elector("lease", &metrics);
    assert_eq!(requeue_servers::check_metrics(&scrape(&registry), true).len(), 18);
    for line in expected {
        assert!(body.contains(&format!("\n{line}\n")), "{line}\n{body}");
    }
    // One run took 2 s, and another run took 5 s.
    for (bound, count) in [("1.75", 6), ("2.0", 7), ("4.5", 7), ("5.0", 8)] {
        let line = format!(
            "controller_runtime_reconcile_time_seconds_bucket{{le=\"{bound}\",controller=\"maps\"}} \
             {count}"
        );
        assert!(body.contains(&line), "{line}\n{body}");
    }
    let buckets = |series: &str| body.lines().filter(|line| line.starts_with(series)).count();
    assert_eq!(buckets("controller_runtime_reconcile_time_seconds_bucket"), 41);
    assert_eq!(buckets("workqueue_work_duration_seconds_bucket"), 13);

    // The series disappear with the controller.
    drop(reading);
    a_moment().await;
    assert_eq!(values(&scrape(&registry), "controller_runtime"), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_depth_is_told_for_each_priority() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (feed, controller) = controller();
    let controller = controller.name("depths").metrics(&metrics);
    let log = Log::new();
    let _reading = Reading::of(controller.run(by_name, policy, Arc::new(log.clone())));
    feed.list(&[map("hangs", 1), map("x", 1), map("y", 1)]);
    log.reaches(1).await;
    feed.apply(&map("z", 1));
    feed.apply(&map("hangs", 2));
    a_moment().await;
    let depth = |priority: &str, depth: u32| {
        format!(
            "workqueue_depth{{name=\"depths\",controller=\"depths\",priority=\"{priority}\"}} {depth}"
        )
    };
    let depths = values(&scrape(&registry), "workqueue_depth");
    assert_eq!(depths, [depth("-100", 2), depth("0", 2)]);
}

#[tokio::test(start_paused = true)]
async fn too_many_priorities_are_told_as_one() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let (feed, controller) = controller();
    let controller = controller.name("many").metrics(&metrics);
    let log = Log::new();
    let reconcile = |map: Arc<ConfigMap>, log: Arc<Log>| async move {
        log.note(name(&*map));
        if log.names().len() > 30 {
            return std::future::pending().await;
        }
        // The requested priority is lower than the priorities of the objects that have not run yet.
        let number: i32 = name(&*map).parse().unwrap();
        Ok::<_, OnPurpose>(Action::requeue_after(Duration::ZERO).priority(-200 - number))
    };
    let _reading = Reading::of(controller.run(reconcile, policy, Arc::new(log.clone())));
    let maps: Vec<_> = (0..30).map(|number| map(&format!("{number:02}"), 1)).collect();
    feed.list(&maps);
    log.reaches(31).await;
    let depths = values(&scrape(&registry), "workqueue_depth");
    let labels = "name=\"many\",controller=\"many\",priority=\"exceeded_cardinality_limit\"";
    assert_eq!(depths, [format!("workqueue_depth{{{labels}}} 29")]);
    // Each object runs again without a delay, which is no retry, and counts only as a success.
    let results = values(&scrape(&registry), "controller_runtime_reconcile_total");
    let of = |result| results.iter().find(|line| line.contains(result)).unwrap().rsplit(' ').next();
    assert_eq!([of("\"success\""), of("\"requeue_after\"")], [Some("30"), Some("0")]);
    let retries = values(&scrape(&registry), "workqueue_retries_total");
    assert!(retries[0].ends_with(" 0"), "{retries:?}");
}

#[tokio::test]
async fn the_lease_of_an_elector_is_shown() {
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    _ = elector("my-lease", &metrics);
    let series = "leader_election_master_status{name=\"my-lease\"}";
    assert_eq!(values(&scrape(&registry), "leader"), [format!("{series} 0")]);
}
