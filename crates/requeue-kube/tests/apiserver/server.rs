//! An API server in memory, which can refuse kinds.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Uri};
use kube::Client;
use kube::client::Body;
use requeue_testkit::{Access, ApiServer, Response};
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) const MAPS: &str = "configmaps";
pub(crate) const SECRETS: &str = "secrets";
pub(crate) const THINGS: &str = "things.example.com";
/// The definitions of custom resources.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

#[derive(Clone)]
pub(crate) struct Server {
    api: ApiServer,
    /// The status codes of the refused resources.
    refused: Arc<Mutex<BTreeMap<String, u16>>>,
}

impl Deref for Server {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.api
    }
}

impl Server {
    /// Creates a server with the namespace `ns`.
    pub(crate) fn new() -> Self {
        let server = Self { api: ApiServer::new(), refused: Arc::default() };
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace" });
        server.apply("/api/v1/namespaces/ns", namespace);
        server
    }

    pub(crate) fn client(&self) -> Client {
        let server = self.clone();
        let answer = move |mut request: Request<Body>| {
            let api = server.view(&mut request);
            api.oneshot(request)
        };
        Client::new(tower::service_fn(answer), "default")
    }

    /// Returns the server as this request sees it.
    fn view(&self, request: &mut Request<Body>) -> ApiServer {
        let refused = self.refused.lock().unwrap();
        let is_for = |resource: &str| {
            let plural = resource.split('.').next();
            request.uri().path().split('/').any(|part| Some(part) == plural)
        };
        match refused.iter().find(|(resource, _)| is_for(resource)) {
            Some((_, 403)) => return self.api.with_access(Access::user("stranger")),
            Some(_) => *request.uri_mut() = Uri::from_static("/apis/none.example.com/v1/things"),
            None => {}
        }
        self.api.clone()
    }

    /// Refuses all requests for a resource: with 403, or with 404 as if there were no such kind.
    pub(crate) fn refuse(&self, resource: &str, code: u16) {
        self.refused.lock().unwrap().insert(resource.to_owned(), code);
    }

    pub(crate) fn serve(&self, resource: &str) {
        self.refused.lock().unwrap().remove(resource);
    }

    /// Creates the definition of the kind `Thing`.
    pub(crate) fn define_things(&self) {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "spec": {
                "group": "example.com",
                "names": { "kind": "Thing", "plural": "things" },
                "scope": "Namespaced",
                "versions": [{
                    "name": "v1", "served": true, "storage": true,
                    "schema": { "openAPIV3Schema": { "type": "object" } },
                }],
            },
        });
        self.apply(&path(DEFINITIONS, THINGS), definition);
    }

    /// Creates or changes an object in namespace `ns`, with these fields of its metadata.
    pub(crate) fn put(&self, resource: &str, name: &str, metadata: Value) {
        let (api_version, kind) = match resource {
            MAPS => ("v1", "ConfigMap"),
            SECRETS => ("v1", "Secret"),
            _ => ("example.com/v1", "Thing"),
        };
        let object = json!({ "apiVersion": api_version, "kind": kind, "metadata": metadata });
        self.apply(&path(resource, name), object);
    }

    pub(crate) fn delete(&self, resource: &str, name: &str) {
        self.send("DELETE", path(resource, name), String::new());
    }

    /// Returns metadata with an owner, which is a ConfigMap.
    pub(crate) fn owned_by(&self, name: &str) -> Value {
        let maps = self.objects(MAPS);
        let owner = maps.iter().find(|map| map["metadata"]["name"] == *name).unwrap();
        json!({ "ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": owner["metadata"]["uid"],
        }] })
    }

    fn apply(&self, path: &str, mut object: Value) {
        object["metadata"]["name"] = json!(path.rsplit('/').next());
        self.send("PATCH", format!("{path}?fieldManager=test"), object.to_string());
    }

    fn send(&self, method: &str, path: String, body: String) {
        let request = Request::builder().method(method).uri(path);
        let request = request.header("content-type", "application/apply-patch+yaml");
        let request = request.body(Bytes::from(body)).unwrap();
        let now = self.now();
        let response = self.with(|cluster| cluster.handle(now, &Access::admin(), &request));
        assert!(matches!(response, Response::Json(200 | 201, _)), "{response:?}");
    }

    /// Returns the number of requests for a resource, with the verb `list` or `watch`.
    pub(crate) fn count(&self, verb: &str, resource: &str) -> usize {
        let records = self.records();
        records.iter().filter(|record| record.verb == verb && record.resource == resource).count()
    }
}

fn path(resource: &str, name: &str) -> String {
    match resource {
        MAPS | SECRETS => format!("/api/v1/namespaces/ns/{resource}/{name}"),
        DEFINITIONS => format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"),
        _ => format!("/apis/example.com/v1/namespaces/ns/things/{name}"),
    }
}
