//! The kinds that a controller watches in addition to its own kind.

use std::borrow::Borrow;
use std::fmt::{self, Debug};
use std::hash::Hash;
use std::sync::Arc;

use futures_util::{Stream, StreamExt};
use kube::Client;
use kube::api::{Api, PartialObjectMeta, Resource};
use kube::core::ApiResource;
use kube::runtime::Predicate;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;

use super::enqueuer::Enqueuer;
use super::reason::RelatedWatch;
use super::source::{AnyPredicate, MakeEvents, Selected, Source, Target, distinct_name};
use super::writes::{Kind, Origin};
use crate::key::ObjectKind;
use crate::optional;
use crate::range::Shard;
use crate::relist::{self, Events};
use crate::shared::{Object, SharedWatch};
use crate::watch::{Observation, Watch, watch_name};

/// A kind that a controller watches in addition to its own kind. Pass it to
/// [`watch_owned`](crate::Controller::watch_owned) or [`watch_mapped`](crate::Controller::watch_mapped).
///
/// For a watch without options, [`owns`](crate::Controller::owns) and [`watches`](crate::Controller::watches) suffice.
/// A `Watched` has one source of objects, and accepts these options:
///
/// | source | objects | options |
/// |---|---|---|
/// | [`new`](Self::new) | whole objects from the API server | [`filter`](Self::filter), [`optional`](Self::optional) |
/// | [`metadata`](Self::metadata) | metadata of objects from the API server | [`filter`](Self::filter), [`optional`](Self::optional) |
/// | [`stream`](Self::stream) | the objects of your stream of raw events | [`filter`](Self::filter) |
/// | [`shared`](Self::shared) | the objects of a [`SharedWatch`], each in an `Arc` | [`filter`](Self::filter), and [`SharedWatch::optional`] |
///
/// The [`Api`] and the [`watcher::Config`] select namespaces, labels and fields. A constructor whose name ends with
/// `_with` is for a kind that is known only at run time.
///
/// ```no_run
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
/// use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
/// use kube::runtime::{predicates, reflector::ObjectRef, watcher};
/// use kube::{Api, Client};
/// use requeue_kube::Controller;
/// use requeue_kube::controller::Watched;
///
/// fn controller(client: Client) -> Controller<ConfigMap> {
///     let ours = watcher::Config::default().labels("app=web");
///     let secrets = Watched::metadata(Api::<Secret>::all(client.clone()), ours.clone());
///
///     let kind = GroupVersionKind::gvk("cert-manager.io", "v1", "Certificate");
///     let kind = ApiResource::from_gvk(&kind);
///     let certificates = Api::<DynamicObject>::all_with(client.clone(), &kind);
///     let certificates = Watched::new_with(certificates, ours, kind);
///
///     Controller::new(Api::all(client), watcher::Config::default())
///         .watch_owned(secrets.filter(predicates::labels))
///         .watch_mapped(certificates.filter(predicates::generation).optional(), |certificate| {
///             let namespace = certificate.metadata.namespace?;
///             Some(ObjectRef::new("settings").within(&namespace))
///         })
/// }
/// ```
#[must_use = "a description does nothing until it is passed to a controller"]
pub struct Watched<O: Resource, S = FromApi<O>> {
    pub(super) dyntype: O::DynamicType,
    pub(super) source: S,
    pub(super) predicate: Option<AnyPredicate<O>>,
}

impl<O> Watched<O>
where
    O: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
    O::DynamicType: Clone,
{
    /// Watches the objects that `api` and `wc` select.
    pub fn new(api: Api<O>, wc: watcher::Config) -> Self
    where
        O::DynamicType: Default,
    {
        Self::new_with(api, wc, O::DynamicType::default())
    }

    /// Like [`new`](Self::new), for a kind that is known only at run time.
    pub fn new_with(api: Api<O>, wc: watcher::Config, dyntype: O::DynamicType) -> Self {
        let start = |api, wc| watcher::watcher(api, wc).boxed();
        Self::from_source(FromApi::new(api, wc, &dyntype, start), dyntype)
    }
}

impl<O> Watched<PartialObjectMeta<O>>
where
    O: Clone + Resource + DeserializeOwned + Debug + Send + 'static,
    O::DynamicType: Clone,
{
    /// Like [`new`](Self::new), but watches only the metadata of the objects, which needs less memory and less traffic.
    ///
    /// [`owns`](crate::Controller::owns) also watches only metadata.
    pub fn metadata(api: Api<O>, wc: watcher::Config) -> Self
    where
        O::DynamicType: Default,
    {
        Self::metadata_with(api, wc, O::DynamicType::default())
    }

    /// Like [`metadata`](Self::metadata), for a kind that is known only at run time.
    pub fn metadata_with(api: Api<O>, wc: watcher::Config, dyntype: O::DynamicType) -> Self {
        #[expect(deprecated, reason = "as in kube: an `Api` can't be turned into one of metadata")]
        let start = |api, wc| watcher::metadata_watcher(api, wc).boxed();
        Self::from_source(FromApi::new(api, wc, &dyntype, start), dyntype)
    }
}

impl<O: Resource> Watched<O> {
    /// Permits that the API server does not serve the kind.
    ///
    /// While the API server does not serve the kind, the controller starts and works without this watch, and reports no
    /// error. The watch begins when the kind is installed. When the kind is removed, the controller treats its objects
    /// as deleted, and waits again. The controller logs one message for each of these changes. If the first list fails
    /// for another reason, such as a missing permission, the controller reports the error, and starts anyway.
    ///
    /// The controller finds out that the kind is installed in one of two ways. If it may list and watch
    /// `customresourcedefinitions` of `apiextensions.k8s.io`, it waits for the kind's definition. The permission can be
    /// limited to the definition's name, such as `certificates.cert-manager.io`. Without the permission, and for kinds
    /// of aggregated API servers, it retries the watch with kube's backoff, which is at most 30 s.
    pub fn optional(mut self) -> Self {
        self.source.is_optional = true;
        self
    }
}

impl<O: Resource> Watched<O, Events<O>> {
    /// Watches the objects of a stream of raw events. [`for_stream`](crate::Controller::for_stream) describes such a
    /// stream.
    ///
    /// ```no_run
    /// # use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    /// # use kube::Api;
    /// # use kube::runtime::{WatchStreamExt, reflector, watcher};
    /// # use requeue_kube::Controller;
    /// use requeue_kube::controller::Watched;
    ///
    /// # let _ = |controller: Controller<ConfigMap>, api: Api<Secret>| {
    /// let (secrets, writer) = reflector::store();
    /// let events = watcher(api, watcher::Config::default()).reflect(writer);
    /// // `secrets` is a reader for the reconciler.
    /// let controller = controller.watch_owned(Watched::stream(events));
    /// # };
    /// ```
    pub fn stream(events: impl Stream<Item = watcher::Result<Event<O>>> + Send + 'static) -> Self
    where
        O::DynamicType: Default,
    {
        Self::stream_with(events, O::DynamicType::default())
    }

    /// Like [`stream`](Self::stream), for a kind that is known only at run time.
    pub fn stream_with(
        events: impl Stream<Item = watcher::Result<Event<O>>> + Send + 'static,
        dyntype: O::DynamicType,
    ) -> Self {
        Self::from_source(events.boxed(), dyntype)
    }
}

impl<O> Watched<O, SharedWatch<O>>
where
    O: Clone + Resource + Send + Sync + 'static,
    O::DynamicType: Eq + Hash + Clone,
{
    /// Watches the objects of a shared watch. A mapper receives an `Arc` of each object from the store of the watch.
    pub fn shared(watch: &SharedWatch<O>) -> Self {
        Self::from_source(watch.clone(), watch.dyntype().clone())
    }
}

impl<O: Resource, S> Watched<O, S> {
    fn from_source(source: S, dyntype: O::DynamicType) -> Self {
        Self { dyntype, source, predicate: None }
    }

    /// Ignores a change of an object if the result of `predicate` stays the same. An example is
    /// [`predicates::generation`](kube::runtime::predicates::generation).
    ///
    /// A new or deleted object is never ignored. A second call replaces the predicate of the first call. To use two
    /// predicates, [`combine`](Predicate::combine) them.
    pub fn filter(mut self, predicate: impl Predicate<O> + Send + 'static) -> Self {
        self.predicate = Some(Box::new(predicate));
        self
    }
}

impl<O: Resource, S> Debug for Watched<O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").field("kind", &O::kind(&self.dyntype)).finish_non_exhaustive()
    }
}

/// The relation between a watched object and the objects that the controller reconciles.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// The watched object has owner references. Its owners are in the same namespace, or have no namespace.
    Owned,
    /// The user's mapper returns the objects to reconcile. They may be in shards that this process does not hold.
    Mapped,
}

impl<O: Resource, S> Watched<O, S> {
    /// Creates the source for this watch, with a name that differs from those of `others`. `targets` returns the objects that must be reconciled when a watched object
    /// changes.
    pub(super) fn into_source(
        self,
        role: Role,
        others: &[Source],
        mut targets: impl FnMut(S::Item, &Enqueuer) -> Vec<Target> + Send + 'static,
    ) -> Source
    where
        O: 'static,
        S: EventSource<O>,
    {
        let Self { dyntype, source, predicate } = self;
        let relation = if role == Role::Owned { "owned" } else { "watched" };
        let name = distinct_name(watch_name::<S::Item>(&dyntype, relation), others);
        let resource = ApiResource::erase::<S::Item>(&dyntype);
        let kind = Kind::from_type::<S::Item>(&dyntype);
        let events = source.into_events(&name, &dyntype);
        Source::new(name, kind, events, move |mut following, events| async move {
            let enqueuer = Arc::clone(&following.enqueuer);
            let related = Arc::new(RelatedWatch { kind: resource, role: following.role.take() });
            // If the shards depend on the uid, the API server cannot select the owned objects of a shard, because an
            // owned object has another uid than its owner.
            let selects = |shard: &Shard| role == Role::Owned && shard.selects_owned();
            let selected = Selected::from_shard(enqueuer.ownership.fixed_shard().filter(selects));
            let mut watch = Watch::new();
            let on_event = move |event: Event<S::Item>, origin: Origin<'_>| {
                let mut changes = watch.event(event, |item| {
                    let property =
                        predicate.as_ref().and_then(|it| it.hash_property(item.borrow()));
                    let observation = Observation::from_meta(item.meta()).property(property);
                    let targets = targets(item, &enqueuer);
                    let priority = |(key, priority): &Target| Some((key.clone(), (*priority)?));
                    // Most mappers set no priority. The check avoids the allocation of a list of priorities in this
                    // case.
                    let priorities: Vec<_> = targets.iter().filter_map(priority).collect();
                    let targets = targets.into_iter().map(|(key, _)| key);
                    observation.concerning(targets).priorities(priorities)
                });
                if role == Role::Mapped {
                    // The mapper does not know which objects this controller owns, so other targets are removed. The
                    // store is read after the event was applied to it.
                    let targets = changes.iter_mut().map(|change| &mut change.targets);
                    targets.for_each(|targets| targets.retain(|target| enqueuer.is_ours(target)));
                }
                enqueuer.related_changed(&changes, &related, origin);
            };
            following.follow_events(events, selected, on_event).await
        })
    }
}

/// A source of the events of a kind. The trait is private, so that users can create sources only by the constructors of
/// [`Watched`].
pub(super) trait EventSource<O: Resource>: Send + 'static {
    /// The type in which a mapper receives an object.
    type Object;
    /// The type of an object in an event.
    type Item: Resource<DynamicType = O::DynamicType>
        + Borrow<O>
        + Into<Self::Object>
        + Send
        + 'static;

    /// Returns the events of the source. `watch` is the name of the watch in messages.
    fn into_events(self, watch: &str, dyntype: &O::DynamicType) -> MakeEvents<Self::Item>;
}

/// The source that watches the objects of an [`Api`].
pub struct FromApi<O> {
    select: Box<dyn FnMut(Selected) -> StartWatch<O> + Send>,
    client: Client,
    is_optional: bool,
}

/// Starts one watch. Each call begins with a list.
type StartWatch<O> = Box<dyn FnMut() -> Events<O> + Send>;

impl<O: 'static> FromApi<O> {
    fn new<A>(
        api: Api<A>,
        wc: watcher::Config,
        dyntype: &A::DynamicType,
        start: fn(Api<A>, watcher::Config) -> Events<O>,
    ) -> Self
    where
        A: Resource + Clone + 'static,
        A::DynamicType: Clone,
    {
        let client = api.clone().into_client();
        let dyntype = dyntype.clone();
        let mut api = relist::consistent_api(api, &dyntype, &wc);
        let select = move |selected: Selected| -> StartWatch<O> {
            let api = selected.select_objects(api(), &dyntype);
            let wc = wc.clone();
            Box::new(move || start(api.clone(), wc.clone()))
        };
        Self { select: Box::new(select), client, is_optional: false }
    }
}

impl<O> EventSource<O> for FromApi<O>
where
    O: Resource + Send + 'static,
    O::DynamicType: Clone,
{
    type Item = O;
    type Object = O;

    fn into_events(self, watch: &str, dyntype: &O::DynamicType) -> MakeEvents<O> {
        let Self { mut select, client, is_optional } = self;
        let (watch, dyntype) = (watch.to_owned(), dyntype.clone());
        MakeEvents::Watch(Box::new(move |selected, _| {
            let mut start = select(selected);
            if !is_optional {
                return start();
            }
            optional::optional_events::<O, O>(watch.clone(), client.clone(), dyntype.clone(), start)
        }))
    }
}

impl<O: Resource + Send + 'static> EventSource<O> for Events<O> {
    type Item = O;
    type Object = O;

    fn into_events(self, _: &str, _: &O::DynamicType) -> MakeEvents<O> {
        MakeEvents::Made(self)
    }
}

impl<O: ObjectKind> EventSource<O> for SharedWatch<O> {
    type Item = Object<O>;
    type Object = Arc<O>;

    fn into_events(self, _: &str, _: &O::DynamicType) -> MakeEvents<Object<O>> {
        MakeEvents::from_shared(&self)
    }
}
