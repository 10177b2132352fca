//! Watches, each of which is a position in the log of changes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::read::{present, serve};
use super::{Cluster, select};
use crate::defaults;
use crate::kind::Kind;
use crate::request::{Match, Options, Projection, Request};
use crate::selector::Selector;
use crate::status::{Failure, FieldError};
use crate::store::{Change, with_version};

/// An event of a watch: its type, and the object as the client receives it.
#[derive(Clone, Debug)]
pub(crate) struct Event(pub(crate) &'static str, pub(crate) Arc<Value>);

impl Event {
    fn to_json(&self) -> Value {
        json!({ "type": self.0, "object": *self.1 })
    }
}

/// A watch of the objects of a resource, as a position in the log of changes.
#[derive(Clone, Debug)]
pub struct Watch {
    kind: Arc<Kind>,
    namespace: Option<String>,
    selector: Selector,
    projection: Projection,
    /// The events with the objects that exist at the start of the watch. They are not in the
    /// log.
    initial: VecDeque<Event>,
    /// The version up to which the watch has returned all changes.
    seen: u64,
    has_bookmarks: bool,
    timeout: Option<Duration>,
    is_over: bool,
}

impl Watch {
    /// Returns the time after which the client wants the watch to end, or `None` if the
    /// client has not set it.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns true if the watch has ended: it has failed, or its kind no longer exists.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns true if the client has asked for bookmarks.
    #[must_use]
    pub fn has_bookmarks(&self) -> bool {
        self.has_bookmarks
    }

    /// Returns a bookmark. It tells the client the version up to which the client has
    /// received all changes.
    #[must_use]
    pub fn bookmark(&self) -> Value {
        self.next_bookmark().to_json()
    }

    pub(crate) fn next_bookmark(&self) -> Event {
        self.bookmark_with(&json!({}))
    }

    /// Returns the name of the watched resource, such as `deployments.apps`.
    pub(crate) fn resource(&self) -> String {
        self.kind.qualified()
    }

    fn bookmark_with(&self, metadata: &Value) -> Event {
        let mut object = match self.projection {
            Projection::Whole => {
                let mut object = defaults::zero(&self.kind);
                object["kind"] = json!(self.kind.kind);
                object["apiVersion"] = json!(self.kind.api_version());
                object
            }
            Projection::Metadata => {
                json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1" })
            }
        };
        object["metadata"] = metadata.clone();
        object["metadata"]["resourceVersion"] = json!(self.seen.to_string());
        Event("BOOKMARK", Arc::new(object))
    }

    fn fail(&mut self, failure: &Failure) -> Event {
        self.is_over = true;
        Event("ERROR", Arc::new(failure.to_status()))
    }

    /// Returns the event that the watch sends for a change, or `None` if the change does not
    /// concern the watch.
    fn event(&self, change: &Change) -> Option<Event> {
        let namespace = self.namespace.as_deref();
        if !change.key.is_of(self.kind.storage_group(), &self.kind.plural, namespace) {
            return None;
        }
        let selected = |object: &Option<Arc<Value>>| {
            let object = object.as_ref()?;
            self.selector.matches(&serve(&self.kind, object)).then(|| Arc::clone(object))
        };
        let (kind, object) = match (selected(&change.before), selected(&change.after)) {
            (None, None) => return None,
            (None, Some(object)) => ("ADDED", object),
            (Some(_), Some(object)) => ("MODIFIED", object),
            // The event contains the last state that matched the selector, with the version
            // of the change.
            (Some(before), None) => ("DELETED", with_version(&before, change.version)),
        };
        Some(Event(kind, present(&self.kind, self.projection, &object)))
    }
}

impl Cluster {
    pub(super) fn watch(&self, request: &Request, kind: &Arc<Kind>) -> Result<Watch, Failure> {
        let options = &request.options;
        check_watch_options(options)?;
        options.selector.check_fields(kind)?;
        let mut watch = Watch {
            kind: Arc::clone(kind),
            namespace: request.path.namespace.clone(),
            selector: options.selector.clone(),
            projection: request.projection,
            initial: VecDeque::new(),
            seen: self.store.version(),
            has_bookmarks: options.bookmarks,
            timeout: options.timeout_seconds.map(Duration::from_secs),
            is_over: false,
        };
        // If the client does not name a version, the watch begins with an event for each
        // existing object.
        let is_from_start = options.version.is_empty() || options.version == "0";
        let sends_all =
            options.send_initial_events.unwrap_or(is_from_start && options.version_match.is_none());
        // As on the API server, this error has no reason.
        let version = options.parsed_version();
        let version = version.map_err(|error| Failure::unknown(&error.to_string()))?;
        if sends_all {
            self.check_reached(version)?;
        }
        if sends_all {
            let namespace = request.path.namespace.as_deref();
            let objects =
                select(self.store.objects(), kind.storage_group(), &kind.plural, namespace);
            for (_, object) in objects {
                if watch.selector.matches(&serve(kind, object)) {
                    let object = present(kind, watch.projection, object);
                    watch.initial.push_back(Event("ADDED", object));
                }
            }
            if sends_all && watch.has_bookmarks {
                let end = json!({ "annotations": { "k8s.io/initial-events-end": "true" } });
                watch.initial.push_back(watch.bookmark_with(&end));
            }
        } else if version > 0 {
            watch.seen = version;
        }
        Ok(watch)
    }

    /// Returns the events of a watch that have not been returned yet. Each is a JSON object
    /// with `type` and `object`.
    ///
    /// The result is empty if the watched objects have not changed. After an event with the
    /// type `ERROR`, the watch [is over](Watch::is_over).
    pub fn events(&self, watch: &mut Watch) -> Vec<Value> {
        self.next_events(watch).iter().map(Event::to_json).collect()
    }

    pub(crate) fn next_events(&self, watch: &mut Watch) -> Vec<Event> {
        if watch.is_over {
            return Vec::new();
        }
        let mut events: Vec<_> = watch.initial.drain(..).collect();
        // The API server keeps the changes of custom resources only since the last change of
        // their definition.
        let defined = watch.kind.definition.as_ref().map_or(0, |it| it.version_of_definition());
        let oldest = self.store.oldest().max(defined);
        if watch.seen < oldest && self.store.version() > watch.seen {
            let why = format!("too old resource version: {} ({oldest})", watch.seen);
            events.push(watch.fail(&Failure::expired(why)));
            return events;
        }
        events
            .extend(self.store.changes_after(watch.seen).filter_map(|change| watch.event(change)));
        watch.seen = watch.seen.max(self.store.version());
        // The server ends the watches of a kind that was removed.
        watch.is_over = !self.kinds.contains_key(&watch.kind.key());
        events
    }
}

fn check_watch_options(options: &Options) -> Result<(), Failure> {
    let rule = "resourceVersionMatch";
    let mut errors = Vec::new();
    // These options are the default of a watch without a version.
    let is_from_start = options.version.is_empty() || options.version == "0";
    if is_from_start && options.send_initial_events.is_none() && options.version_match.is_none() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        let errors = [FieldError::forbidden(rule, why)];
        return match options.page {
            None => Ok(()),
            Some(_) => Err(Failure::invalid_options("ListOptions", &errors)),
        };
    }
    let found = options.version_match.as_ref();
    let is_not_older = found == Some(&Match::NotOlderThan);
    if options.send_initial_events.is_some() && !is_not_older {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        errors.push(FieldError::forbidden(rule, why));
    }
    if options.version_match.is_some() && options.send_initial_events.is_none() {
        let why =
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
        errors.push(FieldError::forbidden(rule, why));
    }
    if let Some(found) = found.filter(|_| !is_not_older) {
        let supported = ["NotOlderThan".into()];
        errors.push(FieldError::not_supported(rule, &found.text().into(), &supported));
    }
    if options.version_match.is_some() && options.page.is_some() {
        let why = "resourceVersionMatch is forbidden when continue is provided";
        errors.push(FieldError::forbidden(rule, why));
    }
    if errors.is_empty() { Ok(()) } else { Err(Failure::invalid_options("ListOptions", &errors)) }
}
