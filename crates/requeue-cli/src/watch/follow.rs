//! From a watch to the queue.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use kube::Api;
use kube::core::{DynamicObject, TypeMeta};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt, watcher::Error};
use requeue_kube::watch::{self, LOW_PRIORITY, Sight, Watch, What};
use serde_json::Value;
use tokio::time::MissedTickBehavior;

use super::access::chain;
use super::flags::{Initial, On};
use super::objects::{Objects, State, Wish};
use super::resource::Resource;
use crate::input::{Ask, Change, Key};
use crate::run::Runner;

/// What adds the keys of the objects that change.
pub(crate) struct Follower {
    runner: Arc<Runner>,
    watch: Watch,
    sights: Sights,
    initial: Initial,
    /// Of the resource.
    name: String,
}

/// What makes of objects what is to be known of them.
struct Sights {
    objects: Arc<Objects>,
    /// What objects in a list are not told to be, each of them.
    types: TypeMeta,
    /// JSON pointers to what counts; all of it if there are none.
    pointers: Vec<String>,
    finalizer: Option<String>,
}

impl Follower {
    pub(crate) fn new(
        runner: &Arc<Runner>,
        objects: Arc<Objects>,
        resource: &Resource,
        initial: Initial,
        pointers: Vec<String>,
        finalizer: Option<String>,
    ) -> Self {
        let types = TypeMeta {
            api_version: resource.api.api_version.clone(),
            kind: resource.api.kind.clone(),
        };
        Self {
            runner: Arc::clone(runner),
            watch: Watch::new(),
            sights: Sights { objects, types, pointers, finalizer },
            initial,
            name: resource.name(),
        }
    }

    /// Goes on for ever.
    pub(crate) async fn follow(mut self, api: Api<DynamicObject>, config: watcher::Config) {
        let mut events = pin!(watcher(api, config).default_backoff());
        let mut is_said = false;
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    // A list that has begun may fail still.
                    is_said &= matches!(event, Event::Init | Event::InitApply(_));
                    for change in self.watch.event(event, |object| self.sights.of(object)) {
                        self.changed(&change);
                    }
                }
                // It lists again, which is no concern of anybody's.
                Err(Error::WatchError(status)) if status.code == 410 => {}
                Err(_) if is_said => {}
                Err(error) => {
                    is_said = true;
                    let (name, why) = (&self.name, chain(&error));
                    self.runner.output.say(&format!("{name}: tried again: {why}")).await;
                }
            }
            // A stream that is always ready is to leave others their turn.
            tokio::task::consume_budget().await;
        }
    }

    fn changed(&self, change: &watch::Change) {
        let (runner, objects) = (&self.runner, &self.sights.objects);
        let key = change.key.to_string().into_bytes();
        match change.what {
            What::Deleted => objects.gone(&key),
            What::Created => objects.is_another(&key),
            _ => {}
        }
        let Some(wish) = objects.wish(&key) else {
            if change.what == What::Deleted {
                runner.take(Change::Cancel(Cow::Owned(key)), &mut 0);
            }
            return;
        };
        let is_skipped = self.initial == Initial::Skip && wish != Wish::Run(On::Delete);
        if change.what == What::Listed && is_skipped {
            return;
        }
        if matches!(change.what, What::Created | What::NewGeneration | What::Deleted) {
            objects.is_wanted_anew(&key);
        }
        if objects.is_new(&key) {
            runner.release(&key);
        }
        add(runner, &key, change.what.priority());
    }
}

impl Sights {
    /// Keeps an object, and says what is to be remembered of it.
    fn of(&self, mut object: DynamicObject) -> Sight {
        object.metadata.managed_fields = None;
        object.types.get_or_insert_with(|| self.types.clone());
        let mut sight = Sight::of(&object.metadata);
        let key = requeue_kube::ObjectKey::of(&object).to_string();
        let state = State::of(&object.metadata, self.finalizer.as_deref());
        // It was read from JSON, and is written as such.
        let json = if self.pointers.is_empty() {
            serde_json::to_vec(&object).unwrap_or_default()
        } else {
            let value = serde_json::to_value(&object).unwrap_or_default();
            sight = sight.property(Some(property(&self.pointers, state, &value)));
            value.to_string().into_bytes()
        };
        self.objects.seen(key.as_bytes(), json, state);
        sight
    }
}

/// What has another value when one of these has, or comes, or goes; and when something else is to be
/// done.
fn property(pointers: &[String], state: State, object: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    for pointer in pointers {
        object.pointer(pointer).map(Value::to_string).hash(&mut hasher);
    }
    hasher.finish()
}

/// Into how many parts a period is cut, in each of which its share of the objects comes.
const SLICES: u32 = 100;

/// Adds each object once in a period, after all that has changed.
pub(crate) async fn resync(runner: Arc<Runner>, objects: Arc<Objects>, period: Duration) {
    let slice = (period / SLICES).max(Duration::from_millis(1));
    let mut ticks = tokio::time::interval(slice);
    // None of them may be left out: others than theirs would not come.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for slice in (0..SLICES).cycle() {
        ticks.tick().await;
        for key in objects.keys(|key| slice_of(key) == slice) {
            add(&runner, &key, LOW_PRIORITY);
        }
    }
}

fn slice_of(key: &Key) -> u32 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    // Below `SLICES`.
    (hasher.finish() % u64::from(SLICES)) as u32
}

fn add(runner: &Runner, key: &[u8], priority: i32) {
    let ask = Ask { priority, ..Ask::default() };
    runner.take(Change::Add(Cow::Borrowed(key), ask), &mut 0);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_is_pointed_at_counts() {
        let pointers = ["/spec/a".to_owned(), "/data".to_owned()];
        let of = |object: Value| property(&pointers, State::Kept, &object);
        let before = of(json!({ "spec": { "a": 1, "b": 1 }, "status": {} }));
        assert_eq!(of(json!({ "spec": { "a": 1, "b": 2 }, "status": 1 })), before);
        for other in [
            json!({ "spec": { "a": 2 } }),
            json!({ "spec": { "a": "1" } }),
            json!({ "spec": {} }),
            // What is null is there.
            json!({ "spec": { "a": 1 }, "data": null }),
        ] {
            assert_ne!(of(other.clone()), before, "{other}");
        }
        assert_ne!(property(&pointers, State::Ending, &json!({ "spec": { "a": 1 } })), before);
    }
}
