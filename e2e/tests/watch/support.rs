use std::path::Path;
use std::process::Command;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use requeue_e2e::{Access, Node, Server, until};
use serde_json::{Value, json};

/// `requeue watch`, with these arguments, by this kubeconfig.
pub(crate) fn watch(kubeconfig: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_e2e-requeue"));
    command.arg("watch").args(args).env("KUBECONFIG", kubeconfig);
    command
}

/// The same, as the administrator, until it is dropped; beside a server in a namespace of one's own.
pub(crate) struct Watching {
    node: Node<'static>,
}

impl Watching {
    pub(crate) fn start(server: &Server, name: &str, args: &[&str]) -> Self {
        Self::start_as(server, name, &server.access(), args)
    }

    pub(crate) fn start_as(server: &Server, name: &str, by: &Access<'_>, args: &[&str]) -> Self {
        Self { node: server.spawn(name, watch(&by.kubeconfig(), args)) }
    }

    /// The lines that its commands have written which begin so, in order.
    pub(crate) fn lines(&self, start: &str) -> Vec<String> {
        let log = self.node.log();
        log.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }

    /// Whether a line begins so. Fails where the program itself has said something: it has not begun.
    pub(crate) fn has_written(&self, start: &str) -> bool {
        let said = self.lines("requeue: ");
        assert!(said.is_empty(), "{said:?}");
        !self.lines(start).is_empty()
    }

    /// Waits until so many lines begin so, and has what follows there.
    pub(crate) async fn wait(&self, start: &str, lines: usize) -> Vec<String> {
        until(&format!("{lines} lines begin with {start:?}"), async || {
            self.lines(start).len() >= lines
        })
        .await;
        let rest = |line: String| line[start.len()..].trim_start().to_owned();
        self.lines(start).into_iter().map(rest).collect()
    }

    /// Asks it to end, and waits until it has.
    pub(crate) async fn terminate(&self) {
        self.node.terminate().await;
    }

    /// All that it has written.
    pub(crate) fn log(&self) -> String {
        self.node.log()
    }

    /// Ends it in order, and returns all that it has written.
    pub(crate) async fn end(self) -> String {
        self.node.terminate().await;
        self.node.log()
    }
}

impl Drop for Watching {
    /// A test that fails shows what the program has written.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// Writes a line with the event, the key and the object.
pub(crate) const SHOW: &str = r#"printf '%s %s %s\n' "$REQUEUE_EVENT" "$1" "$(cat)""#;

/// The ConfigMaps of a namespace of one's own, and its name.
pub(crate) async fn maps(server: &Server, prefix: &str) -> (Api<ConfigMap>, String) {
    let namespace = server.namespace(prefix).await;
    (Api::namespaced(server.client().await, &namespace), namespace)
}

pub(crate) async fn create(maps: &Api<ConfigMap>, name: &str, value: &str) {
    let map = json!({ "metadata": { "name": name }, "data": { "value": value } });
    let map = serde_json::from_value(map).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
}

pub(crate) async fn patch(maps: &Api<ConfigMap>, name: &str, patch: &Value) {
    maps.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
}

pub(crate) async fn delete(maps: &Api<ConfigMap>, name: &str) {
    maps.delete(name, &kube::api::DeleteParams::default()).await.unwrap();
}

/// Lets a user do this with the ConfigMaps of a namespace, and nothing else. Listing is among it.
pub(crate) async fn allow(server: &Server, namespace: &str, user: &str, verbs: &[&str]) {
    let client = server.client().await;
    let roles: Api<Role> = Api::namespaced(client.clone(), namespace);
    let bindings: Api<RoleBinding> = Api::namespaced(client, namespace);
    let params = PatchParams::apply("test").force();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": { "name": user },
        "rules": [{ "apiGroups": [""], "resources": ["configmaps"], "verbs": verbs }],
    });
    roles.patch(user, &params, &Patch::Apply(&role)).await.unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": { "name": user },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
    });
    bindings.patch(user, &params, &Patch::Apply(&binding)).await.unwrap();
    let theirs = server.access().user(user).client().await;
    let maps: Api<ConfigMap> = Api::namespaced(theirs, namespace);
    until("the role is heeded", async || maps.list(&Default::default()).await.is_ok()).await;
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
