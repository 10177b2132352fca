//! The other kinds that a controller watches: owned objects, and objects that a mapper assigns to
//! targets.

use std::fmt::Debug;
use std::hash::Hash;

use futures_util::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, PartialObjectMeta, Resource};
use kube::runtime::Predicate;
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

use super::Controller;
use super::enqueuer::Enqueuer;
use super::source::{self, AnyPredicate, MakeEvents, Selected, Source};
use crate::ObjectKey;
use crate::shard::Shard;

impl<K> Controller<K>
where
    K: Clone + Resource + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    /// Watches objects that objects of kind `K` own.
    ///
    /// When an owned object changes or is deleted, its owners are reconciled. An owner that it has
    /// lost is reconciled, too.
    ///
    /// Every owner counts, not only the controlling one, in any version of its kind. Only metadata
    /// is watched.
    pub fn owns<Child>(self, api: Api<Child>, wc: watcher::Config) -> Self
    where
        Child: Clone + Resource<DynamicType = ()> + DeserializeOwned + Debug + Send + 'static,
    {
        self.owns_with(api, (), wc)
    }

    /// As [`owns`](Self::owns), for a kind that is known only at run time.
    pub fn owns_with<Child>(
        self,
        api: Api<Child>,
        dyntype: Child::DynamicType,
        wc: watcher::Config,
    ) -> Self
    where
        Child: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
        Child::DynamicType: Debug + Eq + Hash + Clone,
    {
        let events = metadata_of(api, wc, &dyntype);
        self.owns_events(events, dyntype, None)
    }

    /// As [`owns_with`](Self::owns_with), but ignores changes that leave the result of `predicate`
    /// unchanged.
    ///
    /// New and deleted objects always count.
    pub fn owns_filtered<Child>(
        self,
        api: Api<Child>,
        dyntype: Child::DynamicType,
        wc: watcher::Config,
        predicate: impl Predicate<PartialObjectMeta<Child>> + Send + 'static,
    ) -> Self
    where
        Child: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
        Child::DynamicType: Debug + Eq + Hash + Clone,
    {
        let events = metadata_of(api, wc, &dyntype);
        self.owns_events(events, dyntype, Some(Box::new(predicate)))
    }

    /// As [`owns`](Self::owns), from a stream of raw events: see [`for_stream`](Self::for_stream).
    pub fn owns_stream<Child>(
        self,
        events: impl Stream<Item = watcher::Result<Event<Child>>> + Send + 'static,
    ) -> Self
    where
        Child: Resource<DynamicType = ()> + Send + 'static,
    {
        self.owns_stream_with(events, ())
    }

    /// As [`owns_stream`](Self::owns_stream), for a kind that is known only at run time.
    pub fn owns_stream_with<Child>(
        self,
        events: impl Stream<Item = watcher::Result<Event<Child>>> + Send + 'static,
        dyntype: Child::DynamicType,
    ) -> Self
    where
        Child: Resource + Send + 'static,
        Child::DynamicType: Debug + Eq + Hash + Clone,
    {
        self.owns_events(source::made(events), dyntype, None)
    }

    fn owns_events<Child>(
        self,
        events: MakeEvents<Child>,
        dyntype: Child::DynamicType,
        predicate: Option<AnyPredicate<Child>>,
    ) -> Self
    where
        Child: Resource + Send + 'static,
    {
        let owner = self.dyntype.clone();
        let owners = move |child: Child, shard: Option<Shard>, enqueuer: &Enqueuer| {
            let meta = child.meta();
            let owners = meta.owner_references.iter().flatten();
            let owners = owners
                .filter(|reference| is_of::<K>(reference, &owner))
                .filter(|owner| shard.is_none_or(|shard| shard.contains_owner(&owner.uid, meta)));
            let namespace = meta.namespace.as_deref();
            let key = |owner: &OwnerReference| {
                let key = ObjectKey::new(namespace, &owner.name);
                enqueuer.learn_owner(&key, &owner.uid);
                key
            };
            // If shards change, those of other owners are dropped when they are added.
            owners.map(key).collect()
        };
        self.related("owned", dyntype, events, predicate, owners)
    }

    /// Watches objects that concern objects of kind `K`.
    ///
    /// `mapper` returns the objects to reconcile when an object changes or is deleted. The objects
    /// that it was mapped to before are reconciled, too.
    ///
    /// The mapper is called when an object is seen.
    ///
    /// # Panics
    ///
    /// A panic of the mapper ends the controller: its stream panics.
    pub fn watches<Other, I>(
        self,
        api: Api<Other>,
        wc: watcher::Config,
        mapper: impl Fn(Other) -> I + Sync + Send + 'static,
    ) -> Self
    where
        Other: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
        Other::DynamicType: Default + Debug + Clone + Eq + Hash,
        I: 'static + IntoIterator<Item = ObjectRef<K>>,
        I::IntoIter: Send,
    {
        self.watches_with(api, Other::DynamicType::default(), wc, mapper)
    }

    /// As [`watches`](Self::watches), for a kind that is known only at run time.
    pub fn watches_with<Other, I>(
        self,
        api: Api<Other>,
        dyntype: Other::DynamicType,
        wc: watcher::Config,
        mapper: impl Fn(Other) -> I + Sync + Send + 'static,
    ) -> Self
    where
        Other: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
        Other::DynamicType: Debug + Clone + Eq + Hash,
        I: 'static + IntoIterator<Item = ObjectRef<K>>,
        I::IntoIter: Send,
    {
        self.watches_stream_with(watcher::watcher(api, wc), mapper, dyntype)
    }

    /// As [`watches_with`](Self::watches_with), but ignores changes that leave the result of
    /// `predicate` unchanged.
    ///
    /// New and deleted objects always count.
    pub fn watches_filtered<Other, I>(
        self,
        api: Api<Other>,
        dyntype: Other::DynamicType,
        wc: watcher::Config,
        mapper: impl Fn(Other) -> I + Sync + Send + 'static,
        predicate: impl Predicate<Other> + Send + 'static,
    ) -> Self
    where
        Other: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
        Other::DynamicType: Debug + Clone + Eq + Hash,
        I: 'static + IntoIterator<Item = ObjectRef<K>>,
        I::IntoIter: Send,
    {
        let events = MakeEvents::Made(watcher::watcher(api, wc).boxed());
        self.related("watched", dyntype, events, Some(Box::new(predicate)), keys(mapper))
    }

    /// As [`watches`](Self::watches), from a stream of raw events: see
    /// [`for_stream`](Self::for_stream).
    pub fn watches_stream<Other, I>(
        self,
        events: impl Stream<Item = watcher::Result<Event<Other>>> + Send + 'static,
        mapper: impl Fn(Other) -> I + Sync + Send + 'static,
    ) -> Self
    where
        Other: Clone + Resource + Debug + Send + 'static,
        Other::DynamicType: Default + Debug + Clone,
        I: 'static + IntoIterator<Item = ObjectRef<K>>,
        I::IntoIter: Send,
    {
        self.watches_stream_with(events, mapper, Other::DynamicType::default())
    }

    /// As [`watches_stream`](Self::watches_stream), for a kind that is known only at run time.
    pub fn watches_stream_with<Other, I>(
        self,
        events: impl Stream<Item = watcher::Result<Event<Other>>> + Send + 'static,
        mapper: impl Fn(Other) -> I + Sync + Send + 'static,
        dyntype: Other::DynamicType,
    ) -> Self
    where
        Other: Clone + Resource + Debug + Send + 'static,
        Other::DynamicType: Debug + Clone,
        I: 'static + IntoIterator<Item = ObjectRef<K>>,
        I::IntoIter: Send,
    {
        self.related("watched", dyntype, source::made(events), None, keys(mapper))
    }

    fn related<O>(
        mut self,
        role: &str,
        dyntype: O::DynamicType,
        events: MakeEvents<O>,
        predicate: Option<AnyPredicate<O>>,
        targets: impl FnMut(O, Option<Shard>, &Enqueuer) -> Vec<ObjectKey> + Send + 'static,
    ) -> Self
    where
        O: Resource + Send + 'static,
    {
        let name = source::name::<O>(&dyntype, role);
        // Number 0 is the controller's own kind.
        self.readiness.expect(self.related.len() + 1, name.clone());
        self.related.push(Source::related(
            name,
            role == "watched",
            &dyntype,
            events,
            predicate,
            targets,
        ));
        self
    }
}

/// Returns a stream of events that have only metadata.
#[expect(deprecated, reason = "as in kube: an `Api` can't be turned into one of metadata")]
fn metadata_of<O>(
    api: Api<O>,
    wc: watcher::Config,
    dyntype: &O::DynamicType,
) -> MakeEvents<PartialObjectMeta<O>>
where
    O: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
    O::DynamicType: Clone,
{
    let dyntype = dyntype.clone();
    MakeEvents::Watch(Box::new(move |selected| {
        // An owned object has a uid of its own, but the namespace of its owner.
        let selected = match selected {
            Selected::Shard(shard) if !shard.selects_owned() => Selected::All,
            selected => selected,
        };
        let api = selected.select(api.clone(), &dyntype);
        watcher::metadata_watcher(api, wc.clone()).boxed()
    }))
}

/// Returns true if the owner is of kind `K`, in any version.
fn is_of<K: Resource>(owner: &OwnerReference, dyntype: &K::DynamicType) -> bool {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    owner.kind == K::kind(dyntype) && group == K::group(dyntype)
}

fn keys<O, K: Resource, I: IntoIterator<Item = ObjectRef<K>>>(
    mapper: impl Fn(O) -> I,
) -> impl Fn(O, Option<Shard>, &Enqueuer) -> Vec<ObjectKey> {
    move |object, _, _| mapper(object).into_iter().map(|object| ObjectKey::from(&object)).collect()
}
