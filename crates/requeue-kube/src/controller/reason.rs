//! The reasons why an object is reconciled.

use std::collections::HashMap;
use std::sync::Arc;

use kube::core::{ApiResource, DynamicObject};
use kube::runtime::controller::ReconcileReason;
use parking_lot::Mutex;

use crate::ObjectKey;

/// The reason of an add. In the queue, it is a bit.
#[derive(Clone, Debug)]
pub(super) enum Reason {
    Object,
    Bulk,
    Unknown,
    /// An object of this kind changed.
    Related(Arc<ApiResource>, ObjectKey),
    Custom(String),
}

impl Reason {
    pub(super) const fn bit(&self) -> u32 {
        match self {
            Self::Object => 1,
            Self::Bulk => 1 << 1,
            Self::Unknown => 1 << 2,
            Self::Related(..) | Self::Custom(_) => DETAILED,
        }
    }
}

const DETAILED: u32 = 1 << 3;

/// The details that the bits cannot hold. Each key that was added for a reason with details, and
/// has not been delivered since, has an entry with the details of its first such add.
#[derive(Default)]
pub(super) struct Details(Mutex<HashMap<ObjectKey, Reason>>);

impl Details {
    pub(super) fn note_detail(&self, key: &ObjectKey, reason: Reason) {
        if reason.bit() == DETAILED {
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
    pub(super) fn take_reason(&self, key: &ObjectKey, bits: u32, attempt: u32) -> ReconcileReason {
        let detail = if bits & DETAILED == 0 { None } else { self.0.lock().remove(key) };
        let has = |reason: Reason| bits & reason.bit() != 0;
        if attempt > 1 {
            ReconcileReason::ErrorPolicyRequestedRetry
        } else if has(Reason::Object) {
            ReconcileReason::ObjectUpdated
        } else if let Some(Reason::Related(kind, related)) = detail {
            let obj_ref = Box::new(related.to_ref::<DynamicObject>((*kind).clone()));
            ReconcileReason::RelatedObjectUpdated { obj_ref }
        } else if let Some(Reason::Custom(reason)) = detail {
            ReconcileReason::Custom { reason }
        } else if has(Reason::Bulk) {
            ReconcileReason::BulkReconcile
        } else if has(Reason::Unknown) {
            ReconcileReason::Unknown
        } else {
            ReconcileReason::ReconcilerRequestedRetry
        }
    }
}
