//! The reasons why an object is reconciled.

use std::collections::HashMap;
use std::sync::Arc;

use kube::core::{ApiResource, DynamicObject};
use kube::runtime::controller::ReconcileReason;
use parking_lot::Mutex;
use requeue::{Reasons, describe_reasons, intern_reason};

use crate::ObjectKey;
use crate::watch::ChangeKind;

/// The reason of an add: a flag, and a reason with its cause in the queue.
#[derive(Clone, Debug)]
pub(super) enum Reason {
    /// The object itself, with the text of the reason and its cause.
    Object(requeue::Reason, Option<Arc<str>>),
    Bulk,
    Unknown,
    /// An object of another watch changed.
    Related(Arc<RelatedWatch>, ObjectKey, ChangeKind),
    Custom(String),
}

/// A watch of objects that concern the controller's objects.
#[derive(Debug)]
pub(super) struct RelatedWatch {
    pub(super) kind: ApiResource,
    /// The part of the watch's name that tells it from the controller's other watches of the kind, if there are any.
    pub(super) role: Option<String>,
}

impl Reason {
    /// The reason for a change of an object of the controller's own kind.
    pub(super) fn of_change(kind: &str, change: ChangeKind) -> Self {
        Self::Object(intern_reason(&format!("{kind} {change}")), None)
    }

    /// Returns the reason in the queue, and its cause.
    pub(super) fn in_queue(&self) -> (requeue::Reason, Option<Arc<str>>) {
        match self {
            Self::Object(reason, cause) => (*reason, cause.clone()),
            Self::Bulk => (intern_reason("all objects"), None),
            Self::Unknown => (intern_reason("trigger"), None),
            Self::Related(watch, object, change) => {
                let RelatedWatch { kind, role } = &**watch;
                let role = role.as_ref().map(|role| format!(" ({role})")).unwrap_or_default();
                let reason = intern_reason(&format!("{} {change}{role}", kind.kind));
                (reason, Some(object.to_string().into()))
            }
            Self::Custom(text) => (intern_reason("trigger"), Some(text.as_str().into())),
        }
    }

    pub(super) const fn flag(&self) -> u32 {
        match self {
            Self::Object(..) => OBJECT,
            Self::Bulk => BULK,
            Self::Unknown => UNKNOWN,
            Self::Related(..) | Self::Custom(_) => DETAILED,
        }
    }
}

/// Returns the reasons of a former run as the cause of the add that replaces it.
pub(super) fn cause_of(former: &Reasons) -> Option<Arc<str>> {
    (!former.is_empty()).then(|| describe_reasons(former).to_string().into())
}

const OBJECT: u32 = 1;
const BULK: u32 = 1 << 1;
const UNKNOWN: u32 = 1 << 2;
const DETAILED: u32 = 1 << 3;

/// The details that the flags cannot hold. Each key that was added for a reason with details, and
/// has not been delivered since, has an entry with the details of its first such add.
#[derive(Default)]
pub(super) struct Details(Mutex<HashMap<ObjectKey, Reason>>);

impl Details {
    pub(super) fn note_detail(&self, key: &ObjectKey, reason: Reason) {
        if reason.flag() == DETAILED {
            // The first detail counts, because a run has only one reason in kube's terms.
            self.0.lock().entry(key.clone()).or_insert(reason);
        }
    }

    pub(super) fn forget_detail(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }

    /// Forgets the details of the keys for which `is_gone` returns true.
    pub(super) fn forget_all(&self, is_gone: impl Fn(&ObjectKey) -> bool) {
        self.0.lock().retain(|key, _| !is_gone(key));
    }

    /// Moves the details of a key to the other key of the same object.
    pub(super) fn rename_key(&self, from: &ObjectKey, to: &ObjectKey) {
        let mut details = self.0.lock();
        if let Some(reason) = details.remove(from) {
            details.entry(to.clone()).or_insert(reason);
        }
    }

    /// Returns the reason of an attempt, in kube's terms. If an attempt has several reasons,
    /// returns the first one in the order of the branches below.
    pub(super) fn take_reason(&self, key: &ObjectKey, flags: u32, attempt: u32) -> ReconcileReason {
        let detail = if flags & DETAILED == 0 { None } else { self.0.lock().remove(key) };
        let has = |flag| flags & flag != 0;
        if attempt > 1 {
            ReconcileReason::ErrorPolicyRequestedRetry
        } else if has(OBJECT) {
            ReconcileReason::ObjectUpdated
        } else if let Some(Reason::Related(watch, related, _)) = detail {
            let obj_ref = Box::new(related.to_ref::<DynamicObject>(watch.kind.clone()));
            ReconcileReason::RelatedObjectUpdated { obj_ref }
        } else if let Some(Reason::Custom(reason)) = detail {
            ReconcileReason::Custom { reason }
        } else if has(BULK) {
            ReconcileReason::BulkReconcile
        } else if has(UNKNOWN) {
            ReconcileReason::Unknown
        } else {
            ReconcileReason::ReconcilerRequestedRetry
        }
    }
}
