//! Adds the keys of changed objects to the queue.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use requeue_kube::ObjectKey;
use requeue_kube::watch::{Change, ChangeKind, LOW_PRIORITY};
use tokio::sync::SetOnce;
use tokio::time::MissedTickBehavior;

use super::objects::{Objects, Wish};
use crate::args::watch::{Initial, On};
use crate::input::{self, AddOptions};
use crate::key::Key;
use crate::runner::Runner;

/// Adds the keys of objects that need a run to the queue.
#[derive(Debug)]
pub(crate) struct Enqueuer {
    pub(crate) runner: Arc<Runner>,
    objects: Arc<Objects>,
    initial: Initial,
    /// True while another replica may lead. In this state, no key is added.
    stands_by: Mutex<bool>,
    /// Set after the first list of the objects.
    pub(crate) is_listed: SetOnce<()>,
}

impl Enqueuer {
    pub(crate) fn new(
        runner: &Arc<Runner>,
        objects: &Arc<Objects>,
        initial: Initial,
        stands_by: bool,
    ) -> Self {
        let (runner, objects) = (Arc::clone(runner), Arc::clone(objects));
        let (stands_by, is_listed) = (Mutex::new(stands_by), SetOnce::new());
        Self { runner, objects, initial, stands_by, is_listed }
    }

    /// Ends the standby when this process leads, and adds the existing objects.
    pub(crate) fn start_leading(&self) {
        let mut stands_by = self.stands_by.lock();
        *stands_by = false;
        // The lock is still held, so a later change is added after the existing objects.
        for key in self.objects.existing_keys(|_| true) {
            if self.objects.next_wish(&key).is_some_and(|wish| self.is_initial(wish)) {
                self.add_key(&key, LOW_PRIORITY, "leadership");
            }
        }
    }

    /// Handles an observation of an object. Only a change adds the key, because a list after an outage contains every
    /// object again.
    pub(crate) fn object_changed(&self, change: &Change) {
        if change.kind == ChangeKind::Unchanged {
            return;
        }
        let (runner, objects) = (&self.runner, &self.objects);
        let key = change.key.to_string().into_bytes();
        // The lock is held until the function returns. Otherwise, the term could begin between the check of the
        // standby and the add.
        let stands_by = self.stands_by.lock();
        match change.kind {
            ChangeKind::Deleted if *stands_by => objects.forget_object(&key),
            ChangeKind::Deleted => objects.record_gone(&key),
            ChangeKind::Created => objects.is_another(&key),
            _ => {}
        }
        if *stands_by {
            return;
        }
        let Some(wish) = objects.next_wish(&key) else {
            if change.kind == ChangeKind::Deleted {
                runner.take_change(input::Change::Cancel(Cow::Owned(key)), &mut 0);
            }
            return;
        };
        if change.kind == ChangeKind::Listed && !self.is_initial(wish) {
            return;
        }
        if matches!(
            change.kind,
            ChangeKind::Created | ChangeKind::NewGeneration | ChangeKind::Deleted
        ) {
            objects.is_wanted_anew(&key);
        }
        // A newer request must not wait for the backoff of an earlier failure.
        if objects.is_new(&key) {
            runner.end_backoff(&key);
        }
        self.add_key(&key, change.kind.priority(), &format!("object {}", change.kind));
    }

    /// Adds the keys of these objects, because a related object has changed.
    pub(crate) fn add_concerned(&self, keys: impl IntoIterator<Item = ObjectKey>, reason: &str) {
        let stands_by = self.stands_by.lock();
        if *stands_by {
            return;
        }
        for key in keys {
            let key = key.to_string().into_bytes();
            // An object that is not in the table yet is added when the watch lists it.
            if self.objects.next_wish(&key).is_some() {
                self.add_key(&key, 0, reason);
            }
        }
    }

    /// Adds each object once per period, with a lower priority than changes. Never returns.
    pub(crate) async fn resync(self: Arc<Self>, period: Duration) {
        let slice = (period / SLICES).max(Duration::from_millis(1));
        let mut ticks = tokio::time::interval(slice);
        // Each tick adds a different part of the objects, so a late tick is delayed and not skipped.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for slice in (0..SLICES).cycle() {
            ticks.tick().await;
            self.add_all(|key| slice_of(key) == slice, "resync");
        }
    }

    /// Adds the objects for which `wanted` is true, with a lower priority than changes.
    pub(crate) fn add_all(&self, wanted: impl Fn(&Key) -> bool, reason: &str) {
        let stands_by = self.stands_by.lock();
        if *stands_by {
            return;
        }
        for key in self.objects.existing_keys(wanted) {
            self.add_key(&key, LOW_PRIORITY, reason);
        }
    }

    /// Returns true if an object that exists at the start needs a run for this step.
    fn is_initial(&self, wish: Wish) -> bool {
        self.initial == Initial::Run || wish == Wish::Run(On::Delete)
    }

    fn add_key(&self, key: &[u8], priority: i32, reason: &str) {
        let reason = Some(requeue::intern_reason(reason));
        let options = AddOptions { priority, reason, ..AddOptions::default() };
        self.runner.take_change(input::Change::Add(Cow::Borrowed(key), options), &mut 0);
    }
}

/// The number of parts of a resync period. In each part, the program adds a different set of objects.
const SLICES: u32 = 100;

fn slice_of(key: &Key) -> u32 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    // The remainder is below `SLICES`, so the conversion loses nothing.
    (hasher.finish() % u64::from(SLICES)) as u32
}
