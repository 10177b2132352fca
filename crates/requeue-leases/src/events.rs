//! Kubernetes Events about a Lease, with the same texts as those of client-go.

use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::task::JoinHandle;

/// The time limit for the request that publishes an Event. If it is exceeded, the Event is lost.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(1);

pub(crate) struct Events {
    recorder: Recorder,
    lease: ObjectReference,
    identity: String,
}

impl Events {
    pub(crate) fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        let reporter =
            Reporter { controller: "requeue-kube".to_owned(), instance: Some(identity.to_owned()) };
        let lease = ObjectReference {
            api_version: Some("coordination.k8s.io/v1".to_owned()),
            kind: Some("Lease".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..ObjectReference::default()
        };
        Self { recorder: Recorder::new(client, reporter), lease, identity: identity.to_owned() }
    }

    /// Publishes an Event about the Lease with this uid. The Event says that the elector has done `what`.
    pub(crate) fn publish(&self, what: &'static str, uid: &str) -> JoinHandle<()> {
        self.publish_note("LeaderElection", what, format!("{} {what}", self.identity), uid)
    }

    pub(crate) fn publish_note(
        &self,
        reason: &'static str,
        what: &'static str,
        note: String,
        uid: &str,
    ) -> JoinHandle<()> {
        let recorder = self.recorder.clone();
        let lease = ObjectReference { uid: Some(uid.to_owned()), ..self.lease.clone() };
        let event = Event {
            type_: EventType::Normal,
            reason: reason.to_owned(),
            note: Some(note),
            action: what.to_owned(),
            secondary: None,
        };
        // A separate task sends the request, because a slow request must not delay the election.
        tokio::spawn(async move {
            match tokio::time::timeout(PUBLISH_TIMEOUT, recorder.publish(&event, &lease)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, what, "an Event could not be published"),
                Err(_late) => tracing::warn!(what, "publishing an Event timed out"),
            }
        })
    }
}
