//! A replica: the test's program, started again.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use requeue_e2e::{Node, Server, until};
use requeue_kube::leader;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use website_controller::{CONTROLLER, run};

use crate::NAMESPACE;

const REPLICA: &str = "REQUEUE_E2E_WEBSITE_CONTROLLER";

pub(crate) struct Replica {
    pub(crate) node: Node<'static>,
    address: SocketAddr,
}

impl Replica {
    pub(crate) async fn start(server: &Server, name: &str) -> Self {
        let account = server.access().service_account(NAMESPACE, CONTROLLER);
        let mut command = Command::new(std::env::current_exe().expect("a test is a program"));
        command.args(["--exact", "replica::is_the_controller_when_told_so", "--nocapture"]);
        command.env("KUBECONFIG", account.kubeconfig()).env(REPLICA, "yes");
        let node = server.spawn(name, command);
        let address = || {
            let log = node.log();
            let (whole, _) = log.rsplit_once('\n')?;
            whole.lines().find_map(|line| line.strip_prefix("serving at ")?.parse().ok())
        };
        until("a replica serves", async || address().is_some()).await;
        let replica = Self { address: address().expect("the address was printed"), node };
        until("a replica is ready", async || replica.get("/readyz").await == "ok\n").await;
        assert_eq!(replica.get("/healthz").await, "ok\n");
        replica
    }

    pub(crate) async fn leads(&self) -> bool {
        let gauge = format!("leader_election_master_status{{name=\"{CONTROLLER}\"}} 1");
        self.get("/metrics").await.lines().any(|line| line == gauge)
    }

    /// Returns the response for a path, or an empty text if there is no response yet.
    pub(crate) async fn get(&self, path: &str) -> String {
        let answer = async {
            let mut stream = TcpStream::connect(self.address).await?;
            let host = self.address;
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            Ok::<_, std::io::Error>(answer)
        };
        let answer = answer.await.unwrap_or_default();
        answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned())
    }
}

/// Returns both replicas, the leader first.
pub(crate) async fn leader_first([one, other]: [Replica; 2]) -> [Replica; 2] {
    let mut other_leads = false;
    until("one of them leads", async || {
        other_leads = other.leads().await;
        other_leads || one.leads().await
    })
    .await;
    if other_leads { [other, one] } else { [one, other] }
}

#[tokio::test]
async fn is_the_controller_when_told_so() {
    if std::env::var_os(REPLICA).is_none() {
        return;
    }
    let config = kube::Config::infer().await.expect("the kubeconfig is valid");
    let election = leader::Config::new(&config.default_namespace, CONTROLLER)
        .lease_duration(Duration::from_secs(12))
        .renew_deadline(Duration::from_secs(9))
        .retry_period(Duration::from_millis(500));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!("\nserving at {}", listener.local_addr().expect("an address"));
    run(config, election, listener).await.expect("the controller ends in order");
}
