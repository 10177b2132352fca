//! Tests of managers whose controllers run only while their process leads.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::ObjectMeta;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, reflector};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use requeue_leases::testing::{ElectionApi, elector};

use super::{election, seconds};
use crate::ManagerError;
use crate::controller::{Action, Config, RunnerError};
use crate::leader::LeadershipLost;
use crate::{Controller, Manager, ObjectKey, policy};

/// A replica with two controllers, `first` and `second`. Its log has an entry for the beginning and the end of each
/// run.
pub(super) struct Replica {
    feeds: Vec<UnboundedSender<Event<ConfigMap>>>,
    log: Arc<Mutex<Vec<String>>>,
    pub(super) stop: oneshot::Sender<()>,
    pub(super) ended: JoinHandle<Result<(), ManagerError>>,
}

impl Replica {
    fn start(api: &ElectionApi, takes: Duration) -> Self {
        static NAMES: AtomicUsize = AtomicUsize::new(0);
        let number = NAMES.fetch_add(1, Ordering::Relaxed);
        let (elector, _) = elector(api.client(), election());
        let (stop, stopped) = oneshot::channel::<()>();
        let mut manager = Manager::new()
            .leader_election(elector)
            .graceful_shutdown_on(async { _ = stopped.await });
        let log = Arc::<Mutex<Vec<String>>>::default();
        let feeds = ["first", "second"].map(|name| {
            let (feed, mut events) = mpsc::unbounded_channel();
            let events = futures_util::stream::poll_fn(move |cx| events.poll_recv(cx));
            let events = futures_util::StreamExt::map(events, Ok);
            let (reader, writer) = reflector::store();
            let controller = Controller::for_stream(events.reflect(writer), reader)
                .with_config(Config::default().shutdown_timeout(seconds(30.0)))
                .name(format!("{name} of {number}"));
            let reconcile = move |_: Arc<ConfigMap>, log: Arc<Mutex<Vec<String>>>| async move {
                log.lock().unwrap().push(format!("{name} begins"));
                sleep(takes).await;
                log.lock().unwrap().push(format!("{name} ends"));
                Ok::<_, Infallible>(Action::await_change())
            };
            let log = Arc::clone(&log);
            manager.add(controller, move |it| it.run(reconcile, policy::backoff, log));
            feed
        });
        let ended = tokio::spawn(manager.run());
        Self { feeds: feeds.into(), log, stop, ended }
    }

    /// Makes the watch of the controller with this number list one object.
    fn lists(&self, controller: usize) {
        let metadata = ObjectMeta { name: Some("a".into()), ..ObjectMeta::default() };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        for event in [Event::Init, Event::InitApply(map), Event::InitDone] {
            assert!(self.feeds[controller].send(event).is_ok());
        }
    }

    pub(super) fn listed(api: &ElectionApi, takes: Duration) -> Self {
        let replica = Self::start(api, takes);
        (0..2).for_each(|controller| replica.lists(controller));
        replica
    }

    async fn has_logged(&self, count: usize) {
        while self.log().len() < count {
            sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) fn log(&self) -> Vec<String> {
        let mut log = self.log.lock().unwrap().clone();
        log.sort_unstable();
        log
    }
}

const BEGIN: [&str; 2] = ["first begins", "second begins"];
const ALL: [&str; 4] = ["first begins", "first ends", "second begins", "second ends"];

#[tokio::test(start_paused = true)]
async fn the_controllers_of_one_replica_work_and_hand_over_once_all_of_them_have_finished() {
    let api = ElectionApi::default();
    let first = Replica::listed(&api, seconds(20.0));
    first.has_logged(2).await;
    let leader = api.holder();
    let second = Replica::listed(&api, Duration::ZERO);
    sleep(seconds(10.0)).await;
    assert!(second.log().is_empty());
    first.stop.send(()).unwrap();
    sleep(seconds(9.9)).await;
    assert_eq!(api.holder(), leader, "the lease is renewed until the runs have completed");
    assert_eq!(first.ended.await.unwrap(), Ok(()));
    second.has_logged(4).await;
    assert_eq!(second.log(), ALL);
}

#[tokio::test(start_paused = true)]
async fn the_election_waits_for_the_lists_of_all_controllers() {
    let api = ElectionApi::default();
    let replica = Replica::start(&api, Duration::ZERO);
    replica.lists(0);
    sleep(seconds(60.0)).await;
    assert!(api.asked().is_empty());
    replica.lists(1);
    replica.has_logged(4).await;
    assert_ne!(api.holder(), "");
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_the_lease_drops_the_runs_of_all_controllers() {
    let api = ElectionApi::default();
    let replica = Replica::listed(&api, seconds(20.0));
    replica.has_logged(2).await;
    api.with(|inner| inner.server.lease = None);
    let ended = replica.ended.await.unwrap();
    assert_eq!(ended, Err(RunnerError::LeadershipLost(LeadershipLost::Deleted, Vec::new()).into()));
    sleep(seconds(60.0)).await;
    let mut log = replica.log.lock().unwrap().clone();
    log.sort_unstable();
    assert_eq!(log, BEGIN);
}

#[tokio::test(start_paused = true)]
async fn runs_that_a_shutdown_drops_keep_the_lease_from_being_released() {
    let api = ElectionApi::default();
    let replica = Replica::listed(&api, seconds(60.0));
    replica.has_logged(2).await;
    let leader = api.holder();
    replica.stop.send(()).unwrap();
    let ended = replica.ended.await.unwrap();
    let keys = vec![ObjectKey::new(None, "a")];
    assert_eq!(ended.unwrap_err().error, RunnerError::CutOff(keys));
    assert_eq!(api.holder(), leader);
}
