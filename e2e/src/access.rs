//! The identity of a client, its permissions, and its path to a server.

use std::error::Error;
use std::fmt::Debug;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::{Proxy, Server};

const RBAC: &str = "rbac.authorization.k8s.io";

/// The identity of a client and its path to a [`Server`]. By default, the client is the
/// administrator, with a direct connection.
#[derive(Clone, Debug)]
pub struct Access<'a> {
    server: &'a Server,
    user: Option<String>,
    namespace: Option<String>,
    port: u16,
}

impl<'a> Access<'a> {
    pub(crate) fn new(server: &'a Server, port: u16) -> Self {
        Self { server, user: None, namespace: None, port }
    }

    /// Uses this user, whose permissions come only from roles. The administrator impersonates the
    /// user, so that any name is possible.
    pub fn user(self, name: &str) -> Self {
        Self { user: Some(name.to_owned()), ..self }
    }

    /// Uses this service account. Its permissions come from roles of the account and of the groups
    /// of service accounts. The account does not have to exist. The default namespace is the
    /// namespace of the account, as in a pod.
    pub fn service_account(self, namespace: &str, name: &str) -> Self {
        let account = self.user(&format!("system:serviceaccount:{namespace}:{name}"));
        Self { namespace: Some(namespace.to_owned()), ..account }
    }

    /// Gives this account a role with these rules, in the account's namespace or, without a
    /// namespace, in the whole cluster.
    ///
    /// # Panics
    /// Panics if the rules are not valid.
    pub async fn allow(&self, rules: Value) {
        let client = self.server.client().await;
        let name = format!("e2e-{:016x}", fastrand::u64(..));
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let scope = if self.namespace.is_some() { "" } else { "Cluster" };
        let role = json!({ "metadata": metadata, "rules": rules });
        let binding = json!({
            "metadata": metadata,
            "roleRef": {
                "apiGroup": RBAC, "kind": format!("{scope}Role"), "name": name,
            },
            "subjects": [{ "apiGroup": RBAC, "kind": "User", "name": self.user }],
        });
        let allowed = async {
            match &self.namespace {
                Some(namespace) => {
                    create(Api::<Role>::namespaced(client.clone(), namespace), role).await?;
                    create(Api::<RoleBinding>::namespaced(client, namespace), binding).await
                }
                None => {
                    create(Api::<ClusterRole>::all(client.clone()), role).await?;
                    create(Api::<ClusterRoleBinding>::all(client), binding).await
                }
            }
        };
        allowed.await.unwrap_or_else(|err| panic!("rights for {self:?}: {err}"));
    }

    /// Connects through a [`Proxy`], from [`Server::proxy`].
    pub fn through(self, proxy: &Proxy) -> Self {
        Self { port: proxy.address().port(), ..self }
    }

    /// Returns the configuration from which kube creates a [`Client`], so that a test can change
    /// it.
    ///
    /// # Panics
    /// Panics if the server's certificate cannot be read.
    pub async fn config(&self) -> Config {
        // The kubeconfig is valid, because it was composed here from a token, an address and the
        // path of a certificate.
        match Config::from_custom_kubeconfig(self.contents(), &KubeConfigOptions::default()).await {
            Ok(config) => config,
            Err(err) => panic!("a client for {self:?}: {err}"),
        }
    }

    /// Returns a client, bound to the current tokio runtime.
    ///
    /// # Panics
    /// Panics as [`config`](Self::config) does.
    pub async fn client(&self) -> Client {
        match Client::try_from(self.config().await) {
            Ok(client) => client,
            Err(err) => panic!("a client for {self:?}: {err}"),
        }
    }

    /// Returns the path of a kubeconfig for programs. The file exists as long as the server.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn kubeconfig(&self) -> PathBuf {
        // JSON is also valid YAML.
        let text = serde_json::to_string_pretty(&self.contents());
        let user = self.user.as_deref().unwrap_or("admin");
        let path = Self::path(self.server.dir(), user, self.port);
        // The file is replaced atomically, because another program may be reading it.
        let written = text.map_err(Into::into).and_then(|text| {
            let mut file = NamedTempFile::new_in(self.server.dir())?;
            file.write_all(text.as_bytes())?;
            file.persist(&path)?;
            Ok::<_, io::Error>(())
        });
        written.unwrap_or_else(|err| panic!("{}: {err}", path.display()));
        path
    }

    pub(crate) fn path(dir: &Path, user: &str, port: u16) -> PathBuf {
        dir.join(format!("kubeconfig-{}-{port}", user.replace(['/', ':'], "-")))
    }

    fn contents(&self) -> Kubeconfig {
        let contents = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "e2e",
                "cluster": {
                    "server": format!("https://127.0.0.1:{}", self.port),
                    "certificate-authority": self.server.certificate(),
                },
            }],
            "users": [{
                "name": "e2e",
                "user": { "token": self.server.token(), "as": self.user },
            }],
            "contexts": [{
                "name": "e2e",
                "context": { "cluster": "e2e", "user": "e2e", "namespace": self.namespace },
            }],
            "current-context": "e2e",
        });
        match serde_json::from_value(contents) {
            Ok(contents) => contents,
            Err(err) => panic!("a kubeconfig: {err}"),
        }
    }
}

async fn create<K>(api: Api<K>, object: Value) -> Result<(), Box<dyn Error>>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    Ok(())
}
