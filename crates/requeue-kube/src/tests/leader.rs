//! Tests of controllers that run only while their process leads.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ObjectMeta;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, reflector};
use serde_json::json;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use requeue_leases::testing::{ElectionApi, elector};

use super::{election, leading_manager, seconds};
use crate::controller::{Action, Config, Error, RunnerError};
use crate::leader::LeadershipLost;
use crate::{Controller, ObjectKey, policy};

/// A replica whose runs all have the same duration. Its log has an entry for the beginning and the
/// end of each run.
struct Replica {
    feed: UnboundedSender<Event<ConfigMap>>,
    log: Log,
    stop: oneshot::Sender<()>,
    suspended: Arc<AtomicU64>,
    ended: JoinHandle<Result<(), RunnerError>>,
}

type Log = Arc<Mutex<Vec<String>>>;

fn map(name: &str) -> ConfigMap {
    let metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
    ConfigMap { metadata, ..ConfigMap::default() }
}

impl Replica {
    fn start(
        api: &ElectionApi,
        takes: Duration,
        options: fn(Controller<ConfigMap>) -> Controller<ConfigMap>,
    ) -> Self {
        static NAMES: AtomicUsize = AtomicUsize::new(0);
        let (elector, suspended) = elector(api.client(), election());
        let (feed, mut events) = mpsc::unbounded_channel();
        let events = futures_util::stream::poll_fn(move |cx| events.poll_recv(cx)).map(Ok);
        let (reader, writer) = reflector::store();
        let (stop, stopped) = oneshot::channel::<()>();
        let controller = Controller::for_stream(events.reflect(writer), reader)
            .name(format!("replica {}", NAMES.fetch_add(1, Ordering::Relaxed)))
            .leader_election(elector)
            .graceful_shutdown_on(async { _ = stopped.await });
        let log = Log::default();
        let reconcile = move |map: Arc<ConfigMap>, log: Arc<Log>| async move {
            let name = map.metadata.name.clone().unwrap_or_default();
            log.lock().unwrap().push(format!("{name} begins"));
            sleep(takes).await;
            log.lock().unwrap().push(format!("{name} ends"));
            Ok::<_, Infallible>(Action::await_change())
        };
        let stream =
            options(controller).run(reconcile, policy::backoff, Arc::new(Arc::clone(&log)));
        let ended = tokio::spawn(stream.fold(Ok(()), async |end, item| match item {
            Err(Error::RunnerError(error)) => Err(error),
            _ => end,
        }));
        Self { feed, log, stop, suspended, ended }
    }

    /// Makes the controller's watch list the objects `a` and `b`.
    fn lists(&self) {
        let list = ["a", "b"].map(|name| Event::InitApply(map(name)));
        for event in [Event::Init].into_iter().chain(list).chain([Event::InitDone]) {
            assert!(self.feed.send(event).is_ok());
        }
    }

    fn listed(api: &ElectionApi, takes: Duration) -> Self {
        let replica = Self::start(api, takes, |controller| controller);
        replica.lists();
        replica
    }

    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    async fn has_logged(&self, count: usize) {
        while self.log().len() < count {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

const LONG: Duration = Duration::from_secs(20);

#[tokio::test(start_paused = true)]
async fn one_works_and_hands_over_once_it_has_finished_what_it_had_begun() {
    let api = ElectionApi::default();
    let first = Replica::listed(&api, LONG);
    first.has_logged(1).await;
    let leader = api.holder();
    let second = Replica::listed(&api, Duration::ZERO);
    sleep(seconds(10.0)).await;
    first.stop.send(()).unwrap();
    sleep(seconds(9.9)).await;
    assert_eq!(api.holder(), leader, "the lease is renewed until the run has completed");
    assert_eq!(first.ended.await.unwrap(), Ok(()));
    assert_eq!(*first.log.lock().unwrap(), ["a begins", "a ends"]);
    assert!(second.log().is_empty());
    let start = Instant::now();
    second.has_logged(4).await;
    assert!(start.elapsed() < seconds(4.5), "{:?}", start.elapsed());
    assert_eq!(second.log(), ["a begins", "a ends", "b begins", "b ends"]);
}

#[tokio::test(start_paused = true)]
async fn who_leads_no_more_cuts_off_what_runs_and_releases_nothing() {
    let api = ElectionApi::default();
    let replica = Replica::listed(&api, LONG);
    replica.has_logged(1).await;
    api.with(|inner| {
        inner.server.label(1);
        inner.server.lease.as_mut().unwrap()["spec"]["holderIdentity"] = json!("another");
    });
    let start = Instant::now();
    let ended = replica.ended.await.unwrap().unwrap_err();
    let lost = LeadershipLost::Taken("another".into());
    assert_eq!(ended, RunnerError::LeadershipLost(lost, vec![ObjectKey::new(None, "a")]));
    let expected = "the reconciliation of a was interrupted: leadership lost: the lease is held by \
                    \"another\"";
    assert_eq!(ended.to_string(), expected);
    assert!(start.elapsed() < seconds(2.1), "the next renewal detects the loss");
    sleep(LONG).await;
    assert_eq!(*replica.log.lock().unwrap(), ["a begins"]);
    assert_eq!(api.holder(), "another");
}

#[tokio::test(start_paused = true)]
async fn what_is_cut_off_by_a_shutdown_keeps_the_lease_from_being_released() {
    let api = ElectionApi::default();
    let config = |controller: Controller<_>| {
        controller.with_config(Config::default().shutdown_timeout(Duration::from_secs(3)))
    };
    let replica = Replica::start(&api, LONG, config);
    replica.lists();
    replica.has_logged(1).await;
    let leader = api.holder();
    replica.stop.send(()).unwrap();
    let keys = vec![ObjectKey::new(None, "a")];
    assert_eq!(replica.ended.await.unwrap(), Err(RunnerError::CutOff(keys)));
    sleep(LONG).await;
    assert_eq!(api.holder(), leader);
}

#[tokio::test(start_paused = true)]
async fn who_cannot_list_does_not_stand() {
    let api = ElectionApi::default();
    let replica = Replica::start(&api, Duration::ZERO, |controller| controller);
    sleep(seconds(60.0)).await;
    assert!(api.asked().is_empty());
    replica.lists();
    replica.has_logged(4).await;
    assert_ne!(api.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn without_warmup_it_lists_when_it_leads_and_gives_the_lease_back_if_it_cannot() {
    let api = ElectionApi::default();
    let replica = Replica::start(&api, Duration::ZERO, Controller::without_warmup);
    sleep(seconds(60.0)).await;
    assert_ne!(api.holder(), "");
    let ended = replica.ended.await.unwrap();
    assert!(matches!(ended, Err(RunnerError::CacheSync(..))), "{ended:?}");
    assert_eq!(api.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn without_warmup_it_may_lose_the_lease_before_it_has_listed() {
    let api = ElectionApi::default();
    let replica = Replica::start(&api, Duration::ZERO, Controller::without_warmup);
    sleep(seconds(5.0)).await;
    api.with(|inner| inner.server.lease = None);
    let lost = LeadershipLost::Deleted;
    let ended = RunnerError::LeadershipLost(lost, Vec::new());
    assert_eq!(ended.to_string(), "leadership lost: the lease was deleted");
    assert_eq!(replica.ended.await.unwrap(), Err(ended));
}

#[tokio::test(start_paused = true)]
async fn a_controller_and_a_manager_in_standby_leave_the_lease_alone_when_they_are_stopped() {
    let api = ElectionApi::default();
    let first = Replica::listed(&api, Duration::ZERO);
    first.has_logged(4).await;
    let leader = api.holder();
    let controller = Replica::listed(&api, Duration::ZERO);
    let manager = leading_manager::Replica::listed(&api, Duration::ZERO);
    sleep(seconds(10.0)).await;
    assert!(controller.log().is_empty() && manager.log().is_empty());
    controller.stop.send(()).unwrap();
    manager.stop.send(()).unwrap();
    assert_eq!(controller.ended.await.unwrap(), Ok(()));
    assert_eq!(manager.ended.await.unwrap(), Ok(()));
    assert_eq!(api.holder(), leader);
}

#[tokio::test(start_paused = true)]
async fn start_on_comes_before_the_election() {
    let api = ElectionApi::default();
    let later = |controller: Controller<_>| controller.start_on(sleep(Duration::from_secs(60)));
    let replica = Replica::start(&api, Duration::ZERO, later);
    replica.lists();
    sleep(seconds(59.0)).await;
    assert!(api.asked().is_empty());
    replica.has_logged(4).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_begins_in_a_process_that_was_frozen_for_too_long() {
    let api = ElectionApi::default();
    let replica = Replica::listed(&api, Duration::ZERO);
    replica.has_logged(4).await;
    replica.suspended.store(3600 * 1_000_000_000, Ordering::Relaxed);
    replica.feed.send(Event::Apply(map("c"))).unwrap();
    let lost = LeadershipLost::RenewDeadline(seconds(10.0));
    let ended = RunnerError::LeadershipLost(lost, Vec::new());
    assert_eq!(replica.ended.await.unwrap(), Err(ended));
    assert_eq!(replica.log.lock().unwrap().len(), 4);
}
