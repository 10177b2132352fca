//! Watches: cursors into the log of changes.

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

/// An event of a watch: its type, and the object as the client sees it.
#[derive(Clone, Debug)]
pub(crate) struct Event(pub(crate) &'static str, pub(crate) Arc<Value>);

impl Event {
    fn to_json(&self) -> Value {
        json!({ "type": self.0, "object": *self.1 })
    }
}

/// A watch, as a position in the log of changes.
#[derive(Clone, Debug)]
pub struct Watch {
    kind: Arc<Kind>,
    namespace: Option<String>,
    selector: Selector,
    projection: Projection,
    /// Events that do not come from the log: the initial objects.
    initial: VecDeque<Event>,
    /// The version up to which the watch has shown all changes.
    seen: u64,
    has_bookmarks: bool,
    timeout: Option<Duration>,
    is_over: bool,
}

impl Watch {
    /// Returns how long the client wants to watch.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Returns whether the watch has shown its last event, after a failure.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns whether the client wants bookmarks.
    #[must_use]
    pub fn has_bookmarks(&self) -> bool {
        self.has_bookmarks
    }

    /// Returns an event that shows only up to which version the client has seen all changes.
    #[must_use]
    pub fn bookmark(&self) -> Value {
        self.bookmark_with(&json!({})).to_json()
    }

    pub(crate) fn next_bookmark(&self) -> Event {
        self.bookmark_with(&json!({}))
    }

    /// Returns the watched resource, such as `deployments.apps`.
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

    /// Returns the event by which the watch shows a change, if it does.
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
            // The last state that the watch has shown, with the version of the change.
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
        // A watch without a version begins with all objects.
        let is_from_start = options.version.is_empty() || options.version == "0";
        let sends_all =
            options.send_initial_events.unwrap_or(is_from_start && options.version_match.is_none());
        // For this error, the API server has no reason.
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

    /// Returns the next events of a watch, each as a JSON object with `type` and `object`.
    ///
    /// The result is empty if nothing has changed. After an event of type `ERROR`, the watch [is over](Watch::is_over).
    pub fn events(&self, watch: &mut Watch) -> Vec<Value> {
        self.next_events(watch).iter().map(Event::to_json).collect()
    }

    pub(crate) fn next_events(&self, watch: &mut Watch) -> Vec<Event> {
        if watch.is_over {
            return Vec::new();
        }
        let mut events: Vec<_> = watch.initial.drain(..).collect();
        // The API server has no history of a custom resource from before its definition.
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
        // The server closes the watches of a kind that is gone.
        watch.is_over = !self.kinds.contains_key(&watch.kind.key());
        events
    }
}

fn check_watch_options(options: &Options) -> Result<(), Failure> {
    let rule = "resourceVersionMatch";
    let mut errors = Vec::new();
    // A watch without a version has these options by default.
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
