//! The API server as a state machine.

mod body;
mod delete;
mod garbage;
mod read;
mod scale;
mod strategy;
mod watch;
mod write;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

pub(crate) use self::watch::Event;
pub use self::watch::Watch;
use crate::access::Access;
use crate::discovery;
use crate::kind::{self, Kind, Kinds};
use crate::random::Random;
use crate::record::Record;
use crate::request::{PatchType, Path, Request, Verb, unsupported_custom_patch};
use crate::status::Failure;
use crate::store::{Key, Objects, Store};

/// The response of a [`Cluster`] to a request.
#[derive(Clone, Debug)]
pub enum Response {
    /// A response in JSON: the status code, and an object, a list or a `Status`.
    Json(u16, Arc<Value>),
    /// A response as plain text, for example to `/healthz`: the status code, and the
    /// text.
    Text(u16, String),
    /// An accepted watch. [`Cluster::events`] returns its events.
    Watch(Box<Watch>),
}

/// An API server as a state machine. Its state consists of objects, their versions and
/// the log of their changes.
///
/// The cluster has no clock, no tasks and no I/O. If two clusters receive the same
/// requests at the same times, their responses are the same. A clone is an independent
/// copy of the state. The two copies share the memory of unchanged objects.
#[derive(Clone, Debug)]
pub struct Cluster {
    store: Store,
    kinds: Kinds,
    random: Random,
    created: u64,
    records: VecDeque<Record>,
    history: usize,
    /// True if each write also collects the garbage that it causes.
    collects: bool,
    has_garbage: bool,
}

impl Cluster {
    /// Creates a cluster with the namespaces that every Kubernetes cluster has.
    ///
    /// `seed` determines the generated names and uids. `history` is the maximum number
    /// of changes in the log, and of recorded requests.
    #[must_use]
    pub fn new(seed: u64, history: usize) -> Self {
        let mut cluster = Self {
            store: Store::new(history),
            kinds: kind::built_in(),
            random: Random::new(seed),
            created: 0,
            records: VecDeque::new(),
            history,
            collects: true,
            has_garbage: false,
        };
        for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            cluster.add_namespace(name);
        }
        cluster
    }

    /// Sets whether each write also collects the garbage that it causes.
    ///
    /// The default is true. If it is false, the test must call
    /// [`collect_garbage`](Self::collect_garbage).
    pub fn collect_automatically(&mut self, collects: bool) {
        self.collects = collects;
    }

    /// Handles a request that arrives at the time `now` from a user with the
    /// permissions `access`. Returns the response.
    pub fn handle(
        &mut self,
        now: Timestamp,
        access: &Access,
        request: &http::Request<Bytes>,
    ) -> Response {
        let version_before = self.store.version();
        let mut record = Record {
            at: now,
            user: access.name().to_owned(),
            verb: request.method().as_str().to_lowercase(),
            resource: request.uri().path().to_owned(),
            subresource: None,
            namespace: None,
            name: None,
            version_sent: None,
            manager: None,
            dry_run: false,
            code: 200,
            reason: None,
            version_before,
            version_after: version_before,
        };
        let result = self.answer(now, access, request, &mut record);
        if self.collects {
            self.collect_garbage(now);
        }
        record.version_after = self.store.version();
        let response = match result {
            Ok(response) => {
                if let Response::Json(code, _) = response {
                    record.code = code;
                }
                response
            }
            Err(failure) => {
                record.code = failure.code;
                record.reason = Some(failure.reason.to_owned());
                match failure.text() {
                    Some(text) => Response::Text(failure.code, text.into()),
                    None => Response::Json(failure.code, Arc::new(failure.to_status())),
                }
            }
        };
        self.records.push_back(record);
        if self.records.len() > self.history {
            self.records.pop_front();
        }
        response
    }

    fn answer(
        &mut self,
        now: Timestamp,
        access: &Access,
        request: &http::Request<Bytes>,
        record: &mut Record,
    ) -> Result<Response, Failure> {
        let path = request.uri().path();
        let Some(path) = Path::parse(path) else {
            return Ok(match discovery::respond(&self.kinds, request)? {
                Some(json) => Response::Json(200, Arc::new(json)),
                None => Response::Text(200, "ok".into()),
            });
        };
        let request = match Request::parse(path.clone(), request) {
            // If the resource does not exist, the error says so, instead of refusing
            // the method.
            Err(failure) if failure.code == 405 => {
                return Err(self.kind(&path).err().unwrap_or(failure));
            }
            request => request?,
        };
        request.describe(record);
        if let Some(why) = access.refusal(request.verb, &request) {
            return Err(Failure::denied(request.resource(), &why));
        }
        let kind = self.kind(&request.path)?;
        if kind.is_namespaced && request.path.namespace.is_none() && request.path.name.is_some()
            || !kind.is_namespaced && request.path.namespace.is_some()
        {
            return Err(no_such_path(kind.definition.is_none()));
        }
        let is_list = matches!(request.verb, Verb::List | Verb::Watch);
        if kind.is_namespaced && request.path.namespace.is_none() && !is_list {
            // Only lists and watches can read a namespaced kind without a namespace in
            // the path.
            return Err(match kind.definition {
                Some(_) => Failure::page_not_found(),
                None => Failure::method_not_allowed(),
            });
        }
        let is_subresource = request.path.subresource.as_deref();
        let is_known = is_subresource.is_none_or(|subresource| kind.has_subresource(subresource));
        let is_strategic = request.verb == Verb::Patch(PatchType::Strategic);
        if is_strategic && is_known && kind.definition.is_some() {
            return Err(unsupported_custom_patch());
        }
        if kind.group == "authorization.k8s.io" {
            return match &*kind.plural {
                "selfsubjectaccessreviews" if request.verb == Verb::Create => {
                    Ok(Response::Json(201, Arc::new(access.review(&request.body))))
                }
                other => Err(Failure::not_implemented(other)),
            };
        }
        if kind.group == "authentication.k8s.io"
            || kind.is_core("bindings")
            || kind.is_core("componentstatuses")
        {
            return Err(Failure::not_implemented(kind.qualified()));
        }
        if request.verb == Verb::Create && request.path.name.is_some()
            || request.path.subresource.is_some()
        {
            return self.handle_subresource(now, access, &request, &kind);
        }
        if !kind.verbs.iter().any(|verb| verb == request.verb.name()) {
            return Err(Failure::method_not_allowed());
        }
        match request.verb {
            Verb::Get => self.get(&request, &kind),
            Verb::List => self.list(&request, &kind),
            Verb::Watch => self.watch(&request, &kind).map(|it| Response::Watch(Box::new(it))),
            Verb::Create => self.create(now, &request, &kind),
            Verb::Update | Verb::Patch(_) => self.update(now, access, &request, &kind),
            Verb::Delete => self.delete(now, &request, &kind),
            Verb::DeleteCollection => self.delete_collection(now, &request, &kind),
        }
    }

    fn handle_subresource(
        &mut self,
        now: Timestamp,
        access: &Access,
        request: &Request,
        kind: &Arc<Kind>,
    ) -> Result<Response, Failure> {
        let Some(subresource) = request.path.subresource.as_deref() else {
            return Err(Failure::method_not_allowed());
        };
        if !kind.has_subresource(subresource) {
            let name = request.path.name.as_deref().unwrap_or_default();
            return Err(match kind.definition {
                Some(_) => Failure::not_found(kind, name),
                None => Failure::no_such_path(),
            });
        }
        match (subresource, request.verb) {
            ("status", Verb::Get) => self.get(request, kind),
            ("status", Verb::Update | Verb::Patch(_)) => self.update(now, access, request, kind),
            ("scale", Verb::Get) => self.get_scale(request, kind),
            ("scale", Verb::Update | Verb::Patch(_)) => self.update_scale(now, request, kind),
            ("status" | "scale", _) => Err(Failure::method_not_allowed()),
            (other, _) => Err(Failure::not_implemented(format_args!(
                "the subresource {}/{other}",
                kind.qualified()
            ))),
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Returns the resource version of the last change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.store.version()
    }

    /// Returns the recorded requests, the oldest first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.records.iter()
    }

    /// Returns the recorded requests, the oldest first, and clears the record.
    pub fn take_records(&mut self) -> Vec<Record> {
        self.records.drain(..).collect()
    }

    /// Clears the log of changes, as a compaction of etcd does.
    ///
    /// Watches and lists that continue from an earlier version then fail with the
    /// status 410 (Expired).
    pub fn compact(&mut self) {
        self.store.compact();
    }

    /// Returns the objects of a resource as they were at a version. The order is that
    /// of a list.
    ///
    /// `resource` is the plural with the group, such as `deployments.apps`. Returns
    /// `None` if the log of changes begins after the version, or if the version is in
    /// the future.
    #[must_use]
    pub fn objects_at(&self, resource: &str, version: u64) -> Option<Vec<Arc<Value>>> {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let objects = self.store.at(version)?;
        Some(select(&objects, group, plural, None).map(|(_, object)| Arc::clone(object)).collect())
    }

    /// Returns the current objects of a resource. The order is that of a list.
    ///
    /// `resource` is the plural with the group, such as `deployments.apps`.
    #[must_use]
    pub fn objects(&self, resource: &str) -> Vec<Arc<Value>> {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        let objects = select(self.store.objects(), group, plural, None);
        objects.map(|(_, object)| Arc::clone(object)).collect()
    }

    fn kind(&self, path: &Path) -> Result<Arc<Kind>, Failure> {
        let key = (path.group.clone(), path.version.clone(), path.plural.clone());
        match self.kinds.get(&key) {
            Some(kind) => Ok(Arc::clone(kind)),
            None if kind::has_all_kinds(&path.group, &path.version) => Err(Failure::no_such_path()),
            None if kind::is_known_group(&path.group) => {
                let group = match &*path.group {
                    "" => path.version.clone(),
                    group => format!("{group}/{}", path.version),
                };
                Err(Failure::not_implemented(format_args!("{} of {group}", path.plural)))
            }
            None => Err(Failure::page_not_found()),
        }
    }

    /// Returns the stored object that the path of a request names, or an error if there
    /// is none.
    fn stored(&self, kind: &Kind, path: &Path) -> Result<(Key, Arc<Value>), Failure> {
        let name = path.name.as_deref().unwrap_or_default();
        let key = Key::new(kind.storage_group(), &kind.plural, path.namespace.as_deref(), name);
        match self.store.get(&key) {
            Some(object) => Ok((key, Arc::clone(object))),
            None => Err(Failure::not_found(kind, name)),
        }
    }

    fn add_namespace(&mut self, name: &str) {
        let uid = self.new_uid();
        let mut namespace = json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": { "name": name, "uid": uid },
        });
        strategy::complete_namespace(&mut namespace);
        self.store.put(Key::new("", "namespaces", None, name), namespace);
    }

    fn new_uid(&mut self) -> String {
        self.created += 1;
        let random = self.random.next();
        format!("{:08x}-{:04x}-4000-8000-{:012x}", random >> 32, random & 0xffff, self.created)
    }
}

/// Returns the error for a path without a resource. The text for a group of built-in
/// kinds differs from that of a group of custom resources.
fn no_such_path(is_built_in: bool) -> Failure {
    if is_built_in { Failure::no_such_path() } else { Failure::page_not_found() }
}

/// Returns the objects of a resource. If `namespace` is set, returns only those in this
/// namespace.
fn select<'a>(
    objects: &'a Objects,
    group: &'a str,
    plural: &'a str,
    namespace: Option<&'a str>,
) -> impl Iterator<Item = (&'a Key, &'a Arc<Value>)> {
    let start = Key::new(group, plural, namespace, "");
    objects.range(start..).take_while(move |(key, _)| key.is_of(group, plural, namespace))
}
