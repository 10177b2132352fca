//! Wakes the getters of this process, and tells their claims which groups have changed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::watch;

use crate::engine::turns::Turns;
use crate::engine::{Place, lock};

/// The counters of wakes of all queues of a store.
#[derive(Debug, Default)]
pub(crate) struct Wakes(Mutex<HashMap<i64, QueueWakes>>);

#[derive(Debug, Default)]
struct QueueWakes {
    /// Counts the wakes.
    sender: watch::Sender<u64>,
    /// The turns of each open handle, if the queue has groups.
    turns: Vec<Weak<Mutex<Turns>>>,
}

impl Wakes {
    /// Returns the counter of a queue's wakes. It changes with each wake.
    pub(crate) fn subscribe(&self, queue: &Place) -> watch::Receiver<u64> {
        let mut queues = lock(&self.0);
        let QueueWakes { sender, turns } = queues.entry(queue.id).or_default();
        if queue.group_by.is_some() {
            turns.retain(|turns| turns.strong_count() > 0);
            turns.push(Arc::downgrade(&queue.turns));
        }
        sender.subscribe()
    }

    /// Returns the ids of the queues that had getters in this process.
    #[cfg(feature = "postgres")]
    pub(crate) fn queues(&self) -> Vec<i64> {
        lock(&self.0).keys().copied().collect()
    }

    /// Wakes the getters of a queue. If the queue has groups, any group may have changed.
    pub(crate) fn wake_getters(&self, queue: i64) {
        self.wake_after(queue, Turns::forget_search);
    }

    /// Wakes the getters of a queue, as a poll does. No group has changed.
    #[cfg(feature = "postgres")]
    pub(crate) fn end_pause(&self, queue: i64) {
        self.wake_after(queue, |_| {});
    }

    /// Wakes the getters of a queue. If the queue has groups, `note` first changes the turns of each handle.
    pub(crate) fn wake_after(&self, queue: i64, note: impl Fn(&mut Turns)) {
        if let Some(QueueWakes { sender, turns }) = lock(&self.0).get(&queue) {
            // The turns are changed before the wake, because the claim that follows the wake must know the changed
            // groups.
            turns.iter().filter_map(Weak::upgrade).for_each(|turns| note(&mut lock(&turns)));
            sender.send_modify(|wakes| *wakes += 1);
        }
    }
}
