//! Tests of the election's requests, with a mocked client and a paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::Method;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::{Instant, advance, sleep};

use super::{config, seconds};
use crate::LeaseMetrics;
use crate::leader::{Config, LeaderElector, Leadership, LeadershipLost, Status};
use crate::testing::{self, ElectionApi};

fn elector(api: &ElectionApi, config: Config) -> (LeaderElector, Arc<AtomicU64>) {
    testing::elector(api.client(), config)
}

fn usual() -> Config {
    config(15.0, 10.0, 2.0)
}

/// An elector that runs in a task. It leads until the test stops it.
struct Running {
    status: Status,
    leadership: Leadership,
    stop: oneshot::Sender<()>,
    task: tokio::task::JoinHandle<Result<Option<&'static str>, LeadershipLost>>,
    suspended: Arc<AtomicU64>,
}

async fn leading(api: &ElectionApi, config: Config) -> Running {
    let (elector, suspended) = elector(api, config);
    let status = elector.status();
    let (stop, stopped) = oneshot::channel();
    let (send, began) = oneshot::channel();
    let task = tokio::spawn(elector.run_until(
        async {
            let _ = stopped.await;
        },
        async move |leadership: Leadership| {
            let stopping = leadership.clone();
            assert!(send.send(leadership).is_ok());
            stopping.stopping().await;
            "drained"
        },
    ));
    Running { status, leadership: began.await.unwrap(), stop, task, suspended }
}

#[tokio::test(start_paused = true)]
async fn it_creates_renews_and_releases() {
    let api = ElectionApi::default();
    let it = leading(&api, usual()).await;
    let identity = it.status.identity().to_owned();
    assert!(identity.starts_with("host_") && identity.len() == "host_".len() + 36, "{identity}");
    assert!(it.status.is_leading() && it.leadership.is_leading());
    assert_eq!(it.status.leader().as_deref(), Some(&*identity));

    let log = api.with(|inner| inner.log.split_off(0));
    let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    assert_eq!((&log[0].0, &*log[0].1), (&Method::GET, &*format!("{path}/web")));
    assert_eq!((&log[1].0, &*log[1].1), (&Method::POST, path));
    assert_eq!(log[1].2["kind"], "Lease");
    assert_eq!(log[1].2["metadata"], json!({ "name": "web" }));
    assert_eq!(log[1].2["spec"]["holderIdentity"], *identity);

    sleep(seconds(9.0)).await;
    let renewals = api.with(|inner| inner.log.split_off(0));
    assert_eq!(renewals.len(), 4, "one renewal every 2 s");
    for (version, (method, at, lease)) in (1..).zip(&renewals) {
        assert_eq!((method, &**at), (&Method::PUT, &*format!("{path}/web")));
        assert_eq!(lease["metadata"]["resourceVersion"], json!(version.to_string()));
    }

    drop(it.leadership);
    it.stop.send(()).unwrap();
    assert_eq!(it.task.await.unwrap(), Ok(Some("drained")));
    assert_eq!(api.holder(), "");
    let notes: Vec<_> =
        api.with(|inner| inner.events.drain(..).map(|event| event["note"].clone()).collect());
    assert_eq!(notes, [format!("{identity} became leader"), format!("{identity} stopped leading")]);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_read_anew_and_what_others_have_written_is_kept() {
    let api = ElectionApi::default();
    let it = leading(&api, usual()).await;
    api.with(|inner| {
        inner.server.label(42);
        inner.server.lease.as_mut().unwrap()["spec"]["colour"] = json!("blue");
    });
    api.asked();
    sleep(seconds(3.0)).await;
    assert_eq!(api.asked(), [Method::PUT, Method::GET, Method::PUT]);
    api.with(|inner| {
        let lease = inner.server.lease.as_ref().unwrap();
        assert_eq!(lease["metadata"]["labels"]["changed"], "42");
        assert_eq!(lease["spec"]["colour"], "blue");
    });
    assert!(it.leadership.is_leading());
}

#[tokio::test(start_paused = true)]
async fn silence_ends_leading_a_renew_deadline_after_the_last_good_renewal_was_sent() {
    let api = ElectionApi::default();
    let it = leading(&api, usual()).await;
    let start = Instant::now();
    sleep(seconds(2.5)).await;
    // The leader sent its last successful renewal at 2 s.
    api.with(|inner| inner.silent = true);
    api.asked();
    assert_eq!(it.leadership.lost().await, LeadershipLost::RenewDeadline(seconds(10.0)));
    let led = start.elapsed();
    assert!((seconds(11.99)..seconds(12.02)).contains(&led), "{led:?}");
    assert!(!it.status.is_leading() && it.leadership.check().is_err());
    // The first request was sent at 4 s, and failed after half of the renew deadline. The second
    // request lasted until the end of the leader's right.
    assert_eq!(api.asked(), [Method::PUT, Method::PUT]);
    assert!(it.task.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_tried_again_until_the_deadline() {
    let api = ElectionApi::default();
    let it = leading(&api, usual()).await;
    api.with(|inner| inner.refuses = Some(500));
    sleep(seconds(7.0)).await;
    assert!(it.leadership.is_leading());
    api.with(|inner| inner.refuses = None);
    sleep(seconds(10.0)).await;
    assert!(it.leadership.is_leading());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_was_suspended_does_not_lead_on() {
    let api = ElectionApi::default();
    let it = leading(&api, usual()).await;
    it.suspended.store(3600 * 1_000_000_000, Ordering::Relaxed);
    assert!(!it.leadership.is_leading(), "at once");
    let start = Instant::now();
    assert!(it.task.await.unwrap().is_err());
    assert!(start.elapsed() <= Duration::from_millis(501), "the loss is detected within 501 ms");
}

#[tokio::test(start_paused = true)]
async fn the_next_leads_at_once_after_a_release_and_after_a_whole_lease_otherwise() {
    let api = ElectionApi::default();
    let first = leading(&api, usual()).await;
    let (second, _) = elector(&api, usual());
    let second = tokio::spawn(second.acquire());
    sleep(seconds(20.0)).await;
    assert!(!second.is_finished());

    drop(first.leadership);
    first.stop.send(()).unwrap();
    let start = Instant::now();
    let term = second.await.unwrap();
    assert!(start.elapsed() < seconds(4.5), "{:?}", start.elapsed());
    assert_eq!(term.leadership().fencing_token().to_string(), "uid-1/1");
    drop(term);

    let (third, _) = elector(&api, usual());
    let start = Instant::now();
    let term = third.acquire().await;
    let took = start.elapsed();
    assert!((seconds(15.0)..seconds(19.5)).contains(&took), "{took:?}");
    assert_eq!(term.leadership().fencing_token().to_string(), "uid-1/2");
}

#[tokio::test(start_paused = true)]
async fn what_still_runs_at_the_drain_deadline_keeps_the_lease_from_being_released() {
    let api = ElectionApi::default();
    let (elector, _) = elector(&api, usual());
    let term = elector.acquire().await;
    let leadership = term.leadership();
    let start = Instant::now();
    let release = tokio::spawn(term.release());
    leadership.stopping().await;
    sleep(seconds(29.0)).await;
    assert!(leadership.is_leading(), "the lease is renewed during the drain");
    assert_eq!(release.await.unwrap(), Err(LeadershipLost::Undrained(seconds(30.0))));
    assert_eq!(start.elapsed().as_secs(), 30);
    assert!(!leadership.is_leading());
    assert_ne!(api.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_ends_its_work_late_has_what_is_left_of_the_drain_timeout() {
    let api = ElectionApi::default();
    let it = leading(&api, usual()).await;
    let start = Instant::now();
    it.stop.send(()).unwrap();
    // `lead` has returned, but the test still holds a clone of the leadership.
    assert_eq!(it.task.await.unwrap(), Ok(Some("drained")));
    assert_eq!(start.elapsed().as_secs(), 30);
    assert_ne!(api.holder(), "");

    let (elector, _) = elector(&api, usual());
    let start = Instant::now();
    let stop = sleep(seconds(60.0));
    let run = elector.run_until(stop, async |_leadership| std::future::pending::<()>().await);
    assert_eq!(run.await, Err(LeadershipLost::Undrained(seconds(30.0))));
    assert_eq!(start.elapsed().as_secs(), 90);
}

#[tokio::test(start_paused = true)]
async fn a_term_or_a_run_that_is_dropped_leads_no_more_and_releases_nothing() {
    let api = ElectionApi::default();
    let it = leading(&api, usual()).await;
    it.task.abort();
    assert_eq!(it.leadership.lost().await, LeadershipLost::Abandoned);
    assert_eq!(it.leadership.confirm().await, Err(LeadershipLost::Abandoned));
    let asked = api.asked().len();
    sleep(seconds(30.0)).await;
    assert_eq!(api.asked().len(), 0, "after {asked}");
    assert_ne!(api.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn stopped_before_it_leads_it_is_none() {
    let api = ElectionApi::default();
    api.with(|inner| inner.refuses = Some(403));
    let (elector, _) = elector(&api, usual());
    let run =
        elector.run_until(sleep(seconds(60.0)), async |_leadership| panic!("the elector leads"));
    assert!(matches!(run.await, Ok(None)));
}

#[tokio::test(start_paused = true)]
async fn confirming_renews_at_once() {
    let api = ElectionApi::default();
    let it = leading(&api, usual()).await;
    sleep(seconds(1.0)).await;
    api.asked();
    let start = Instant::now();
    it.leadership.confirm().await.unwrap();
    assert_eq!(api.asked(), [Method::PUT]);
    assert_eq!(start.elapsed(), Duration::ZERO);

    sleep(seconds(1.0)).await;
    api.with(|inner| inner.server.lease = None);
    assert_eq!(it.leadership.confirm().await, Err(LeadershipLost::Deleted));
}

#[tokio::test(start_paused = true)]
async fn healthz_fails_when_leadership_is_held_past_its_lease_and_20_seconds() {
    let api = ElectionApi::default();
    let it = leading(&api, usual()).await;
    api.with(|inner| inner.silent = true);
    // The test holds a clone of the leadership, as stuck work would.
    sleep(seconds(34.0)).await;
    assert_eq!(it.status.check(), Ok(()));
    advance(seconds(2.0)).await;
    // The last renewal was 36 s ago. The lease of 15 s therefore ended 21 s ago.
    assert_eq!(it.status.check(), Err(LeadershipLost::Undrained(seconds(21.0))));
    drop(it.leadership);
    assert_eq!(it.status.check(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn the_gauge_shows_who_leads() {
    let mut registry = Registry::default();
    let metrics = LeaseMetrics::register(&mut registry);
    let shown = |registry: &Registry| {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        let line = text.lines().find(|line| line.starts_with("leader_election_master_status{"));
        line.expect("the series").to_owned()
    };
    let api = ElectionApi::default();
    let (elector, _) = elector(&api, usual());
    let elector = elector.metrics(&metrics);
    assert_eq!(shown(&registry), r#"leader_election_master_status{name="web"} 0"#);
    let term = elector.acquire().await;
    assert_eq!(shown(&registry), r#"leader_election_master_status{name="web"} 1"#);
    term.release().await.unwrap();
    assert_eq!(shown(&registry), r#"leader_election_master_status{name="web"} 0"#);
}

#[test]
fn a_config_that_is_not_safe_is_refused_by_its_values() {
    for (config, expected) in [
        (config(2.9, 2.0, 0.5), "1 to 2147483647, not 2.9s"),
        (
            config(10.0, 10.0, 2.0),
            "the renew deadline, 10s, has to be less than the lease's duration, 10s",
        ),
        (
            config(15.0, 10.0, 8.4),
            "1.2 of the retry period, 8.4s, must be more than zero and less than the renew deadline, 10s",
        ),
        (config(15.0, 10.0, 0.0), "1.2 of the retry period, 0ns"),
        (Config::new("", "web"), r#"not "" and "web""#),
        (config(15.0, 1e10, 2.0), "the renew deadline, 10000000000s"),
    ] {
        let message = config.check().unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
    assert_eq!(config(15.0, 10.0, 8.3).check(), Ok(()));
    let extreme = Config::new("a", "b").renew_deadline(Duration::MAX).retry_period(Duration::MAX);
    assert!(extreme.check().is_err());
}
