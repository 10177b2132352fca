use std::path::Path;
use std::process::Command;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use requeue_e2e::{Node, Server, until};
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
        Self { node: server.spawn(name, watch(&server.kubeconfig(), args)) }
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

    /// Ends it in order, and returns all that it has written.
    pub(crate) async fn end(self) -> String {
        self.node.terminate().await;
        self.node.log()
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

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}
