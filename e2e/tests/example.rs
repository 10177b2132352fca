//! The example in `examples/website`: two replicas of it, with its manifests, and with what these
//! allow it and no more.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::runtime::conditions;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Resource, ResourceExt, discovery};
use requeue_e2e::{Node, Server, until};
use requeue_kube::leader;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use website_controller::{CONTROLLER, Website, run};

/// The controller's own namespace, as the manifests have it.
const NAMESPACE: &str = "website-system";
const USER: &str = "system:serviceaccount:website-system:website-controller";

macro_rules! manifest {
    ($path:literal) => {
        include_str!(concat!("../../examples/website/", $path))
    };
}

#[tokio::test]
async fn the_example_does_what_it_says_with_what_it_is_allowed() {
    let dir = tempfile::tempdir().expect("a directory");
    let [policy, audit] = ["policy.yaml", "audit.log"].map(|name| dir.path().join(name));
    std::fs::write(&policy, AUDIT_POLICY).expect("it can be written");
    let policy = format!("--audit-policy-file={}", policy.display());
    let log = format!("--audit-log-path={}", audit.display());
    let Some(server) = Server::start_with(&[&policy, &log]).await else { return };
    let client = server.client().await;

    install(&client).await;
    let replicas = [Replica::start(&server, "one").await, Replica::start(&server, "two").await];
    let leader = the_leader(&replicas).await;
    let [leader, standby] = if leader == 0 { [0, 1] } else { [1, 0] }.map(|n| &replicas[n]);

    let world = World::of(&client);
    world.comes_up().await;
    world.follows_its_deployment().await;
    world.changes("<h1>Hello again</h1>", 2).await;
    world.is_mended().await;
    assert!(leader.get("/").await.contains("<title>websites"));
    let done = r#"controller_runtime_reconcile_total{controller="website",result="success"}"#;
    let metrics = leader.get("/metrics").await;
    let done = metrics.lines().find_map(|line| line.strip_prefix(done)).expect("it is there");
    assert!(done.trim().parse::<u64>().expect("a number") > 0);

    leader.node.kill().await;
    until("the other leads", async || standby.leads().await).await;
    world.changes("<h1>Hello from the other</h1>", 3).await;
    world.goes().await;

    standby.node.terminate().await;
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let lease = leases.get(CONTROLLER).await.expect("it is there");
    let holder = lease.spec.and_then(|spec| spec.holder_identity);
    assert_eq!(holder.as_deref().unwrap_or_default(), "", "it was not released");
    assert_eq!(used(&audit), allowed());
}

/// What is to be known of the example's website.
struct World {
    sites: Api<Website>,
    maps: Api<ConfigMap>,
    deployments: Api<Deployment>,
    events: Api<Event>,
    directory: Api<ConfigMap>,
}

const SITE: &str = "hello";

impl World {
    fn of(client: &Client) -> Self {
        Self {
            sites: Api::default_namespaced(client.clone()),
            maps: Api::default_namespaced(client.clone()),
            deployments: Api::default_namespaced(client.clone()),
            events: Api::default_namespaced(client.clone()),
            directory: Api::namespaced(client.clone(), NAMESPACE),
        }
    }

    /// It has what it owns, a status that says so, an Event, and its place in the directory.
    async fn comes_up(&self) {
        apply(self.sites.clone().into_client(), manifest!("website.yaml")).await;
        let site = self.site_when("seen", |site| observed(site) == Some(1)).await;
        let uid = site.uid().expect("it has one");
        let map = self.maps.get(SITE).await.expect("it is there");
        let deployment = self.deployments.get(SITE).await.expect("it is there");
        for owners in [map.owner_references(), deployment.owner_references()] {
            let [owner] = owners else { panic!("{owners:?}") };
            assert_eq!((&owner.uid, owner.controller), (&uid, Some(true)));
        }
        assert_eq!(content(&map), "<h1>Hello</h1>");
        assert_eq!(deployment.spec.replicas, Some(2));
        assert_eq!(ready(&site), ("False", "0 of 2 replicas are ready"));
        assert_eq!(self.in_directory().await, Some(uid.clone()));
        until("there is an Event", async || {
            let events = self.events.list(&ListParams::default()).await.expect("a list");
            events.iter().any(|event| {
                let about = event.regarding.as_ref().and_then(|regarding| regarding.uid.as_ref());
                about == Some(&uid) && event.reason.as_deref() == Some("Applied")
            })
        })
        .await;
    }

    /// There is no controller of Deployments here, so that what it would say is said for it.
    async fn follows_its_deployment(&self) {
        let deployment = self.deployments.get(SITE).await.expect("it is there");
        let generation = deployment.metadata.generation;
        let status = json!({ "status": {
            "observedGeneration": generation, "replicas": 2, "readyReplicas": 2,
        } });
        let params = PatchParams::default();
        self.deployments.patch_status(SITE, &params, &Patch::Merge(status)).await.expect("it is");
        let site = self.site_when("ready", |site| ready(site).0 == "True").await;
        assert_eq!(ready(&site), ("True", "2 of 2 replicas are ready"));
    }

    /// Another content: other pods.
    async fn changes(&self, to: &str, generation: i64) {
        let before = self.version_of_pods().await;
        let change = json!({ "spec": { "content": to } });
        let params = PatchParams::default();
        self.sites.patch(SITE, &params, &Patch::Merge(change)).await.expect("it is");
        self.site_when("seen", |site| observed(site) == Some(generation)).await;
        let map = self.maps.get(SITE).await.expect("it is there");
        assert_eq!(content(&map), to);
        let version = self.version_of_pods().await;
        assert!(version != before && version == map.resource_version());
    }

    /// What it owns comes back when it is deleted.
    async fn is_mended(&self) {
        comes_back(&self.maps).await;
        comes_back(&self.deployments).await;
    }

    /// The finalizer clears up what garbage collection does not.
    async fn goes(&self) {
        self.sites.delete(SITE, &DeleteParams::default()).await.expect("it is");
        until("it is gone", async || self.sites.get_opt(SITE).await.expect("an answer").is_none())
            .await;
        assert_eq!(self.in_directory().await, None);
        until("all of it is gone", async || {
            let map = self.maps.get_opt(SITE).await.expect("an answer");
            let deployment = self.deployments.get_opt(SITE).await.expect("an answer");
            map.is_none() && deployment.is_none()
        })
        .await;
    }

    async fn site_when(&self, what: &str, is: impl Fn(&Website) -> bool) -> Website {
        until(&format!("the website is {what}"), async || {
            is(&self.sites.get(SITE).await.expect("it is there"))
        })
        .await;
        self.sites.get(SITE).await.expect("it is there")
    }

    async fn version_of_pods(&self) -> Option<String> {
        let deployment = self.deployments.get(SITE).await.expect("it is there");
        deployment.spec.template.metadata?.annotations?.remove("example.com/content")
    }

    async fn in_directory(&self) -> Option<String> {
        let directory = self.directory.get("websites").await.expect("it is there");
        directory.data?.remove(&format!("default.{SITE}"))
    }
}

async fn comes_back<K>(api: &Api<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let uid = api.get(SITE).await.expect("it is there").uid();
    api.delete(SITE, &DeleteParams::default()).await.expect("it is");
    until("it is there again", async || {
        let object = api.get_opt(SITE).await.expect("an answer");
        object.is_some_and(|object| object.uid() != uid)
    })
    .await;
}

fn content(map: &ConfigMap) -> &str {
    map.data.as_ref().map_or("", |data| &data["index.html"])
}

fn observed(site: &Website) -> Option<i64> {
    site.status.as_ref()?.observed_generation
}

/// The status of its condition `Ready`, and what it says.
fn ready(site: &Website) -> (&str, &str) {
    let status = site.status.as_ref().expect("it has one");
    let [ready] = &*status.conditions else { panic!("{:?}", status.conditions) };
    assert_eq!(ready.type_, "Ready");
    (&ready.status, &ready.message)
}

// --- Its manifests ----------------------------------------------------------------------------

async fn install(client: &Client) {
    apply(client.clone(), manifest!("manifests/crd.yaml")).await;
    let established = conditions::is_crd_established();
    await_condition(Api::all(client.clone()), "websites.example.com", established)
        .await
        .expect("it is established");
    apply(client.clone(), manifest!("manifests/rbac.yaml")).await;
    apply(client.clone(), manifest!("manifests/deployment.yaml")).await;
}

fn objects(manifest: &str) -> Vec<DynamicObject> {
    serde_saphyr::from_multiple(manifest).expect("it is YAML")
}

/// `kubectl apply --server-side -f`.
async fn apply(client: Client, manifest: &str) {
    for object in objects(manifest) {
        let types = object.types.as_ref().expect("it has a kind");
        let kind = GroupVersionKind::try_from(types).expect("it is one");
        let (kind, _) = discovery::pinned_kind(&client, &kind).await.expect("it is known");
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &kind),
            None => Api::all_with(client.clone(), &kind),
        };
        let (name, params) = (object.name_any(), PatchParams::apply("kubectl"));
        let applied = api.patch(&name, &params, &Patch::Apply(&object)).await;
        applied.unwrap_or_else(|err| panic!("{name}: {err}"));
    }
}

// --- Its replicas -----------------------------------------------------------------------------

const REPLICA: &str = "REQUEUE_E2E_WEBSITE_CONTROLLER";

/// The test's own program, started once more.
struct Replica {
    node: Node<'static>,
    address: SocketAddr,
}

impl Replica {
    async fn start(server: &Server, name: &str) -> Self {
        let account = server.access().service_account(NAMESPACE, CONTROLLER);
        let mut command = Command::new(std::env::current_exe().expect("a test is a program"));
        command.args(["--exact", "is_the_controller_when_told_so", "--nocapture"]);
        command.env("KUBECONFIG", account.kubeconfig()).env(REPLICA, "yes");
        let node = server.spawn(name, command);
        let address = || {
            let log = node.log();
            let (whole, _) = log.rsplit_once('\n')?;
            whole.lines().find_map(|line| line.strip_prefix("serving at ")?.parse().ok())
        };
        until("a replica serves", async || address().is_some()).await;
        let replica = Self { address: address().expect("it was there"), node };
        until("a replica is ready", async || replica.get("/readyz").await == "ok\n").await;
        assert_eq!(replica.get("/healthz").await, "ok\n");
        replica
    }

    async fn leads(&self) -> bool {
        let gauge = format!("leader_election_master_status{{name=\"{CONTROLLER}\"}} 1");
        self.get("/metrics").await.lines().any(|line| line == gauge)
    }

    /// What it answers; nothing while it does not yet.
    async fn get(&self, path: &str) -> String {
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

/// Which of them leads.
async fn the_leader(replicas: &[Replica; 2]) -> usize {
    let mut leader = None;
    until("one of them leads", async || {
        leader = if replicas[0].leads().await {
            Some(0)
        } else {
            replicas[1].leads().await.then_some(1)
        };
        leader.is_some()
    })
    .await;
    leader.expect("it was found")
}

#[tokio::test]
async fn is_the_controller_when_told_so() {
    if std::env::var_os(REPLICA).is_none() {
        return;
    }
    let config = kube::Config::infer().await.expect("it was written");
    let election = leader::Config::new(&config.default_namespace, CONTROLLER)
        .lease_duration(Duration::from_secs(5))
        .renew_deadline(Duration::from_secs(4))
        .retry_period(Duration::from_millis(500));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    println!("\nserving at {}", listener.local_addr().expect("an address"));
    run(config, election, listener).await.expect("it ends in order");
}

// --- What it may do, and does -----------------------------------------------------------------

const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"#;

/// A verb, and a group and resource that it may be, or was, used on.
type Use = (String, String, String);

/// What the roles in the manifest allow.
fn allowed() -> BTreeSet<Use> {
    let rules = objects(manifest!("manifests/rbac.yaml"));
    let rules = rules.iter().filter_map(|object| object.data["rules"].as_array()).flatten();
    let texts = |of: &Value| -> Vec<String> {
        serde_json::from_value(of.clone()).expect("it is a list of texts")
    };
    let mut allowed = BTreeSet::new();
    for rule in rules {
        let groups = texts(&rule["apiGroups"]);
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                let uses =
                    groups.iter().map(|group| (verb.clone(), group.clone(), resource.clone()));
                allowed.extend(uses);
            }
        }
    }
    allowed
}

/// What the controller has used of it, by the API server's own account. Nothing was refused.
fn used(audit: &Path) -> BTreeSet<Use> {
    let audit = std::fs::read_to_string(audit).expect("it is there");
    let events = audit.lines().map(|line| serde_json::from_str(line).expect("it is JSON"));
    let events = events.filter(|event: &Value| event["impersonatedUser"]["username"] == USER);
    let mut used = BTreeSet::new();
    for event in events {
        let code = &event["responseStatus"]["code"];
        assert_ne!(code, 403, "{event}");
        let text = |of: &Value| of.as_str().unwrap_or_default().to_owned();
        let object = &event["objectRef"];
        let (group, mut resource) = (text(&object["apiGroup"]), text(&object["resource"]));
        if let Some(subresource) = object["subresource"].as_str() {
            resource = format!("{resource}/{subresource}");
        }
        if code == 201 {
            // An apply that has created.
            used.insert(("create".to_owned(), group.clone(), resource.clone()));
        }
        used.insert((text(&event["verb"]), group, resource));
    }
    used
}
