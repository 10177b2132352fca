//! The server. This module starts its processes, and ensures that no process outlives the test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Config};
use requeue_servers::{did_not_run, free_ports};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::node::Process;
use crate::{Access, Node, Proxy, until};

/// A Kubernetes API server with its etcd and two controllers, which stops when this value is
/// dropped.
///
/// The administrator is in the group `system:masters`, which has all permissions. RBAC applies to
/// all other users. There are no nodes, no tokens of service accounts in pods, and no controllers
/// except the controllers that delete namespaces and collect garbage.
#[derive(Debug)]
pub struct Server {
    dir: PathBuf,
    token: String,
    port: u16,
    etcd_port: u16,
    /// The process that kills all other processes, and removes the directory, when its input is
    /// closed.
    keeper: Child,
    /// The process group that the keeper leads.
    group: i32,
    keeper_input: Option<ChildStdin>,
    etcd: Arc<Process>,
    apiserver: Arc<Process>,
    controllers: Arc<Process>,
}

impl Server {
    /// Starts a server, and waits until it is ready. Returns `None` if no server is installed, and
    /// adds the test to the list that `REQUEUE_NOT_RUN` names.
    ///
    /// The environment variable `REQUEUE_KUBE_SERVER` contains the path that
    /// `scripts/kube-server.sh` prints. If the variable is empty, another run performs these tests,
    /// and nothing is added to the list.
    ///
    /// # Panics
    /// Panics if the server does not start. The message contains the end of its log.
    pub async fn start() -> Option<Self> {
        Self::start_with(&[]).await
    }

    /// Starts a server with more flags for kube-apiserver: see [`start`](Self::start).
    ///
    /// # Panics
    /// Panics as [`start`](Self::start) does.
    pub async fn start_with(flags: &[&str]) -> Option<Self> {
        let server = Self::prepare(&program()?, flags);
        server.etcd.start();
        server.apiserver.start();
        server.ready().await;
        // The file is written before the processes start, because they read it.
        server.kubeconfig();
        server.controllers.start();
        server.controllers_ready().await;
        Some(server)
    }

    /// Returns the server that all tests of a binary share. The tests must do no harm to its
    /// processes. The first call starts the server, which stops with the binary.
    ///
    /// # Panics
    /// Panics as [`start`](Self::start) does.
    pub async fn shared() -> Option<&'static Self> {
        static SHARED: OnceCell<Option<Server>> = OnceCell::const_new();
        // The program is looked up in each call, so that each test is added to the list of tests
        // that did not run.
        program()?;
        SHARED.get_or_init(Self::start).await.as_ref()
    }

    /// Returns the administrator's access, which the caller can change.
    pub fn access(&self) -> Access<'_> {
        Access::new(self, self.port)
    }

    /// Returns an administrator's client, bound to the current tokio runtime.
    pub async fn client(&self) -> Client {
        self.access().client().await
    }

    /// Returns a client of a user whose permissions come only from roles.
    pub async fn client_as(&self, user: &str) -> Client {
        self.access().user(user).client().await
    }

    /// Returns the path of an administrator's kubeconfig, for programs.
    pub fn kubeconfig(&self) -> PathBuf {
        self.access().kubeconfig()
    }

    /// Creates a network between a client and this server: see [`Access::through`].
    ///
    /// # Panics
    /// Panics if the proxy cannot listen.
    pub async fn proxy(&self) -> Proxy {
        Proxy::start(([127, 0, 0, 1], self.port).into()).await
    }

    /// Makes every resource version older than this call too old for etcd.
    ///
    /// A list that continues from such a version, or a watch that starts there, gets `410 Gone`
    /// from a server that was started with `--watch-cache=false`. Without that flag, the API server
    /// serves watches from memory, and only versions from before its last start are too old. A
    /// watch that is open during the call is not affected.
    ///
    /// # Panics
    /// Panics if etcd fails to compact, for example because it is not running.
    pub async fn compact(&self) {
        let address = format!("http://127.0.0.1:{}", self.etcd_port);
        // This write creates a revision that changes no object, so that even the current version is
        // older than this revision.
        let put = json!({ "key": "cmVxdWV1ZQ==", "value": "" });
        etcd(&address, "put", &put).await;
        let put = etcd(&address, "put", &put).await;
        let compaction = json!({ "revision": put["header"]["revision"], "physical": true });
        etcd(&address, "compaction", &compaction).await;
    }

    /// Creates a namespace whose name starts with `prefix`.
    ///
    /// # Panics
    /// Panics if the namespace cannot be created.
    pub async fn namespace(&self, prefix: &str) -> String {
        let metadata =
            ObjectMeta { generate_name: Some(format!("{prefix}-")), ..ObjectMeta::default() };
        let namespace = Namespace { metadata, ..Namespace::default() };
        let api: Api<Namespace> = Api::all(self.client().await);
        match api.create(&PostParams::default(), &namespace).await {
            Ok(made) => made.metadata.name.unwrap_or_default(),
            Err(err) => panic!("a namespace {prefix}-: {err}"),
        }
    }

    /// Returns the process of kube-apiserver.
    pub fn apiserver(&self) -> Node<'_> {
        Node { process: Arc::clone(&self.apiserver), part_of: Some(self) }
    }

    /// Returns the process of etcd.
    pub fn etcd(&self) -> Node<'_> {
        Node { process: Arc::clone(&self.etcd), part_of: Some(self) }
    }

    /// Returns the process of the controllers that delete namespaces and collect garbage.
    pub fn controllers(&self) -> Node<'_> {
        Node { process: Arc::clone(&self.controllers), part_of: Some(self) }
    }

    /// Starts another program, such as a replica of a controller. Its input is empty, and
    /// [`Node::log`] returns its output. The program is killed when the last copy of the `Node` is
    /// dropped, or with the server.
    ///
    /// # Panics
    /// Panics if the program cannot be started.
    pub fn spawn(&self, name: &str, command: Command) -> Node<'static> {
        let process = Process::new(name, command, self.group, &self.dir);
        process.start();
        Node { process, part_of: None }
    }

    /// Returns the directory with all files of the server. The directory is removed with the
    /// server.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.dir.join("apiserver.crt")
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Waits until the API server reports that it is ready, which requires etcd.
    pub(crate) async fn ready(&self) {
        until("the API server has a certificate", async || {
            self.check();
            fs::metadata(self.certificate()).is_ok_and(|file| file.len() > 0)
        })
        .await;
        let client = self.client().await;
        until("the API server is ready", async || {
            self.check();
            // Each attempt needs a new request. The request consists of constants, so it cannot be
            // invalid.
            let Ok(request) = http::Request::get("/readyz").body(Vec::new()) else { return false };
            let answer = tokio::time::timeout(Duration::from_secs(1), client.request_text(request));
            matches!(answer.await, Ok(Ok(text)) if text == "ok")
        })
        .await;
    }

    /// Waits until the controllers have started. Before they have started, the controllers exit if
    /// the API server does not answer, for example because a test has stopped it.
    async fn controllers_ready(&self) {
        until("the controllers have started", async || {
            self.check();
            self.controllers.log().contains("controllers have started\n")
        })
        .await;
    }

    fn check(&self) {
        for process in [&self.etcd, &self.apiserver, &self.controllers] {
            process.check();
        }
    }

    /// Starts the keeper, which kills all other processes. The keeper must start before them.
    fn prepare(program: &Path, flags: &[&str]) -> Self {
        let dir = match tempfile::Builder::new().prefix("requeue-e2e-").tempdir() {
            Ok(dir) => dir.keep(),
            Err(err) => panic!("a directory for the API server: {err}"),
        };
        let keeper = Command::new(program)
            .arg("keeper")
            .arg(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn();
        let mut keeper = keeper.unwrap_or_else(|err| panic!("{}: {err}", program.display()));
        let keeper_input = keeper.stdin.take();
        let mut line = String::new();
        if let Some(output) = keeper.stdout.take() {
            // At the end of the input or after an error, the line is empty.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        assert_eq!(line, "ready\n", "the keeper did not start");

        let [port, etcd_port, peer_port] = free_ports();
        // These random bits suffice for a server on loopback that lives as long as a test.
        let token = format!("{:032x}", fastrand::u128(..));
        let tokens = dir.join("tokens.csv");
        fs::write(&tokens, format!("{token},admin,admin,system:masters\n"))
            .unwrap_or_else(|err| panic!("{}: {err}", tokens.display()));

        // Process ids are below 2^22.
        let group = keeper.id() as i32;
        let process = |name, args: Vec<String>| {
            let mut command = Command::new(program);
            command.arg(name).args(args);
            Process::new(name, command, group, &dir)
        };
        let etcd = process("etcd", etcd_flags(&dir, etcd_port, peer_port));
        let mut args = apiserver_flags(&dir, port, etcd_port);
        args.extend(flags.iter().map(|&flag| flag.to_owned()));
        let apiserver = process("apiserver", args);
        let kubeconfig = Access::path(&dir, "admin", port);
        let controllers = process("controllers", vec![kubeconfig.display().to_string()]);
        Self {
            dir,
            token,
            port,
            etcd_port,
            keeper,
            group,
            keeper_input,
            etcd,
            apiserver,
            controllers,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.keeper_input.take());
        let _ = self.keeper.wait();
    }
}

/// Calls etcd's JSON API, which encodes bytes in base64, and 64-bit numbers as text.
async fn etcd(address: &str, method: &str, body: &Value) -> Value {
    let request = http::Request::post(format!("/v3/kv/{method}")).body(body.to_string().into());
    let asking = async {
        let client = Client::try_from(Config::new(address.parse()?))?;
        Ok(client.request(request?).await?)
    };
    asking.await.unwrap_or_else(|err: Box<dyn std::error::Error>| panic!("etcd, {method}: {err}"))
}

fn etcd_flags(dir: &Path, port: u16, peer_port: u16) -> Vec<String> {
    vec![
        format!("--data-dir={}", dir.join("etcd").display()),
        // Without fsync, written data survives a kill of etcd, but not a crash of the machine.
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
        format!("--listen-client-urls=http://127.0.0.1:{port}"),
        format!("--advertise-client-urls=http://127.0.0.1:{port}"),
        format!("--listen-peer-urls=http://127.0.0.1:{peer_port}"),
        format!("--initial-advertise-peer-urls=http://127.0.0.1:{peer_port}"),
        format!("--initial-cluster=default=http://127.0.0.1:{peer_port}"),
    ]
}

fn apiserver_flags(dir: &Path, port: u16, etcd_port: u16) -> Vec<String> {
    let key = dir.join("sa.key");
    vec![
        "--bind-address=127.0.0.1".into(),
        "--advertise-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        format!("--etcd-servers=http://127.0.0.1:{etcd_port}"),
        // The API server generates its certificate in this directory.
        format!("--cert-dir={}", dir.display()),
        "--endpoint-reconciler-type=none".into(),
        "--authorization-mode=RBAC".into(),
        format!("--token-auth-file={}", dir.join("tokens.csv").display()),
        "--service-cluster-ip-range=10.0.0.0/24".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", key.display()),
        format!("--service-account-signing-key-file={}", key.display()),
        // This plugin holds pods back until their account exists, and no controller here creates
        // accounts.
        "--disable-admission-plugins=ServiceAccount".into(),
        "--allow-privileged=true".into(),
        // By default, an API server that is terminated waits a minute for its watches to end.
        "--shutdown-watch-termination-grace-period=1s".into(),
        "--profiling=false".into(),
    ]
}

/// Returns the path of the program, if it is installed. Otherwise, adds the test to the list of
/// tests that did not run.
pub(crate) fn program() -> Option<PathBuf> {
    const VARIABLE: &str = "REQUEUE_KUBE_SERVER";
    let why = match std::env::var_os(VARIABLE) {
        Some(program) if program.is_empty() => return None,
        Some(program) => return Some(program.into()),
        None => "REQUEUE_KUBE_SERVER does not name an API server; `make e2e` has one",
    };
    did_not_run(why);
    None
}
