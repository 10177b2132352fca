//! A replica: the test's program, started again.
//!
//! The replica reports events on standard output, one per line, with the time on a clock that all
//! processes of a machine share.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::PatchParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client};
use requeue_e2e::{Nanos, Node, Proxy, Server, now};
use requeue_kube::leader::{Config, Fence, LeaderElector, Leadership, LeadershipLost};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

/// The environment variable with the path of a replica's kubeconfig. The variable that `NAMESPACE`
/// names contains the replica's namespace.
const REPLICA: &str = "REQUEUE_E2E_REPLICA";
const NAMESPACE: &str = "REQUEUE_E2E_REPLICA_NAMESPACE";

/// The object to which the leader writes.
pub(crate) const OBJECT: &str = "written-by-the-leader";

/// Returns a configuration with a lease duration of 3 s, a renew deadline of 2 s and a retry period
/// of 0.5 s.
pub(crate) fn config(namespace: &str) -> Config {
    Config::new(namespace, "web")
        .lease_duration(Duration::from_secs(3))
        .renew_deadline(Duration::from_secs(2))
        .retry_period(Duration::from_millis(500))
}

/// An event that a replica reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The replica knows the leader.
    Standing,
    /// The replica leads, and works.
    Begin,
    /// The replica has claimed the object. From now on, writes of earlier leaders are late.
    Claimed,
    /// The replica has stopped working. The time is the last time at which the replica observed
    /// that it leads. On a machine that stalls, the report may be late. The fencing token then
    /// covers the writes in the meantime.
    End,
    /// A write was accepted, or refused by the fencing token. The time is the time at which the
    /// write was sent.
    Accepted,
    Refused,
}

fn say(said: Said, at: Nanos) {
    // The line is written with a single call, because several tasks report.
    let line = format!("\nreplica {said:?} {at}\n");
    std::io::stdout().write_all(line.as_bytes()).expect("standard output is open");
}

/// A replica with a separate network. The replica leads at most once.
pub(crate) struct Replica {
    pub(crate) node: Node<'static>,
    pub(crate) proxy: Proxy,
}

impl Replica {
    pub(crate) async fn start(server: &Server, namespace: &str, number: usize) -> Self {
        let proxy = server.proxy().await;
        let access = server.access().service_account(namespace, "web").through(&proxy);
        let mut command = Command::new(std::env::current_exe().expect("a test is a program"));
        command.args(["--exact", "replica::is_a_replica_when_told_so", "--nocapture"]);
        command.env(REPLICA, access.kubeconfig()).env(NAMESPACE, namespace);
        Self { node: server.spawn(&format!("{namespace}-{number}"), command), proxy }
    }

    /// Returns the times of all reports of this event by the replica.
    pub(crate) fn said(&self, what: Said) -> Vec<Nanos> {
        let (log, begin) = (self.node.log(), format!("replica {what:?} "));
        // The last line may be incomplete.
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let times = whole.lines().filter_map(|line| line.strip_prefix(&begin));
        times.map(|at| at.parse().expect("a report has a time")).collect()
    }
}

#[tokio::test]
async fn is_a_replica_when_told_so() {
    let Some(kubeconfig) = std::env::var_os(REPLICA) else { return };
    let namespace = std::env::var(NAMESPACE).expect("both variables are set");
    let kubeconfig =
        Kubeconfig::read_from(Path::new(&kubeconfig)).expect("the kubeconfig is valid");
    let options = KubeConfigOptions::default();
    let access = kube::Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("is one");
    let config = config(&namespace);
    let client = config.client(access.clone()).expect("a client");
    let maps = Api::namespaced(Client::try_from(access).expect("a client"), &namespace);

    let elector = LeaderElector::new(client, config).expect("the configuration is safe");
    let status = elector.status();
    tokio::spawn(async move {
        while status.leader().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        say(Said::Standing, now());
    });
    match elector.run_until(told_to_stop(), async |leadership| lead(leadership, maps).await).await {
        Ok(_) => {}
        // Writes continue until the process is killed or terminated.
        Err(undrained @ LeadershipLost::Undrained(_)) => panic!("{undrained}"),
        Err(_) => told_to_stop().await,
    }
}

static STOPPING: AtomicBool = AtomicBool::new(false);

async fn told_to_stop() {
    signal(SignalKind::terminate()).expect("the signal can be awaited").recv().await;
    STOPPING.store(true, Ordering::Relaxed);
}

async fn lead(leadership: Leadership, maps: Api<ConfigMap>) {
    /// The last time at which the work observed that the replica leads.
    struct Work(Cell<Nanos>);
    impl Drop for Work {
        fn drop(&mut self) {
            say(Said::End, self.0.get());
        }
    }
    assert!(leadership.is_leading());
    let begun = now();
    say(Said::Begin, begun);
    let work = Work(Cell::new(begun));
    let looking = async {
        loop {
            let at = now();
            if leadership.is_leading() {
                work.0.set(at);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let fence = leadership.fence();
    let working = async {
        claim(&fence, &maps).await;
        say(Said::Claimed, now());
        let writing = tokio::spawn(write_on(fence, maps));
        leadership.stopping().await;
        writing.await.expect("the writes stop with the process");
    };
    tokio::select! {
        () = looking => {}
        () = working => {}
    }
}

async fn claim(fence: &Fence, maps: &Api<ConfigMap>) {
    loop {
        // Any failure is retried as long as this replica leads.
        let Ok(map) = maps.get(OBJECT).await else { continue };
        let Ok(Some(claim)) = fence.claim(&map).await else { continue };
        if maps.patch(OBJECT, &PatchParams::default(), &claim).await.is_ok() {
            return;
        }
    }
}

/// Writes without checking the leadership, like a write that was in progress when its process
/// froze.
async fn write_on(fence: Fence, maps: Api<ConfigMap>) {
    for count in 0_u64.. {
        if STOPPING.load(Ordering::Relaxed) {
            return;
        }
        let data = BTreeMap::from([("count", count.to_string())]);
        let write = json!([{ "op": "add", "path": "/data", "value": data }]);
        let write = serde_json::from_value(write).expect("a valid patch");
        let sent = now();
        match maps.patch(OBJECT, &PatchParams::default(), &fence.patch(write)).await {
            Ok(_) => say(Said::Accepted, sent),
            Err(kube::Error::Api(status)) if status.code == 422 => say(Said::Refused, sent),
            // The write fails if the connection was cut.
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}
