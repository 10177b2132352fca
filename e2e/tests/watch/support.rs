//! A running `requeue watch`, and ConfigMaps for it.

use std::path::Path;
use std::process::Command;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use requeue_e2e::{Access, Node, Server, until};
use serde_json::{Value, json};

/// Returns the command `requeue watch` with these arguments and this kubeconfig.
pub(crate) fn watch(kubeconfig: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_e2e-requeue"));
    command.arg("watch").args(args).env("KUBECONFIG", kubeconfig);
    command
}

/// A `requeue watch` of the administrator that runs with a server until this value is dropped.
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

    /// Returns the lines of its commands that start with `start`, in order.
    pub(crate) fn lines(&self, start: &str) -> Vec<String> {
        let log = self.node.log();
        log.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    }

    /// Returns true if a line starts with `start`. Panics if the program itself has reported
    /// anything else.
    pub(crate) fn has_written(&self, start: &str) -> bool {
        let said = self.lines("requeue: ");
        assert!(said.is_empty(), "{said:?}");
        !self.lines(start).is_empty()
    }

    /// Waits until `lines` lines start with `start`, and returns the text of each line after
    /// `start`.
    pub(crate) async fn wait(&self, start: &str, lines: usize) -> Vec<String> {
        until(&format!("{lines} lines begin with {start:?}"), async || {
            self.lines(start).len() >= lines
        })
        .await;
        let rest = |line: String| line[start.len()..].trim_start().to_owned();
        self.lines(start).into_iter().map(rest).collect()
    }

    /// Terminates the program, and waits until it has exited.
    pub(crate) async fn terminate(&self) {
        self.node.terminate().await;
    }

    /// Kills the program, and waits until it has exited.
    pub(crate) async fn kill(&self) {
        self.node.kill().await;
    }

    /// Returns all output of the program.
    pub(crate) fn log(&self) -> String {
        self.node.log()
    }

    /// Terminates the program gracefully, and returns all its output.
    pub(crate) async fn end(self) -> String {
        self.node.terminate().await;
        self.node.log()
    }
}

impl Drop for Watching {
    /// Prints the program's output if a test fails.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// A script that writes a line with the event, the key and the object.
pub(crate) const SHOW: &str = r#"printf '%s %s %s\n' "$REQUEUE_EVENT" "$1" "$(cat)""#;

/// Returns the ConfigMaps of a new namespace, and its name.
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

/// Allows a user these verbs on the ConfigMaps of a namespace, and nothing else. `verbs` must
/// include `list`.
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
    until("the role has an effect", async || maps.list(&Default::default()).await.is_ok()).await;
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
