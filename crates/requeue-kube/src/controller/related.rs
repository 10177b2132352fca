//! The other kinds that a controller watches: owned objects, and objects that a mapper assigns to
//! targets.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, PartialObjectMeta, Resource};
use kube::runtime::Predicate;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

use super::Controller;
use super::enqueuer::Enqueuer;
use super::optional;
use super::request::Request;
use super::source::{self, AnyPredicate, Events, MakeEvents, Selected, Source, Target};
use crate::ObjectKey;
use crate::range::Shard;
use crate::relist;
use crate::shared::{Object, SharedWatch};

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

    /// As [`owns`](Self::owns), for a kind that may not be installed.
    ///
    /// While the API server does not serve the kind, the controller works without it. It does not wait
    /// for the kind before it starts, and no error is reported. A first list that fails for
    /// another reason, such as a missing permission, is reported, and does not delay the start. Once the
    /// kind is installed, the watch begins. If the kind is removed, its objects count as deleted, and the controller waits again.
    /// One message is logged for each of these changes.
    ///
    /// With the permission to list and watch `customresourcedefinitions` of `apiextensions.k8s.io`, the
    /// watch begins when the definition is there. The permission can be limited to the definition's
    /// name, such as `certificates.cert-manager.io`. Without it, and for kinds of aggregated API
    /// servers, the controller tries again with kube's backoff, which is at most 30 s.
    ///
    /// ```no_run
    /// use k8s_openapi::api::core::v1::ConfigMap;
    /// use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
    /// use kube::{Api, Client, runtime::watcher};
    /// use requeue_kube::Controller;
    ///
    /// fn controller(client: Client) -> Controller<ConfigMap> {
    ///     let kind = GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate");
    ///     let certificates = ApiResource::from_gvk(&kind);
    ///     let api = Api::<DynamicObject>::all_with(client.clone(), &certificates);
    ///     Controller::new(Api::all(client), watcher::Config::default())
    ///         .owns_optional(api, certificates, watcher::Config::default())
    /// }
    /// ```
    pub fn owns_optional<Child>(
        self,
        api: Api<Child>,
        dyntype: Child::DynamicType,
        wc: watcher::Config,
    ) -> Self
    where
        Child: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
        Child::DynamicType: Debug + Eq + Hash + Clone + Send,
    {
        let (client, name) = (api.clone().into_client(), source::name::<Child>(&dyntype, "owned"));
        let kind = dyntype.clone();
        let mut metadata = metadata_watches(api, wc, &kind);
        let events = MakeEvents::Watch(Box::new(move |selected| {
            let make = metadata(selected);
            let (client, of) = (client.clone(), kind.clone());
            optional::events(name.clone(), make, move || {
                optional::definition::<Child>(&client, &of)
            })
        }));
        self.owns_events(events, dyntype, None)
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

    /// As [`owns`](Self::owns), from a shared watch.
    pub fn owns_shared<Child>(self, watch: &SharedWatch<Child>) -> Self
    where
        Child: Clone + Resource + Send + Sync + 'static,
        Child::DynamicType: Eq + Hash + Clone,
    {
        self.owns_events(MakeEvents::shared(watch), watch.dyntype().clone(), None)
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
            let target = |owner: &OwnerReference| {
                let key = ObjectKey::new(namespace, &owner.name);
                enqueuer.learn_owner(&key, &owner.uid);
                (key, None)
            };
            // If shards change, those of other owners are dropped when they are added.
            owners.map(target).collect()
        };
        self.related("owned", dyntype, events, predicate, owners)
    }

    /// Watches objects that concern objects of kind `K`.
    ///
    /// `mapper` returns the objects to reconcile when an object changes or is deleted. The objects
    /// that it was mapped to before are reconciled, too.
    ///
    /// The mapper is called when an object is seen. It returns kube's
    /// [`ObjectRef`](kube::runtime::reflector::ObjectRef)s, or [`Request`]s, which can have a priority.
    /// A deletion has the priority that the mapper returned for the object's last state.
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
        I: 'static + IntoIterator<Item: Into<Request<K>>>,
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
        I: 'static + IntoIterator<Item: Into<Request<K>>>,
        I::IntoIter: Send,
    {
        let events = relist::watch(api, &dyntype, wc);
        self.watches_stream_with(events, mapper, dyntype)
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
        I: 'static + IntoIterator<Item: Into<Request<K>>>,
        I::IntoIter: Send,
    {
        let events = MakeEvents::Made(relist::watch(api, &dyntype, wc));
        self.related("watched", dyntype, events, Some(Box::new(predicate)), keys(mapper))
    }

    /// As [`watches_with`](Self::watches_with), for a kind that may not be installed: see
    /// [`owns_optional`](Self::owns_optional).
    pub fn watches_optional<Other, I>(
        self,
        api: Api<Other>,
        dyntype: Other::DynamicType,
        wc: watcher::Config,
        mapper: impl Fn(Other) -> I + Sync + Send + 'static,
    ) -> Self
    where
        Other: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
        Other::DynamicType: Debug + Clone + Eq + Hash + Send,
        I: 'static + IntoIterator<Item: Into<Request<K>>>,
        I::IntoIter: Send,
    {
        let (client, name) =
            (api.clone().into_client(), source::name::<Other>(&dyntype, "watched"));
        let (kind, of) = (dyntype.clone(), dyntype.clone());
        let mut api = relist::consistent(api, &kind, &wc);
        let make = move || watcher::watcher(api(), wc.clone()).boxed();
        let events =
            optional::events(name, make, move || optional::definition::<Other>(&client, &of));
        self.related("watched", dyntype, source::made(events), None, keys(mapper))
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
        I: 'static + IntoIterator<Item: Into<Request<K>>>,
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
        I: 'static + IntoIterator<Item: Into<Request<K>>>,
        I::IntoIter: Send,
    {
        self.related("watched", dyntype, source::made(events), None, keys(mapper))
    }

    /// As [`watches`](Self::watches), from a shared watch. The mapper receives the object of the store.
    pub fn watches_shared<Other, I>(
        self,
        watch: &SharedWatch<Other>,
        mapper: impl Fn(Arc<Other>) -> I + Sync + Send + 'static,
    ) -> Self
    where
        Other: Clone + Resource + Send + Sync + 'static,
        Other::DynamicType: Eq + Hash + Clone,
        I: 'static + IntoIterator<Item: Into<Request<K>>>,
        I::IntoIter: Send,
    {
        let mapper = keys(move |it: Object<Other>| mapper(it.object));
        let dyntype = watch.dyntype().clone();
        self.related("watched", dyntype, MakeEvents::shared(watch), None, mapper)
    }

    fn related<O>(
        mut self,
        role: &str,
        dyntype: O::DynamicType,
        events: MakeEvents<O>,
        predicate: Option<AnyPredicate<O>>,
        targets: impl FnMut(O, Option<Shard>, &Enqueuer) -> Vec<Target> + Send + 'static,
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
fn metadata_of<O>(
    api: Api<O>,
    wc: watcher::Config,
    dyntype: &O::DynamicType,
) -> MakeEvents<PartialObjectMeta<O>>
where
    O: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
    O::DynamicType: Clone + Send,
{
    let mut watches = metadata_watches(api, wc, dyntype);
    MakeEvents::Watch(Box::new(move |selected| watches(selected)()))
}

/// Returns a function that returns, for a selection, a function that starts a watch of it. Its events
/// have only metadata.
#[expect(deprecated, reason = "as in kube: an `Api` can't be turned into one of metadata")]
fn metadata_watches<O>(
    api: Api<O>,
    wc: watcher::Config,
    dyntype: &O::DynamicType,
) -> impl FnMut(Selected) -> Box<dyn FnMut() -> Events<PartialObjectMeta<O>> + Send> + Send + 'static
where
    O: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
    O::DynamicType: Clone,
{
    let dyntype = dyntype.clone();
    let mut api = relist::consistent(api, &dyntype, &wc);
    move |selected: Selected| {
        // An owned object has its own uid, but the namespace of its owner.
        let selected = match selected {
            Selected::Shard(shard) if !shard.selects_owned() => Selected::All,
            selected => selected,
        };
        let (api, wc) = (selected.select(api(), &dyntype), wc.clone());
        Box::new(move || watcher::metadata_watcher(api.clone(), wc.clone()).boxed())
    }
}

/// Returns true if the owner is of kind `K`, in any version.
fn is_of<K: Resource>(owner: &OwnerReference, dyntype: &K::DynamicType) -> bool {
    let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
    owner.kind == K::kind(dyntype) && group == K::group(dyntype)
}

fn keys<O, K: Resource, I: IntoIterator<Item: Into<Request<K>>>>(
    mapper: impl Fn(O) -> I,
) -> impl Fn(O, Option<Shard>, &Enqueuer) -> Vec<Target> {
    move |object, _, _| mapper(object).into_iter().map(|it| it.into().target()).collect()
}
