//! The events of watches, and the changes of objects that result from them.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;

use futures_util::StreamExt;
use kube::core::error_boundary::InvalidObject;
use kube::core::{DynamicObject, ObjectMeta, TypeMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Error};
use kube::{Api, Resource as Object};
use requeue_kube::ObjectKey;
use requeue_kube::watch::{Change, Observation, Watch};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::decoded::Decoded;
use super::enqueue::Enqueuer;
use super::errors::{Reports, Server, Unreadable};
use super::objects::{Objects, State};
use super::resource::Resource;
use crate::key::escaped;
use crate::runner::Runner;

/// A watch of the objects of one resource.
pub(crate) struct Source<K> {
    pub(crate) api: Api<Decoded<K>>,
    pub(crate) config: watcher::Config,
    /// The name of the resource, with its namespace.
    pub(crate) what: String,
    pub(crate) server: Server,
}

impl<K: Object + Clone + DeserializeOwned + Debug + Send + 'static> Source<K> {
    /// Passes each step to `take`. Never returns. Prints errors as often as [`Reports`] permits, and objects that
    /// cannot be decoded as often as [`Unreadable`] permits.
    pub(crate) async fn for_each_step(self, runner: &Runner, mut take: impl FnMut(Step<K>)) {
        let mut events = pin!(watcher(self.api, self.config).default_backoff());
        let (mut reports, mut unreadable) = (Reports::default(), Unreadable::default());
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => match Step::from_event(event) {
                    Ok(step) => take(step),
                    Err(invalid) => {
                        let key = ObjectKey::from_meta(&invalid.metadata);
                        if unreadable.is_due(&key, runner.now()) {
                            let (what, key) = (&self.what, escaped(key.to_string().as_bytes()));
                            let why = format!("{what}: {key} cannot be decoded: {invalid}");
                            runner.output.say(&format!("{why}; nothing runs for it")).await;
                        }
                        take(Step::Kept(key));
                    }
                },
                // The resource version has expired. The watcher then lists the objects again, so nothing is printed.
                Err(Error::WatchError(status)) if status.code == 410 => {}
                Err(error) => {
                    let why = self.server.why_not_watched(&self.what, &error);
                    if reports.is_due(&why, runner.now()) {
                        runner.output.say(&format!("{why}; retrying")).await;
                    }
                }
            }
            // A stream that always has an event must not prevent other tasks from running.
            tokio::task::consume_budget().await;
        }
    }
}

/// A step of a watch.
pub(crate) enum Step<K> {
    Event(Event<K>),
    /// An object exists that cannot be decoded. Its last decoded state stays valid.
    Kept(ObjectKey),
    /// An object that could not be decoded was deleted.
    Gone(Box<ObjectMeta>),
}

impl<K> Step<K> {
    /// Converts an event. If the object of the event cannot be decoded, returns the object as an error.
    fn from_event(event: Event<Decoded<K>>) -> Result<Self, Box<InvalidObject>> {
        Ok(Self::Event(match event {
            Event::Init => Event::Init,
            Event::InitDone => Event::InitDone,
            Event::InitApply(Decoded(object)) => Event::InitApply(object?),
            Event::Apply(Decoded(object)) => Event::Apply(object?),
            Event::Delete(Decoded(Ok(object))) => Event::Delete(object),
            Event::Delete(Decoded(Err(invalid))) => {
                return Ok(Self::Gone(Box::new(invalid.metadata)));
            }
        }))
    }

    /// Returns the changes that result from a step.
    pub(crate) fn shown_changes(
        self,
        watch: &mut Watch,
        sight: impl FnOnce(K) -> Observation,
    ) -> Vec<Change> {
        match self {
            Self::Event(event) => watch.event(event, sight),
            Self::Gone(meta) => {
                watch.event(Event::Delete(meta), |meta| Observation::from_meta(&meta))
            }
            Self::Kept(key) => {
                watch.keep(&key);
                Vec::new()
            }
        }
    }
}

/// Follows the objects of the resource for which commands run.
pub(crate) async fn follow_objects(
    source: Source<DynamicObject>,
    enqueuer: Arc<Enqueuer>,
    sights: Sights,
) {
    let mut watch = Watch::new();
    let changed = |step: Step<_>| {
        let is_listed = matches!(step, Step::Event(Event::InitDone));
        for change in step.shown_changes(&mut watch, |object| sights.observe_object(object)) {
            enqueuer.object_changed(&change);
        }
        if is_listed {
            // Later lists call `set` again, which then has no effect.
            let _ = enqueuer.is_listed.set(());
        }
    };
    source.for_each_step(&enqueuer.runner, changed).await;
}

/// Extracts from each object the properties whose differences are changes.
pub(crate) struct Sights {
    pub(crate) objects: Arc<Objects>,
    pub(crate) types: TypeMeta,
    /// JSON pointers to the values that are compared. If the list is empty, the whole object is compared.
    pub(crate) pointers: Vec<String>,
    pub(crate) finalizer: Option<String>,
}

impl Sights {
    /// Records an object in the table, and returns its observation.
    fn observe_object(&self, mut object: DynamicObject) -> Observation {
        complete_object(&mut object, &self.types);
        let mut sight = Observation::from_meta(&object.metadata);
        let key = ObjectKey::from_object(&object).to_string();
        let state = State::of_object(&object.metadata, self.finalizer.as_deref());
        // The value was parsed from JSON, so it can be serialized.
        let json = if self.pointers.is_empty() {
            serde_json::to_vec(&object).unwrap_or_default()
        } else {
            let value = serde_json::to_value(&object).unwrap_or_default();
            sight = sight.property(Some(property_hash(&self.pointers, state, &value)));
            value.to_string().into_bytes()
        };
        self.objects.record_seen(key.as_bytes(), json, state);
        sight
    }
}

/// Prepares an object for commands. Adds the type, which objects in a list lack. Removes the managed fields, because
/// only the server uses them.
pub(crate) fn complete_object(object: &mut DynamicObject, types: &TypeMeta) {
    object.metadata.managed_fields = None;
    object.types.get_or_insert_with(|| types.clone());
}

/// Returns the type of the objects of a resource.
pub(crate) fn type_meta(resource: &Resource) -> TypeMeta {
    TypeMeta { api_version: resource.api.api_version.clone(), kind: resource.api.kind.clone() }
}

/// Returns a hash of the state and of the values at the pointers. A value that appears or disappears also changes the
/// hash.
fn property_hash(pointers: &[String], state: State, object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    for pointer in pointers {
        object.pointer(pointer).map(Value::to_string).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_pointed_at_counts() {
        let pointers = ["/spec/a".to_owned(), "/data".to_owned()];
        let of = |object: Value| property_hash(&pointers, State::Kept, &object);
        let before = of(json!({ "spec": { "a": 1, "b": 1 }, "status": {} }));
        assert_eq!(of(json!({ "spec": { "a": 1, "b": 2 }, "status": 1 })), before);
        for other in [
            json!({ "spec": { "a": 2 } }),
            json!({ "spec": { "a": "1" } }),
            json!({ "spec": {} }),
            // A null value differs from a missing value.
            json!({ "spec": { "a": 1 }, "data": null }),
        ] {
            assert_ne!(of(other.clone()), before, "{other}");
        }
        assert_ne!(property_hash(&pointers, State::Ending, &json!({ "spec": { "a": 1 } })), before);
    }
}
