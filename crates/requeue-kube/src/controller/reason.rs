//! The reasons for which an object is reconciled, for the queue and in kube's terms.

use std::collections::HashMap;
use std::sync::Arc;

use kube::core::{ApiResource, DynamicObject};
use kube::runtime::controller::ReconcileReason;
use parking_lot::Mutex;
use requeue::{Reasons, describe_reasons, intern_reason};

use crate::ObjectKey;
use crate::watch::ChangeKind;

/// The reason for which a key is added. The queue stores it as a flag, a text and a cause.
#[derive(Clone, Debug)]
pub(super) enum Reason {
    /// The object itself changed. Contains the text of the reason, and its cause.
    Object(requeue::Reason, Option<Arc<str>>),
    Bulk,
    Unknown,
    /// An object of another watch, with this key, changed.
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
    /// Creates the reason for a change of an object of the controller's own kind.
    pub(super) fn of_change(kind: &str, change: ChangeKind) -> Self {
        Self::Object(intern_reason(&format!("{kind} {change}")), None)
    }

    /// Returns the text of the reason and its cause, as the queue stores them.
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

/// Returns the text of a former run's reasons. It is the cause of the add that replaces this run.
pub(super) fn cause_of(former: &Reasons) -> Option<Arc<str>> {
    (!former.is_empty()).then(|| describe_reasons(former).to_string().into())
}

const OBJECT: u32 = 1;
const BULK: u32 = 1 << 1;
const UNKNOWN: u32 = 1 << 2;
const DETAILED: u32 = 1 << 3;

/// The details of the reasons, which the flags in the queue cannot contain. The map has an entry
/// for each key that was added for a reason with details and has not been delivered since. The
/// entry is the first such reason.
#[derive(Default)]
pub(super) struct Details(Mutex<HashMap<ObjectKey, Reason>>);

impl Details {
    pub(super) fn note_detail(&self, key: &ObjectKey, reason: Reason) {
        if reason.flag() == DETAILED {
            // A later reason does not replace the first one, because kube has only one reason for
            // each run.
            self.0.lock().entry(key.clone()).or_insert(reason);
        }
    }

    pub(super) fn forget_detail(&self, key: &ObjectKey) {
        self.0.lock().remove(key);
    }

    /// Removes the details of the keys for which `is_gone` returns true.
    pub(super) fn forget_all(&self, is_gone: impl Fn(&ObjectKey) -> bool) {
        self.0.lock().retain(|key, _| !is_gone(key));
    }

    /// Moves the details of a key to another key of the same object.
    pub(super) fn rename_key(&self, from: &ObjectKey, to: &ObjectKey) {
        let mut details = self.0.lock();
        if let Some(reason) = details.remove(from) {
            details.entry(to.clone()).or_insert(reason);
        }
    }

    /// Returns the reason of an attempt in kube's terms. If there are several reasons, returns the
    /// one whose branch below comes first.
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
