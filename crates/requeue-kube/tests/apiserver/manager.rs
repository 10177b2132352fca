//! Several controllers in one process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::runtime::watcher;
use kube::{Api, Resource};
use prometheus_client::registry::Registry;
use requeue_kube::controller::{Action, Config, RunnerError, Watched};
use requeue_kube::metrics::Metrics;
use requeue_kube::{Controller, Manager, ManagerError, policy};
use serde_json::json;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::server::{MAPS, SECRETS, Server};

type Log = Arc<Mutex<Vec<String>>>;

/// A reconciler that takes 10 s for each object.
async fn slowly<K: Resource<DynamicType = ()>>(object: Arc<K>, log: Log) -> Action {
    let name = format!("{} {}", K::kind(&()), object.meta().name.as_deref().unwrap_or_default());
    log.lock().unwrap().push(format!("{name} begins"));
    sleep(Duration::from_secs(10)).await;
    log.lock().unwrap().push(format!("{name} ends"));
    Action::await_change()
}

async fn map(map: Arc<ConfigMap>, log: Arc<Log>) -> Result<Action, kube::Error> {
    Ok(slowly(map, Arc::clone(&log)).await)
}

async fn secret(secret: Arc<Secret>, log: Arc<Log>) -> Result<Action, kube::Error> {
    Ok(slowly(secret, Arc::clone(&log)).await)
}

/// Returns a manager with a controller of ConfigMaps, which own Secrets, and a controller of
/// Secrets.
fn manager(prefix: &str, server: &Server, config: &Config, log: &Log) -> Manager {
    let mut manager = Manager::new();
    let (client, wc) = (server.client(), watcher::Config::default());
    let secrets = |manager: &mut Manager| {
        manager.watch(Api::<Secret>::all(server.client()), watcher::Config::default())
    };
    let of_maps = Controller::new(Api::<ConfigMap>::all(client), wc)
        .watch_owned(Watched::shared(&secrets(&mut manager)))
        .with_config(config.clone())
        .name(format!("{prefix}: maps"));
    let of_secrets = Controller::for_shared(&secrets(&mut manager))
        .with_config(config.clone())
        .name(format!("{prefix}: secrets"));
    let [first, second] = [Arc::new(Arc::clone(log)), Arc::new(Arc::clone(log))];
    manager.add(of_maps, |it| it.run(map, policy::backoff, first));
    manager.add(of_secrets, |it| it.run(secret, policy::backoff, second));
    manager
}

fn sorted(log: &Log) -> Vec<String> {
    let mut log = log.lock().unwrap().clone();
    log.sort_unstable();
    log
}

#[tokio::test(start_paused = true)]
async fn controllers_start_watch_and_shut_down_together() {
    let server = Server::new();
    server.put(MAPS, "a", json!({}));
    server.put(SECRETS, "b", json!({}));
    let (stop, stopped) = oneshot::channel::<()>();
    let log = Log::default();
    let mut registry = Registry::default();
    let manager = manager("together", &server, &Config::default(), &log)
        .metrics(&Metrics::register(&mut registry))
        .graceful_shutdown_on(async { _ = stopped.await });
    let readiness = manager.readiness();
    assert!(!readiness.is_ready());
    let running = tokio::spawn(manager.run());
    sleep(Duration::from_secs(5)).await;
    assert!(readiness.is_ready());
    assert_eq!(sorted(&log), ["ConfigMap a begins", "Secret b begins"]);
    let mut metrics = String::new();
    prometheus_client::encoding::text::encode(&mut metrics, &registry).unwrap();
    for name in ["maps", "secrets"] {
        let active = format!("active_workers{{controller=\"together: {name}\"}} 1");
        assert!(metrics.contains(&active), "{metrics}");
    }
    // Runs in flight complete, and the change starts no run.
    server.put(MAPS, "c", json!({}));
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap(), Ok(()));
    let all = ["ConfigMap a begins", "ConfigMap a ends", "Secret b begins", "Secret b ends"];
    assert_eq!(sorted(&log), all);
    for path in [MAPS, SECRETS] {
        assert_eq!((server.count("list", path), server.count("watch", path)), (1, 1), "{path}");
        assert_eq!(server.open_watches(path), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_manager_is_ready_when_all_controllers_are() {
    let server = Server::new();
    server.refuse(SECRETS, 404);
    let manager = manager("ready", &server, &Config::default(), &Log::default());
    let readiness = manager.readiness();
    let _running = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(manager.run()));
    sleep(Duration::from_secs(60)).await;
    let waiting = ["ready: maps: Secret.v1 (owned)", "ready: secrets: Secret.v1 (controlled)"];
    assert_eq!(readiness.waiting_for(), waiting);
    server.serve(SECRETS);
    readiness.ready().await;
    assert!(readiness.is_ready());
}

#[tokio::test(start_paused = true)]
async fn the_first_controller_that_fails_ends_all_and_is_named() {
    let server = Server::new();
    server.refuse(SECRETS, 404);
    server.put(MAPS, "a", json!({}));
    let log = Log::default();
    let config = Config::default().cache_sync_timeout(Duration::from_secs(5));
    let mut manager = Manager::new();
    let (client, wc) = (server.client(), watcher::Config::default());
    let of_maps =
        Controller::new(Api::<ConfigMap>::all(client.clone()), wc.clone()).name("fails: maps");
    let of_secrets =
        Controller::new(Api::<Secret>::all(client), wc).with_config(config).name("fails: secrets");
    let [first, second] = [Arc::new(Arc::clone(&log)), Arc::new(Arc::clone(&log))];
    manager.add(of_maps, |it| it.run(map, policy::backoff, first));
    manager.add(of_secrets, |it| it.run(secret, policy::backoff, second));
    let error = manager.run().await.unwrap_err();
    assert!(matches!(
        &error,
        ManagerError { controller: Some(_), error: RunnerError::CacheSync(..), .. }
    ));
    let message = error.to_string();
    assert!(
        message.starts_with(r#"controller "fails: secrets": no first list within 5s"#),
        "{message}"
    );
    // The run in flight has completed.
    assert_eq!(sorted(&log), ["ConfigMap a begins", "ConfigMap a ends"]);
}

#[tokio::test(start_paused = true)]
async fn two_controllers_of_one_name_are_an_error() {
    let server = Server::new();
    let mut manager = Manager::new();
    for _ in 0..2 {
        let maps = Api::<ConfigMap>::all(server.client());
        let controller = Controller::new(maps, watcher::Config::default()).name("twice");
        let log = Arc::new(Log::default());
        manager.add(controller, |it| it.run(map, policy::backoff, log));
    }
    let error = manager.run().await.unwrap_err();
    assert_eq!(error.controller.as_deref(), Some("twice"));
    assert_eq!(error.error, RunnerError::DuplicateName("twice".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_manager_shares_the_watches_of_the_same_objects_only() {
    let server = Server::new();
    let mut manager = Manager::new();
    let wc = watcher::Config::default();
    let all = || Api::<ConfigMap>::all(server.client());
    let one = Api::<ConfigMap>::namespaced(server.client(), "ns");
    let stores = [
        manager.watch(all(), wc.clone()).store(),
        manager.watch(all(), wc.clone()).store(),
        manager.watch(all(), wc.labels("a=b")).store(),
        manager.watch(one, watcher::Config::default()).store(),
    ];
    // Each store is a handle. All stores of one watch are released together.
    let controllers: Vec<_> = [all(), all()]
        .into_iter()
        .map(|api| Controller::for_shared(&manager.watch(api, watcher::Config::default())))
        .collect();
    let log = Arc::new(Log::default());
    for (number, controller) in controllers.into_iter().enumerate() {
        let log = Arc::clone(&log);
        let controller = controller.name(format!("same {number}"));
        manager.add(controller, |it| it.run(map, policy::backoff, log));
    }
    server.put(MAPS, "a", json!({}));
    let _running = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(manager.run()));
    sleep(Duration::from_secs(60)).await;
    assert_eq!(stores.map(|store| store.len()), [1, 1, 0, 0]);
    assert_eq!(server.count("list", MAPS), 1);
}
