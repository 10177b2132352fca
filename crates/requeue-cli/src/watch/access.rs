//! The client of the API server, and the checks before the first watch.

use std::fmt;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{ListParams, ObjectMeta, PostParams};
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, DynamicObject, DynamicResourceScope, PartialObjectMeta};
use kube::discovery::Scope;
use kube::runtime::watcher;
use kube::{Api, Client, Config, Resource as Object};

use requeue_kube::leader;
use tower::util::MapResponseLayer;

use super::decoded::{Decoded, replace_invalid_utf8};
use super::errors::{Server, request_failure};
use super::events::Source;
use super::resource::{Resource, Resources};
use crate::args::watch::AccessFlags;
use crate::exit::{Exit, Refusal};

/// An object, or the metadata of an object, whose resource is known only at run time.
pub(crate) trait Dynamic:
    Object<DynamicType = ApiResource, Scope = DynamicResourceScope>
{
}

impl<K: Object<DynamicType = ApiResource, Scope = DynamicResourceScope>> Dynamic for K {}

/// A client of the API server, with the server's resources and the selected namespace.
pub(crate) struct Access {
    pub(crate) client: Client,
    config: Config,
    pub(crate) server: Server,
    /// The user that `--as` names.
    pub(crate) impersonated: Option<String>,
    resources: Resources,
    /// The selected namespace. `None` for all namespaces.
    namespace: Option<String>,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Access {
    pub(crate) async fn new(flags: &AccessFlags) -> Result<Self, Refusal> {
        let (config, context) = client_config(flags).await?;
        let plugin = config.auth_info.exec.as_ref().and_then(|exec| exec.command.clone());
        let server = Server { url: config.cluster_url.to_string(), context, plugin };
        let namespace = flags.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let namespace = (!flags.all_namespaces).then_some(namespace);
        let client = ClientBuilder::try_from(config.clone());
        let client =
            client.map_err(|error| request_failure(&format!("a client of {server}"), &error))?;
        // Without this layer, a single invalid byte would make a whole list fail.
        let client = client.with_layer(&MapResponseLayer::new(replace_invalid_utf8)).build();
        let core = client.list_core_api_versions_aggregated().await;
        let core = core.map_err(|error| server.refusal("get", "/api", &error))?;
        let groups = client.list_api_groups_aggregated().await;
        let groups = groups.map_err(|error| server.refusal("get", "/apis", &error))?;
        let (impersonated, resources) = (flags.as_user.clone(), Resources::new(core, groups));
        Ok(Self { client, config, server, impersonated, resources, namespace })
    }

    /// Returns the namespace of an object that the command line names without a namespace.
    pub(crate) fn default_namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(&self.config.default_namespace)
    }

    /// Returns a client for the leader election alone. It has its own connections, and the timeouts of the election.
    pub(crate) fn election_client(&self, config: &leader::Config) -> Result<Client, Refusal> {
        let client = config.client(self.config.clone());
        client.map_err(|error| request_failure(&format!("a client of {}", self.server), &error))
    }

    /// Checks the right to hold this Lease. Without the right, an elector would retry forever and print nothing.
    pub(crate) async fn try_lease(&self, namespace: &str, name: &str) -> Result<(), Refusal> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), namespace);
        let what = format!("leases.coordination.k8s.io in namespace {namespace}");
        let lease = leases
            .get_opt(name)
            .await
            .map_err(|error| self.server.refusal("get", &what, &error))?;
        // With a dry run, the server checks the right and writes nothing.
        let dry_run = PostParams { dry_run: true, ..PostParams::default() };
        let (verb, tried) = match lease {
            Some(lease) => ("update", leases.replace(name, &dry_run, &lease).await),
            None => {
                let metadata = ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
                ("create", leases.create(&dry_run, &Lease { metadata, spec: None }).await)
            }
        };
        match tried {
            // A conflict means that another process has written the Lease after the read. The server has thus accepted
            // the right.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            tried => tried.map(|_| ()).map_err(|error| self.server.refusal(verb, &what, &error)),
        }
    }

    /// Returns the resource that `text` names. Checks that its objects can be listed and watched.
    pub(crate) async fn find_listable(
        &self,
        text: &str,
        params: &ListParams,
    ) -> Result<Resource, Refusal> {
        let resource = self.resources.find_resource(text);
        let resource = resource.map_err(|message| Refusal { exit: Exit::Denied, message })?;
        self.try_list(&resource, params).await?;
        self.review_right("watch", &resource, params).await?;
        Ok(resource)
    }

    /// Returns a watch of the selected objects of a resource.
    pub(crate) fn event_source<K: Dynamic>(
        &self,
        resource: &Resource,
        params: &ListParams,
    ) -> Source<K> {
        let config = watcher::Config {
            label_selector: params.label_selector.clone(),
            field_selector: params.field_selector.clone(),
            ..watcher::Config::default()
        };
        let what = resource.name_in(self.namespace_of(resource).unwrap_or_default());
        Source { api: self.selected_api(resource), config, what, server: self.server.clone() }
    }

    /// Returns the API for the objects of a resource in the selected namespaces.
    fn selected_api<K: Dynamic>(&self, resource: &Resource) -> Api<K> {
        match self.namespace_of(resource) {
            Some(namespace) => self.api_in(resource, namespace),
            None => Api::all_with(self.client.clone(), &resource.api),
        }
    }

    /// Returns the API for the objects of a resource in this namespace. An empty namespace stands for cluster scope.
    pub(crate) fn api_in<K: Dynamic>(&self, resource: &Resource, namespace: &str) -> Api<K> {
        match namespace {
            "" => Api::all_with(self.client.clone(), &resource.api),
            _ => Api::namespaced_with(self.client.clone(), namespace, &resource.api),
        }
    }

    pub(crate) fn namespace_of(&self, resource: &Resource) -> Option<&str> {
        self.namespace.as_deref().filter(|_| resource.scope == Scope::Namespaced)
    }

    /// Checks the right to list these objects. Without the right, kube's watcher would retry forever and print
    /// nothing.
    async fn try_list(&self, resource: &Resource, params: &ListParams) -> Result<(), Refusal> {
        let api: Api<Decoded<PartialObjectMeta<DynamicObject>>> = self.selected_api(resource);
        // A list of one object is enough to check the right.
        let listed = api.list(&params.clone().limit(1)).await;
        let namespace = self.namespace_of(resource).unwrap_or_default();
        listed.map(|_| ()).map_err(|error| {
            let mut refusal = self.server.refusal("list", &resource.name_in(namespace), &error);
            if matches!(&error, kube::Error::Api(status) if status.code == 403) {
                refusal.message += &format!("; {}", self.next_step("list", resource));
            }
            refusal
        })
    }
}

/// Returns the address of the server and the credentials. Also returns the context of the kubeconfig from which they
/// come.
async fn client_config(flags: &AccessFlags) -> Result<(Config, Option<String>), Refusal> {
    let options = KubeConfigOptions { context: flags.context.clone(), ..Default::default() };
    let mut context = flags.context.clone();
    let config = match (&flags.kubeconfig, &flags.context) {
        (Some(path), _) => {
            let kubeconfig = Kubeconfig::read_from(path);
            let kubeconfig = kubeconfig.map_err(|error| request_failure("--kubeconfig", &error))?;
            context = context.or_else(|| kubeconfig.current_context.clone());
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            config.map_err(|error| request_failure("--kubeconfig", &error))
        }
        (None, Some(_)) => {
            let config = Config::from_kubeconfig(&options).await;
            config.map_err(|error| request_failure("--context", &error))
        }
        // If there is no kubeconfig, `infer` uses the service account of the pod.
        (None, None) => {
            context = Kubeconfig::read().ok().and_then(|kubeconfig| kubeconfig.current_context);
            Config::infer()
                .await
                .map_err(|error| request_failure("no kubeconfig, and not in a pod", &error))
        }
    };
    let mut config = config?;
    if let Some(user) = &flags.as_user {
        config.auth_info.impersonate = Some(user.clone());
    }
    Ok((config, context))
}
