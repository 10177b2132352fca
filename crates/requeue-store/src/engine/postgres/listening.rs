//! Listens for notifications that a key may be ready, on a separate connection.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::poll_fn;
use tokio::sync::{Notify, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{Instant, sleep};
use tokio_postgres::{AsyncMessage, Client, Config};

use super::address::Address;
use super::guard::Connector;
use crate::engine::retry_delay::RetryDelay;
use crate::engine::wakes::Wakes;
use crate::engine::{Place, lock};
use crate::types::add::Priority;

/// The interval of warnings while there is no connection for notifications.
const REPORTING: Duration = Duration::from_secs(60);

/// Owns the task that listens. The task stops when this value is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    wakes: Arc<QueueWakes>,
    task: Mutex<Option<Task>>,
}

#[derive(Debug, Default)]
pub(super) struct QueueWakes {
    getters: Wakes,
    /// The number of notifications of cancelled runs that each queue has received.
    cancels: Mutex<HashMap<i64, u64>>,
    /// Notified when a queue is added to `getters`.
    more: Notify,
}

/// A task that is aborted when this value is dropped.
#[derive(Debug)]
pub(super) struct Task(AbortHandle);

impl Task {
    pub(super) fn new(task: &JoinHandle<()>) -> Self {
        Self(task.abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Listener {
    pub(super) fn new() -> Self {
        Self { wakes: Arc::default(), task: Mutex::default() }
    }

    pub(super) fn queue_wakes(&self) -> Arc<QueueWakes> {
        Arc::clone(&self.wakes)
    }

    /// Starts to listen for ready keys of the queue, if the address enables notifications. Returns the counter of
    /// wakes.
    pub(super) fn subscribe_wakes(
        &self,
        queue: &Place,
        address: &Address,
        tls: &Connector,
    ) -> watch::Receiver<u64> {
        let mut task = lock(&self.task);
        // The task may have stopped with the runtime on which an earlier queue was opened.
        if address.listen.is_some() {
            lock(&queue.turns).hear_wakes();
        }
        if let Some(config) = &address.listen
            && task.as_ref().is_none_or(|task| task.0.is_finished())
        {
            let wakes = Arc::downgrade(&self.wakes);
            let listening = run_listener(wakes, config.clone(), tls.clone());
            *task = Some(Task::new(&tokio::spawn(listening)));
        }
        drop(task);
        let receiver = self.wakes.getters.subscribe(queue);
        self.wakes.more.notify_one();
        receiver
    }

    /// Returns the number of notifications that a run of the queue was cancelled.
    pub(super) fn cancel_count(&self, queue: i64) -> u64 {
        lock(&self.wakes.cancels).get(&queue).copied().unwrap_or(0)
    }
}

/// The payload of notifications about cancelled runs: see `requeue.cancel_running`.
const CANCEL: &str = "cancel";
/// The first line of the payload of notifications about groups: see `requeue.wake_for_groups`.
const GROUPS: &str = "groups\n";

impl QueueWakes {
    fn note_cancel(&self, queue: i64) {
        *lock(&self.cancels).entry(queue).or_default() += 1;
    }

    pub(super) fn getters(&self) -> &Wakes {
        &self.getters
    }

    /// Handles a notification. A notification with an unknown payload wakes the getters.
    fn note(&self, queue: i64, payload: &str) {
        match payload.strip_prefix(GROUPS) {
            _ if payload == CANCEL => self.note_cancel(queue),
            Some(groups) => self.getters.wake_after(queue, |turns| {
                for (priority, group) in groups.lines().filter_map(group) {
                    turns.name_group(priority, group);
                }
            }),
            None => self.getters.wake_getters(queue),
        }
    }
}

/// Parses a line: a digit for the priority, with 0 for the lowest, and the name of a group.
fn group(line: &str) -> Option<(Priority, &str)> {
    let digit = line.chars().next()?.to_digit(10)?;
    let priority = Priority::ALL.get(digit as usize)?;
    Some((*priority, &line[1..]))
}

async fn run_listener(wakes: Weak<QueueWakes>, config: Config, tls: Connector) {
    let mut delay = RetryDelay::new();
    // The time of the last warning about the missing connection. Before the first warning, it is the time at which the
    // loss was detected.
    let mut told_at = None;
    while wakes.strong_count() > 0 {
        match config.connect(tls.clone()).await {
            Ok((client, mut connection)) => {
                // The connection works, so the first delay after its next loss is short.
                (delay, told_at) = (RetryDelay::new(), None);
                // The connection must not keep the wakes of a closed store alive, so its task has only a weak handle.
                let heard = wakes.clone();
                let driven = tokio::spawn(async move {
                    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                        match message {
                            Ok(AsyncMessage::Notification(note)) => {
                                let queue = note.channel().strip_prefix("requeue_");
                                let queue = queue.and_then(|queue| queue.parse().ok());
                                if let (Some(queue), Some(wakes)) = (queue, heard.upgrade()) {
                                    wakes.note(queue, note.payload());
                                }
                            }
                            Ok(_) => {}
                            Err(error) => {
                                // The loop connects again, and claims report an outage, so this message has only the
                                // level `debug`.
                                tracing::debug!(%error, "the connection for notifications was closed");
                                return;
                            }
                        }
                    }
                });
                // When the listener is dropped, or LISTEN fails, this value aborts the task, which closes the
                // connection.
                let _driver = Task::new(&driven);
                tokio::select! {
                    () = listen_to_queues(&wakes, &client) => {}
                    _ = driven => {}
                }
            }
            Err(error) => {
                let now = Instant::now();
                // This warning is about the connection for notifications, without which the process polls for keys.
                // Claims report an outage of the server.
                if now - *told_at.get_or_insert(now) >= REPORTING {
                    told_at = Some(now);
                    tracing::warn!(%error, "no connection for notifications: the \
                        process polls for keys");
                }
            }
        }
        sleep(delay.wait()).await;
    }
}

/// Sends LISTEN for each queue, until the connection is closed.
async fn listen_to_queues(wakes: &Weak<QueueWakes>, client: &Client) {
    let mut asked = HashSet::new();
    loop {
        let Some(strong) = wakes.upgrade() else { return };
        let mut new = strong.getters.queues();
        new.retain(|queue| !asked.contains(queue));
        new.sort_unstable();
        for queue in new {
            if client.batch_execute(&format!("listen requeue_{queue}")).await.is_err() {
                return;
            }
            asked.insert(queue);
            // Notifications before this LISTEN may be lost. Therefore, the getters claim again.
            strong.getters.wake_getters(queue);
            strong.note_cancel(queue);
        }
        // `notify_one` stores a permit. Therefore, this wait also ends if a queue was added after the list was read.
        strong.more.notified().await;
    }
}
