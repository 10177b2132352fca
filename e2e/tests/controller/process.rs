//! A controller in a separate process, which is the test's program, started again.
//!
//! The process reports its runs on standard output, each as one line of JSON.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::runtime::reflector::ObjectRef;
use requeue_e2e::{Nanos, Node, Proxy, Server, now};
use requeue_kube::controller::{Action, Error, RunnerError};
use requeue_kube::leader::{self, LeaderElector};
use requeue_kube::policy;
use serde::{Deserialize, Serialize};

use crate::world::{State, World, config};

/// The settings of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) namespace: String,
    /// True if the process takes part in an election, with a lease duration of 3 s, a renew
    /// deadline of 2 s and a retry period of 0.5 s.
    pub(crate) elects: bool,
    /// A prefix of names whose runs never end.
    pub(crate) hangs_at: Option<String>,
    /// The shutdown timeout. The default is 30 s.
    pub(crate) shutdown_timeout: Option<Duration>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Said {
    /// All watches of the controller have listed their objects.
    Listed,
    Begun {
        name: String,
        at: Nanos,
    },
    /// The run has ended. The run has observed the object's state, unless it was cut off.
    Ended {
        name: String,
        at: Nanos,
        state: Option<State>,
    },
    /// The last message, if the shutdown has cut runs off.
    CutOff {
        names: Vec<String>,
    },
}

fn say(said: &Said) {
    // The line is written with a single call, because several tasks report.
    let line = format!("\nsaid {}\n", serde_json::to_string(said).unwrap());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

const ORDERS: &str = "REQUEUE_E2E_CONTROLLER";

/// The process of a controller, with a separate network.
pub(crate) struct Process {
    pub(crate) node: Node<'static>,
    pub(crate) proxy: Proxy,
    /// The time at which the process was killed.
    killed: Option<Nanos>,
}

/// A run of the reconciler.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) begun: Nanos,
    /// The end of the run, or the greatest possible time if the run has not ended.
    pub(crate) ended: Nanos,
    pub(crate) state: Option<State>,
}

impl Process {
    pub(crate) async fn start(server: &Server, world: &World, orders: Orders) -> Self {
        let proxy = server.proxy().await;
        let access = world.access(server).through(&proxy);
        let orders = Orders { namespace: world.namespace().to_owned(), ..orders };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::is_a_controller_when_told_so", "--nocapture"]);
        command.env("KUBECONFIG", access.kubeconfig());
        command.env(ORDERS, serde_json::to_string(&orders).unwrap());
        let node = server.spawn(&format!("controller-{:016x}", fastrand::u64(..)), command);
        Self { node, proxy, killed: None }
    }

    pub(crate) async fn kill(&mut self) {
        self.node.kill().await;
        self.killed = Some(now());
    }

    fn said(&self) -> Vec<Said> {
        let log = self.node.log();
        // The last line may be incomplete.
        let whole = log.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let said = whole.lines().filter_map(|line| line.strip_prefix("said "));
        said.map(|said| serde_json::from_str(said).unwrap()).collect()
    }

    /// Returns true if all watches of the process have listed their objects. From then on, new
    /// objects run before the objects of the first list.
    pub(crate) fn has_listed(&self) -> bool {
        self.said().iter().any(|said| matches!(said, Said::Listed))
    }

    /// Returns the runs of each object, in order.
    pub(crate) fn runs(&self) -> BTreeMap<String, Vec<Run>> {
        let mut runs = BTreeMap::<_, Vec<_>>::new();
        for said in self.said() {
            match said {
                Said::Begun { name, at } => {
                    let ended = self.killed.unwrap_or(Nanos::MAX);
                    runs.entry(name).or_default().push(Run { begun: at, ended, state: None });
                }
                Said::Ended { name, at, state } => {
                    let run = runs.get_mut(&name).and_then(|runs| runs.last_mut()).unwrap();
                    (run.ended, run.state) = (at, state);
                }
                Said::Listed | Said::CutOff { .. } => {}
            }
        }
        runs
    }

    /// Returns the start of the first run of the process, and the end of its last run.
    pub(crate) fn worked(&self) -> Option<(Nanos, Nanos)> {
        let runs = self.runs();
        let first = runs.values().flatten().map(|run| run.begun).min()?;
        Some((first, runs.values().flatten().map(|run| run.ended).max()?))
    }

    /// Returns the objects whose runs the process has cut off.
    pub(crate) fn cut_off(&self) -> Vec<String> {
        match self.said().pop() {
            Some(Said::CutOff { names }) => names,
            _ => Vec::new(),
        }
    }
}

/// Returns the last state of `name` that any of these processes has found.
pub(crate) fn known(processes: &[Process], name: &str) -> Option<State> {
    let runs = processes.iter().filter_map(|process| process.runs().remove(name)).flatten();
    runs.filter(|run| run.state.is_some()).max_by_key(|run| run.ended)?.state
}

/// Returns the number of runs that started before a run of the same object in another process had
/// ended.
pub(crate) fn overlaps(processes: &[Process]) -> usize {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for (name, runs) in processes.iter().flat_map(Process::runs) {
        all.entry(name).or_default().extend(runs.into_iter().map(|run| (run.begun, run.ended)));
    }
    let overlaps = all.values_mut().map(|runs| {
        runs.sort_unstable();
        runs.windows(2).filter(|pair| pair[1].0 < pair[0].1).count()
    });
    overlaps.sum()
}

/// The exit code of a process whose shutdown has cut runs off.
pub(crate) const CUT_OFF: i32 = 3;
pub(crate) const LEADERSHIP_LOST: i32 = 4;

struct Context {
    world: World,
    orders: Orders,
}

async fn reconcile(
    object: ObjectRef<ConfigMap>,
    context: Arc<Context>,
) -> Result<Action, kube::Error> {
    let mut working = Working::begin(object.name);
    if context.orders.hangs_at.as_ref().is_some_and(|prefix| working.name.starts_with(prefix)) {
        std::future::pending().await
    }
    // These requests make the run take as long as a run with real work.
    for _ in 0..3 {
        context.world.look(&working.name).await?;
    }
    working.state = Some(context.world.look(&working.name).await?);
    Ok(Action::await_change())
}

/// A run, which is also reported if it is cut off.
struct Working {
    name: String,
    state: Option<State>,
}

impl Working {
    fn begin(name: String) -> Self {
        say(&Said::Begun { name: name.clone(), at: now() });
        Self { name, state: None }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        say(&Said::Ended { name: self.name.clone(), at: now(), state: self.state.take() });
    }
}

#[tokio::test]
async fn is_a_controller_when_told_so() {
    let Ok(orders) = std::env::var(ORDERS) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    let access = kube::Config::infer().await.unwrap();
    let world = World::of(Client::try_from(access.clone()).unwrap(), &orders.namespace);
    let timeout = orders.shutdown_timeout.unwrap_or(Duration::from_secs(30));
    let mut controller =
        world.controller().with_config(config().concurrency(8).shutdown_timeout(timeout));
    if orders.elects {
        let election = leader::Config::new(&orders.namespace, "controller")
            .lease_duration(Duration::from_secs(3))
            .renew_deadline(Duration::from_secs(2))
            .retry_period(Duration::from_millis(500));
        let client = election.client(access).unwrap();
        controller = controller.leader_election(LeaderElector::new(client, election).unwrap());
    }
    let readiness = controller.readiness();
    tokio::spawn(async move {
        readiness.ready().await;
        say(&Said::Listed);
    });
    let stream = controller.shutdown_on_signal().run_refs(
        reconcile,
        policy::backoff,
        Arc::new(Context { world, orders }),
    );
    let mut stream = std::pin::pin!(stream);
    while let Some(item) = stream.next().await {
        match item {
            Err(Error::RunnerError(RunnerError::CutOff(keys))) => {
                say(&Said::CutOff {
                    names: keys.iter().map(|key| key.name().to_owned()).collect(),
                });
                std::process::exit(CUT_OFF);
            }
            Err(Error::RunnerError(RunnerError::LeadershipLost(..))) => {
                std::process::exit(LEADERSHIP_LOST);
            }
            Err(Error::RunnerError(other)) => panic!("{other}"),
            _ => {}
        }
    }
}
