//! Wakes the getters of this process, and names changed groups to their claims.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::watch;

use crate::engine::turns::Turns;
use crate::engine::{Place, lock};

/// The getters of the queues of a store.
#[derive(Debug, Default)]
pub(crate) struct Wakes(Mutex<HashMap<i64, QueueWakes>>);

#[derive(Debug, Default)]
struct QueueWakes {
    /// The number of wakes.
    sender: watch::Sender<u64>,
    /// The turns of each handle of a queue with groups.
    turns: Vec<Weak<Mutex<Turns>>>,
}

impl Wakes {
    /// Returns the counter of the wakes of a queue.
    pub(crate) fn subscribe(&self, queue: &Place) -> watch::Receiver<u64> {
        let mut queues = lock(&self.0);
        let QueueWakes { sender, turns } = queues.entry(queue.id).or_default();
        if queue.group_by.is_some() {
            turns.retain(|turns| turns.strong_count() > 0);
            turns.push(Arc::downgrade(&queue.turns));
        }
        sender.subscribe()
    }

    /// Returns the queues that have had getters.
    #[cfg(feature = "postgres")]
    pub(crate) fn queues(&self) -> Vec<i64> {
        lock(&self.0).keys().copied().collect()
    }

    /// Wakes the getters. In a queue with groups, any group may have changed.
    pub(crate) fn wake_getters(&self, queue: i64) {
        self.wake_after(queue, Turns::forget_search);
    }

    /// Wakes the getters, as a poll does.
    #[cfg(feature = "postgres")]
    pub(crate) fn end_pause(&self, queue: i64) {
        self.wake_after(queue, |_| {});
    }

    /// Wakes the getters, after `note` has changed the turns of each handle of a queue with groups.
    pub(crate) fn wake_after(&self, queue: i64, note: impl Fn(&mut Turns)) {
        if let Some(QueueWakes { sender, turns }) = lock(&self.0).get(&queue) {
            // The groups are recorded before the wake, because the claim that follows the wake must
            // know the groups.
            turns.iter().filter_map(Weak::upgrade).for_each(|turns| note(&mut lock(&turns)));
            sender.send_modify(|wakes| *wakes += 1);
        }
    }
}
